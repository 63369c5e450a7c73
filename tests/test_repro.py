"""tools/repro.py on a real DVC project of two shell stages, and the scratch copy of tools/workspace.py."""
import difflib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings, strategies as st

from stages.lib.params import read_yaml
from stages.lib.refusal import Refusal
from tools import repro, workspace

ROOT = Path(__file__).resolve().parents[1]
DVC_YAML = """\
stages:
  first:
    cmd: mkdir data/numbers && cp params.yaml data/numbers/copy
    params:
    - value
    outs:
    - data/numbers
  second:
    cmd: sh second.sh
    deps:
    - data/numbers
    - second.sh
    outs:
    - data/result
    metrics:
    - metrics/second.json:
        cache: false
"""
GOOD = "mkdir data/result; echo good > data/result/file; mkdir -p metrics; echo '{\"tau\": 2}' > metrics/second.json\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A DVC project that ran once: data/numbers, data/result and metrics/second.json are there and recorded."""
    monkeypatch.chdir(tmp_path)
    for name, text in {"dvc.yaml": DVC_YAML, "params.yaml": "value: 1\n", "second.sh": GOOD, "data/.gitignore": "*\n",
                       ".dvcignore": ".eyrie\n",
                       ".dvc/config": '[core]\n    no_scm = true\n[cache]\n    type = "hardlink,symlink"\n'}.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    done = run_repro()
    assert done.returncode == 0, done.stderr
    return tmp_path


