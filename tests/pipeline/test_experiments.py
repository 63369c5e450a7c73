"""Experiments and diffs in a clean clone that shares only DVC's cache with the workspace in which the pipeline ran."""
import csv
import io
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.pipeline import scratch
from tests.pipeline.conftest import alone


def processes_in(folder):
    """Ids of the processes whose working directory is in `folder`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if entry.readlink().is_relative_to(folder):
                found.append(int(entry.parent.name))
        except OSError:  # gone, or another user's
            pass
    return found


@pytest.fixture(scope="session")
def said(shared, long_changed):
    """What each command of the story said: experiments in a clean clone, once for all test processes.

    One experiment with another capture offset (which was run before, so that its stages come from DVC's run cache), a
    queued sweep over two learning rates, of which the second was never run, and the questions that a reviewer asks.
    """
    source, _ = long_changed
    clone = shared / "clone"
    with alone(shared, "experiments") as done:
        if not done.exists():
            try:
                done.write_text(json.dumps(story(source, clone)))
            finally:
                for pid in processes_in(clone):
                    os.kill(pid, signal.SIGKILL)
        return json.loads(done.read_text())


def story(source, clone):
    scratch.run(source, "git", "clone", "-q", source, clone)
    scratch.identify(clone)

    def run(*command):
        return scratch.run(clone, *command).stdout

    run("dvc", "config", "--local", "cache.dir", source / ".dvc/cache")
    run("dvc", "checkout", "-q")
    found = {"clean": run("dvc", "repro") + run("git", "status", "--porcelain")}
    found["single"] = run("dvc", "exp", "run", "-n", "input-of-layer", "-S", "capture.offset=0")
    found["metrics diff"] = run("dvc", "metrics", "diff", "--md", "HEAD")
    found["params diff"] = run("dvc", "params", "diff", "--md", "HEAD")
    scratch.reset(clone)
    for name, lr in (("lr-high", "0.002"), ("lr-low", "0.0001")):
        run("dvc", "exp", "run", "--queue", "-n", name, "-S", f"train.lr={lr}")
    run("dvc", "exp", "run", "--run-all", "-j", "1")
    deadline = time.monotonic() + 30
    while processes_in(clone) and time.monotonic() < deadline:
        time.sleep(0.1)
    found["left"] = processes_in(clone)
    found["queue"] = run("dvc", "queue", "status")
    found["log"] = run("dvc", "queue", "logs", "lr-low")
    found["show"] = run("dvc", "exp", "show", "--csv")
    found["diff"] = run("dvc", "exp", "diff", "HEAD", "lr-low", "--md")
    found["status"] = run("git", "status", "--porcelain")
    return found


def test_a_clean_clone_with_the_shared_cache_is_up_to_date(said):
    assert scratch.ran(said["clean"]) == [] and said["clean"].endswith("up to date.\n")


def test_an_experiment_recomputes_what_the_offset_reaches_and_no_more(said):
    assert re.findall(r"^(?:Running stage|Stage) '(\w+)'(?: is cached|:)", said["single"], re.M) == [
        "preflight", "extract", "train", "export", "evaluate"]


def test_a_queued_experiment_runs_what_the_learning_rate_reaches_in_a_copy_without_our_state(said):
    assert scratch.ran(said["log"]) == ["train", "export", "evaluate"]


def test_metrics_and_params_diff_name_what_changed_against_a_commit(said):
    assert re.search(r"\| metrics/evaluate.json *\| tau *\|", said["metrics diff"])
    assert re.findall(r"\| params.yaml *\| ([\w.]+) *\| (\S+) *\| (\S+) *\|", said["params diff"]) == [("capture.offset", "1", "0")]


def test_exp_show_gives_tau_of_each_experiment_beside_what_was_changed(said):
    rows = {row["Experiment"]: row for row in csv.DictReader(io.StringIO(said["show"]))}
    names = ("input-of-layer", "lr-high", "lr-low")
    assert all(float(rows[name]["metrics/evaluate.json:tau"]) >= 1 for name in names)
    assert [(float(rows[name]["train.lr"]), rows[name]["capture.offset"]) for name in names] == [
        (0.0015, "0"), (0.002, "1"), (0.0001, "1")]


def test_an_experiment_can_be_compared_by_name(said):
    assert re.search(r"\| params.yaml *\| train.lr *\| 0.0015 *\| 0.0001 *\|", said["diff"])


def test_the_sweep_leaves_the_workspace_as_it_was(said):
    assert said["status"] == ""


def test_the_queue_leaves_no_worker_behind(said):
    assert said["left"] == [] and "0 active" in said["queue"]
