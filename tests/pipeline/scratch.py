"""Scratch copies of the project, and the commands that the pipeline tests run in them."""
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from stages.lib.params import read_yaml
from tools import workspace
from tools.repro import overlay

ROOT = Path(__file__).parents[2]
STAGES = ("target", "preflight", "generate", "extract", "train", "export", "evaluate")
# Over profiles/smoke.yaml: enough blocks, shards and steps that a kill falls between them, and fewer evaluation prompts.
FINER = {
    "generate": {"max_new_tokens": 16, "block": 2},
    "extract": {"shard_tokens": 256},
    "train": {"epochs": 4, "pack_tokens": 320, "batch_packs": 1, "evals": 2},
    "evaluate": {"files": ["data/prompts/eval/chat.jsonl", "data/prompts/eval/maths.jsonl"], "max_new_tokens": 16,
                 "blocks": 2, "chains": [3, 5], "decode_tokens": 8},
    "exec": {"workers": 1},
}


def environment(folder):
    """Variables for commands in a workspace: this Python first, the folder's own code, and DVC's notes and ours beside it."""
    folder = Path(folder)
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": "",
            "PYTHONHASHSEED": "0", "OMP_WAIT_POLICY": "PASSIVE", "EYRIE_CACHE": str(folder.with_name("eyrie-cache")),
            "DVC_SITE_CACHE_DIR": str(folder.with_name(f"{folder.name}.site")), "DVC_NO_ANALYTICS": "1",
            "GIT_CONFIG_GLOBAL": os.devnull}


def run(folder, *command, check=True, **more):
    """Run to the end; what it said is in the error if it fails."""
    done = subprocess.run(list(map(str, command)), cwd=folder, env={**environment(folder), **more},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(map(str, command))} failed with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def stage(folder, name, **options):
    """One stage alone, as a user would run it."""
    return run(folder, sys.executable, "-m", f"stages.{name}", **options)


def repro(folder, *stages, **options):
    """The stages that `dvc repro` really ran, in order."""
    return ran(run(folder, "dvc", "repro", *stages, **options).stdout)


def ran(output):
    return re.findall(r"^Running stage '(\w+)'", output, re.M)


def make(path, tiny):
    """A git repository with DVC that holds this checkout's code, prompts and smoke params; nothing was run in it.

    tiny: the target's folder. It lies outside, for DVC's temporary copies need its absolute path.
    """
    path = workspace.make(path, read_yaml(ROOT / "profiles/smoke.yaml"))
    set_params(path, {**FINER, "target": {"name": str(tiny)}})
    commit(path, "Smaller still")
    return path


def identify(path):
    run(path, "git", "config", "user.name", "Scratch")
    run(path, "git", "config", "user.email", "scratch@example.org")


def commit(path, message):
    run(path, "git", "add", "-A")
    run(path, "git", "commit", "-q", "-m", message)


def reset(path):
    """Params, metrics and outputs as they were committed."""
    run(path, "git", "checkout", "-q", "--force", ".")
    run(path, "dvc", "checkout", "-q", "--force")


def copy(source, path):
    """A copy of a workspace with its data, state dir, cache and history that shares no file with it."""
    shutil.copytree(source, path, symlinks=True, ignore=shutil.ignore_patterns("tmp"))
    return Path(path)


def set_params(path, changes):
    """Write nested `changes` into params.yaml in DVC's own form."""
    overlay(Path(path) / "params.yaml", changes)


def nested(key, value):
    """{"a": {"b": value}} of "a.b"."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def lock(path):
    return read_yaml(Path(path) / "dvc.lock")["stages"]


def bytes_of(folder):
    """{relative path: bytes} of every file below `folder`."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(Path(folder).rglob("*")) if p.is_file()}


def metrics(path, name):
    return json.loads((Path(path) / "metrics" / f"{name}.json").read_text())
