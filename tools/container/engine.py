"""The engine's side: reach it, see that it has what a container needs, run the container to its end, and say its errors in a sentence."""
import contextlib
import fcntl
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from stages.engines.http_json import Broken, Http, Refused
from stages.lib.image import IMAGES
from stages.lib.refusal import Refusal
from tools.container.plan import LABEL

API = (1, 41)  # Docker 20.10
PATIENCE = 300  # seconds for one answer of the engine: a busy disk makes the start of a container slow
GRACE = 25  # seconds from a stop to a kill: longer than tools.repro gives a stage
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# what the engine says -> what it means and what to do
SAYS = (
    (r"could not select device driver|unknown or invalid runtime name: nvidia|unresolvable CDI devices",
     "the engine cannot give a container a GPU; install the NVIDIA container toolkit on this machine, run `nvidia-ctk runtime configure "
     "--runtime=docker` and restart the engine (or --gpus none)"),
    (r"nvidia-container-cli: .*unknown device",
     "one of the GPUs that were asked for does not exist; see `nvidia-smi -L`, --gpus and CUDA_VISIBLE_DEVICES"),
    (r"nvidia-container-cli: .*(driver|nvml|cuda)",
     "the NVIDIA driver does not answer or is too old for the image (CUDA 13.0 needs R580 or later); see what `nvidia-smi` says"),
    (r"no such image", "the image is not there any more; build it with `python -m tools.container build`"),
    (r"no space left on device",
     "the engine's disk is full; free some with `docker system prune`, and see `python -m tools.container doctor`"),
    (r"rlimit", "the engine may not raise a limit that was asked for; start it with --ulimit none"),
    (r"network \S+ not found", "the engine does not have this network; use --network none or --network host"),
    (r"bind source path does not exist",
     "a folder to be mounted is not there for the engine, which must run on this machine: look at DOCKER_HOST"),
    (r"executable file not found|no such file or directory", "the command is not in the image; look at what was given after `--`"),
)


def connect():
    """A client of the engine that DOCKER_HOST names, or of the usual socket. Refusal when none answers."""
    where = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    try:
        client = docker.from_env(timeout=PATIENCE)
    except DockerException as error:
        cause = chain(error)
        if any(isinstance(e, PermissionError) for e in cause) or "Permission denied" in str(error):
            raise Refusal(f"no permission to talk to the engine at {where}; join the group that owns the socket (`sudo usermod -aG docker "
                          "$USER`, then log in again), or name a rootless engine's socket in DOCKER_HOST") from None
        raise Refusal(f"no container engine answers at {where} ({first_line(error)}); start Docker, or name its socket in "
                      "DOCKER_HOST") from None
    if tuple(map(int, client.api.api_version.split("."))) < API:
        raise Refusal(f"the engine at {where} speaks API {client.api.api_version}; expected {API[0]}.{API[1]} or later, Docker 20.10")
    return client


def chain(error):
    """The error, its causes, and errors handed on as arguments (requests wraps the socket's own error so)."""
    seen, todo = [], [error]
    while todo:
        e = todo.pop()
        if isinstance(e, BaseException) and e not in seen:
            seen.append(e)
            todo += [e.__cause__, e.__context__, *e.args, getattr(e, "reason", None)]
    return seen


def is_podman(client):
    return any("podman" in part.get("Name", "").lower() for part in client.version().get("Components") or [])


def ready(client, job, target, declared):
    """Refusal unless the engine can run this job: the image is there and is the declared one, GPUs are not silently left out."""
    if job.gpus is not None and is_podman(client):
        raise Refusal("this engine is Podman, whose Docker socket ignores requests for GPUs without a word; use Docker, or --gpus none")
    try:
        labels = client.images.get(job.image).labels
    except ImageNotFound:
        raise Refusal(f"the engine has no image {job.image}; build it with `python -m tools.container build {target}`") from None
    if labels.get("eyrie.identity") != declared:
        raise Refusal(f"{job.image} is {labels.get('eyrie.identity') or 'no image of ours (it has no label eyrie.identity)'}, but {IMAGES} "
                      f"declares {declared}; build it with `python -m tools.container build {target}`")


