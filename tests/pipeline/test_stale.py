"""`tools.report --stale` in a clone without data: a reviewer sees what DVC sees, and what it does not."""
import json
import sys

import pytest

from stages.lib import files
from tests.pipeline import scratch


@pytest.fixture
def clone(pipeline, tmp_path):
    scratch.run(pipeline, "git", "clone", "-q", pipeline, tmp_path / "clone")
    return tmp_path / "clone"


def report(workspace):
    """Exit code and {stage: reasons} of the report."""
    done = scratch.run(workspace, sys.executable, "-m", "tools.report", "--stale", check=False)
    assert not done.stderr
    return done.returncode, dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)


def test_a_clone_without_data_is_not_stale(clone):
    assert not (clone / "data/states").exists()
    assert report(clone) == (0, {})


def test_a_finished_workspace_is_not_stale(workspace):
    assert report(workspace) == (0, {})


def test_a_changed_param_is_reported(clone):
    scratch.set_params(clone, {"capture": {"offset": 0}})
    code, reasons = report(clone)
    assert code == 1 and set(reasons) == {"preflight", "extract"} and "params.yaml: capture modified" in reasons["extract"]


def test_a_changed_code_file_is_reported_for_each_stage_that_imports_it(clone):
    with open(clone / "stages/lib/loss.py", "a") as file:
        file.write("# a remark\n")
    code, reasons = report(clone)
    assert code == 1 and set(reasons) == {"preflight", "train", "evaluate"}
    assert all("stages/lib/loss.py modified" in why for why in reasons.values())


def test_an_edited_metric_is_reported(clone):
    figures = scratch.metrics(clone, "evaluate")
    files.write_json(clone / "metrics/evaluate.json", {**figures, "tau": figures["tau"] + 1})
    code, reasons = report(clone)
    assert code == 1 and set(reasons) == {"evaluate"} and "metrics/evaluate.json modified" in reasons["evaluate"]


def test_an_edited_prompt_file_is_reported(clone):
    with open(clone / "data/prompts/eval/chat.jsonl", "a") as file:
        file.write('{"id": "one-more", "prompt": "Why?"}\n')
    code, reasons = report(clone)
    assert code == 1 and set(reasons) == {"evaluate"} and "data/prompts/eval" in reasons["evaluate"]


def test_a_param_that_dvc_yaml_lost_is_reported_although_dvc_calls_the_stage_up_to_date(workspace):
    file = workspace / "dvc.yaml"
    before = file.read_text()
    file.write_text(before.replace("    - draft\n", "", 1))
    assert file.read_text() != before
    assert json.loads(scratch.run(workspace, "dvc", "status", "--json").stdout) == {}
    code, reasons = report(workspace)
    assert code == 1 and set(reasons) == {"preflight"} and "draft is in dvc.lock" in reasons["preflight"]
