"""A scratch copy of the project, for runs that must not touch its outputs: `make smoke` and tests."""
import os
import shutil
import subprocess
from pathlib import Path

from stages.lib.refusal import Refusal
from tools.repro import overlay as write_over

PROJECT = Path(__file__).resolve().parents[1]


def make(path, overlay=None):
    """Copy the project into the empty or absent folder `path`, as a git repository with one commit; returns the path.

    What is copied is what git tracks and what it would track (not ignored), as it lies on disk: never outputs, state or
    the environment. `overlay` is written over params.yaml (tools.repro.overlay) before the commit. Nothing is shared
    with the project: history, DVC cache and state dir start empty.
    """
    path = Path(path)
    if path.exists() and any(path.iterdir()):
        raise Refusal(f"{path} is not empty; a scratch copy needs a folder of its own")
    for name in listed():
        source, destination = PROJECT / name, path / name
        if source.is_file():  # a file deleted but not yet committed is listed too
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, destination)
    if overlay:
        write_over(path / "params.yaml", overlay)
    git(path, "init", "--quiet")
    for key, value in (("user.name", "Scratch"), ("user.email", "scratch@localhost"), ("commit.gpgsign", "false"),
                       ("core.hooksPath", os.devnull)):
        git(path, "config", key, value)
    git(path, "add", "--all")
    git(path, "commit", "--quiet", "--message", "Scratch copy")
    return path


def listed():
    names = git(PROJECT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return sorted(set(names) - {""})


def git(folder, *arguments):
    """Output of git in `folder`. Without GIT_DIR and the like: under a git hook they name the project's repository."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    return subprocess.run(["git", *arguments], cwd=folder, env=environment, check=True, stdout=subprocess.PIPE,
                          text=True).stdout
