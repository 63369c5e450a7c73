"""What dvc.yaml declares is what the stages use: code, params and files, no more and no less."""
import importlib
import sys

import pytest
from ruamel.yaml import YAML

from stages.lib.image import IMAGES
from stages.lib.params import UNTRACKED, read_yaml
from tests.pipeline import scratch
from tools.closure import closure

STAGES = read_yaml(scratch.ROOT / "dvc.yaml")["stages"]
ALWAYS = ("params.yaml", "dvc.yaml", ".dvc/config", ".dvc/config.local", ".eyrie")


@pytest.fixture
def bare(base, tmp_path):
    """A scratch workspace in which nothing was run."""
    return scratch.copy(base, tmp_path / "bare")


def edit(workspace, change):
    """Apply `change(stages)` to the stages of dvc.yaml."""
    yaml, file = YAML(), workspace / "dvc.yaml"
    pipeline = yaml.load(file)
    change(pipeline["stages"])
    yaml.dump(pipeline, file)


def check_closure(workspace):
    return scratch.run(workspace, sys.executable, "-m", "tools.closure", check=False)


@pytest.mark.parametrize("name", STAGES)
def test_code_deps_are_the_import_closure(name):
    assert sorted(dep for dep in STAGES[name]["deps"] if dep.endswith(".py")) == closure(f"stages/{name}.py", scratch.ROOT)


def test_the_closure_check_accepts_this_pipeline(bare):
    found = check_closure(bare)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_a_missing_code_dep_is_found(bare):
    edit(bare, lambda stages: stages["generate"]["deps"].remove("stages/lib/chat.py"))
    found = check_closure(bare)
    assert found.returncode == 1
    assert found.stdout == "generate: missing ['stages/lib/chat.py'], superfluous []\n"


def test_a_new_import_inside_a_function_is_found(bare):
    with open(bare / "stages/lib/draft.py", "a") as file:
        file.write("\n\ndef lazy():\n    from stages.lib import budget\n    return budget\n")
    found = check_closure(bare)
    assert found.returncode == 1
    assert all(f"{name}: missing ['stages/lib/budget.py']" in found.stdout for name in ("train", "export", "evaluate"))


def test_a_superfluous_code_dep_is_found(bare):
    edit(bare, lambda stages: stages["export"]["deps"].append("stages/lib/prompts.py"))
    found = check_closure(bare)
    assert found.returncode == 1
    assert found.stdout == "export: missing [], superfluous ['stages/lib/prompts.py']\n"


def test_every_section_of_params_is_declared_by_a_stage_or_untracked_on_purpose():
    declared = {key.split(".")[0] for stage in STAGES.values() for key in stage["params"] if isinstance(key, str)}
    assert set(read_yaml(scratch.ROOT / "params.yaml")) == declared | set(UNTRACKED)
    assert not declared & set(UNTRACKED)


@pytest.mark.parametrize("name, section", [(name, key) for name, stage in STAGES.items() for key in stage["params"][-1:]])
def test_a_stage_that_does_not_declare_a_param_cannot_read_it(inside, name, section):
    edit(inside, lambda stages: stages[name]["params"].remove(section))
    with pytest.raises(AttributeError, match=f"no attribute '{section.split('.')[0]}'|no attribute '{section.split('.')[-1]}'"):
        importlib.import_module(f"stages.{name}").main()


def read_by(reads, name):
    """Project files that the processes of a stage opened for reading; a .pyc counts as its source."""
    found = set()
    for log in reads.glob(f"{name}-*"):
        for path in log.read_text().splitlines():
            if "__pycache__/" in path:
                folder, _, file = path.partition("__pycache__/")
                path = f"{folder}{file.split('.')[0]}.py"
            found.add(path)
    return found


def strays(paths, deps):
    """Of `paths`, what is neither declared nor the pipeline's own."""
    return sorted(path for path in paths if not any(path == dep or path.startswith(f"{dep}/") for dep in (*deps, *ALWAYS)))


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_reads_only_what_it_declares(second, reads, name):
    other_params = [file for key in STAGES[name]["params"] if isinstance(key, dict) for file in key]
    assert strays(read_by(reads, name), [*STAGES[name]["deps"], *other_params]) == []


def test_every_stage_that_runs_torch_declares_its_image():
    assert [name for name, stage in STAGES.items() if {IMAGES: ["images.${engine.image}"]} not in stage["params"]] == ["target"]


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_reads_every_data_dep_that_it_declares(second, reads, name):
    paths = read_by(reads, name)
    # data/preflight is an order, not an input: its bytes are constant
    data = [dep for dep in STAGES[name]["deps"] if dep.startswith("data/") and dep != "data/preflight"]
    assert [dep for dep in data if not any(path.startswith(f"{dep}/") for path in paths)] == []


def test_worker_processes_are_recorded_too(second, reads):
    for name in ("generate", "extract", "evaluate"):
        assert len(list(reads.glob(f"{name}-*"))) >= 3, f"{name}: the stage and its two workers"


def test_an_undeclared_read_is_found(second, bare, shared, tmp_path):
    code = bare / "stages/target.py"
    code.write_text(code.read_text().replace("def main():\n", "def main():\n    open('data/prompts/train/chat.jsonl').close()\n", 1))
    (tmp_path / "reads").mkdir()
    scratch.run(bare, "dvc", "repro", "target", PYTHONPATH=str(shared / "recorder"), EYRIE_READS=str(tmp_path / "reads"))
    assert strays(read_by(tmp_path / "reads", "target"), STAGES["target"]["deps"]) == ["data/prompts/train/chat.jsonl"]
