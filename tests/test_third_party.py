"""Folders of other trainers, as they come: a healthy one raises no fault, whether or not its ids' meaning is given."""
from stages.lib import cpu  # noqa: F401  before torch

import pytest
import torch

from stages.contract import check, dialects
from stages.contract.folder import open_folder
from stages.lib import files
from tests.test_dialects import LLAMA, eagle, modelopt, modelopt_raw, speculators, specforge, weights, without

TARGET = {**LLAMA, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "eos_token_id": None}


def on(**changes):
    return check.Target({**TARGET, **changes}, None)


def eagle31(path, *lost):
    norms = {f"fc_norm.{i}.weight": torch.ones(16) for i in range(3)}
    return specforge(path, ids=[1, 14, 26], tensors=without({**weights(), **norms}, *lost), fc_norm=True, norm_output=True)


def flattened(path):
    """What speculators' draft becomes by hand: the fixed folder, without the record that the fix leaves."""
    dialects.write_fixed(open_folder(speculators(path.with_name("nested"))), path, on(rope_theta=5e5), check.Engine())
    (path / "training.json").unlink()
    return path


def as_draft(path):
    return eagle(path, architectures=["LlamaForCausalLMEagle3"], torch_dtype="bfloat16")


HEALTHY = {
    "SpecForge": (lambda p: specforge(p, ids=[1, 14, 26]), {}, "outputs"), "SpecForge without ids": (specforge, {}, "outputs"),
    "EAGLE": (as_draft, {"rope_theta": 10000}, "outputs"),
    "EAGLE-3.1": (eagle31, {}, "outputs"), "EAGLE-3.1 without t2d": (lambda p: eagle31(p, "t2d"), {}, "outputs"),
    "ModelOpt": (modelopt, {"rope_theta": 10000}, "outputs"), "speculators, flattened": (flattened, {"rope_theta": 5e5}, "outputs"),
    "SpecForge through an old Kimi server": (
        lambda p: specforge(p, ids=[3, 31, 59]),
        {"architectures": ["KimiK25ForConditionalGeneration"], "num_hidden_layers": 61}, "boundaries"),
}


@pytest.mark.parametrize("given", [False, True], ids=["as it comes", "--trained-on"])
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_folder_of_another_trainer_raises_no_fault(tmp_path, name, given):
    make, target, meaning = HEALTHY[name]
    folder = open_folder(make(tmp_path / "draft"))
    dialects.learn(folder, meaning if given else None)
    said = check.check(folder, on(**target), check.Engine())
    assert [str(f) for f in said if f.level == "fault"] == []


def test_the_reference_was_trained_with_theta_10000_whatever_the_target_has(tmp_path):
    path = eagle(tmp_path / "draft", torch_dtype="bfloat16")
    assert [f.code for f in check.check(open_folder(path), on(), check.Engine())] == ["EY-CONFIG-01", "EY-CONFIG-03"]
    dialects.write_fixed(open_folder(path), tmp_path / "fixed", on(), check.Engine())
    assert not [f for f in check.check(open_folder(tmp_path / "fixed"), on(), check.Engine()) if f.level == "fault"]
    files.write_json(path / "config.json", {**files.read_json(path / "config.json"), "rope_theta": 1e6})
    assert "EY-CONFIG-15" in [f.code for f in check.check(open_folder(path), on(), check.Engine()) if f.level == "fault"]


def codes(path, **target):
    return [f.code for f in check.check(open_folder(path), on(rope_theta=5e5, **target), check.Engine()) if f.level == "fault"]


def test_a_nested_config_is_one_fault_and_hides_no_other(tmp_path):
    assert codes(speculators(tmp_path / "healthy")) == ["EY-CONFIG-27"]
    norms = {f"midlayer.self_attn.{n}.weight": torch.ones(4) for n in ("q_norm", "k_norm")}
    absolute = weights()["d2t"] + torch.arange(20)
    ill = speculators(tmp_path / "ill", tensors={**weights(), **norms, "d2t": absolute}, norm_before_residual=True)
    assert codes(ill) == ["EY-TENSOR-05", "EY-CONFIG-22", "EY-CONFIG-27", "EY-VOCAB-03"]
    assert codes(speculators(tmp_path / "other", speculators_model_type="dflash")) == ["EY-CONFIG-27"]


def test_a_raw_modelopt_checkpoint_is_one_fault(tmp_path):
    assert codes(modelopt_raw(tmp_path / "draft")) == ["EY-FILE-05"]
