"""A Docker engine for the tests alone, and a base image for a machine that reaches no registry.

The engine that is already there (DOCKER_HOST, or its own socket) is used where it answers; else dockerd is started, with files and socket
of its own, and ended by its process id. No network bridge and no iptables: containers have the host's network or none.
"""
import contextlib
import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

BASE = "localhost/eyrie-base"
MIRROR = "http://deb.debian.org/debian"
# what Python's standard library is linked to, as in the official image
LIBRARIES = "ca-certificates,libffi8,libssl3,libsqlite3-0,libreadline8,libncursesw6,libbz2-1.0,liblzma5,libuuid1,zlib1g"
DEBIAN = "/usr/bin/docker"  # Debian's client has BuildKit built in; others of that name want a plugin


class Missing(Exception):
    """Why there is no engine, in one sentence."""


def client():
    """The docker command that can build: Debian's, else whichever is on PATH."""
    found = DEBIAN if os.access(DEBIAN, os.X_OK) else shutil.which("docker")
    if not found:
        raise Missing("there is no docker command; apt-get install docker.io")
    return found


def docker(*arguments, check=True, **options):
    """Run docker; its output as text. On failure an AssertionError with what it said."""
    environment = {**os.environ, "DOCKER_BUILDKIT": "1", **options.pop("env", {})}
    done = subprocess.run([client(), *map(str, arguments)], env=environment, stdin=options.pop("stdin", subprocess.DEVNULL),
                          capture_output=True, text=True, **options)
    assert not check or done.returncode == 0, f"docker {' '.join(map(str, arguments))}: {done.stderr or done.stdout}"
    return done if not check else done.stdout


def answers(host=None):
    """Does an engine answer at `host` (default: the environment's)?"""
    environment = {"DOCKER_HOST": host} if host else {}
    return docker("version", "--format", "{{.Server.Version}}", check=False, env=environment).returncode == 0


@contextlib.contextmanager
def engine(path_first=None):
    """An engine in DOCKER_HOST while inside; Missing where there is none and none can be started.

    path_first: a folder that comes first on the PATH of the dockerd that is started (a fake GPU hook lies there); then it is always
    started anew.
    """
    if path_first is None and answers():
        yield os.environ.get("DOCKER_HOST", "")
        return
    dockerd = shutil.which("dockerd") or shutil.which("dockerd", path="/usr/sbin:/usr/local/sbin")
    if not dockerd:
        raise Missing("no engine answers and there is no dockerd to start one; apt-get install docker.io")
    if os.geteuid() != 0:
        raise Missing("no engine answers, and starting dockerd takes root; start the machine's own")
    folder = Path(tempfile.mkdtemp(prefix="eyd", dir=os.environ.get("EYRIE_DOCKER_ROOT")))  # short: a socket's path ends at 107 bytes
    folder.chmod(0o711)  # for the group that owns the socket
    in_memory(folder)
    host, before = f"unix://{folder}/s", os.environ.get("DOCKER_HOST")
    path = os.pathsep.join([*([str(path_first)] if path_first else []), "/usr/sbin", "/sbin", os.environ["PATH"]])
    with open(folder / "log", "wb") as log:
        daemon = subprocess.Popen(
            [dockerd, "--storage-driver", "overlay2", "--iptables=false", "--ip6tables=false", "--bridge=none",
             "--exec-opt", "native.cgroupdriver=cgroupfs", "--data-root", folder / "root", "--exec-root", folder / "exec",
             "-p", folder / "pid", "-H", host], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "PATH": path})
    try:
        deadline = time.monotonic() + 60
        while not answers(host):
            if daemon.poll() is not None or time.monotonic() > deadline:
                end = "; ".join((folder / "log").read_text(errors="replace").splitlines()[-3:])
                raise Missing(f"dockerd does not start here: {end}")
            time.sleep(0.2)
        os.environ["DOCKER_HOST"] = host
        yield host
        if left := docker("ps", "--all", "--quiet").split():  # a daemon that ends leaves the process beside each container behind
            docker("rm", "--force", "--volumes", *left)
    finally:
        if before is None:
            os.environ.pop("DOCKER_HOST", None)
        else:
            os.environ["DOCKER_HOST"] = before
        if daemon.poll() is None:
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(30)
            daemon.kill()
        daemon.wait()
        unmount(folder)
        shutil.rmtree(folder, ignore_errors=True)


