"""Stages refuse to run in another image than the declared one; what an image is, is known from the files that make it."""
from pathlib import Path

import pytest

from stages.lib import image, params
from stages.lib.refusal import Refusal
from tools.container import identity

ROOT = Path(__file__).parents[1]
IMAGES = {"none": "", "cpu": "c" * 16, "gpu": "f" * 16}
DOCKERFILE = """\
# the base of everything
ARG BASE_IMAGE=docker.io/library/python:3.12@sha256:aaaa
ARG CUDA=13.0
FROM ${BASE_IMAGE} AS tools
COPY docker/uv.txt /opt/

FROM ${BASE_IMAGE} AS cpu
COPY --chmod=644 docker/cpu.txt docker/shared.txt /opt/
RUN --mount=type=bind,from=tools,source=/opt,target=/opt/tools \\
    # inside an instruction
    --mount=type=bind,source=docker/scripts,target=/mnt true

FROM ${BASE_IMAGE} AS gpu
ARG CUDA
COPY docker/gpu.txt /opt/
COPY --from=tools /opt/uv.txt /opt/
"""


# ---------------------------------------------------------------- the stage's side

def mark(folder, text):
    (folder / "mark").write_text(f"{text}\n")
    return folder / "mark"


def test_without_an_image_there_is_nothing_to_check(tmp_path):
    image.check("none", IMAGES, tmp_path / "absent")
    image.check("none", IMAGES, mark(tmp_path, "gpu anything"))


def test_the_declared_image_is_accepted(tmp_path):
    image.check("gpu", IMAGES, mark(tmp_path, f"gpu {'f' * 16}"))


def test_outside_a_container_the_refusal_says_how_to_start_it(tmp_path):
    with pytest.raises(Refusal, match="runs in the gpu image alone.*make repro IN=container.*tools.container run -- dvc repro"):
        image.check("gpu", IMAGES, tmp_path / "absent")


def test_another_build_of_the_image_is_refused_with_both_identities(tmp_path):
    with pytest.raises(Refusal, match=f"gpu image is {'e' * 16}, but docker/images.yaml declares {'f' * 16}; build .*build gpu"):
        image.check("gpu", IMAGES, mark(tmp_path, f"gpu {'e' * 16}"))


def test_the_other_image_is_refused(tmp_path):
    with pytest.raises(Refusal, match="runs in the gpu image, and this is a container of the cpu image"):
        image.check("gpu", IMAGES, mark(tmp_path, f"cpu {'c' * 16}"))


def test_an_image_that_is_not_listed_is_refused(tmp_path):
    with pytest.raises(Refusal, match="engine.image is 'rocm'; expected one of none, cpu, gpu"):
        image.check("rocm", IMAGES)


@pytest.fixture
def project(in_tmp):
    (in_tmp / "docker").mkdir()
    (in_tmp / "docker/images.yaml").write_text(f"images:\n  none: ''\n  cpu: '{'c' * 16}'\n  gpu: '{'f' * 16}'\n")
    (in_tmp / "dvc.yaml").write_text("stages:\n  one:\n    deps: []\n    params: [train, docker/images.yaml: [images.x]]\n"
                                     "  two:\n    deps: []\n    params: [train]\n")
    set_image(in_tmp, "gpu")
    return in_tmp


def set_image(folder, name):
    (folder / "params.yaml").write_text(f"engine: {{image: {name}}}\ntrain: {{lr: 1.0}}\nexec: {{workers: 1}}\n")


def test_a_stage_that_declares_its_image_is_checked_as_it_starts_and_the_others_are_not(project, monkeypatch):
    monkeypatch.setattr(image.check, "__defaults__", (project / "absent",))
    with pytest.raises(Refusal, match="runs in the gpu image alone"):
        params.load("one")
    assert params.load("two").train.lr == 1.0


def test_the_state_dir_of_another_image_is_not_resumed(project):
    of_gpu = params.code_key("one"), params.code_key("two")
    set_image(project, "none")
    assert params.code_key("one") != of_gpu[0] and params.code_key("two") == of_gpu[1]


