from stages.lib import cpu  # noqa: F401  before torch
import importlib.util

import pytest
import torch

torch.set_num_threads(1)  # two test processes share two cores


if importlib.util.find_spec("hypothesis"):  # the contract's environment has none
    import hypothesis
    hypothesis.settings.register_profile("eyrie", deadline=None)  # a slow machine is no failure
    hypothesis.settings.load_profile("eyrie")


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    """An empty folder as the working directory: stages and the state dir use relative paths."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def healthy_run(tmp_path_factory):
    """tests/healthy.py's default run, trained once per test process. Read it, never write into it."""
    from tests.healthy import healthy  # here: only some tests pay for the imports
    return healthy(tmp_path_factory.mktemp("healthy"))
