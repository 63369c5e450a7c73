"""The state dir: where work happens until it is complete.

DVC deletes a stage's outputs before it runs. So nothing is written there until all of it exists: finished pieces lie in
.eyrie/<stage>/<key>..., keyed by everything that determines them, and survive a kill; a complete result is renamed into
place. The state dir must be on the workspace's own filesystem, since a rename does not cross one.
"""
import os
import shutil
from pathlib import Path

ROOT = Path(".eyrie")


def piece(stage, name):
    """Path of a kept piece of work; the caller writes it atomically, so that it exists only when complete."""
    folder = ROOT / stage
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def begin(stage):
    """An empty folder in which the stage's output is put together. What a killed run left there is dropped."""
    folder = ROOT / stage / "out"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def publish(folder, out):
    """Rename the complete `folder` to the stage's output path."""
    out = Path(out)
    if out.exists():
        shutil.rmtree(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    folder.replace(out)


def link(source, destination):
    """A second name for a finished file: no copy. Nothing here is ever opened for writing in place."""
    os.link(source, destination)


def keep_only(stage, names):
    """Drop the pieces that the finished run did not use: older ones live on in DVC's cache."""
    for path in (ROOT / stage).iterdir():
        if path.name not in names:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
