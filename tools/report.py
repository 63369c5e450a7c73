"""What a reviewer asks of a checkout.

    python -m tools.report --stale     stages whose dvc.lock does not match code, params, command or data; exit 1 if any

Needs git and dvc.lock alone: an output that is merely absent (a clone without data) is not stale.
"""
import argparse
import json
import re
import subprocess
import sys

from stages.lib.params import read_yaml
from stages.lib.refusal import Refusal, run
from tools.repro import DVC

ABSENT = ("deleted", "not in cache")


def leaves(node):
    """(path, value) of each leaf in DVC's nested status."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from ((f"{key}: {rest}" if rest else key, leaf) for rest, leaf in leaves(value))
    elif isinstance(node, list):
        for item in node:
            yield from leaves(item)
    else:
        yield "", node


def changed(status):
    """{stage: [why, ...]} from `dvc status --json`, absent files left out."""
    reasons = {stage: [f"{path} {what}".strip() for path, what in leaves(changes) if what not in ABSENT]
               for stage, changes in status.items()}
    return {stage: why for stage, why in reasons.items() if why}


def params_of(stage, values):
    """{file: keys} of the stage's `params`; `${a.b}` in a key is what the params file, `values`, holds there."""
    found = {"params.yaml": []}
    for entry in stage.get("params", []):
        for file, keys in (entry.items() if isinstance(entry, dict) else [("params.yaml", [entry])]):
            found.setdefault(file, []).extend(re.sub(r"\$\{([\w.]+)\}", lambda m: str(value_of(values, m[1])), key) for key in keys)
    return found


def value_of(values, key):
    """The value under a dotted key."""
    for part in key.split("."):
        values = values[part]
    return values


def undeclared(pipeline, lock, values):
    """{stage: [why, ...]} where dvc.lock remembers a param, dep or out that dvc.yaml no longer declares.

    DVC itself calls such a stage up to date (dvc#9913): the lost key then never invalidates anything again.
    """
    reasons = {}
    for name, stage in pipeline["stages"].items():
        locked = lock["stages"].get(name, {})
        declared = params_of(stage, values)
        for file, keys in locked.get("params", {}).items():
            for key in keys:
                if key not in declared.get(file, []):
                    reasons.setdefault(name, []).append(f"{file}: {key} is in dvc.lock but no longer among the params of dvc.yaml")
        for kind, keys in (("deps", ("deps",)), ("outs", ("outs", "metrics", "plots"))):
            listed = {next(iter(entry)) if isinstance(entry, dict) else entry for key in keys for entry in stage.get(key, [])}
            for entry in locked.get(kind, []):
                if entry["path"] not in listed:
                    reasons.setdefault(name, []).append(f"{entry['path']} is in dvc.lock but no longer among the {kind} of dvc.yaml")
    return reasons


def stale():
    """{stage: [why, ...]} for the working directory."""
    try:
        asked = subprocess.run([DVC, "status", "--json"], capture_output=True, text=True)
        failed = asked.returncode and (asked.stderr.strip() or "no message").splitlines()[-1]
    except FileNotFoundError:
        failed = f"there is no {DVC}"
    if failed:
        raise Refusal(f"`dvc status` failed: {failed}; activate the project's environment first (make env, then . .venv/bin/activate)")
    status = json.loads(asked.stdout)
    reasons = changed(status)
    for stage, why in undeclared(read_yaml("dvc.yaml"), read_yaml("dvc.lock"), read_yaml("params.yaml")).items():
        reasons.setdefault(stage, []).extend(why)
    return reasons


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stale", action="store_true", required=True, help="say which stages are stale, and why")
    parser.parse_args()
    reasons = stale()
    for stage, why in reasons.items():
        print(f"{stage}: {'; '.join(why)}")
    if not reasons:
        print("dvc.lock matches code, params, commands and data")
    sys.exit(bool(reasons))


if __name__ == "__main__":
    run(main)
