"""The launcher on a real engine: what a container may do, what it leaves behind, and how it ends. Run by `make test-container`.

The image is the Dockerfile's `base` and no more: the launcher does not ask what is installed.
"""
import contextlib
import fcntl
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from tests.container import engine
from tools import workspace
from tools.container import identity

ROOT = workspace.PROJECT
IMAGE, ID = "eyrie-launcher:test", "0123456789abcdef"
CHILD = f"""\
ARG BASE_IMAGE
FROM ${{BASE_IMAGE}}
RUN echo "cpu {ID}" >/etc/eyrie-image
LABEL eyrie.target="cpu" eyrie.identity="{ID}"
"""
OTHER = 4321  # a user without an entry in the image's passwd


def build_image(base, folder):
    """IMAGE in the engine of DOCKER_HOST."""
    engine.docker("build", "--network", "host", "--target", "base", "--build-arg", f"BASE_IMAGE={base}", "--tag", "eyrie-launcher:base",
                  ROOT)
    (folder / "Dockerfile").write_text(CHILD)
    engine.docker("build", "--network", "none", "--build-arg", "BASE_IMAGE=eyrie-launcher:base", "--tag", IMAGE, folder)


@pytest.fixture(scope="module")
def image(base, tmp_path_factory):
    """The image in the engine, and as a file for another one."""
    folder = tmp_path_factory.mktemp("image")
    build_image(base, folder)
    engine.docker("save", "--output", folder / "saved.tar", IMAGE)
    return folder / "saved.tar"


@pytest.fixture
def work(image, tmp_path):
    return checkout(tmp_path)


def checkout(tmp_path):
    """A copy of the project that declares IMAGE as the cpu image."""
    path = workspace.make(tmp_path / "work")
    document = (path / "docker/images.yaml").read_text()
    (path / "docker/images.yaml").write_text(document.replace(identity.declared(path)["cpu"], ID))
    return path


def command(*words, options=(), user=None):
    """The launcher's command line; with `user`, as that user id."""
    other = ["setpriv", f"--reuid={user}", f"--regid={user}", f"--groups={socket_group()}"] if user else []
    return [*other, sys.executable, "-m", "tools.container", "run", "--image", "cpu", "--reference", IMAGE, *options, "--", *words]


def socket_group():
    return os.stat(os.environ["DOCKER_HOST"].removeprefix("unix://")).st_gid


def environment(work):
    return {**os.environ, "EYRIE_CACHE": str(work.with_name("cache")), "DVC_NO_ANALYTICS": "1", "PYTHONPATH": "",
            "PYTHONDONTWRITEBYTECODE": "1", "GIT_CONFIG_GLOBAL": os.devnull, "HOME": str(work.parent)}


def run(work, *words, **more):
    return subprocess.run(command(*words, **more), cwd=work, env=environment(work), stdin=subprocess.DEVNULL, capture_output=True,
                          text=True)


