"""Equal inputs give equal bytes: on a second cold run, with other workers, and after a kill in the middle."""
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.pipeline import scratch


@pytest.mark.parametrize("name", scratch.STAGES)
def test_a_second_cold_run_with_another_number_of_workers_gives_the_same_hashes(pipeline, second, name):
    assert scratch.lock(second)[name] == scratch.lock(pipeline)[name]


def test_the_two_cold_runs_shared_nothing(pipeline, second):
    assert (pipeline / "params.yaml").read_text() != (second / "params.yaml").read_text()
    for path in (pipeline, second):
        assert (path / ".dvc/cache/files").is_dir() and (path / ".eyrie/train").is_dir()
        assert not (path / ".dvc/config.local").exists()


def killed(workspace, name, pieces):
    """Run a stage alone and kill -9 it, workers included, as soon as a first piece of its work is kept."""
    shutil.rmtree(workspace / f".eyrie/{name}")
    process = subprocess.Popen([sys.executable, "-m", f"stages.{name}"], cwd=workspace, start_new_session=True,
                               env=scratch.environment(workspace), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not list((workspace / f".eyrie/{name}").glob(pieces)):
            assert process.poll() is None, f"{name} ended with {process.returncode} before it kept a piece"
            assert time.monotonic() < deadline, f"{name} kept no piece in a minute"
            time.sleep(0.005)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("name, out, pieces, said", [
    ("generate", "data/traces", "[0-9a-f]*.json*", r"generate: \d+ of 12 blocks are already answered"),
    ("extract", "data/states", "*.safetensors", r"extract: \d+ of \d+ shards are already there"),
    ("train", "data/draft", "*.safetensors", r"train: resumed at step \d+ of \d+"),
])
def test_a_killed_stage_continues_and_ends_with_the_same_bytes(workspace, name, out, pieces, said):
    scratch.set_params(workspace, {"exec": {"save_minutes": 0}})
    uninterrupted = scratch.bytes_of(workspace / out), scratch.bytes_of(workspace / "metrics")
    shutil.rmtree(workspace / out)
    killed(workspace, name, pieces)
    assert not (workspace / out).exists(), f"{name} had already ended: nothing was interrupted"
    kept = {p.name: p.stat().st_mtime_ns for p in (workspace / f".eyrie/{name}").glob(pieces)}

    output = scratch.stage(workspace, name).stdout
    assert re.search(said, output), output
    done, of = map(int, re.search(r"(\d+) of (\d+)", output).groups())
    assert 0 < done < of
    assert (scratch.bytes_of(workspace / out), scratch.bytes_of(workspace / "metrics")) == uninterrupted
    if name != "train":  # a checkpoint is replaced, a finished piece is not made again
        assert kept.items() <= {p.name: p.stat().st_mtime_ns for p in (workspace / f".eyrie/{name}").iterdir()}.items()


def test_a_failing_stage_leaves_the_outputs_of_the_others_alone(workspace):
    before = scratch.bytes_of(workspace / "data")
    scratch.set_params(workspace, {"train": {"autocast": "int3"}})
    failed = scratch.run(workspace, "dvc", "repro", check=False)
    assert failed.returncode and "refused: train.autocast is 'int3'" in failed.stderr
    assert scratch.ran(failed.stdout) == ["preflight", "train"]
    after = scratch.bytes_of(workspace / "data")
    assert after == {path: content for path, content in before.items() if not path.startswith("draft/")}


def test_a_stage_alone_that_fails_leaves_its_own_output_too(workspace):
    before = scratch.bytes_of(workspace / "data")
    scratch.set_params(workspace, {"export": {"dtype": "int3"}})
    assert scratch.stage(workspace, "export", check=False).returncode == 1
    assert scratch.bytes_of(workspace / "data") == before
