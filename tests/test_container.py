"""The launcher without an engine: what it asks of one, and what it says of each of an engine's refusals."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from pathlib import Path

import pytest

from stages.engines.sglang_server import free_port
from stages.lib.refusal import Refusal
from tests.fake_docker import fake
from tools import serve
from tools.container import __main__ as cli, build, doctor, engine, here
from tools.container.plan import Job, plan

ROOT = Path(__file__).parents[1]
JOB = Job(image="eyrie:gpu", command=("dvc", "repro"), workspace="/home/ada/eyrie", user=(1000, 1000, 27), cache="/home/ada/.cache/eyrie/c",
          writable=("/big/dvc", "/home/ada/.cache/eyrie", "/home/ada/eyrie/.git", "/big/dvc/site"), readable=("/models/kimi", "/big/dvc/x"),
          gpus=(), shm="16g", ulimits=("memlock=-1", "nofile=1024:4096"), environment={"EYRIE_CACHE": "/home/ada/.cache/eyrie"})


def bind(path, target=None, read_only=False):
    return {"Target": target or path, "Source": path, "Type": "bind", "ReadOnly": read_only}


# ---------------------------------------------------------------- plan

GOLDEN = {
    "image": "eyrie:gpu", "command": ["dvc", "repro"], "working_dir": "/home/ada/eyrie", "user": "1000:1000", "group_add": ["27"],
    "environment": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_TELEMETRY": "1",
                    "DVC_NO_ANALYTICS": "1", "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HOME": "/cache",
                    "EYRIE_CACHE": "/home/ada/.cache/eyrie"},
    "mounts": [bind("/home/ada/eyrie"), bind("/home/ada/.cache/eyrie/c", "/cache"), bind("/big/dvc"), bind("/home/ada/.cache/eyrie"),
               bind("/models/kimi", read_only=True)],
    "network_mode": "none",
    "device_requests": [{"Driver": "", "Count": -1, "DeviceIDs": [], "Capabilities": [["gpu"]], "Options": {}}],
    "shm_size": "16g", "mem_limit": None,
    "ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}, {"Name": "nofile", "Soft": 1024, "Hard": 4096}],
    "read_only": True, "tmpfs": {"/tmp": "rw,exec,nosuid,nodev,mode=1777"}, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"],
    "labels": {"eyrie.workspace": "/home/ada/eyrie"}, "tty": False, "stdin_open": False,
}


def plain(arguments):
    """docker-py's types as what they hold; a mount's read_only is left out where it is not set."""
    arguments = {**arguments, "mounts": [{"ReadOnly": False, **mount} for mount in arguments["mounts"]]}
    return json.loads(json.dumps(arguments))


def changed(**more):
    return plain(plan(Job(**{**JOB.__dict__, **more})))


def test_the_plan_is_this_one():
    assert plain(plan(JOB)) == GOLDEN


def test_docker_py_knows_every_argument_of_the_plan():
    from docker.models.containers import _create_container_args
    assert _create_container_args({**plan(JOB), "version": "1.41"})["host_config"]["CapDrop"] == ["ALL"]


@pytest.mark.parametrize("names, asked", [(None, []), (("0", "3"), [["0", "3"]]), (("GPU-5f",), [["GPU-5f"]]), ((), [[]])])
def test_gpus_are_asked_for_by_name_or_all_together(names, asked):
    assert [request["DeviceIDs"] for request in changed(gpus=names)["device_requests"]] == asked


def test_with_a_network_the_hub_is_not_offline():
    arguments = changed(network="host")
    assert (arguments["network_mode"], arguments["environment"]["HF_HUB_OFFLINE"]) == ("host", "0")


@pytest.mark.parametrize("text", ("memlock", "memlock=", "memlock=much", "nofile=1:2:3"))
def test_a_limit_in_another_form_is_refused(text):
    with pytest.raises(Refusal, match=f"--ulimit {text} is not of the form"):
        changed(ulimits=(text,))


def test_nothing_of_the_plan_is_privileged():
    assert not {"privileged", "devices", "pid_mode", "ipc_mode", "cap_add"} & set(plan(JOB))


# ---------------------------------------------------------------- here: the machine and the checkout

@pytest.fixture
def project(in_tmp, monkeypatch):
    """A small checkout, a cache beside it, and no variables that would name other places."""
    for name in ("DVC_SITE_CACHE_DIR", "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_CACHE", "EYRIE_IMAGE_GPU", "EYRIE_IMAGE_CPU"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EYRIE_CACHE", str(in_tmp / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(in_tmp / "none"))
    work = in_tmp / "work"
    (work / "docker").mkdir(parents=True)
    (work / ".dvc").mkdir()
    (work / ".dvc/config").write_text("")
    (work / "dvc.yaml").write_text("stages: {}\n")
    (work / "docker/images.yaml").write_text(f"images:\n  none: ''\n  cpu: '{'c' * 16}'\n  gpu: '{'f' * 16}'\n")
    params(work)
    monkeypatch.chdir(work)
    subprocess.run(["git", "init", "-q"], check=True)
    return work


def params(work, image="gpu", source="package", name="m"):
    (work / "params.yaml").write_text(f"engine: {{image: {image}}}\ntarget: {{source: {source}, name: {name}}}\ntrain: {{init: target}}\n")


def options(*words):
    return cli.parser().parse_args(["run", *words])


def writable(job):
    """Paths that the container can write to, by its mounts."""
    return [mount["Target"] for mount in plan(job)["mounts"] if not mount.get("ReadOnly")]


def test_the_container_has_the_workspace_its_caches_and_the_users_id(project):
    job = here.job(["true"], options())
    cache = project.with_name("cache")
    assert writable(job) == [str(project), "/cache", str(cache)]
    assert job.cache == str(cache / "container" / f"gpu-{'f' * 16}") and Path(job.cache).is_dir()
    assert job.user[:2] == (os.getuid(), os.getgid()) and job.image == "eyrie:gpu"
    assert job.environment["DVC_SITE_CACHE_DIR"] == str(cache / "container/dvc")


def test_what_lies_outside_the_workspace_is_mounted_where_it_is(project, tmp_path):
    for name in ("model", "disk", "dvc-cache", "more"):
        (tmp_path / name).mkdir()
    params(project, source="folder", name=tmp_path / "model")
    (project / "data").mkdir()
    (project / "data/states").symlink_to(tmp_path / "disk")
    (project / ".dvc/config").write_text(f"[cache]\n    dir = {tmp_path / 'dvc-cache'}\n")
    job = here.job(["true"], options("--mount", str(tmp_path / "more")))
    assert {str(tmp_path / "disk"), str(tmp_path / "dvc-cache")} < set(writable(job))
    assert job.readable == (str(tmp_path / "model"), str(tmp_path / "more"))


@pytest.mark.parametrize("written", ("/big/dvc", "../../big", "'/quoted place'"))
def test_the_cache_folder_is_the_one_that_dvc_takes(project, written):
    (project / ".dvc/config").write_text("[core]\n    autostage = true\n['remote \"x\"']\n    url = /far\n[cache]\n    dir = /other\n")
    (project / ".dvc/config.local").write_text(f"[cache]\n    dir = {written}\n")
    from dvc.config import Config
    assert here.dvc_cache() == os.path.abspath(Config(str(project / ".dvc"))["cache"]["dir"])


def test_a_worktrees_repository_is_mounted_too(project, tmp_path, monkeypatch):
    someone = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["add", "-A"], [*someone, "commit", "-qm", "x"], ["worktree", "add", "-q", tmp_path / "tree"]):
        subprocess.run(["git", *words], check=True)
    (tmp_path / "tree/.dvc").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "tree")
    assert str(project / ".git") in writable(here.job(["true"], options()))


@pytest.mark.parametrize("visible, words, expected", [
    (None, (), ()), ("1,2", (), ("1", "2")), ("", (), None), ("1,2", ("--gpus", "all"), ()), (None, ("--gpus", "none"), None),
    ("1", ("--image", "cpu"), None), (None, ("--gpus", "0"), ("0",))])
def test_gpus_are_those_that_cuda_visible_devices_leaves(project, monkeypatch, visible, words, expected):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    job = here.job(["true"], options(*words))
    assert job.gpus == expected and "CUDA_VISIBLE_DEVICES" not in job.environment  # numbers start at 0 inside


def test_a_profile_without_an_image_runs_in_the_cpu_image(project):
    params(project, image="none")
    job = here.job(["true"], options())
    assert (job.image, job.gpus, job.ulimits) == ("eyrie:cpu", None, ())


def test_limits_can_be_left_alone(project):
    assert here.job(["true"], options()).ulimits == ("memlock=-1", "stack=67108864")
    assert here.job(["true"], options("--ulimit", "none")).ulimits == ()


def test_another_users_workspace_is_refused(project, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    with pytest.raises(Refusal, match="belongs to user .* and you are 4242.*chown -R 4242"):
        here.job(["true"], options())


def test_a_folder_to_mount_that_is_not_there_is_refused(project):
    with pytest.raises(Refusal, match="/no/such/place is not there, and the container needs it mounted"):
        here.job(["true"], options("--mount", "/no/such/place"))


# ---------------------------------------------------------------- the engine's refusals

@pytest.fixture
def socket_folder():
    """A folder with a short name: the path of a unix socket ends at 107 bytes."""
    folder = tempfile.mkdtemp()
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.fixture
def host(socket_folder, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{socket_folder}/s")
    return socket_folder


def ready(job=JOB):
    engine.ready(engine.connect(), job, "gpu", "f" * 16)


def start_says(message, status=500):
    return {("POST", r"/containers/c1/start"): (status, {"message": message})}


def test_no_engine(host):
    with pytest.raises(Refusal, match=r"no container engine answers at unix://.*/s .*start Docker, or name its socket in DOCKER_HOST"):
        engine.connect()


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root may open any socket, and there is no setpriv")
def test_no_permission_on_the_socket(host):
    with fake(host):
        host.chmod(0o755)
        (host / "s").chmod(0o600)
        code = "from tools.container import engine; from stages.lib import refusal; refusal.run(engine.connect)"
        other = ["setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=-all"] if os.geteuid() == 0 else []
        if not other:
            (host / "s").chmod(0)
        said = subprocess.run([*other, sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 1 and "no permission to talk to the engine" in said.stderr and "usermod -aG docker" in said.stderr


def test_an_engine_that_is_too_old(host):
    with fake(host, api="1.38"), pytest.raises(Refusal, match="speaks API 1.38; expected 1.41 or later"):
        engine.connect()


def test_an_absent_image(host):
    with fake(host, answers={("GET", r"/images/\S+/json"): (404, {"message": "No such image: eyrie:gpu"})}), \
            pytest.raises(Refusal, match="no image eyrie:gpu; build it with `python -m tools.container build gpu`"):
        ready()


@pytest.mark.parametrize("labels, says", [({"eyrie.identity": "e" * 16}, "eyrie:gpu is e{16}, but docker/images.yaml declares f{16}"),
                                          ({}, "no image of ours"), (None, "no image of ours")])
def test_an_image_of_another_identity(host, labels, says):
    with fake(host, answers={("GET", r"/images/\S+/json"): (200, {"Id": "sha256:1", "Config": {"Labels": labels}})}), \
            pytest.raises(Refusal, match=says):
        ready()


def test_an_engine_that_ignores_requests_for_gpus(host):
    with fake(host, name="Podman Engine"):
        ready(Job(**{**JOB.__dict__, "gpus": None}))
        with pytest.raises(Refusal, match="Podman, whose Docker socket ignores requests for GPUs"):
            ready()


def test_docker_with_the_declared_image_is_ready(host):
    with fake(host):
        ready()


@pytest.mark.parametrize("message, says", [
    ('could not select device driver "" with capabilities: [[gpu]]', "install the NVIDIA container toolkit"),
    ("OCI runtime create failed: nvidia-container-cli: initialization error: nvml error: driver not loaded", "driver does not answer"),
    ("nvidia-container-cli: device error: 7: unknown device", "does not exist; see `nvidia-smi -L`"),
    ("write /var/lib/docker/x: no space left on device", "disk is full; free some"),
    ("error setting rlimit type 8: operation not permitted", "--ulimit none"),
    ("network bridge not found", "--network none or --network host"),
    ('invalid mount config for type "bind": bind source path does not exist: /x', "look at DOCKER_HOST"),
    ('exec: "dvcc": executable file not found in $PATH', "the command is not in the image"),
    ("something new", "the engine refuses the container: something new"),
])
def test_each_error_of_a_start_is_one_sentence_and_the_container_is_removed(host, message, says):
    with fake(host, answers=start_says(message)) as there:
        with pytest.raises(Refusal) as refusal:
            engine.run(engine.connect(), plan(JOB))
        assert says in str(refusal.value) and "\n" not in str(refusal.value)
        assert [call[:2] for call in there.calls][-1] == ("DELETE", "/containers/c1")


def test_an_engine_that_goes_away_is_said(host):
    with fake(host, answers={("POST", r"/containers/c1/wait"): None}), \
            pytest.raises(Refusal, match="the engine went away or no longer answers"):
        engine.run(engine.connect(), plan(JOB))


class Stubborn:
    """A container that only SIGKILL ends."""

    def __init__(self):
        self.sent, self.end = [], threading.Event()

    def kill(self, name):
        self.sent.append(name)
        if name == "SIGKILL":
            self.end.set()

    def wait(self, timeout):
        self.end.wait(10)
        return {"StatusCode": 137}


@pytest.mark.parametrize("stops, grace, sent", [
    ([signal.SIGTERM], 0.2, ["SIGTERM", "SIGKILL"]), ([signal.SIGHUP], 0.2, ["SIGTERM", "SIGKILL"]),
    ([signal.SIGINT] * 2, 60, ["SIGINT", "SIGKILL"])])
def test_a_container_that_does_not_end_is_killed_after_a_while_or_at_the_second_signal(stops, grace, sent):
    container = Stubborn()
    assert engine.follow(container, [(number, time.monotonic()) for number in stops], grace) == 137 and container.sent == sent


def test_the_engine_is_asked_for_what_the_plan_says(host):
    with fake(host) as there:
        assert engine.run(engine.connect(), plan(JOB)) == 0
        body = next(body for _, path, body in there.calls if path == "/containers/create")
    assert (body["User"], body["HostConfig"]["ReadonlyRootfs"], body["HostConfig"]["NetworkMode"]) == ("1000:1000", True, "none")
    assert body["HostConfig"]["DeviceRequests"][0]["Count"] == -1 and body["HostConfig"]["ShmSize"] == 16 << 30


def test_one_container_per_workspace(host, tmp_path):
    with fake(host):
        client = engine.connect()
        with engine.only_one(client, str(tmp_path)):
            with pytest.raises(Refusal, match="running this workspace already"), engine.only_one(client, str(tmp_path)):
                pass
            with engine.only_one(client, str(tmp_path / "..")):
                pass


def test_a_container_whose_launcher_was_killed_is_found(host, tmp_path):
    left = {"Id": "c1", "State": {"Status": "running"}, "Config": {}}
    answers = {("GET", r"/containers/json"): (200, [{"Id": "c1"}]), ("GET", r"/containers/c1/json"): (200, left)}
    with fake(host, answers=answers) as there:
        client = engine.connect()
        with pytest.raises(Refusal, match="container c1 .* end it with `docker rm -f c1`"), engine.only_one(client, str(tmp_path)):
            pass
        left["State"]["Status"] = "exited"
        with engine.only_one(client, str(tmp_path)):
            assert ("DELETE", "/containers/c1", None) in there.calls


# ---------------------------------------------------------------- serve

def test_a_server_is_said_to_be_healthy_once_it_is(capsys):
    port = free_port()
    look = engine.until_healthy(f"http://127.0.0.1:{port}", 5)
    look(None)
    assert capsys.readouterr().out == ""
    server = subprocess.Popen([sys.executable, "-S", str(ROOT / "tests/fake_sglang.py"), "--port", str(port)])
    try:
        deadline = time.monotonic() + 20
        while not (said := capsys.readouterr().out) and time.monotonic() < deadline:
            look(None)
            time.sleep(0.1)
    finally:
        server.kill()
        server.wait()
    assert said == f"the server is healthy: http://127.0.0.1:{port}\n"


def test_a_server_that_does_not_become_healthy_is_given_up():
    with pytest.raises(Refusal, match="not healthy after 0 minutes; its log is above"):
        engine.until_healthy(f"http://127.0.0.1:{free_port()}", 0)(None)


def test_the_server_is_started_with_the_profiles_flags_and_the_draft(in_tmp, monkeypatch):
    (in_tmp / "data/export").mkdir(parents=True)
    (in_tmp / "data/export/config.json").write_text("{}")
    (in_tmp / "config.json").write_text("{}")
    flags = Namespace(**{"mem-fraction-static": 0.4})
    params = Namespace(engine=Namespace(name="sglang", dtype="bfloat16", flags=flags))
    monkeypatch.setattr(serve.params, "load", lambda stage: params)
    monkeypatch.setattr(serve.params, "plain", vars)
    monkeypatch.setattr(serve.target, "open_target", lambda: in_tmp)
    monkeypatch.setattr(serve.capability, "of_devices", lambda: ((12, 0),))
    lines = []
    monkeypatch.setattr(os, "execvpe", lambda name, line, env: lines.append((line, env)))
    monkeypatch.setattr(sys, "argv", ["serve", "--port", "30007", "--chain", "3"])
    serve.main()
    (line, env), = lines
    pairs = dict(zip(line, line[1:]))
    assert pairs["--port"] == "30007" and pairs["--speculative-num-steps"] == "3" and pairs["--mem-fraction-static"] == "0.4"
    assert pairs["--speculative-draft-model-path"] == str(in_tmp / "data/export") and pairs["--attention-backend"] == "flashinfer"
    assert env["SGLANG_ENABLE_JIT_DEEPGEMM"] == "0"
    params.engine.name = "transformers"
    with pytest.raises(Refusal, match="engine.name is transformers, which serves nothing"):
        serve.main()


# ---------------------------------------------------------------- commands

def said(work, *words, **environment):
    return subprocess.run([sys.executable, "-m", "tools.container", *words], cwd=work, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT), **environment})


@pytest.mark.parametrize("words, says", [
    (("run",), "nothing to run"), (("shell",), "needs a terminal"), (("shell", "--", "ls"), "shell takes no command"),
    (("run", "--", "ls"), "no container engine answers")])
def test_a_refusal_is_one_line_and_exit_code_1(project, words, says):
    found = said(project, *words, DOCKER_HOST="unix:///nowhere/s")
    assert found.returncode == 1 and found.stderr.startswith("refused: ") and says in found.stderr and found.stderr.count("\n") == 1


def test_a_build_names_target_identity_base_and_certificates(project, monkeypatch):
    (project / "Dockerfile").write_text("ARG BASE_IMAGE=x@sha256:1\nFROM ${BASE_IMAGE} AS cpu\n")
    (project / "ca.crt").write_text("x")
    variables = {"SSL_CERT_FILE": "ca.crt", "TORCH_INDEX": "http://x"}
    words = build.line("cpu", "eyrie:cpu", "mirror/x@sha256:1", network="host", environment=variables)
    identity = build.identity.identity("cpu")
    assert words == ["docker", "build", "--file", "Dockerfile", "--target", "cpu", "--tag", "eyrie:cpu",
                     "--build-arg", f"IDENTITY={identity}", "--build-arg", "BASE_IMAGE=mirror/x@sha256:1", "--build-arg", "TORCH_INDEX=http://x",
                     "--secret", "id=ca_bundle,src=ca.crt", "--network", "host", "."]
    assert build.line("cpu", "x", builder="/usr/bin/buildah", environment={})[1] == "bud"


def test_a_failed_build_says_what_to_do(project):
    (project / "Dockerfile").write_text("FROM x AS cpu\n")
    builder = project / "builder"
    builder.write_text("#!/bin/sh\necho 'ERROR: BuildKit is enabled but the buildx component is missing or broken.' >&2\nexit 1\n")
    builder.chmod(0o755)
    with pytest.raises(Refusal, match="this docker command has no BuildKit; install docker-buildx-plugin"):
        build.build("cpu", "eyrie:cpu", builder=str(builder))
    with pytest.raises(Refusal, match="there is no nobuilder command"):
        build.build("cpu", "eyrie:cpu", builder="nobuilder")


SMI = "#!/bin/sh\necho '| NVIDIA-SMI {0}.10   Driver Version: {0}.10   CUDA Version: 13.0 |'\n"


@pytest.fixture
def machine(project, monkeypatch):
    """nvidia-smi that says what a test wants, first on PATH."""
    (project / "Dockerfile").write_text("FROM x AS cpu\nFROM y AS gpu\n")
    doctor.identity.write()
    (project / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{project / 'bin'}{os.pathsep}{os.environ['PATH']}")

    def smi(text):
        (project / "bin/nvidia-smi").write_text(text)
        (project / "bin/nvidia-smi").chmod(0o755)
    smi(SMI.format(580))
    return smi


def found(**more):
    return {what: (level, says) for level, what, says in doctor.findings(Namespace(**{**vars(options()), **more}))}


def image_is(value):
    return {("GET", r"/images/\S+/json"): (200, {"Id": "sha256:1", "Config": {"Labels": {"eyrie.identity": value}}})}


def test_the_doctor_finds_a_machine_well(machine, host):
    with fake(host, answers=image_is(doctor.identity.declared()["gpu"])):
        all_ = found()
    assert all_["driver"] == ("ok", "driver 580.10, CUDA 13.0") and all_["gpu"][0] == "ok" and all_["engine"][0] == "ok"


@pytest.mark.parametrize("smi, says", [(SMI.format(535), "driver 535.10 is too old for CUDA 13.0; install R580"),
                                       ("#!/bin/sh\necho 'no devices' >&2\nexit 9\n", "nvidia-smi fails: no devices")])
def test_the_doctor_names_the_driver(machine, host, smi, says):
    machine(smi)
    with fake(host):
        level, text = found()["driver"]
    assert level == "FAIL" and says in text


def test_the_doctor_names_what_the_engine_lacks(machine, host):
    assert found()["engine"][0] == "FAIL"
    with fake(host, answers=start_says('could not select device driver "" with capabilities: [[gpu]]')):
        all_ = found()
        assert all_["gpu"][0] == "FAIL" and "container toolkit" in all_["gpu"][1]
    (Path(host) / "s").unlink()
    with fake(host, answers={("GET", r"/images/\S+/json"): (404, {"message": "No such image"})}):
        assert found()["gpu"] == ("note", "not tried: there is no image eyrie:gpu")
    (Path(host) / "s").unlink()
    with fake(host, name="Podman Engine"):
        assert "ignores requests for GPUs" in found()["gpu"][1]


def test_the_doctor_names_a_dockerfile_that_has_changed(machine, project, host):
    with open(project / "Dockerfile", "a") as file:
        file.write("RUN true\n")
    assert found()["identity"][0] == "FAIL"
