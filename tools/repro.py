"""`dvc repro` that leaves the last good outputs behind when a stage fails or is stopped.

    python -m tools.repro [--profile NAME] [arguments of dvc repro]

DVC deletes a stage's outputs before it runs the stage. Afterwards this brings back what dvc.lock records: outputs from
DVC's cache, metrics and plots (which DVC does not cache) from copies made before the run in .eyrie/last-good.
--profile writes profiles/NAME.yaml over params.yaml first. The exit code is DVC's, or 128 + the signal that stopped it.
"""
import argparse
import fcntl
import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedSeq

from stages.lib import files
from stages.lib.params import read_yaml
from stages.lib.refusal import Refusal, run

STATE = Path(".eyrie")
LAST_GOOD = STATE / "last-good"
OPEN = ("engine.flags",)  # sections whose keys are an engine's, not ours
GRACE = 20  # seconds that a stopped stage has to end by itself
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# The program beside this Python, on PATH or not. Not `-m dvc`: in the GPU image DVC has an environment of its own.
DVC = str(Path(sys.executable).with_name("dvc"))


def main():
    parser = argparse.ArgumentParser(prog="python -m tools.repro", description="dvc repro; a failed stage's last good "
                                     "outputs are put back. Other arguments go to dvc repro.")
    parser.add_argument("--profile", help="write profiles/PROFILE.yaml over params.yaml first")
    options, arguments = parser.parse_known_args()
    if not Path("dvc.yaml").exists():
        raise Refusal("no dvc.yaml in this folder; run it from the root of the project")
    if not Path(DVC).exists():
        raise Refusal(f"there is no {DVC}; use make repro, or activate the project's environment first (. .venv/bin/activate)")
    with only_one():
        if options.profile:
            apply_profile(options.profile)
        sys.exit(repro(arguments))


def repro(arguments):
    """Run `dvc repro` here, put the last good outputs back if it fails, say how it went; returns the exit code."""
    started = time.monotonic()
    before = {path for outputs in recorded().values() for path in outputs if os.path.lexists(path)}
    keep()
    code = run_group([DVC, "repro", *arguments])
    if code:
        restore(before)
    keep()
    if not code:
        headline = tau_line("metrics/evaluate.json")
        print(f"done in {duration(time.monotonic() - started)}" + (f": {headline}" if headline else ""))
    return code


def only_one():
    """A lock on this checkout: a second run would "restore" the outputs that the first one is about to write."""
    STATE.mkdir(exist_ok=True)
    lock = open(STATE / "repro.lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Refusal("another repro is running in this checkout; wait for it, or stop it") from None
    return lock


# Profiles

def apply_profile(name, folder="profiles"):
    """Write profiles/`name`.yaml over params.yaml; a Refusal for a profile or a key that does not exist."""
    path = Path(folder) / f"{name}.yaml"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in Path(folder).glob("*.yaml"))) or "none"
        raise Refusal(f"no profile {path}; there are: {known}")
    overlay("params.yaml", read_yaml(path) or {}, path)


def overlay(path, values, origin="the overlay"):
    """Write nested `values` into the YAML file `path`, which must have their keys already; comments and order stay.

    The form is the one that `dvc exp run -S` writes, so that a later -S changes one line as well. Unchanged values
    leave the bytes alone.
    """
    yaml = YAML()
    yaml.default_flow_style = False
    old = Path(path).read_text(encoding="utf-8")
    document = yaml.load(old)
    if not isinstance(values, dict):
        raise Refusal(f"{origin} is not a mapping of parameters")
    if merge(document, values, path, origin):
        text = io.StringIO()
        yaml.dump(document, text)
        files.write_text(path, text.getvalue())


def merge(node, values, path, origin, above=""):
    changed = False
    for key, value in values.items():
        name = f"{above}{key}"
        if key not in node and above.rstrip(".") not in OPEN:
            raise Refusal(f"{origin} sets {name}, which {path} does not have")
        if key in node and isinstance(node[key], dict) != isinstance(value, dict):
            shape = "a section" if isinstance(node[key], dict) else "a single value"
            raise Refusal(f"{origin} sets {name} to {value!r}, but in {path} it is {shape}")
        if isinstance(value, dict):
            changed |= merge(node[key], value, path, origin, f"{name}.")
        elif key not in node or node[key] != value or isinstance(node[key], bool) != isinstance(value, bool):
            changed = True
            if isinstance(node.get(key), CommentedSeq) and isinstance(value, list) and value:
                replace_items(node[key], value)
            else:
                node[key] = value
    return changed


def replace_items(items, values):
    """New items for a YAML list. A comment (or blank line) below a list hangs on its last item and moves to the new one."""
    below = items.ca.items.pop(len(items) - 1, None)
    while len(items) > len(values):
        items.pop()
    for i, value in enumerate(values):
        if i < len(items):
            items[i] = value
        else:
            items.append(value)
    if below:
        items.ca.items[len(items) - 1] = below