def in_memory(folder):
    """A file system in memory for the engine, where there is plenty: the tens of thousands of files of an image are gone at once
    afterwards, which takes a slow disk minutes. The cpu image and what it takes to build it are under 5 GB; the gpu image is too large."""
    free = int(re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())[1]) * 1024
    if free > 14e9 and not os.environ.get("EYRIE_TEST_GPU_IMAGE"):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=9g,mode=711", "eyrie-test", folder], check=False, capture_output=True)


def unmount(folder):
    """What is mounted at an engine's folder and below: removing the files through a mount would remove those behind it."""
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    below = [point for point in points if point == str(folder) or point.startswith(f"{folder}/")]
    for point in sorted(below, reverse=True):
        subprocess.run(["umount", point], check=False)


def base_image(work, prefix=None):
    """The name of a base for the Dockerfile: EYRIE_BASE_IMAGE, or one made of Debian 12's packages and the Python at `prefix` (this one).

    The second is the official image's stand-in: the same release, Python in /usr/local. `work`: a scratch folder. Missing where neither
    can be had.
    """
    if os.environ.get("EYRIE_BASE_IMAGE"):
        return os.environ["EYRIE_BASE_IMAGE"]
    prefix = Path(prefix or sys.base_prefix)
    python = max(path.name for path in (prefix / "lib").glob("python3.*"))
    name = f"{BASE}:{python}"
    if docker("image", "inspect", name, check=False).returncode == 0:
        return name
    if not shutil.which("debootstrap"):
        raise Missing("there is no debootstrap to make a base image with; apt-get install debootstrap, or name one: EYRIE_BASE_IMAGE")
    if prefix == Path("/usr"):
        raise Missing("Python is the system's, which cannot be copied into a base image; name one: EYRIE_BASE_IMAGE")
    root = Path(work) / "rootfs"
    done = subprocess.run(["debootstrap", "--variant=minbase", f"--include={LIBRARIES}", "bookworm", root, MIRROR], text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise Missing(f"debootstrap failed: {done.stdout.strip().splitlines()[-1:]}")
    copy_python(prefix, python, root / "usr/local")
    for folder in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(root / folder, ignore_errors=True)
    with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as packed:
        docker("import", "-", name, stdin=packed.stdout)
    shutil.rmtree(root)
    return name


def copy_python(prefix, name, into):
    """The interpreter `name` (python3.12) at `prefix` as the official image has it: programs, library, headers, pip."""
    ignore = shutil.ignore_patterns("__pycache__", "*.a", "test", "tests", "idlelib", "tkinter", "turtledemo", "site-packages")
    shutil.copytree(prefix / "lib" / name, into / "lib" / name, symlinks=True, ignore=ignore)
    (into / "lib" / name / "site-packages").mkdir()
    shutil.copytree(prefix / "include" / name, into / "include" / name)
    for library in (prefix / "lib").glob("libpython3*.so*"):
        shutil.copy2(library, into / "lib", follow_symlinks=False)
    shutil.copy2(prefix / "bin" / name, into / "bin" / name)
    for link in ("python3", "python"):
        (into / "bin" / link).symlink_to(name)
    subprocess.run(["/usr/sbin/chroot", into.parents[1], "/sbin/ldconfig"], check=True)


@contextlib.contextmanager
def wheel_index(folder):
    """The wheels in `folder` as a package index, on this machine alone: its URL while inside. A build with the host's network reads it."""
    site = Path(tempfile.mkdtemp())
    for wheel in Path(folder).glob("*.whl"):
        project = site / wheel.name.split("-")[0].replace("_", "-").lower()
        project.mkdir(exist_ok=True)
        (project / wheel.name).symlink_to(wheel)
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
            shutil.rmtree(site)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


if __name__ == "__main__":  # .ci/run asks first: no engine is no reason to refuse a merge
    try:
        with engine():
            pass
    except Missing as missing:
        sys.exit(f"test-container: not run: {missing}")
