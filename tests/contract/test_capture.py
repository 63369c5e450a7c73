"""The capture plugin in SGLang's real engine on a CPU: chunked prefill, mixed steps, shared prefixes, several calls at once.

Other classes of sglang_real.TARGETS, and several ranks (a minute each):
`EYRIE_CAPTURE_TARGETS=LlamaForCausalLM,Qwen3ForCausalLM:2 make test-contract ARGS="-k every_row"`
DeepSeek's is not among them: without a cached prefix, SGLang's plain attention on a CPU computes MLA wrongly, with or without this
plugin (0.5.15.post1: none of 12 greedy tokens is transformers'); in steps that continue a chunk its rows agree. gpt-oss asks for triton.
"""
import os

import pytest
import torch
from safetensors.torch import load_file

from stages.engines import sglang_rows
from stages.lib import files
from tests.contract import engine


TARGETS = os.environ.get("EYRIE_CAPTURE_TARGETS", "Qwen3MoeForCausalLM").split(",")


@pytest.fixture(scope="module", params=TARGETS)
def captured(request, tmp_path_factory):
    """(folder, [(token ids, first, what was captured, transformers' output)])"""
    folder = tmp_path_factory.mktemp("engine")
    target, _, tp = request.param.partition(":")
    engine.run(target, int(tp or 1), folder)
    import transformers  # here: at its first import it must find the hollow packages, or SGLang cannot be imported by other tests
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
    with torch.inference_mode():
        plain = [model(torch.tensor([ids]), output_hidden_states=True) for ids in engine.sequences()]
    rows = [load_file(folder / f"{i}.safetensors") for i in range(len(plain))]
    return folder, list(zip(engine.sequences(), engine.firsts(), rows, plain))


def test_every_row_is_transformers_row_of_its_boundary_and_of_no_neighbour(captured):
    for ids, _, rows, plain in captured[1]:
        assert len(rows["aux"]) == len(ids)
        for chunk, boundary in zip(rows["aux"].chunk(len(engine.BOUNDARIES), -1), engine.BOUNDARIES):
            cosine = lambda b: torch.cosine_similarity(chunk, plain.hidden_states[b][0], dim=1).min()  # noqa: B023
            assert cosine(boundary) > 0.9999
            assert all(cosine(b) < 0.99 for b in (boundary - 1, boundary + 1) if b < len(plain.hidden_states) - 1)


def test_last_is_the_post_norm_state_and_next_ids_are_the_targets_own(captured):
    for _, first, rows, plain in captured[1]:
        torch.testing.assert_close(rows["last"], plain.hidden_states[-1][0], atol=1e-4, rtol=1e-4)
        assert torch.equal(rows["next_id"][first:].long(), plain.logits[0, first:].argmax(-1))
        assert (rows["next_id"][:first] == -1).all()


def test_the_plugin_reports_what_it_loaded_and_leaves_no_rows_behind(captured):
    folder = captured[0] / "rows"
    report = files.read_json(folder / sglang_rows.PLUGIN)
    assert report["layers_to_capture"] == engine.BOUNDARIES and report["model_class"] in {name.partition(":")[0] for name in TARGETS}
    assert report["dtype"] == "float32" and report["file"].endswith("sglang/__init__.py")
    assert [path.name for path in folder.iterdir()] == [sglang_rows.PLUGIN]