# Outputs

def recorded():
    """{stage: {output path: md5}} of dvc.lock; empty before the first run."""
    if not Path("dvc.lock").exists():
        return {}
    stages = (read_yaml("dvc.lock") or {}).get("stages") or {}
    return {name: {out["path"]: out.get("md5") for out in stage.get("outs", [])} for name, stage in stages.items()}


def uncached():
    """Paths of the outputs that DVC deletes without having a copy: `cache: false` in dvc.yaml."""
    paths = set()
    for stage in read_yaml("dvc.yaml").get("stages", {}).values():
        for kind in ("outs", "metrics", "plots"):
            for out in stage.get(kind, []):
                if isinstance(out, dict):
                    paths.update(path for path, about in out.items() if (about or {}).get("cache") is False)
    return paths


def keep():
    """Copy the files that are not in DVC's cache, if they are what dvc.lock records: a failed run's remains are not good."""
    without_cache = uncached()
    for outputs in recorded().values():
        for path, md5 in outputs.items():
            if path in without_cache and md5 and md5_of(path) == md5:
                copy(path, LAST_GOOD / path)


def restore(before):
    """For each stage that lacks an output, bring back what dvc.lock records. `before`: paths that existed at the start.

    Outputs go back together: metrics that a stage wrote before it failed do not belong beside the old draft. What is
    there and not in the lock stays, for it may be hours of work that only `dvc commit` is missing for.
    """
    without_cache = uncached()
    for stage, outputs in recorded().items():
        missing = [path for path in outputs if not os.path.lexists(path)]
        if not missing:
            continue
        cached = [path for path in missing if path not in without_cache]
        if cached:
            subprocess.run([DVC, "checkout", "--quiet", "--allow-missing", *cached],
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for path, md5 in outputs.items():
            kept = LAST_GOOD / path
            if path in without_cache and md5 and md5_of(path) != md5 and md5_of(kept) == md5:
                copy(kept, path)
                print(f"{stage}: restored {path} (the copy from before the run)", file=sys.stderr)
            elif path in cached and os.path.lexists(path):
                print(f"{stage}: restored {path} (DVC's cache)", file=sys.stderr)
            elif path in before and not os.path.lexists(path):
                print(f"{stage}: could not restore {path}: it is not in DVC's cache", file=sys.stderr)


def md5_of(path):
    """DVC's digest of a file; None if there is no such file."""
    path = Path(path)
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() if path.is_file() else None


def copy(source, destination):
    """A whole file or none, even if this process is killed meanwhile."""
    destination = Path(destination)
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = destination.with_name(f".{destination.name}.{os.getpid()}.tmp")
    shutil.copyfile(source, temporary)
    temporary.replace(destination)


# Processes

def run_group(command):
    """Run `command` in a process group of its own and leave none of it behind; returns its exit code.

    DVC ignores an interrupt and trusts that the terminal sends it to the stage too; ended by SIGTERM it orphans the
    stage. So each of STOPS becomes an interrupt of the whole group, a second one (or GRACE seconds) a kill.
    """
    process, stops = None, []

    def stop(number, frame):
        stops.append((number, time.monotonic()))
        if process:
            send(process.pid, signal.SIGINT if len(stops) == 1 else signal.SIGKILL)

    handlers = {number: signal.signal(number, stop) for number in STOPS}
    try:
        process = subprocess.Popen(command, env=environment(), start_new_session=True)
        if stops:  # it came while the process started
            send(process.pid, signal.SIGINT)
        while process.poll() is None:
            try:
                process.wait(0.5)
            except subprocess.TimeoutExpired:
                if stops and time.monotonic() - stops[0][1] > GRACE:
                    send(process.pid, signal.SIGKILL)
        end(process.pid)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if stops:
        return 128 + stops[0][0]
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def environment():
    """This Python first on PATH: the stages' commands say `python`."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


def end(group):
    """End what is left of a process group whose leader is gone: first politely, then after 5 s for good."""
    send(group, signal.SIGTERM)
    deadline = time.monotonic() + 5
    while alive(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    send(group, signal.SIGKILL)


def send(group, number):
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass


def alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


# Words

def tau_line(path):
    """The headline of a metrics file, or "" if it has none."""
    if not Path(path).exists():
        return ""
    metrics = files.read_json(path)
    if not {"tau", "tau_lo", "tau_hi", "n"} <= metrics.keys():
        return ""
    return "accept length {tau:.3f} (95 % interval {tau_lo:.3f} to {tau_hi:.3f}, n = {n})".format(**metrics)


def duration(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


if __name__ == "__main__":
    run(main)
