"""The plugin on machines where the project is not installed: what `pip install -e .` would write, in a folder on PYTHONPATH."""
import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def plugin_environment(folder, environ=None):
    """Environment variables with which a Python process (and its children) finds SGLang's plugin and this project.

    Writes the distribution's metadata, as pyproject.toml declares it, into `folder`; any folder will do. Where the project is
    installed as well the two are the same distribution, which Python's metadata gives once, so that the plugin is loaded once.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = Path(folder) / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    (info / "entry_points.txt").write_text("".join(f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in points.items())
                                                   for group, points in groups))
    known = (os.environ if environ is None else environ).get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(Path(folder).resolve()), str(ROOT), *([known] if known else [])])}