@contextlib.contextmanager
def only_one(client, workspace):
    """This workspace for one container. DVC's own locks go by process number, and two containers have the same ones."""
    Path(workspace, ".eyrie").mkdir(exist_ok=True)
    with open(Path(workspace, ".eyrie/container.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refusal("a container is running this workspace already; wait for it, or stop it") from None
        for left in client.containers.list(all=True, filters={"label": f"{LABEL}={workspace}"}):  # its launcher was killed
            if left.status == "running":
                raise Refusal(f"the container {left.short_id} of this workspace still runs though its launcher is gone; end it with "
                              f"`docker rm -f {left.short_id}`")
            left.remove(force=True)
        yield


def run(client, arguments, talk=None, meanwhile=None, grace=GRACE):
    """Create and start the container, hand on what it says, return its exit code; 128 + the signal if one ended it. Always removed.

    A signal of STOPS goes to the container as it came; a second one, or `grace` seconds, kills it. talk: in the place of printing, see
    terminal.py. meanwhile: called with the container every tenth of a second.
    """
    with stops_noted() as stops, said_plainly():
        container = client.containers.create(**arguments)
        try:
            printing = (talk or prints)(container)
            container.start()
            code = follow(container, stops, grace, meanwhile)
            printing.join()
        finally:
            with contextlib.suppress(NotFound):
                container.remove(force=True, v=True)
    return 128 + stops[0][0] if stops else code


@contextlib.contextmanager
def stops_noted():
    """The signals of STOPS that came, [(number, when)]; they end nothing by themselves while the block runs."""
    stops = []
    handlers = {number: signal.signal(number, lambda number, _: stops.append((number, time.monotonic()))) for number in STOPS}
    try:
        yield stops
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def prints(container):
    """A thread that hands on stdout and stderr from the first byte; attached before the start, so that nothing is lost."""
    frames = container.attach(stream=True, logs=True, demux=True)

    def copy():
        for out, err in frames:
            for text, stream in ((out, sys.stdout), (err, sys.stderr)):
                if text:
                    with contextlib.suppress(BrokenPipeError):  # whoever read it has gone; the work goes on
                        stream.buffer.write(text)
                        stream.flush()
    return started(copy)


def started(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def follow(container, stops, grace, meanwhile=None):
    """Wait for the end of the container, passing stops on; its exit code."""
    ended = []

    def wait():
        try:
            ended.append(container.wait(timeout=None)["StatusCode"])
        except Exception as error:  # told by the main thread
            ended.append(error)
    waiting = started(wait)
    passed = 0
    while waiting.is_alive():
        waiting.join(0.1)
        if meanwhile:
            meanwhile(container)
        if len(stops) > passed or stops and passed == 1 and time.monotonic() - stops[0][1] > grace:
            passed += 1
            with contextlib.suppress(APIError):  # it has ended meanwhile
                container.kill("SIGKILL" if passed > 1 else "SIGINT" if stops[0][0] == signal.SIGINT else "SIGTERM")
    if isinstance(ended[0], Exception):
        raise ended[0]
    return ended[0]


@contextlib.contextmanager
def said_plainly():
    """The engine's errors as Refusals."""
    try:
        yield
    except APIError as error:
        raise Refusal(sentence(error.explanation or str(error))) from None
    except requests.exceptions.RequestException as error:
        raise Refusal(f"the engine went away or no longer answers ({first_line(error)}); see its log, and `docker ps` once it is "
                      "back") from None


def sentence(said):
    """Meaning and remedy of the engine's words, which follow in brackets."""
    for pattern, means in SAYS:
        if re.search(pattern, said, re.I):
            return f"{means} [the engine says: {first_line(said)}]"
    return f"the engine refuses the container: {first_line(said)}"


def first_line(said):
    return (str(said).strip().splitlines() or ["no message"])[0]


def until_healthy(url, minutes):
    """For `run`'s meanwhile: says once that the server at `url` is healthy; Refusal if it is not after `minutes`."""
    http, deadline, next_try, healthy = Http(url), time.monotonic() + 60 * minutes, [0.0], []

    def look(container):
        if healthy or time.monotonic() < next_try[0]:
            return
        try:
            http.call("/health", seconds=5.0)
            healthy.append(True)
            print(f"the server is healthy: {url}", flush=True)
        except (Broken, Refused):
            next_try[0] = time.monotonic() + 1
            if time.monotonic() > deadline:
                raise Refusal(f"the server at {url} is not healthy after {minutes:g} minutes; its log is above, and --minutes gives it "
                              "more") from None
    return look
