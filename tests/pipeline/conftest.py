"""The pipeline is run twice from nothing, once for all test processes together; tests that change things take a copy."""
import fcntl
import json
import os
from contextlib import contextmanager

import pytest

from tests.pipeline import scratch
from tools import tiny_target

# Loaded by every Python process below a DVC stage, workers included: one line per project file that it reads.
RECORDER = '''
import os, sys
if "DVC_STAGE" in os.environ and "EYRIE_READS" in os.environ:
    root = os.path.realpath(os.environ["DVC_ROOT"]) + os.sep
    name = os.environ["DVC_STAGE"].split(":")[-1]
    log = os.open(os.path.join(os.environ["EYRIE_READS"], f"{name}-{os.getpid()}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def record(path):
        path = os.path.realpath(os.fsdecode(path))
        if path.startswith(root):
            os.write(log, (path[len(root):] + "\\n").encode())

    def hook(event, arguments):
        if event == "open" and isinstance(arguments[0], (str, bytes)) and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
            record(arguments[0])
    sys.addaudithook(hook)

    import safetensors  # opens its files in Rust, where no audit event is raised
    opened = safetensors.safe_open

    def safe_open(path, *arguments, **more):
        record(path)
        return opened(path, *arguments, **more)
    safetensors.safe_open = safe_open
'''


def pytest_collection_modifyitems(items):
    """What waits longest goes first, so that one test process does it while the other one does the rest."""
    items.sort(key=lambda item: not {"long_changed", "said"} & set(item.fixturenames))


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A folder that the test processes of one session have in common."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@contextmanager
def alone(shared, name):
    """Only one test process at a time; yields the file whose existence says that the work is done."""
    with open(shared / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield shared / f"{name}.done"


@pytest.fixture(scope="session")
def tiny(shared):
    """The random target, outside every workspace: experiments in DVC's temporary copies need its absolute path."""
    with alone(shared, "tiny") as done:
        if not done.exists():
            tiny_target.make(shared / "tiny")
            done.touch()
    return shared / "tiny"


@pytest.fixture(scope="session")
def base(shared, tiny):
    """A workspace in which nothing was run. Read only."""
    with alone(shared, "base") as done:
        if not done.exists():
            scratch.make(shared / "base", tiny)
            done.touch()
    return shared / "base"


@pytest.fixture(scope="session")
def reads(shared):
    """Where the second cold run notes what each stage read: files <stage>-<pid>."""
    (shared / "reads").mkdir(exist_ok=True)
    return shared / "reads"


@pytest.fixture(scope="session")
def second(shared, base, reads):
    """The pipeline run from nothing once more: other cache, other state dir, two workers, a note of each file read."""
    path, recorder = shared / "second", shared / "recorder"
    with alone(shared, "second") as done:
        if not done.exists():
            recorder.mkdir()
            (recorder / "sitecustomize.py").write_text(RECORDER)
            scratch.copy(base, path)
            scratch.set_params(path, {"exec": {"workers": 2}})
            assert scratch.repro(path, PYTHONPATH=str(recorder), EYRIE_READS=str(reads)) == list(scratch.STAGES)
            done.touch()
    return path


@pytest.fixture(scope="session")
def pipeline(shared, base, request):
    """A workspace in which `dvc repro` ran and was committed. Read only."""
    path = shared / "pipeline"
    if (shared / "pipeline.lock").exists() and not (shared / "pipeline.done").exists():
        request.getfixturevalue("second")  # another process is at it: do the other long run meanwhile
    with alone(shared, "pipeline") as done:
        if not done.exists():
            scratch.copy(base, path)
            assert scratch.repro(path) == list(scratch.STAGES)
            scratch.commit(path, "Run the pipeline")
            done.touch()
    return path


@pytest.fixture
def workspace(pipeline, tmp_path):
    """A copy of the pipeline's workspace to change."""
    return scratch.copy(pipeline, tmp_path / "workspace")


@pytest.fixture
def inside(workspace, monkeypatch):
    """The same as the working directory, so that a test can call a stage's main()."""
    monkeypatch.chdir(workspace)
    monkeypatch.setenv("EYRIE_CACHE", str(workspace.with_name("eyrie-cache")))
    return workspace


# key, new value, the stages that `dvc repro` must run. Each starts from the finished pipeline.
LONG_CASES = [
    ("capture.offset", 0, ["preflight", "extract", "train", "export", "evaluate"]),
    ("train.lr", 0.002, ["train", "export", "evaluate"]),
]
SHORT_CASES = [
    ("exec.workers", 3, []),
    ("evaluate.seed", 1, ["evaluate"]),
    ("export.sglang", "0.5.18", ["preflight", "export", "evaluate"]),
    # These two leave the stage's bytes as they are, so that nothing after it has a reason to run.
    ("prompts.max_bad", 0.5, ["preflight", "generate"]),
    ("target.sha256", None, ["target"]),  # pins the digest that the target has
]


@pytest.fixture(scope="session")
def long_changed(shared, pipeline):
    """The workspace in which LONG_CASES were run, and what ran, {key: stages}."""
    return changed(shared, pipeline, "long", LONG_CASES)


@pytest.fixture(scope="session")
def short_changed(shared, pipeline):
    """The workspace in which SHORT_CASES were run, and what ran, {key: stages}."""
    return changed(shared, pipeline, "short", SHORT_CASES)


def changed(shared, pipeline, name, cases):
    path = shared / name
    with alone(shared, name) as done:
        if not done.exists():
            scratch.copy(pipeline, path)
            found = {}
            for key, value, _ in cases:
                if value is None:
                    value = json.loads((path / "data/target/manifest.json").read_text())["sha256"]
                scratch.set_params(path, scratch.nested(key, value))
                found[key] = scratch.repro(path)
                scratch.reset(path)
            done.write_text(json.dumps(found))
        return path, json.loads(done.read_text())
