"""Only `make test-container` has an engine: elsewhere what builds or runs an image is not collected."""
import os

import pytest

from tests.container import engine

if not os.environ.get("EYRIE_TEST_CONTAINER"):
    collect_ignore_glob = ["test_image.py", "test_gpu_image.py", "test_launcher.py"]
elif not os.environ.get("EYRIE_TEST_GPU_IMAGE"):
    collect_ignore_glob = ["test_gpu_image.py"]


@pytest.fixture(scope="session")
def docker_host():
    """An engine that answers, in DOCKER_HOST. Ends the run with one sentence where there is none."""
    try:
        with engine.engine() as host:
            yield host
    except engine.Missing as missing:
        pytest.exit(f"no container engine: {missing}", 2)


@pytest.fixture(scope="session")
def base(docker_host, tmp_path_factory):
    """The name of a base image that the Dockerfile builds on."""
    try:
        return engine.base_image(tmp_path_factory.mktemp("base"))
    except engine.Missing as missing:
        pytest.exit(f"no base image: {missing}", 2)
