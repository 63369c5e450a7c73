"""A stage started by a Python without the environment says so in one line."""
import subprocess
import sys

from tests.pipeline.scratch import ROOT


def test_a_python_without_torch_is_told_what_to_do():
    done = subprocess.run([sys.executable, "-S", "-m", "stages.train"], cwd=ROOT, capture_output=True, text=True)  # -S: no packages
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "has no torch; use make repro, or first: . .venv/bin/activate" in done.stderr
