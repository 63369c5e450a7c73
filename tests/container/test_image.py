"""The cpu image, built and used: what is in it, and the whole pipeline inside it without network, rights or a writable root."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.container import images
from tests.container.engine import docker
from tests.test_requirements import versions
from tools import workspace
from tools.container.identity import identity

ROOT = Path(__file__).resolve().parents[2]
TAG = "localhost/eyrie:cpu-test"
UID = 4711  # a user that the image does not know, as the host's is


@pytest.fixture(scope="session")
def outside(tmp_path_factory):
    """The smoke run on this machine, in a copy: started before the image is built, waited for by the test that compares."""
    copy = workspace.make(tmp_path_factory.mktemp("outside") / "project")
    with open(copy.with_name("said"), "w") as said:
        process = subprocess.Popen([sys.executable, "-m", "tools.smoke", "--keep"], cwd=copy, stdin=subprocess.DEVNULL, stdout=said,
                                   stderr=subprocess.STDOUT, env={**os.environ, **MAKE, "EYRIE_CACHE": str(copy.with_name("cache"))})
    yield copy, process
    if process.poll() is None:
        process.terminate()
        process.wait()


# what the Makefile sets beside speed; in the container `make` sets it itself
MAKE = {"PYTHONHASHSEED": "0", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false", "DVC_NO_ANALYTICS": "1"}


@pytest.fixture(scope="session")
def cpu(outside, base, tmp_path_factory):
    yield images.build_cpu(base, TAG, tmp_path_factory.mktemp("wheels"))
    if os.environ.get("EYRIE_KEEP_IMAGES"):
        return
    docker("image", "rm", "--force", TAG, check=False)


def test_the_image_has_the_structure_that_is_declared(cpu):
    code, said = images.structure(cpu, ROOT / "docker/structure-cpu.yaml")
    assert code == 0, said


def test_another_structure_is_noticed(cpu, tmp_path):
    about = (ROOT / "docker/structure-cpu.yaml").read_text().partition("fileExistenceTests")[0]
    (tmp_path / "same.yaml").write_text(about)
    (tmp_path / "other.yaml").write_text(about.replace("'10001:10001'", "'0:0'"))
    assert [images.structure(cpu, tmp_path / name)[0] for name in ("same.yaml", "other.yaml")] == [0, 1]


def test_the_image_has_the_locks_packages_and_no_other(cpu):
    """The environment of `make env`, less what checks images; every file as its package has it."""
    python = docker("run", "--rm", "--network", "none", cpu, "python", "-c", "import sys; print('py%d%d' % sys.version_info[:2])").strip()
    packages, wrong = images.installed(cpu)
    expected = {**versions(f"cpu-{python}.txt"), **versions("pip.txt"), **versions("torch.txt")}
    assert wrong == {}
    assert {name: version for name, (version, _) in packages.items()} == {
        name: version for name, version in expected.items() if name in packages or name not in images.ELSEWHERE}


def test_the_image_is_small(cpu):
    assert images.size(cpu) < 1.5e9


def test_smoke_runs_inside_as_any_user_without_network_and_gives_the_same_lock(cpu, base, outside, tmp_path):
    """`make smoke` in the image: every stage, DVC and git, in a mounted copy of the project. The same dvc.lock comes out as outside."""
    other, process = outside
    assert process.wait(600) == 0, other.with_name("said").read_text()
    project, cache = workspace.make(tmp_path / "project"), tmp_path / "cache"
    shutil.copytree(other.with_name("cache"), cache / "eyrie")  # the package with the tokenizer: there is no network to fetch it by
    for path in (cache, *cache.rglob("*"), project, *project.rglob("*")):
        os.chown(path, UID, UID, follow_symlinks=False)
    said = images.inside(cpu, "make", "smoke", "ARGS=--keep", user=f"{UID}:{UID}", workdir=project,
                         volume=f"{project}:{project}", mount=f"type=bind,source={cache},target=/cache")
    assert "smoke: all stages in" in said
    assert {path.lstat().st_uid for path in project.rglob("*")} == {UID}
    assert docker("run", "--rm", "--network", "none", cpu, "cat", "/etc/eyrie-image") == f"cpu {identity('cpu', ROOT, base)}\n"
    smoke = ".eyrie/smoke"
    assert (project / smoke / "metrics/evaluate.json").read_bytes() == (other / smoke / "metrics/evaluate.json").read_bytes()
    assert (project / smoke / "dvc.lock").read_text() == (other / smoke / "dvc.lock").read_text()


def test_nothing_can_be_written_beside_workspace_and_caches(cpu):
    said = docker("run", "--rm", "--network", "none", "--read-only", cpu, "bash", "-c", "touch /opt/venv/x", check=False)
    assert said.returncode != 0 and "Read-only file system" in said.stderr
    said = docker("run", "--rm", "--network", "none", cpu, "bash", "-c", "touch /opt/venv/x", check=False)
    assert said.returncode != 0 and "Permission denied" in said.stderr


def test_there_is_no_network_to_fetch_from(cpu):
    """A model of the hub is refused by its library at once, not after a time-out."""
    said = docker("run", "--rm", "--network", "none", cpu, "python", "-c",
                  "from huggingface_hub import snapshot_download as f; f('a/b')", check=False)
    assert said.returncode != 0 and "offline mode is enabled" in said.stderr


@pytest.mark.skipif(not os.environ.get("EYRIE_TEST_REBUILD"), reason="EYRIE_TEST_REBUILD=1: a second build takes minutes")
def test_a_second_build_installs_the_same_bytes(cpu, base, tmp_path):
    first = images.installed(cpu)
    images.prune()
    again = images.build_cpu(base, f"{TAG}-again", tmp_path)
    assert docker("image", "inspect", "--format", "{{.Id}}", again) != docker("image", "inspect", "--format", "{{.Id}}", cpu)
    assert images.installed(again) == first
