"""Preflight names a fault of the plan before anything is paid for; a warm start goes on from what serves, and from nothing else."""
import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from stages import export, preflight, train
from stages.lib import files, served_folder, warm_start
from stages.lib.refusal import Refusal
from tests.pipeline import scratch
from tests.pipeline.test_stages import refused


def report(folder):
    return json.loads((folder / ".eyrie/preflight/report.json").read_text())


def test_the_report_says_what_will_be_captured_and_what_the_plan_costs(pipeline):
    found = report(pipeline)
    assert (found["boundaries"], found["ids"], found["sglang"]) == ([2, 3, 5], [1, 2, 4], "0.5.15.post1")
    assert [f for f in found["findings"] if f["level"] == "fault"] == [] and found["parity"]["cosine_p1_min"] > 0.995
    traces = files.read_json(pipeline / "data/traces/manifest.json")
    assert found["plan"]["documents"] >= traces["rows"] and found["plan"]["tokens"] >= traces["response_tokens"] + traces["prompt_tokens"]
    assert all(found["tokens_per_s"][stage] > 0 for stage in ("generate", "extract", "train"))


def test_the_output_has_constant_bytes(pipeline, long_changed):
    assert scratch.bytes_of(pipeline / "data/preflight") == scratch.bytes_of(long_changed[0] / "data/preflight")


@pytest.mark.parametrize("params, code", [
    ({"capture": {"layer_ids": [0, 2, 4], "offset": 0}}, "EY-RULE-06"),        # the embedding, which no id reaches for a Llama
    ({"capture": {"layer_ids": [4]}}, "EY-CONFIG-30"),                         # one state of the draft's own width: no fusion
    ({"export": {"sglang": "0.5.10.post1"}}, "EY-RULE-13"),                    # its decode graphs know the default boundaries only
    ({"export": {"dtype": "float16"}}, "EY-CONFIG-18"),                        # the target is served in bfloat16
    ({"export": {"dtype": "float32"}}, "EY-CONFIG-17"),
])
def test_a_fault_of_the_settings_is_named_before_the_first_answer(inside, params, code):
    scratch.set_params(inside, params)
    said = refused(inside, preflight.main, code)
    assert said.count("EY-") == 1, said


def test_a_class_that_this_server_does_not_capture_is_named(inside):
    manifest = files.read_json("data/target/manifest.json")
    files.write_json("data/target/manifest.json", {**manifest, "architecture": "GraniteForCausalLM"})
    assert "GraniteForCausalLM" in refused(inside, preflight.main, "EY-RULE-01")


def test_a_version_that_no_table_holds_is_refused(inside):
    scratch.set_params(inside, {"export": {"sglang": "0.6.1"}})
    refused(inside, preflight.main, "no contract for SGLang 0.6.1")


