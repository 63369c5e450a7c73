"""What can be said of the Dockerfile without building it: pinned, without root, and in the syntax that every builder has."""
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.test_requirements import versions

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
DIGEST = r"@sha256:[0-9a-f]{64}$"


def instructions(text):
    """[(instruction, the rest)], continuation lines joined, comments left out."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return [tuple(line.split(None, 1)) for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines()]


def faults(text):
    """What is wrong with a Dockerfile beyond hadolint's rules. The forms: facts about BuildKit 20.10 and buildah 1.28, tried on both."""
    found, parsed = [], instructions(text)
    if re.search(r"^#\s*syntax\s*=", text, re.M):
        found.append("# syntax: the builder fetches it from a registry")
    base = dict(rest.split("=", 1) for word, rest in parsed if word == "ARG" and "=" in rest).get("BASE_IMAGE", "")
    if not re.search(DIGEST, base):
        found.append("the base image has no digest")
    users = {}
    for word, rest in parsed:
        if word == "FROM":
            source, _, name = rest.partition(" AS ")
            if source != "${BASE_IMAGE}" and source not in users:
                found.append(f"FROM {source}: neither BASE_IMAGE nor a build stage")
            users[name], current = users.get(source, "root"), name
        elif word == "USER":
            users[current] = rest
        elif word == "ADD":
            found.append("ADD: fetches and unpacks; COPY does neither")
        if word in ("COPY", "RUN") and "<<" in rest:
            found.append(f"here-document in {word}")
        if word == "COPY" and "--link" in rest:
            found.append("COPY --link")
        if word == "RUN" and re.search(r"--mount=type=cache\S*/var/lib/apt", rest):
            found.append("apt's lists in a cache mount")
        if word == "RUN" and re.search(r"\b(pip|uv) +(pip +)?install\b", rest):
            found.append("installs beside the locks")
        if re.search(r"\w+://", rest):
            found.append(f"an address in {word}")
    found += [f"{name} runs as {users[name]}" for name in ("cpu", "gpu") if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", users.get(name, "root"))]
    return found


def test_dockerfile_has_no_fault():
    assert faults(DOCKERFILE) == []


@pytest.mark.parametrize("old, new, fault", [
    ("# Two images", "# syntax=docker/dockerfile:1\n# Two images", "# syntax"),
    (re.search(r"@sha256:\w+", DOCKERFILE)[0], "", "no digest"),
    ("FROM base AS gpu", "FROM debian:latest AS gpu", "FROM debian:latest"),
    ("COPY docker/requirements/cuda.sh", "ADD docker/requirements/cuda.sh", "ADD"),
    ("COPY docker/requirements/cuda.sh", "COPY --link docker/requirements/cuda.sh", "--link"),
    ('RUN echo "cpu ${IDENTITY}"', 'RUN <<EOF\necho "cpu ${IDENTITY}"', "here-document"),
    ("RUN apt-get update", "RUN --mount=type=cache,target=/var/lib/apt/lists apt-get update", "apt's lists"),
    ("RUN apt-get update", "RUN pip install uv && apt-get update", "beside the locks"),
    ("ARG TORCH_INDEX=", "ARG TORCH_INDEX=https://wheels.example/cpu", "an address"),
    ("USER 10001:10001", "", "runs as root"),
    ("USER 10001:10001", "USER eyrie", "runs as eyrie"),
])
def test_a_planted_fault_is_found(old, new, fault):
    assert old in DOCKERFILE
    assert any(fault in found for found in faults(DOCKERFILE.replace(old, new)))


def hadolint(text):
    program = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([program, "--config", ROOT / ".hadolint.yaml", "-"], input=text, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_hadolint_is_content():
    assert hadolint(DOCKERFILE) == (0, "")


@pytest.mark.parametrize("line, rule", [("FROM docker.io/library/debian:latest", "DL3007"), ("RUN cd /opt && ls", "DL3003"),
                                        ("RUN sudo ls", "DL3004")])
def test_hadolint_finds_a_planted_fault(line, rule):
    code, said = hadolint(f"{DOCKERFILE}\n{line}\n")
    assert code and rule in said


def test_each_exception_from_hadolint_s_rules_has_its_reason_above():
    text = (ROOT / ".hadolint.yaml").read_text()
    ignored = yaml.safe_load(text)["ignored"]
    assert ignored and all(re.search(rf"# .{{40,}}\n  - {rule}\n", text) for rule in ignored)


def copied(text):
    return sorted({name for word, rest in instructions(text) if word == "COPY" for name in rest.split()[:-1]})


def test_what_is_copied_is_there_and_in_the_build_context():
    names = copied(DOCKERFILE)
    assert names and [name for name in names if not (ROOT / name).is_file()] == []
    everything, *kept = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert everything == "*" and all(any(name.startswith(prefix.removeprefix("!")) for prefix in kept) for name in names)


def test_labels_say_what_the_lock_says():
    gpu = versions("gpu.txt")
    labels = dict(re.findall(r'eyrie\.(\w+)="([\d.a-z]+)"', DOCKERFILE.partition("AS gpu")[2]))
    assert {name: labels[name] for name in ("sglang", "torch", "cuda")} == {
        "sglang": gpu["sglang"], "torch": gpu["torch"], "cuda": gpu["nvidia-cuda-nvcc"]}
