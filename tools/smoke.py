"""The whole pipeline on a tiny random target, in a copy under .eyrie/smoke: does every stage still fit the next?

    python -m tools.smoke [--keep]

About a minute. The acceptance length of a random target says nothing. --keep leaves the copy for a look; a failed run's
copy stays anyway.
"""
import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from stages.lib.params import read_yaml
from stages.lib.refusal import Refusal, run
from tools import repro, tiny_target, workspace

FOLDER = Path(".eyrie/smoke")


def main():
    parser = argparse.ArgumentParser(prog="python -m tools.smoke", description="All stages on a tiny random target.")
    parser.add_argument("--keep", action="store_true", help=f"leave the copy in {FOLDER}")
    options = parser.parse_args()
    started = time.monotonic()
    os.chdir(workspace.PROJECT)
    shutil.rmtree(FOLDER, ignore_errors=True)
    values = read_yaml("profiles/smoke.yaml")
    workspace.make(FOLDER, values)
    tiny_target.make(FOLDER / values["target"]["name"])
    os.chdir(FOLDER)
    code = repro.run_group([repro.DVC, "repro"])
    if code:
        print(f"smoke: dvc repro failed with exit code {code}; the copy is in {FOLDER}", file=sys.stderr)
        sys.exit(code)
    headline = repro.tau_line("metrics/evaluate.json")
    if not headline:
        raise Refusal("dvc repro ended well, but metrics/evaluate.json has no tau, tau_lo, tau_hi and n")
    os.chdir(workspace.PROJECT)
    if not options.keep:
        shutil.rmtree(FOLDER)
    print(f"smoke: all stages in {repro.duration(time.monotonic() - started)}: {headline}")


if __name__ == "__main__":
    run(main)