# ---------------------------------------------------------------- what an image is

@pytest.fixture
def context(tmp_path):
    (tmp_path / "docker/scripts").mkdir(parents=True)
    for name in ("uv.txt", "cpu.txt", "shared.txt", "gpu.txt", "scripts/one.sh", "scripts/two.sh", "unused.txt"):
        (tmp_path / "docker" / name).write_text(name)
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    return tmp_path


def both(folder, **more):
    return {name: identity.identity(name, folder, **more) for name in ("cpu", "gpu")}


def edit(folder, old, new):
    assert old in DOCKERFILE
    (folder / "Dockerfile").write_text(DOCKERFILE.replace(old, new, 1))


def changed(folder, before):
    return {name for name, value in both(folder).items() if value != before[name]}


@pytest.mark.parametrize("old, new, expected", [
    ("# the base of everything", "# the base\n\n  # of all", set()),
    ("    # inside an instruction\n", "", set()),
    ("RUN --mount", "RUN  \\\n --mount", set()),
    ("docker.io/library/python:3.12@", "mirror.example/python@", set()),  # the digest says what it is
    ("sha256:aaaa", "sha256:bbbb", {"cpu", "gpu"}),
    ("ARG CUDA=13.0", "ARG CUDA=13.1", {"gpu"}),
    ("/mnt true", "/mnt false", {"cpu"}),
    ("COPY docker/uv.txt /opt/", "COPY docker/uv.txt /opt/uv/", {"cpu", "gpu"}),
])
def test_the_identity_follows_the_instructions_that_make_the_target(context, old, new, expected):
    before = both(context)
    edit(context, old, new)
    assert changed(context, before) == expected


@pytest.mark.parametrize("name, expected", [("gpu.txt", {"gpu"}), ("cpu.txt", {"cpu"}), ("shared.txt", {"cpu"}), ("uv.txt", {"cpu", "gpu"}),
                                            ("scripts/two.sh", {"cpu"}), ("unused.txt", set())])
def test_the_identity_follows_every_file_that_is_copied_or_mounted(context, name, expected):
    before = both(context)
    (context / "docker" / name).write_text("other bytes")
    assert changed(context, before) == expected


def test_a_base_without_a_digest_counts_by_its_name(context):
    own = both(context)
    assert both(context, base="mirror.example/python@sha256:aaaa") == own
    assert both(context, base="localhost/python:3.12") != own


def test_a_copied_file_that_is_missing_is_refused(context):
    (context / "docker/gpu.txt").unlink()
    with pytest.raises(Refusal, match="copies docker/gpu.txt, which is not there"):
        identity.identity("gpu", context)


def test_a_form_that_cannot_be_read_is_refused(context):
    edit(context, "COPY docker/gpu.txt /opt/", 'COPY ["docker/gpu.txt", "/opt/"]')
    with pytest.raises(Refusal, match="JSON form"):
        identity.identity("gpu", context)


def test_a_target_that_does_not_exist_is_refused(context):
    with pytest.raises(Refusal, match="no target rocm; it has tools, cpu, gpu"):
        identity.identity("rocm", context)


def test_the_declared_identities_are_rewritten_and_their_comments_stay(context):
    file = context / "docker/images.yaml"
    file.write_text("# why\nimages:\n  # nothing\n  none: ''\n  cpu: ''\n  gpu: ''\n")
    assert [name for name, _, _ in identity.differences(context)] == ["cpu", "gpu"]
    identity.write(context)
    assert identity.differences(context) == [] and identity.declared(context)["none"] == ""
    assert file.read_text().startswith("# why\nimages:\n  # nothing\n  none: ''\n")


def test_the_declared_identities_are_those_of_this_commit():
    wrong = identity.differences(ROOT)
    assert not wrong, f"{wrong}: run `python -m tools.container identity --write` and commit docker/images.yaml"
