"""Builds images for the tests and asks what is in them."""
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.container.engine import client, docker, wheel_index
from tools.container import build as launcher

ROOT = Path(__file__).resolve().parents[2]
# of the locks, for another operating system
ELSEWHERE = {"pywin32"}
# Each installed file against its package's RECORD, then one digest per package over all of them.
INSTALLED = """
import base64, hashlib, importlib.metadata as m, json, sys
found, wrong = {}, {}
for package in m.distributions():
    rows = []
    for file in package.files or ():
        if file.hash:
            digest = base64.urlsafe_b64encode(hashlib.new(file.hash.mode, file.locate().read_bytes()).digest()).rstrip(b"=").decode()
            if digest != file.hash.value:
                wrong[package.name] = wrong.get(package.name, 0) + 1
            rows.append(f"{file} {digest}")
    found[package.name.lower().replace("_", "-").replace(".", "-")] = [
        package.version, hashlib.sha256("\\n".join(sorted(rows)).encode()).hexdigest()]
print(json.dumps({"packages": found, "wrong": wrong}))
"""


def build(target, base, tag, **environment):
    """Build a target of the Dockerfile with the launcher's own command line; a builder's network is this machine's. Returns the tag."""
    words = launcher.line(target, tag, base, client(), "host", {**os.environ, **environment})
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "DOCKER_BUILDKIT": "1"}, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True)
    assert done.returncode == 0, f"{words}\n{done.stderr[-5000:]}"
    return tag


def build_cpu(base, tag, wheels):
    """The cpu target, with the CPU build of torch that this environment's pip finds; the image's Python must be this one's version."""
    with wheel_index(torch_wheel(wheels)) as index:
        return build("cpu", base, tag, TORCH_INDEX=os.environ.get("TORCH_INDEX") or index)


def prune():
    """Forget what the builder keeps: the next build does everything again."""
    docker("builder", "prune", "--all", "--force")


def torch_wheel(folder):
    """`folder` with the wheel of torch.txt in it; empty where pip finds none (then TORCH_INDEX must name an index)."""
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:",
                    "-r", ROOT / "docker/requirements/torch.txt", "-d", folder], check=False, capture_output=True)
    return folder


def structure(image, config):
    """(exit code, report) of container-structure-test."""
    program = Path(sys.executable).with_name("container-structure-test")
    done = subprocess.run([program, "test", "--image", image, "--config", config], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def inside(image, *command, **options):
    """Run a command without network, rights or a writable root; its output."""
    more = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    return docker("run", "--rm", "--network", "none", "--read-only", "--tmpfs", "/tmp:exec", "--cap-drop", "ALL",
                  "--security-opt", "no-new-privileges", *more, image, *command)


def installed(image, python="/opt/venv/bin/python"):
    """({package: [version, digest of its files]}, {package: how many of its files are not as its RECORD says})."""
    found = json.loads(inside(image, python, "-c", INSTALLED))
    return found["packages"], found["wrong"]


def size(image):
    """Bytes of an image's layers."""
    return int(docker("image", "inspect", "--format", "{{.Size}}", image))
