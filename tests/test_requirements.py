"""The locks: everything by hash, from no particular index, one set of versions."""
import re
from pathlib import Path

import pytest

from stages.contract import rules

FOLDER = Path(__file__).resolve().parents[1] / "requirements"
LOCKS = sorted(FOLDER.glob("*.txt"), key=str)
LOCKS.remove(FOLDER / "shared.txt")  # constraints, which pip is never given
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


@pytest.mark.parametrize("path", [*FOLDER.iterdir(), FOLDER.parent / "Makefile"], ids=lambda path: path.name)
def test_no_index_is_named(path):
    assert re.findall(r"https?://[^<\s]*|\w+\.(?:org|com|io)\b", path.read_text()) == []


@pytest.mark.parametrize("name", MAIN)
def test_main_locks_bring_no_torch_and_nothing_of_cuda(name):
    assert [package for package in versions(name) if ACCELERATOR.match(package)] == []


def test_both_pythons_get_the_same_versions():
    first, second = map(versions, MAIN)
    assert first.keys() & second.keys() >= {"dvc", "transformers", "numpy", "safetensors"}
    assert {name: (first[name], second[name]) for name in first.keys() & second.keys() if first[name] != second[name]} == {}


def test_cpu_environment_has_the_container_s_versions():
    shared = dict(line.split("==") for line in (FOLDER / "shared.txt").read_text().splitlines() if "==" in line)
    locked = versions(MAIN[0])
    assert {name: version for name, version in shared.items() if locked.get(name) != version} == {}


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