@contextlib.contextmanager
def running(work, script, **more):
    """The launcher with a script that says `up` once it runs; ended and its container removed afterwards."""
    process = subprocess.Popen(command("bash", "-c", f"{script}", **more), cwd=work, env=environment(work), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "up\n", process.stderr.read()
        yield process
    finally:
        process.kill()
        process.communicate()
        for left in containers(work):
            engine.docker("rm", "-f", left)


def containers(work):
    """Ids of this workspace's containers, ended ones too."""
    return engine.docker("ps", "--all", "--quiet", "--filter", f"label=eyrie.workspace={work}").split()


def processes(sign):
    """Processes of this machine whose command line holds `sign`."""
    return subprocess.run(["pgrep", "-f", sign], capture_output=True, text=True).stdout.split()


# ---------------------------------------------------------------- what comes out

def test_output_and_exit_code_are_the_commands(work):
    done = run(work, "bash", "-c", "seq 100000; echo said >&2; exit 7")
    assert done.returncode == 7 and done.stderr == "said\n"
    assert done.stdout == "".join(f"{i}\n" for i in range(1, 100001))
    assert containers(work) == []


def test_a_command_that_the_image_lacks_is_one_sentence(work):
    done = run(work, "no-such-command")
    assert done.returncode != 0 and "no-such-command" in done.stderr and containers(work) == []


def test_overhead_is_under_two_seconds(work):
    def seconds(call):
        start = time.monotonic()
        call()
        return time.monotonic() - start
    ours = min(seconds(lambda: run(work, "true")) for _ in range(4))
    bare = min(seconds(lambda: engine.docker("run", "--rm", "--network", "none", IMAGE, "true")) for _ in range(4))
    print(f"launcher {ours:.2f} s, docker run {bare:.2f} s")
    assert ours - bare < 2


# ---------------------------------------------------------------- what a container may do

LOOK = """
import json, os, socket
def writes(path):
    try:
        open(path, "w").close(); os.unlink(path); return True
    except OSError as error:
        return error.strerror
def connects(place):
    try:
        socket.create_connection(place, 3).close(); return True
    except OSError as error:
        return type(error).__name__
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
open("made-inside", "w").write("x")
print(json.dumps({"uid": [os.getuid(), os.getgid()], "cwd": os.getcwd(), "home": os.path.expanduser("~"),
    "writes": {p: writes(p) for p in ("/x", "/usr/bin/x", "/etc/x", "/tmp/x", "/cache/x", os.environ["EYRIE_CACHE"] + "/x")},
    "caps": [int(status[k], 16) for k in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")], "no_new": status["NoNewPrivs"],
    "net": sorted(os.listdir("/sys/class/net")), "connects": connects(("192.0.2.1", 80)), "first": open("/proc/1/comm").read().strip(),
    "git": os.popen("git status --porcelain made-inside 2>&1").read()}))
"""


@pytest.fixture(params=[None, OTHER], ids=["this-user", "another-user"])
def looked(request, work):
    """What LOOK saw, run as whoever runs the tests, and as a user that the image does not know."""
    user = request.param
    if user and (os.geteuid() != 0 or not shutil.which("setpriv")):
        pytest.skip("to start the launcher as another user takes root and setpriv")
    if user:
        work.parent.chmod(0o755)
        work.with_name("cache").mkdir()
        subprocess.run(["chown", "-R", f"{user}:{user}", work, work.with_name("cache")], check=True)
        for folder in work.parents:  # pytest's folders are closed to others
            if folder.stat().st_uid == 0 and not folder.stat().st_mode & 0o001:
                folder.chmod(folder.stat().st_mode | 0o011)
    done = run(work, "python", "-c", LOOK, user=user)
    assert done.returncode == 0, done.stderr
    return work, user, json.loads(done.stdout)


def test_a_container_is_the_user_in_the_same_place_and_writes_nowhere_else(looked):
    work, user, saw = looked
    user = os.getuid() if user is None else user
    cache = str(work.with_name("cache"))
    assert saw["uid"][0] == user and saw["cwd"] == str(work) and saw["home"] == "/cache"
    assert (work / "made-inside").stat().st_uid == user and saw["git"] == "?? made-inside\n"
    assert {path for path, can in saw["writes"].items() if can is True} == {"/tmp/x", "/cache/x", f"{cache}/x"}
    assert saw["caps"] == [0] * 5 and saw["no_new"] == "1"
    assert saw["net"] == ["lo"] and saw["connects"] in ("OSError", "TimeoutError")
    assert saw["first"] == "tini"


def test_a_network_is_there_when_asked_for(work):
    assert "lo\n" != run(work, "ls", "/sys/class/net", options=("--network", "host")).stdout != ""


def test_compilers_may_run_what_they_put_into_tmp(work):
    assert run(work, "bash", "-c", "cp /bin/true /tmp/x && /tmp/x").returncode == 0


def test_other_folders_are_read_only(work, tmp_path):
    (tmp_path / "more").mkdir()
    done = run(work, "touch", str(tmp_path / "more/x"), options=("--mount", str(tmp_path / "more")))
    assert done.returncode == 1 and "Read-only file system" in done.stderr


def test_what_an_image_compiled_is_there_the_next_time(work):
    assert run(work, "touch", "/cache/kept").returncode == 0
    assert run(work, "ls", "/cache/kept").stdout == "/cache/kept\n"


# ---------------------------------------------------------------- identity

def test_a_stage_knows_its_container_by_the_images_mark(work):
    check = "import sys; from stages.lib import image, refusal; refusal.run(lambda: image.check('cpu', {'cpu': sys.argv[1]}))"
    assert run(work, "python", "-c", check, ID).returncode == 0
    other = run(work, "python", "-c", check, "f" * 16)
    assert other.returncode == 1 and f"cpu image is {ID}, but docker/images.yaml declares {'f' * 16}" in other.stderr


def test_an_image_other_than_the_declared_one_is_not_started(work):
    images = work / "docker/images.yaml"
    images.write_text(images.read_text().replace(ID, "f" * 16))
    done = run(work, "true")
    assert done.returncode == 1 and f"is {ID}, but docker/images.yaml declares {'f' * 16}" in done.stderr


def test_an_absent_image_is_refused(work):
    done = run(work, "true", options=("--reference", "eyrie-launcher:absent"))
    assert done.returncode == 1 and "no image eyrie-launcher:absent; build it with" in done.stderr


# ---------------------------------------------------------------- how it ends

SLEEPS = "trap 'echo got {0} >{1}/said; exit 3' {0}; sleep 3{2} & echo up; wait"


@pytest.mark.parametrize("number, inside", [(signal.SIGINT, "INT"), (signal.SIGTERM, "TERM"), (signal.SIGHUP, "TERM")])
def test_a_signal_reaches_the_command_and_ends_container_and_children(work, number, inside):
    sign = os.getpid() * 10 + number
    with running(work, SLEEPS.format(inside, work, sign)) as process:
        assert processes(f"sleep 3{sign}")
        process.send_signal(number)
        assert process.wait(20) == 128 + number
    assert (work / "said").read_text() == f"got {inside}\n"
    assert containers(work) == [] and processes(f"^sleep 3{sign}$") == []


def test_a_second_signal_kills_what_ignores_the_first(work):
    sign = os.getpid() * 10
    with running(work, f"trap '' INT TERM; sleep 3{sign} & echo up; while true; do sleep 0.2; done") as process:
        process.send_signal(signal.SIGINT)
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert containers(work) == [] and processes(f"^sleep 3{sign}$") == []


def test_children_that_a_command_leaves_behind_end_with_it(work):
    sign = os.getpid() * 10 + 7
    assert run(work, "bash", "-c", f"setsid sleep 3{sign} >/dev/null 2>&1 & exit 0").returncode == 0
    assert processes(f"^sleep 3{sign}$") == []


def test_two_containers_never_run_one_workspace(work, tmp_path):
    with running(work, "echo up; sleep 60") as first:
        done = run(work, "true")
        assert done.returncode == 1 and "running this workspace already" in done.stderr
        first.send_signal(signal.SIGTERM)
        first.wait(20)
    assert run(work, "true").returncode == 0


def test_the_container_of_a_killed_launcher_is_named(work):
    with running(work, "echo up; sleep 60") as first:
        first.kill()
        first.wait()
        done = run(work, "true")
        assert done.returncode == 1 and f"`docker rm -f {containers(work)[0][:10]}" in done.stderr
    assert run(work, "true").returncode == 0


# ---------------------------------------------------------------- a shell

def test_a_shell_takes_keys_and_passes_its_size_on(work):
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 97, 0, 0))
    words = [sys.executable, "-m", "tools.container", "shell", "--image", "cpu", "--reference", IMAGE]
    shell = subprocess.Popen(words, cwd=work, env=environment(work), stdin=there, stdout=there, stderr=subprocess.PIPE,
                             start_new_session=True)
    os.close(there)
    try:
        said = os.read(here, 65536).decode()  # the prompt
        os.write(here, b"sleep 99\n")
        time.sleep(1)
        os.write(here, b"\x03")  # ^C is the shell's, and ends the sleep alone
        time.sleep(1)  # the terminal forgets at ^C what was typed ahead
        os.write(here, b"stty size; echo place=$PWD; exit 5\n")
        assert shell.wait(30) == 5, shell.stderr.read()
        said += os.read(here, 65536).decode()
    finally:
        shell.kill()
        shell.wait()
        shell.stderr.close()
        os.close(here)
        for left in containers(work):
            engine.docker("rm", "-f", left)
    assert "33 97" in said and f"place={work}" in said and containers(work) == []


