"""Real servers of SGLang on a GPU: `python -m pytest tests/gpu` (add `-n 4`: the servers share a GPU). Elsewhere all of it is skipped.

Nothing here may hang: a server has START seconds to become healthy, a request ANSWER, a test DEADLINE.
"""
import functools
import importlib.metadata
import os
import signal
import threading
from pathlib import Path

import pytest

from stages.engines import capability, sglang_capture, sglang_engine, sglang_launch, sglang_server
from tests.gpu import targets
from tests.gpu.results import VERSION

START, ANSWER, DEADLINE = 300, 180, 480  # the first request of a fresh machine waits for kernels to be compiled


def lacking():
    """Why these tests cannot run here, or None."""
    try:
        found = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return f"SGLang {VERSION} is not installed"
    if found != VERSION:
        return f"SGLang {found} is installed, these tests are for {VERSION}"
    return None if capability.of_devices() else "no CUDA device"


def pytest_collection_modifyitems(items):
    mine = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    if mine and (reason := lacking()):
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    """architecture -> its model folder, written once per process."""
    return functools.cache(lambda architecture: targets.make(architecture, tmp_path_factory.mktemp("target") / architecture))


@pytest.fixture(autouse=True)
def bounded(tmp_path, monkeypatch, request):
    """A working directory, a GPU and deadlines of the test's own."""
    monkeypatch.chdir(tmp_path)
    devices = sglang_launch.visible(len(capability.of_devices()))
    if "two_gpus" not in request.fixturenames:
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices[worker % len(devices)])
    monkeypatch.setattr(sglang_server, "serve", functools.partial(sglang_server.serve, seconds=START))
    monkeypatch.setattr(sglang_capture, "over_http", functools.partial(sglang_capture.over_http, timeout=ANSWER))
    monkeypatch.setattr(sglang_engine, "SECONDS", ANSWER)
    monkeypatch.setattr(sglang_engine, "TRIES", 1)
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(*_):
        raise TimeoutError(f"the test took longer than {DEADLINE} s")
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(DEADLINE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def two_gpus(monkeypatch):
    if (count := len(sglang_launch.visible(len(capability.of_devices())))) < 2:
        pytest.skip(f"tensor parallel over 2 GPUs, and {count} can be seen")
    monkeypatch.setenv("SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK", "0")  # other tests' servers lie on one of the two
