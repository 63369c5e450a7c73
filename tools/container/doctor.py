"""What this machine has of what the containers need; each line says what is missing and what to do."""
import os
import re
import shutil
import subprocess

from docker.errors import APIError, ImageNotFound

from stages.lib.refusal import Refusal
from tools.container import engine, here, identity
from tools.container.plan import plan

DRIVER = 580  # of CUDA 13.0
DISK = {"cpu": 4, "gpu": 16}  # GB that a build may take of the engine's storage
GOOD, BAD, NOTE = "ok", "FAIL", "note"


def report(options):
    """Print a line per finding; 1 if one is FAIL."""
    found = list(findings(options))
    for level, what, says in found:
        print(f"{level:<5} {what:<10} {says}")
    return int(any(level == BAD for level, _, _ in found))


def findings(options):
    target = here.target_of(options.image)
    yield NOTE, "image", f"the stages of these params run in the {target} image"
    for name, declared, computed in identity.differences():
        yield BAD, "identity", (f"{name}: docker/images.yaml says {declared}, the Dockerfile gives {computed}; correct it with "
                                "`python -m tools.container identity --write`")
    yield from drivers(target)
    try:
        client = engine.connect()
    except Refusal as refusal:
        yield BAD, "engine", str(refusal)
        return
    info, podman, version = client.info(), engine.is_podman(client), client.version()["Version"]
    yield GOOD, "engine", f"{'Podman' if podman else 'Docker'} {version}, API {client.api.api_version}, {info.get('Driver')}"
    yield from storage(info.get("DockerRootDir"), target)
    if os.path.isdir("/dev/shm"):
        size = shutil.disk_usage("/dev/shm").total / 1e9
        yield GOOD, "shm", f"/dev/shm has {size:.1f} GB here; a container gets one of {options.shm or here.SHM[target]}"
    for name in identity.TARGETS:
        yield from image(client, name, name == target, here.reference(name, options.reference if name == target else None))
    if target == "gpu":
        yield toolkit(client, options, podman)


def drivers(target):
    """The NVIDIA driver and the CUDA version that it speaks."""
    level = BAD if target == "gpu" else NOTE
    if not shutil.which("nvidia-smi"):
        yield level, "driver", f"there is no nvidia-smi; the gpu image needs the NVIDIA driver, R{DRIVER} or later"
        return
    said = subprocess.run(["nvidia-smi"], capture_output=True, text=True)
    driver, cuda = re.search(r"Driver Version: *(\d+)(\S*)", said.stdout), re.search(r"CUDA[A-Z a-z]* Version: *(\S+)", said.stdout)
    if said.returncode or not driver:
        yield level, "driver", f"nvidia-smi fails: {engine.first_line(said.stderr or said.stdout)}"
    elif int(driver[1]) < DRIVER:
        yield level, "driver", f"driver {driver[1]}{driver[2]} is too old for CUDA 13.0; install R{DRIVER} or later"
    else:
        yield GOOD, "driver", f"driver {driver[1]}{driver[2]}, CUDA {cuda[1] if cuda else 'unknown'}"


def storage(folder, target):
    if not folder or not os.path.isdir(folder):
        yield NOTE, "disk", f"the engine keeps its images in {folder}, which cannot be read from here"
        return
    free = shutil.disk_usage(folder).free / 1e9
    says = f"{free:.0f} GB free in {folder}; a build of the {target} image may take {DISK[target]}"
    yield (GOOD, "disk", says) if free > DISK[target] else (BAD, "disk", f"{says}: free some with `docker system prune`")


def image(client, name, needed, reference):
    declared = identity.declared()[name]
    try:
        says = client.images.get(reference).labels.get("eyrie.identity")
    except ImageNotFound:
        yield (BAD if needed else NOTE), name, f"no image {reference}; build it with `python -m tools.container build {name}`"
        return
    if says == declared:
        yield GOOD, name, f"{reference} is {says}, as declared"
    else:
        yield (BAD if needed else NOTE), name, f"{reference} is {says}, declared is {declared}; `python -m tools.container build {name}`"


def toolkit(client, options, podman):
    """A GPU in a container, tried: what an engine lists says little about it."""
    if podman:
        return BAD, "gpu", "Podman's Docker socket ignores requests for GPUs; use Docker"
    job = here.job(["true"], options)
    try:
        client.images.get(job.image)
    except ImageNotFound:
        return NOTE, "gpu", f"not tried: there is no image {job.image}"
    try:
        code = engine.run(client, plan(job))
    except Refusal as refusal:
        return BAD, "gpu", str(refusal)
    except APIError as error:
        return BAD, "gpu", engine.first_line(error)
    return (GOOD, "gpu", "a container starts with the GPUs") if code == 0 else (BAD, "gpu", f"a container with the GPUs ends with {code}")
