"""The watcher on SGLang's real draft class: what it reports of a healthy server, and of one whose draft never sees the aux states.

The worker around it is a stand-in that does what EAGLEWorkerV2 does with a chain of 3: EAGLE-3 cannot be served on a CPU.
"""
from types import SimpleNamespace

import pytest
import torch

from stages.engines.sglang_watch import Watch
from stages.lib import files
from tests.contract import draft, golden, sglang_real as real

K, H = golden.K, golden.H
REQUEST, PROBE = [SimpleNamespace(rid="6f0c")], [SimpleNamespace(rid="HEALTH_CHECK_1")]


@pytest.fixture
def server(tmp_path):
    config, _ = golden.healthy()
    model = draft.build(config)
    phases = SimpleNamespace(prefill=SimpleNamespace(backend="disabled"), decode=SimpleNamespace(backend="disabled"))
    arguments = SimpleNamespace(speculative_algorithm="EAGLE3", cuda_graph_config=phases)
    target = real.target("LlamaForCausalLM")
    target.set_eagle3_layers_to_capture([1, 2, 3])
    watch = Watch(tmp_path / "watch.json")
    watch.model(None, SimpleNamespace(is_draft_worker=False, model=target, server_args=arguments, tp_rank=0))
    watch.model(None, SimpleNamespace(is_draft_worker=True, model=model, server_args=arguments, tp_rank=0))

    def run(mode, reqs, widths):
        def forward(worker, batch):
            for width in widths:  # of the states that the draft is handed in each of its forwards
                spec = SimpleNamespace(hidden_states=torch.zeros(2, width))
                model.model(torch.arange(2), torch.arange(2), real.Batch(forward_mode=real.ForwardMode.EXTEND, spec_info=spec,
                                                                         contains_mm_inputs=lambda: False))
        batch = SimpleNamespace(forward_mode=mode, is_extend_in_batch=False, reqs=reqs)
        with torch.inference_mode():
            watch.step(forward, None, batch)
    return run, tmp_path / "watch.json"


def test_the_first_real_steps_of_a_healthy_server_are_reported(server):
    run, path = server
    extend, decode = real.ForwardMode.EXTEND, real.ForwardMode.DECODE
    run(extend, PROBE, [K * H])
    run(decode, PROBE, [H])
    assert "prefill" not in files.read_json(path) and "verify" not in files.read_json(path)
    run(extend, REQUEST, [K * H])
    run(decode, REQUEST, [H, H, K * H])
    run(decode, REQUEST, [H, H, H])
    report = files.read_json(path)
    aux, own = {"width": K * H, "fc_calls": 1}, {"width": H, "fc_calls": 0}
    assert report["prefill"] == [aux] and report["verify"] == [own, own, aux]
    assert report["fc"] == [H, K * H] and report["hidden_size"] == H and report["draft_class"] == golden.LLAMA
    assert report["layers_to_capture"] == [2, 3, 4] and report["algorithm"] == "EAGLE3" and report["graphs"] is False
    assert report["sglang"] == real.VERSION and report["target_class"] == "LlamaForCausalLM"


def test_a_draft_that_never_sees_the_aux_states_shows_no_call_of_fc(server):
    run, path = server
    run(real.ForwardMode.DECODE, REQUEST, [H, H, H])
    assert sum(step["fc_calls"] for step in files.read_json(path)["verify"]) == 0
