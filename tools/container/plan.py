"""What a container of ours is: a pure function from a job to the arguments of docker-py's `containers.create`.

Everything lies under the path that it has outside, so that dvc.lock, links into DVC's cache and messages mean the same in both places;
it belongs to the user who started it; and the container can write nowhere else.
"""
from dataclasses import dataclass, field

from docker.types import DeviceRequest, Mount, Ulimit

from stages.lib.refusal import Refusal

CACHE = "/cache"  # the image's own caches (Triton, FlashInfer, ...): compiled for this image, so each image has its own folder there
# What `make` sets outside (Makefile): results must not differ by how a stage was started.
FIXED = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_TELEMETRY": "1",
         "DVC_NO_ANALYTICS": "1", "PYTHONHASHSEED": "0"}
LABEL = "eyrie.workspace"  # finds the container that a killed launcher left running


@dataclass(frozen=True)
class Job:
    image: str  # reference, eyrie:gpu
    command: tuple
    workspace: str
    user: tuple  # uid, gid, further groups
    cache: str  # the folder that is CACHE inside
    writable: tuple = ()  # further folders, under the same path inside
    readable: tuple = ()
    gpus: tuple | None = None  # None: no GPU; (): all; else their numbers or UUIDs
    network: str = "none"
    shm: str = "1g"
    memory: str | None = None
    ulimits: tuple = ()  # "name=soft[:hard]"
    environment: dict = field(default_factory=dict)
    terminal: bool = False


def plan(job):
    """Arguments of `containers.create`. No `privileged` anywhere: a GPU needs none."""
    uid, gid, *groups = job.user
    return {
        "image": job.image,
        "command": list(job.command),
        "working_dir": job.workspace,
        "user": f"{uid}:{gid}",
        "group_add": [str(group) for group in groups],
        # the home of a user without an entry in the image's passwd would be /, which is read-only
        "environment": {**FIXED, **dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"), "1" if job.network == "none" else "0"),
                        "HOME": CACHE, **job.environment},
        "mounts": mounts(job),
        "network_mode": job.network,
        "device_requests": gpus(job.gpus),
        "shm_size": job.shm,
        "mem_limit": job.memory,
        "ulimits": [ulimit(text) for text in job.ulimits],
        "read_only": True,
        # exec: compilers put shared objects there and load them; Docker's own default forbids it
        "tmpfs": {"/tmp": "rw,exec,nosuid,nodev,mode=1777"},
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "labels": {LABEL: job.workspace},
        "tty": job.terminal,
        "stdin_open": job.terminal,
        # no `init`: the image's entry point is tini, and a second one would not be process 1
    }


def mounts(job):
    """The workspace, the image's caches, and what lies outside of both; a folder inside a writable one needs no mount of its own."""
    found = [Mount(job.workspace, job.workspace, type="bind"), Mount(CACHE, job.cache, type="bind")]
    writable = outermost(job.writable, [job.workspace])
    found += [Mount(path, path, type="bind") for path in writable]
    return found + [Mount(path, path, type="bind", read_only=True) for path in outermost(job.readable, [job.workspace, *writable])]


def outermost(paths, covered=()):
    """The paths, sorted, without those that lie in another one or in one of `covered`."""
    kept = []
    for path in sorted(set(paths)):
        if not any(inside(path, other) for other in (*covered, *kept)):
            kept.append(path)
    return kept


def inside(path, folder):
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def gpus(names):
    if names is None:
        return []
    which = {"device_ids": list(names)} if names else {"count": -1}
    return [DeviceRequest(capabilities=[["gpu"]], **which)]


def ulimit(text):
    """memlock=-1, nofile=1024:4096."""
    name, _, limits = text.partition("=")
    soft, _, hard = limits.partition(":")
    try:
        return Ulimit(name=name, soft=int(soft), hard=int(hard or soft))
    except ValueError:
        raise Refusal(f"--ulimit {text} is not of the form NAME=SOFT or NAME=SOFT:HARD; for example memlock=-1") from None
