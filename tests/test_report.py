"""What `tools.report` calls stale, on DVC's answers as they are and on this checkout."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline import scratch
from tools import report

ROOT = Path(__file__).parents[1]
IMAGE = {"docker/images.yaml": ["images.${engine.image}"]}
PIPELINE = {"stages": {"train": {"params": [IMAGE, "train", "draft"], "deps": ["data/states", "stages/train.py"], "outs": ["data/draft"],
                                 "metrics": [{"metrics/train.json": {"cache": False}}]}}}
LOCK = {"stages": {"train": {"params": {"params.yaml": {"train": {"lr": 1}, "draft": {"vocab_size": 2}},
                                        "docker/images.yaml": {"images.gpu": "f1"}},
                             "deps": [{"path": "data/states"}, {"path": "stages/train.py"}],
                             "outs": [{"path": "data/draft"}, {"path": "metrics/train.json"}]}}}
VALUES = {"engine": {"image": "gpu"}}


def test_absent_files_are_no_change():
    assert report.changed({"train": [{"changed outs": {"data/draft": "not in cache", "metrics/train.json": "deleted"}}]}) == {}


def test_the_reason_names_file_and_key():
    status = {"train": [{"changed deps": {"params.yaml": {"train.lr": "modified"}, "data/states": "deleted"}}, "changed command"]}
    assert report.changed(status) == {"train": ["changed deps: params.yaml: train.lr modified", "changed command"]}


def test_a_lock_that_agrees_with_the_pipeline_has_nothing_undeclared():
    assert report.undeclared(PIPELINE, LOCK, VALUES) == {}


@pytest.mark.parametrize("kind, value, said", [
    ("params", IMAGE, "docker/images.yaml: images.gpu is in dvc.lock but no longer among the params"),
    ("params", "draft", "params.yaml: draft is in dvc.lock but no longer among the params"),
    ("deps", "data/states", "data/states is in dvc.lock but no longer among the deps"),
    ("outs", "data/draft", "data/draft is in dvc.lock but no longer among the outs"),
])
def test_what_only_the_lock_remembers_is_reported(kind, value, said):
    stage = PIPELINE["stages"]["train"]
    fewer = {"stages": {"train": {**stage, kind: [entry for entry in stage[kind] if entry != value]}}}
    [(name, [why])] = report.undeclared(fewer, LOCK, VALUES).items()
    assert name == "train" and why.startswith(said)


# strict: once the pipeline has been run with this code, and dvc.lock and metrics are committed, this mark must go
@pytest.mark.xfail(strict=True, reason="dvc.lock and metrics are of commit 388ac88; the run that later code asks for was cut short")
def test_the_lock_of_this_commit_matches_its_code_and_params(tmp_path):
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tmp_path / "clone")], check=True)
    found = scratch.run(tmp_path / "clone", sys.executable, "-m", "tools.report", "--stale", check=False)
    assert (found.returncode, found.stdout) == (0, "dvc.lock matches code, params, commands and data\n"), found.stderr


def test_a_python_without_dvc_is_told_so_in_one_line(in_tmp):
    (in_tmp / "dvc.yaml").write_text("stages: [\n")  # dvc status cannot answer here
    found = subprocess.run([sys.executable, "-m", "tools.report", "--stale"], cwd=in_tmp, capture_output=True, text=True,
                           env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert found.returncode == 1 and found.stderr.startswith("refused: `dvc status` failed") and "activate" in found.stderr
    assert "Traceback" not in found.stderr