def test_a_disk_too_small_for_the_plan_is_named(inside, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    assert "bytes" in refused(inside, preflight.main, "EY-PLAN-01")


def test_a_plan_over_the_allowed_hours_is_named(inside):
    scratch.set_params(inside, {"exec": {"max_hours": 1e-6}})
    assert "hours" in refused(inside, preflight.main, "EY-PLAN-02")


# Warm start.

@pytest.fixture
def start(inside):
    """A copy of the workspace's own export to start from, and its digest."""
    shutil.copytree("data/export", "data/prompts/start")
    return "data/prompts/start", digest("data/prompts/start")


def digest(folder):
    with pytest.raises(Refusal, match="train.init_sha256 is empty") as caught:
        warm_start.opened(folder, "")
    return str(caught.value).split("set train.init_sha256 to ")[1]


def set_start(inside, folder, sha256, **draft):
    scratch.set_params(inside, {"train": {"init": folder, "init_sha256": sha256}, **({"draft": draft} if draft else {})})


def test_a_warm_start_inherits_weights_and_map(inside, start):
    set_start(inside, *start)
    preflight.main()
    before = load_file("data/export/model.safetensors")
    about, manifest = files.read_json("data/target/manifest.json"), files.read_json("data/states/manifest.json")
    p = SimpleNamespace(vocab_size=256, intermediate_size=128)
    shape, weights, d2t = warm_start.load(*start, about, manifest["boundaries"], p)
    assert torch.equal(d2t, before["d2t"]) and shape.num_aux == 3
    assert all(torch.equal(w, before[name].float()) for name, w in weights.items()) and len(weights) == len(before) - 1
    train.main()
    assert torch.equal(load_file("data/draft/draft.safetensors")["d2t"], before["d2t"])
    first, again = (scratch.metrics(path, "train")["train_loss"] for path in (inside.parent / "workspace", inside))
    assert again <= first


def test_a_warm_started_draft_loses_less_than_a_fresh_one(inside, start):
    """The first logged loss of the second round lies under the first round's."""
    fresh = (inside / "metrics/curve.csv").read_text().splitlines()[1].split(",")[1]
    set_start(inside, *start)
    train.main()
    warm = (inside / "metrics/curve.csv").read_text().splitlines()[1].split(",")[1]
    assert float(warm) < float(fresh)


def test_a_start_that_is_not_the_pinned_one_is_refused_with_both_digests(inside, start):
    set_start(inside, start[0], "0" * 64)
    for main in (preflight.main, train.main):
        assert start[1] in refused(inside, main, "has the digest .* train.init_sha256 is 0000")


def changed_start(change):
    """A start whose files were changed; its own digest is given, so that only the change is at fault."""
    def make(inside, start):
        folder = inside / start[0]
        config, weights, training = files.read_json(folder / "config.json"), load_file(folder / "model.safetensors"), \
            files.read_json(folder / "training.json")
        change(config, weights, training)
        files.write_json(folder / "config.json", config)
        (folder / "model.safetensors").unlink()
        save_file({n: w.contiguous() for n, w in weights.items()}, folder / "model.safetensors")
        files.write_json(folder / "training.json", training)
        set_start(inside, start[0], digest(start[0]))
    return make


def other_map(config, weights, training):
    weights["d2t"] = (weights["d2t"] + torch.arange(256)).add(1) - torch.arange(256)


@pytest.mark.parametrize("change, said", [
    (other_map, "EY-VOCAB-08"),
    (lambda config, weights, training: config.update(tie_word_embeddings=True), "EY-CONFIG-07"),
    (lambda config, weights, training: weights.pop("norm.weight"), "EY-TENSOR-02"),
    (lambda config, weights, training: training.update(boundaries=[1, 2, 4]), r"trained on the boundaries \[1, 2, 4\]"),
    (lambda config, weights, training: training["target_files"].update({"tokenizer.json": "0" * 64}), "EY-TARGET-01"),
])
def test_a_start_with_a_fault_is_refused_by_preflight(inside, start, change, said):
    changed_start(change)(inside, start)
    refused(inside, preflight.main, said)


def test_a_stale_map_is_refused_with_both_hashes(inside, start):
    changed_start(other_map)(inside, start)
    said = refused(inside, preflight.main, "EY-VOCAB-08")
    assert files.read_json(inside / start[0] / "training.json")["vocabulary"][:12] in said
    assert served_folder.digest(load_file(inside / start[0] / "model.safetensors")["d2t"])[:12] in said


def test_a_start_of_another_size_names_the_param(inside, start):
    set_start(inside, *start, intermediate_size=96)
    for main in (preflight.main, train.main):
        refused(inside, main, "draft.intermediate_size is 96, the draft in train.init has 128")


def test_a_target_tuned_further_may_be_started_on(inside, start):
    changed_start(lambda config, weights, training: training["target_files"].update({"config.json": "0" * 64}))(inside, start)
    preflight.main()


# Export.

def test_export_refuses_a_draft_whose_map_is_not_the_trained_one(inside):
    weights = load_file("data/draft/draft.safetensors")
    weights["d2t"] = weights["d2t"] + 1
    (inside / "data/draft/draft.safetensors").unlink()
    save_file(weights, "data/draft/draft.safetensors")
    said = refused(inside, export.main, "was trained with")
    assert files.read_json("data/draft/manifest.json")["vocabulary"] in said


def test_export_names_a_weight_that_is_not_finite(inside):
    weights = load_file("data/draft/draft.safetensors")
    weights["norm.weight"][3] = torch.nan
    (inside / "data/draft/draft.safetensors").unlink()
    save_file(weights, "data/draft/draft.safetensors")
    assert "norm.weight" in refused(inside, export.main, "EY-TENSOR-11")