def start_repro(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DVC_NO_ANALYTICS": "1", "DVC_SITE_CACHE_DIR": str(Path(".site").absolute())}
    return subprocess.Popen([sys.executable, "-m", "tools.repro", *arguments], env=environment, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_repro(*arguments):
    process = start_repro(*arguments)
    process.stdout, process.stderr = map(Text, process.communicate())
    return process


class Text(str):
    """What a finished process said; Popen closes its streams when it is collected."""
    def close(self):
        pass


def outputs():
    return {name: Path(name).read_text() for name in ("data/result/file", "metrics/second.json") if Path(name).exists()}


def test_failed_stage_leaves_the_last_good_outputs_and_dvcs_exit_code(project):
    before = outputs()
    Path("second.sh").write_text("mkdir -p metrics; echo '{\"tau\": 1}' > metrics/second.json; exit 3\n")
    done = run_repro()
    assert done.returncode == 255  # DVC's for a failed stage
    assert outputs() == before and len(before) == 2
    assert "second: restored data/result (DVC's cache)" in done.stderr
    assert "second: restored metrics/second.json" in done.stderr


def test_what_an_upstream_stage_finished_is_not_rolled_back(project):
    Path("params.yaml").write_text("value: 2\n")
    Path("second.sh").write_text("exit 3\n")
    run_repro()
    assert Path("data/numbers/copy").read_text() == "value: 2\n"
    assert Path("data/result/file").read_text() == "good\n"


def test_remains_of_a_killed_run_do_not_become_the_last_good_metrics(project):
    before = outputs()
    Path("metrics/second.json").write_text("{}")  # what a stage wrote before it was killed
    Path("second.sh").write_text("exit 3\n")
    run_repro()
    assert outputs() == before


def test_output_that_is_not_in_the_cache_is_named(project):
    for path in Path(".dvc/cache/files").rglob("*.dir"):
        path.unlink()
    Path("second.sh").write_text("exit 3\n")
    assert "could not restore data/result" in run_repro().stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_ends_every_process_and_restores(project, number):
    before = outputs()
    # the first sleeper ignores an interrupt, as background jobs of a shell do
    Path("second.sh").write_text("sleep 301 & sleep 302\n")
    process = start_repro()
    deadline = time.monotonic() + 60
    while len(sleepers := sleeping_below(process.pid)) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    assert outputs() == {}
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert [sleeper for sleeper in sleepers if sleeper.is_running() and sleeper.status() != psutil.STATUS_ZOMBIE] == []
    assert outputs() == before, said


def sleeping_below(pid):
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if process.name() == "sleep":
                found.append(process)
        except psutil.NoSuchProcess:
            pass
    return found


def test_success_prints_time_and_headline(project):
    Path("second.sh").write_text(GOOD)
    Path("metrics/evaluate.json").write_text('{"tau": 2.5, "tau_lo": 2.25, "tau_hi": 2.75, "n": 120}')
    last = run_repro().stdout.strip().splitlines()[-1]
    assert last.startswith("done in ") and last.endswith("accept length 2.500 (95 % interval 2.250 to 2.750, n = 120)")


def test_second_repro_in_one_checkout_is_refused(in_tmp):
    with repro.only_one(), pytest.raises(Refusal, match="another repro"):
        repro.only_one()
    repro.only_one().close()


PARAMS = """\
# about the file
target:
  name: big  # a comment beside
  revision: ''

capture:
  layer_ids:
  - 1
  - 14
  - 26

  # a comment below a list
  offset: 1
train:
  lr: 1.0e-4
  seed: 0
"""


def overlaid(path, values):
    """Lines removed and added by an overlay."""
    path.write_text(PARAMS)
    repro.overlay(path, values)
    return [line for line in difflib.ndiff(PARAMS.splitlines(), path.read_text().splitlines()) if line[0] in "+-"]


def test_profile_changes_its_lines_and_no_other(tmp_path):
    params = tmp_path / "params.yaml"
    assert overlaid(params, {"train": {"seed": 7}}) == ["-   seed: 0", "+   seed: 7"]
    assert overlaid(params, {"target": {"name": "tiny"}}) == ["-   name: big  # a comment beside",
                                                              "+   name: tiny # a comment beside"]
    assert overlaid(params, {"capture": {"layer_ids": [1, 2, 26]}}) == ["-   - 14", "+   - 2"]
    assert overlaid(params, {"target": {"name": "big"}, "train": {"lr": 0.0001}}) == []


@settings(deadline=None)  # a shared machine may stall for a second
@given(st.lists(st.integers(0, 60), min_size=1, max_size=6), st.floats(1e-9, 1e3))
def test_overlaid_values_read_back_and_comments_stay(tmp_path_factory, ids, lr):
    path = tmp_path_factory.getbasetemp() / "overlaid.yaml"
    overlaid(path, {"capture": {"layer_ids": ids}, "train": {"lr": lr}})
    values = read_yaml(path)
    assert values["capture"] == {"layer_ids": ids, "offset": 1}
    assert values["train"] == {"lr": lr, "seed": 0}
    assert path.read_text().count("#") == 3
    repro.overlay(path, {"capture": {"layer_ids": [1, 14, 26]}, "train": {"lr": 1.0e-4}})
    assert read_yaml(path) == read_yaml_text(path.with_name("original.yaml"))
    assert "\n\n  # a comment below a list\n  offset: 1\n" in path.read_text()


def read_yaml_text(path):
    path.write_text(PARAMS)
    return read_yaml(path)


@pytest.mark.parametrize("values, named", [({"train": {"epochs": 1}}, "train.epochs"), ({"evaluate": {"n": 1}}, "evaluate"),
                                           ({"train": 3}, "train"), ({"train": {"seed": {"a": 1}}}, "train.seed")])
def test_overlay_of_an_unknown_or_misshapen_key_is_refused_and_writes_nothing(tmp_path, values, named):
    path = tmp_path / "params.yaml"
    with pytest.raises(Refusal, match=f"sets {named}"):
        overlaid(path, {"target": {"name": "tiny"}, **values})
    assert path.read_text() == PARAMS


def test_unknown_profile_is_refused_with_the_known_ones(in_tmp):
    Path("profiles").mkdir()
    Path("profiles/smoke.yaml").write_text("{}\n")
    with pytest.raises(Refusal, match="there are: smoke"):
        repro.apply_profile("smok")


@pytest.mark.parametrize("profile", sorted((ROOT / "profiles").glob("*.yaml")), ids=lambda path: path.stem)
def test_profiles_fit_the_params(tmp_path, profile):
    path = tmp_path / "params.yaml"
    path.write_bytes((ROOT / "params.yaml").read_bytes())
    repro.overlay(path, read_yaml(profile), profile)


def test_params_are_in_the_form_that_dvc_writes(tmp_path):
    """Otherwise the first `dvc exp run -S` or profile would reformat the whole file."""
    from dvc.utils.serialize import modify_yaml

    path = tmp_path / "params.yaml"
    path.write_bytes((ROOT / "params.yaml").read_bytes())
    with modify_yaml(path):
        pass
    assert path.read_bytes() == (ROOT / "params.yaml").read_bytes()


def test_workspace_is_a_committed_copy_without_outputs(tmp_path):
    copy = workspace.make(tmp_path / "copy", {"train": {"seed": 12345}})
    assert read_yaml(copy / "params.yaml")["train"]["seed"] == 12345
    assert read_yaml(ROOT / "params.yaml")["train"]["seed"] != 12345
    assert workspace.git(copy, "status", "--porcelain") == ""
    assert {path.name for path in (copy / "data").iterdir()} <= {".gitignore", "prompts"}
    assert not (copy / ".eyrie").exists() and not (copy / ".venv").exists()
    assert (copy / ".dvc/config").exists() and (copy / "stages/train.py").exists()
    with pytest.raises(Refusal, match="not empty"):
        workspace.make(copy)
