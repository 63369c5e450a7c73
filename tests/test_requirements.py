"""The locks: everything by hash, from no particular index, one set of versions."""
import re
from pathlib import Path

import pytest

from stages.contract import rules

FOLDER = Path(__file__).resolve().parents[1] / "docker/requirements"
LOCKS = sorted(FOLDER.glob("*.txt"), key=str)
MAIN = ("cpu-py311.txt", "cpu-py312.txt")
ACCELERATOR = re.compile(r"torch|triton|nvidia|cuda")


def requirements(text):
    """[(package, version, hashes)] of a lock; a line that is none of these forms is an error."""
    found = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"([a-z0-9-]+)==([^ ;]+)(?: ; [^#]*?)?((?: +--hash=sha256:[0-9a-f]{64})*)\s*", line)
        assert match, f"neither a pinned requirement nor a comment: {line}"
        found.append((match[1], match[2], match[3].split()))
    return found


def versions(name):
    found = requirements((FOLDER / name).read_text())
    assert len({package for package, _, _ in found}) == len(found)
    return {package: version for package, version, _ in found}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_each_requirement_is_pinned_with_hashes(lock):
    found = requirements(lock.read_text())
    assert found
    assert [package for package, _, hashes in found if not hashes] == []


@pytest.mark.parametrize("text", ["--extra-index-url x\n", "a==1 \\\n    --find-links y\n", "a>=1\n", "a @ file:b\n", "-r c.txt\n"])
def test_anything_but_pinned_requirements_is_noticed(text):
    with pytest.raises(AssertionError):
        requirements(text)


@pytest.mark.parametrize("path", [*FOLDER.iterdir(), *(FOLDER.parents[1] / name for name in ("Makefile", "Dockerfile", ".ci/run"))],
                         ids=lambda path: path.name)
def test_no_index_is_named(path):
    """docker.io is the Dockerfile's base image, by digest, and the name of Debian's package."""
    assert set(re.findall(r"https?://[^<\s]*|\w+\.(?:org|com|io)\b", path.read_text())) <= {"docker.io"}


@pytest.mark.parametrize("name", MAIN)
def test_main_locks_bring_no_torch_and_nothing_of_cuda(name):
    assert [package for package in versions(name) if ACCELERATOR.match(package)] == []


def test_both_pythons_get_the_same_versions():
    first, second = map(versions, MAIN)
    assert first.keys() & second.keys() >= {"dvc", "transformers", "numpy", "safetensors"}
    assert {name: (first[name], second[name]) for name in first.keys() & second.keys() if first[name] != second[name]} == {}


def differing(first, second):
    """{package: both versions} where two locks have the same package in two versions."""
    return {name: (first[name], second[name]) for name in first.keys() & second.keys() if first[name] != second[name]}


@pytest.mark.parametrize("name", [*MAIN, "dvc.txt", "contract-py311.txt", "contract-py312.txt", "pip.txt"])
def test_a_package_has_the_gpu_image_s_version_in_every_environment(name):
    gpu, other = versions("gpu.txt"), versions(name)
    assert differing(gpu, other) == {}
    assert "setuptools" in gpu.keys() & versions("pip.txt").keys() & versions(MAIN[0]).keys()


def test_two_versions_of_a_package_are_noticed():
    assert differing({"numpy": "2.3.5", "dvc": "3"}, {"numpy": "2.4", "torch": "2"}) == {"numpy": ("2.3.5", "2.4")}


def test_stages_find_in_the_gpu_image_what_they_import_in_the_cpu_environment():
    """Named in cpu.in and absent from gpu.txt: what only the host, the linter or DVC's own environment needs."""
    named = re.findall(r"^([a-z][a-z0-9-]*)==", (FOLDER / "cpu.in").read_text(), re.M)
    assert set(named) - versions("gpu.txt").keys() == {"dvc", "docker", "pytest-xdist", "ruff"}
    assert differing(versions("dvc.txt"), versions(MAIN[1])) == {} and "dvc" in versions("dvc.txt")
    assert versions("gpu.txt")["ruamel-yaml"] == versions("dvc.txt")["ruamel-yaml"]


def test_cuda_s_compiler_is_of_torch_s_cuda():
    """A newer nvcc meets older headers, or none of CCCL: every kernel that is compiled at run time would fail (gpu.in)."""
    gpu = versions("gpu.txt")
    toolchain = {name: gpu[f"nvidia-{name}"] for name in ("cuda-nvcc", "cuda-crt", "nvvm", "cuda-cccl", "cuda-nvrtc", "cuda-runtime")}
    assert {version.rsplit(".", 1)[0] for version in toolchain.values()} == {"13.0"}
    assert gpu["torch"] == "2.11.0" and gpu["sglang"] == "0.5.15.post1"


def test_only_one_package_of_the_gpu_lock_is_a_pre_release():
    found = {name for name, version in versions("gpu.txt").items() if re.search(r"\d(a|b|rc|\.dev)\d", version)}
    assert found == {"flash-attn-4"}


def test_either_torch_finds_its_dependencies_in_the_main_lock():
    """The CPU wheel is installed after it under --require-hashes, where a missing one would be an error."""
    locked, default = versions(MAIN[0]), versions("torch-default.txt")
    common = {name for name in default if not ACCELERATOR.match(name)}
    assert common == {"filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "setuptools", "sympy", "typing-extensions"}
    assert {name: (default[name], locked.get(name)) for name in common if default[name] != locked.get(name)} == {}
    assert versions("torch.txt") == {"torch": default["torch"] + "+cpu"}


def test_cpu_and_default_build_of_torch_share_no_hash():
    hashes = {name: {h for package, _, found in requirements((FOLDER / name).read_text()) if package == "torch" for h in found}
              for name in ("torch.txt", "torch-default.txt")}
    assert hashes["torch.txt"] and hashes["torch.txt"].isdisjoint(hashes["torch-default.txt"])


@pytest.mark.parametrize("name", ["contract-py311.txt", "contract-py312.txt"])
def test_contract_locks_share_the_main_locks_versions_and_bring_no_torch(name):
    """They are installed beside the main environment, which the same interpreter then sees."""
    locked, main = versions(name), versions(name.replace("contract", "cpu"))
    assert {package: (version, main[package]) for package, version in locked.items() if main.get(package, version) != version} == {}
    assert [package for package in locked if ACCELERATOR.match(package)] == []


def test_each_release_of_the_engine_rules_has_one_wheel():
    found = requirements((FOLDER / "sglang-wheels.txt").read_text())
    assert [(package, version, len(hashes)) for package, version, hashes in found] == [("sglang", v, 1) for v in rules.versions()]
