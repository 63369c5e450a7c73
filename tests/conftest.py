from stages.lib import cpu  # noqa: F401  before torch

import pytest
import torch

torch.set_num_threads(1)  # two test processes share two cores


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    """An empty folder as the working directory: stages and the state dir use relative paths."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
