"""A change of a param reruns exactly the stages that depend on it."""
import json
import shutil

import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML

from stages.lib.image import IMAGES
from stages.lib.params import read_yaml
from tests.pipeline import scratch
from tests.pipeline.conftest import LONG_CASES, SHORT_CASES
from tools.container import identity
from tools.report import changed as stale_of

GPU_LOCK = "docker/requirements/gpu.txt"

TARGET, PREFLIGHT, GENERATE, EXTRACT, TRAIN, EXPORT, EVALUATE = ({name} for name in scratch.STAGES)

# Which stages a key makes stale by itself. What comes after them follows from their outputs; preflight's has constant bytes.
TABLE = {
    "target": (TARGET, "source name revision sha256"),
    "engine": (PREFLIGHT | GENERATE | EXTRACT | EVALUATE, "name version dtype threads servers parity"),
    "engine ": (PREFLIGHT | GENERATE | EXTRACT | TRAIN | EXPORT | EVALUATE, "image"),
    "prompts": (PREFLIGHT | GENERATE, "files limit self max_tokens max_bad"),
    "generate": (GENERATE, "temperature top_p seed block cut max_cut"),
    "generate ": (PREFLIGHT | GENERATE, "max_new_tokens batch"),  # the plan's size
    "capture": (PREFLIGHT | EXTRACT, "layer_ids offset"),
    "extract": (EXTRACT, "batch_tokens shard_tokens probe_rows"),
    "extract ": (PREFLIGHT | EXTRACT, "dtype"),
    "draft": (PREFLIGHT | TRAIN, "vocab_size intermediate_size"),
    "train": (TRAIN, "validation lr warmup weight_decay clip step_decay stop_at_oov pack_tokens batch_packs evals seed"),
    "train ": (PREFLIGHT | TRAIN, "init init_sha256 epochs ttt_steps autocast device threads"),
    "export": (PREFLIGHT | EXPORT, "dtype"),
    "export ": (PREFLIGHT | EXPORT | EVALUATE, "sglang"),  # evaluate reads the boundaries that this server version captures
    "evaluate": (EVALUATE, "files max_tokens max_new_tokens max_bad blocks batch chains distinct decode_rows "
                           "decode_tokens bootstrap seed"),
    "exec": (set(), "workers save_minutes max_hours"),
}
EXPECTED = {f"{section.strip()}.{key}": stages for section, (stages, keys) in TABLE.items() for key in keys.split()}


def leaf_keys(node, prefix=""):
    """Dotted keys of everything that is not a mapping."""
    for key, value in node.items():
        if isinstance(value, dict):
            yield from leaf_keys(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def other(value):
    """A value of the same kind that is not equal, for DVC too (to which 1, 1.0 and true are the same)."""
    if value == "none":  # engine.image: a name of docker/images.yaml, or DVC would call the whole of it missing
        return "gpu"
    if isinstance(value, bool):
        return not value
    if isinstance(value, list):
        return [*value, value[0]]
    return f"{value}-other" if isinstance(value, str) else value + 1


@pytest.fixture(scope="module")
def cloned(pipeline, tmp_path_factory):
    """dvc.yaml, dvc.lock, params and code, without data."""
    path = tmp_path_factory.mktemp("clone") / "clone"
    scratch.run(pipeline, "git", "clone", "-q", pipeline, path)
    return path


@pytest.fixture
def clone(cloned, monkeypatch):
    """The clone as the working directory, to which DVC's names of stages are relative."""
    monkeypatch.chdir(cloned)
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(cloned.with_name("site")))
    return cloned


def stale():
    """Stages with a changed input, by DVC in this process: a command per key would take a minute."""
    with Repo() as repo:
        return set(stale_of(repo.status()))


def test_the_table_knows_every_key_of_params():
    assert sorted(leaf_keys(read_yaml(scratch.ROOT / "params.yaml"))) == sorted(EXPECTED)


