"""Scratch copies of the project, and the commands that the pipeline tests run in them."""
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
CODE = ("stages", "tools", ".dvc/config", ".dvc/plots", ".dvcignore", ".gitignore", "dvc.yaml", "params.yaml",
        "data/.gitignore", "data/prompts")
STAGES = ("target", "generate", "extract", "train", "export", "evaluate")
SMOKE = {
    "prompts": {"limit": 24, "max_tokens": 200},
    "engine": {"dtype": "float32"},
    "generate": {"max_new_tokens": 16, "batch": 8, "block": 2, "max_cut": 1.0},
    "capture": {"layer_ids": [1, 2, 4]},
    "extract": {"batch_tokens": 512, "shard_tokens": 256, "probe_rows": 4},
    "draft": {"vocab_size": 256, "intermediate_size": 64},
    "train": {"validation": 0.2, "epochs": 4, "pack_tokens": 320, "batch_packs": 1, "ttt_steps": 3, "threads": 1, "evals": 2},
    "evaluate": {"files": ["data/prompts/eval/chat.jsonl", "data/prompts/eval/maths.jsonl"], "max_tokens": 200, "max_new_tokens": 16, "blocks": 2, "chains": [3, 5], "distinct": 0.0, "decode_rows": 2,
                 "decode_tokens": 8, "bootstrap": 100},
    "exec": {"workers": 1, "save_minutes": 1},
}


def environment(workspace):
    """Variables for commands in `workspace`: this Python first, the stages of the workspace, DVC's notes beside it."""
    workspace = Path(workspace)
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONHASHSEED": "0",
            "PYTHONPATH": "", "EYRIE_CACHE": str(workspace.with_name("eyrie-cache")), "DVC_NO_ANALYTICS": "1", "DVC_SITE_CACHE_DIR": str(workspace.with_name(workspace.name + ".site")),
            "OMP_WAIT_POLICY": "PASSIVE", "GIT_CONFIG_GLOBAL": os.devnull}


def run(workspace, *command, check=True, **more):
    """Run to the end; what it said is in the error if it fails."""
    done = subprocess.run(list(map(str, command)), cwd=workspace, env={**environment(workspace), **more},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(map(str, command))} failed with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def stage(workspace, name, **options):
    """One stage alone, as a user would run it."""
    return run(workspace, sys.executable, "-m", f"stages.{name}", **options)


def repro(workspace, **options):
    """The stages that `dvc repro` really ran, in order."""
    return ran(run(workspace, "dvc", "repro", **options).stdout)


def ran(output):
    return re.findall(r"^Running stage '(\w+)'", output, re.M)


def make(path, overlay):
    """A git repository with DVC that holds this checkout's code, prompts and params under `overlay`; no data, no lock."""
    path = Path(path)
    path.mkdir(parents=True)
    for name in CODE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, path / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, path / name)
    set_params(path, overlay)
    run(path, "git", "init", "-q", "-b", "main")
    identify(path)
    commit(path, "Start")
    return path


def identify(path):
    run(path, "git", "config", "user.name", "Scratch")
    run(path, "git", "config", "user.email", "scratch@example.org")


def commit(path, message):
    run(path, "git", "add", "-A")
    run(path, "git", "commit", "-q", "-m", message)


def copy(source, path):
    """A copy of a workspace with its data, state dir, cache and history that shares no file with it."""
    shutil.copytree(source, path, symlinks=True, ignore=shutil.ignore_patterns("tmp"))
    return Path(path)


def set_params(path, changes):
    """Write nested `changes` into params.yaml in DVC's own form."""
    yaml, file = YAML(), Path(path) / "params.yaml"
    values = yaml.load(file)
    merge(values, changes)
    yaml.dump(values, file)


def merge(values, changes):
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(values.get(key), dict):
            merge(values[key], value)
        else:
            values[key] = value


def nested(key, value):
    """{"a": {"b": value}} of "a.b"."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def lock(path):
    return YAML(typ="safe").load(Path(path) / "dvc.lock")["stages"]


def bytes_of(folder):
    """{relative path: bytes} of every file below `folder`."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(Path(folder).rglob("*")) if p.is_file()}


def metrics(path, name):
    return json.loads((Path(path) / "metrics" / f"{name}.json").read_text())
