"""A launch line is read as SGLang's own parser reads it, and the checks say what the doctor's repairs say."""
from stages.lib import cpu  # noqa: F401  before torch
from types import SimpleNamespace

import pytest

from stages.contract import check, dialects, launch
from stages.contract.folder import open_folder
from stages.lib.refusal import Refusal
from tests.test_dialects import LLAMA, specforge

LINE = "python -m sglang.launch_server --model-path t --speculative-algorithm EAGLE3 --speculative-draft-model-path d"
TARGET = check.Target({**LLAMA, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 1e6}, None)


@pytest.mark.parametrize("written, flag", [
    ("--speculative-draft-model d", "speculative-draft-model-path"), ("--speculative_draft_model_path=d", "speculative-draft-model-path"),
    ("--tp d", "tp-size"), ("--tensor-parallel-size d", "tp-size"), ("--model d", "model-path"),
    ("--speculative-dflash-draft-window-size d", "speculative-draft-window-size")])
def test_every_spelling_of_a_flag_is_the_flag(written, flag):
    assert launch.parse(f"python -m sglang.launch_server {written}") == {flag: "d"}


@pytest.mark.parametrize("line", ["garbage", "", "python -m sglang.launch_server", "SGLANG_SIMULATE_ACC_LEN=3 python x"])
def test_a_line_without_a_flag_is_refused(line):
    with pytest.raises(Refusal, match="holds no flag; expected"):
        launch.parse(line)


def codes(path, line, version=check.PINNED):
    return [f.code for f in check.check(open_folder(path), TARGET, check.Engine(version, launch.parse(line))) if f.level == "fault"]


def test_graphs_that_are_off_capture_nothing_wrong(tmp_path):
    path = specforge(tmp_path / "draft", ids=[2, 14, 20])
    assert codes(path, LINE, "0.5.10.post1") == ["EY-RULE-13"] and codes(path, f"{LINE} --disable-cuda-graph", "0.5.10.post1") == []


@pytest.mark.parametrize("trained, served", [(None, None), (2048, None), (2048, 2048), (2048, 64), (None, 64)])
def test_check_and_fix_agree_on_the_window(tmp_path, trained, served):
    path = specforge(tmp_path / "draft", ids=[1, 14, 26], use_sliding_window=bool(trained), sliding_window=trained)
    line = LINE + (f" --speculative-draft-window-size {served}" if served else "")
    engine = SimpleNamespace(version=check.PINNED, flags=launch.parse(line))
    cannot = dialects.fixed(open_folder(path), TARGET, engine)[3]
    assert (codes(path, line) == ["EY-FLAG-06"]) == any("window" in line for line in cannot) == (trained != served)