def test_nothing_is_stale_without_a_change(clone):
    assert stale() == set()


@pytest.mark.parametrize("key", EXPECTED)
def test_a_param_makes_stale_what_declares_it_and_nothing_else(clone, key):
    section, leaf = key.split(".")
    shutil.copyfile(clone / "params.yaml", clone / "params.before")
    try:
        scratch.set_params(clone, scratch.nested(key, other(read_yaml(clone / "params.yaml")[section][leaf])))
        assert stale() == EXPECTED[key]
    finally:
        (clone / "params.before").replace(clone / "params.yaml")


@pytest.mark.parametrize("key, expected", [(key, stages) for key, _, stages in LONG_CASES])
def test_repro_runs_all_that_a_param_reaches_and_nothing_before(long_changed, key, expected):
    assert long_changed[1][key] == expected


@pytest.mark.parametrize("key, expected", [(key, stages) for key, _, stages in SHORT_CASES])
def test_repro_stops_where_a_param_changes_nothing_more(short_changed, key, expected):
    assert short_changed[1][key] == expected


def test_other_traces_make_stale_what_reads_them(workspace):
    scratch.set_params(workspace, {"prompts": {"limit": 16}})
    assert scratch.repro(workspace, "generate") == ["preflight", "generate"]
    assert set(json.loads(scratch.run(workspace, "dvc", "status", "--json").stdout)) == {"extract", "evaluate"}


# Images

IN_IMAGE = set(scratch.STAGES) - TARGET


@pytest.fixture
def pinned(clone):
    """The clone, whose images, params and lock a test may change."""
    kept = {name: (clone / name).read_bytes() for name in ("params.yaml", "dvc.lock", "docker/images.yaml", "Dockerfile", GPU_LOCK)}
    yield clone
    for name, content in kept.items():
        (clone / name).write_bytes(content)


def as_if_run_in(path, name):
    """dvc.lock of a finished run in the image `name`, written without running anything."""
    scratch.set_params(path, {"engine": {"image": name}})
    yaml, file = YAML(), path / "dvc.lock"
    lock = yaml.load(file)
    for stage in lock["stages"].values():
        if IMAGES in stage["params"]:
            stage["params"][IMAGES] = {f"images.{name}": identity.declared(path)[name]}
        if "engine" in stage["params"].get("params.yaml", {}):
            stage["params"]["params.yaml"]["engine"]["image"] = name
    yaml.dump(lock, file)
    assert stale() == set()


def changed_gpu_lock(path):
    with open(path / GPU_LOCK, "a") as file:
        file.write("other==1.0 --hash=sha256:00\n")
    identity.write(path)


def test_a_new_gpu_lock_reruns_the_stages_of_a_gpu_profile(pinned):
    as_if_run_in(pinned, "gpu")
    changed_gpu_lock(pinned)
    assert stale() == IN_IMAGE


@pytest.mark.parametrize("name", ("none", "cpu"))
def test_a_new_gpu_lock_reruns_nothing_elsewhere(pinned, name):
    as_if_run_in(pinned, name)
    changed_gpu_lock(pinned)
    assert stale() == set()


def test_a_comment_in_the_dockerfile_reruns_nothing(pinned):
    as_if_run_in(pinned, "gpu")
    with open(pinned / "Dockerfile", "a") as file:
        file.write("\n# a comment\n")
    identity.write(pinned)
    assert stale() == set()


@pytest.mark.parametrize("name", ("none", "gpu"))
def test_a_new_image_shows_in_the_params_diff(pinned, name):
    scratch.set_params(pinned, {"engine": {"image": name}})
    before = identity.declared(pinned)["gpu"]
    changed_gpu_lock(pinned)
    shown = json.loads(scratch.run(pinned, "dvc", "params", "diff", "--json").stdout)[IMAGES]
    assert shown == {"images.gpu": {"old": before, "new": identity.declared(pinned)["gpu"]}}