# ---------------------------------------------------------------- GPUs

HOOK = '#!/bin/sh\necho "$@" >>{0}\ncat >>{0}\nexit 0\n'


def test_without_the_toolkit_a_gpu_is_refused_in_a_sentence(work):
    done = run(work, "true", options=("--gpus", "all", "--ulimit", "none"))
    assert done.returncode == 1 and "install the NVIDIA container toolkit" in done.stderr and done.stderr.count("\n") == 1
    assert containers(work) == []


def test_a_gpu_that_is_asked_for_reaches_the_toolkits_hook(image, tmp_path):
    """dockerd has its NVIDIA driver when it starts with nvidia-container-runtime-hook on PATH: a fake one shows what a real one gets."""
    hook, log = tmp_path / "bin/nvidia-container-runtime-hook", tmp_path / "hook.log"
    hook.parent.mkdir()
    hook.write_text(HOOK.format(log))
    hook.chmod(0o755)
    try:
        with engine.engine(path_first=hook.parent):
            engine.docker("load", "--input", image)
            work = checkout(tmp_path)
            for wanted in ("all", "0,1"):
                done = run(work, "bash", "-c", "echo $NVIDIA_VISIBLE_DEVICES", options=("--gpus", wanted))
                assert (done.returncode, done.stdout) == (0, f"{wanted}\n"), done.stderr
            assert log.read_text().startswith("prestart")
            assert run(work, "bash", "-c", "echo $NVIDIA_VISIBLE_DEVICES").stdout == "\n"
    except engine.Missing as missing:
        pytest.skip(str(missing))
