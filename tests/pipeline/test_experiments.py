"""Experiments and diffs in a clean clone that shares only DVC's cache with the workspace in which the pipeline ran."""
import csv
import io
import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.pipeline import scratch


@pytest.fixture(scope="module")
def clone(changed, tmp_path_factory):
    """The clone, its data brought from the cache. Nothing that DVC starts in it outlives the tests."""
    source, _ = changed
    path = tmp_path_factory.mktemp("experiments") / "clone"
    scratch.run(source, "git", "clone", "-q", source, path)
    scratch.identify(path)
    scratch.run(path, "dvc", "config", "--local", "cache.dir", source / ".dvc/cache")
    scratch.run(path, "dvc", "checkout", "-q")
    yield path
    for pid in processes_in(path):
        os.kill(pid, signal.SIGKILL)


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


def rows(clone):
    """{experiment or revision: row} of `dvc exp show`."""
    table = csv.DictReader(io.StringIO(scratch.run(clone, "dvc", "exp", "show", "--csv").stdout))
    return {row["Experiment"] or row["rev"]: row for row in table}


@pytest.fixture(scope="module")
def swept(clone):
    """One experiment with another capture offset and a queued sweep over two learning rates; then the clone as before."""
    single = scratch.run(clone, "dvc", "exp", "run", "-n", "input-of-layer", "-S", "capture.offset=0")
    diffs = {name: scratch.run(clone, "dvc", name, "diff", "--md", "HEAD").stdout for name in ("metrics", "params")}
    scratch.run(clone, "git", "checkout", "-q", "--force", ".")
    scratch.run(clone, "dvc", "checkout", "-q", "--force")
    for lr in ("0.002", "0.0001"):  # the first was run before: its stages come from the run cache
        scratch.run(clone, "dvc", "exp", "run", "--queue", "-n", f"lr-{lr.replace('.', '-')}", "-S", f"train.lr={lr}")
    scratch.run(clone, "dvc", "exp", "run", "--run-all", "-j", "1")
    return single, diffs


def test_a_clean_clone_is_up_to_date(clone):
    assert scratch.repro(clone) == []
    assert not scratch.run(clone, "git", "status", "--porcelain").stdout


def test_an_experiment_recomputes_what_the_offset_reaches_and_no_more(swept):
    single, _ = swept
    touched = re.findall(r"^(?:Running stage|Stage) '(\w+)'(?: is cached|:)", single.stdout, re.M)
    assert touched == ["extract", "train", "export", "evaluate"]


def test_metrics_and_params_diff_name_what_changed_against_a_commit(swept):
    _, diffs = swept
    assert re.search(r"\| metrics/evaluate.json *\| tau *\|", diffs["metrics"])
    assert re.findall(r"\| params.yaml *\| ([\w.]+) *\| (\S+) *\| (\S+) *\|", diffs["params"]) == [("capture.offset", "1", "0")]


def test_exp_show_gives_tau_of_each_experiment_beside_what_was_changed(clone, swept):
    found = rows(clone)
    taus = {name: float(found[name]["metrics/evaluate.json:tau"]) for name in ("input-of-layer", "lr-0-002", "lr-0-0001")}
    assert all(tau >= 1 for tau in taus.values())
    assert {name: (float(found[name]["train.lr"]), found[name]["capture.offset"]) for name in taus} == {
        "input-of-layer": (0.0015, "0"), "lr-0-002": (0.002, "1"), "lr-0-0001": (0.0001, "1")}


def test_an_experiment_can_be_compared_by_name(clone, swept):
    found = scratch.run(clone, "dvc", "exp", "diff", "HEAD", "lr-0-0001", "--md").stdout
    assert re.search(r"\| params.yaml *\| train.lr *\| 0.0015 *\| 0.0001 *\|", found)


def test_the_sweep_leaves_the_workspace_as_it_was(clone, swept):
    assert not scratch.run(clone, "git", "status", "--porcelain").stdout


def test_the_queue_leaves_no_worker_behind(clone, swept):
    deadline = time.monotonic() + 30
    while processes_in(clone) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert processes_in(clone) == []
    assert "0 active" in scratch.run(clone, "dvc", "queue", "status").stdout
