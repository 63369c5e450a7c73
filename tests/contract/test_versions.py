"""The setters of every release, run from their source, against every row of the engine rules.

EYRIE_SGLANG_WHEELS is a folder of wheels (`make test-contract VERSIONS=all` fills it); without it nothing is run here.
"""
import os
import zipfile
from pathlib import Path

import pytest

from stages.contract import rules
from tests.contract import setters

WHEELS = {path.name.split("-")[1]: path for path in Path(os.environ.get("EYRIE_SGLANG_WHEELS", "/nowhere")).glob("sglang-*.whl")}
CLASSES = sorted({name for row in rules.RULES for name in row.classes})
LAYERS = 30
IDS = (None, [1, 14, 26], [2, 14, 26], [2, 2, 14], [1, 15, 29], [5, 30], [4, 1, 2], [0, 3], [40, 2], [], [-2, 3])

pytestmark = pytest.mark.skipif(not WHEELS, reason="needs the wheels: make test-contract VERSIONS=all")


@pytest.fixture(scope="module", params=rules.versions())
def release(request):
    return request.param, setters.Release(WHEELS[request.param])


def test_each_class_marks_what_the_table_says(release):
    """A class that a release does not register, or that has no setter there, must not have a capturing row, and the other way round."""
    version, source = release
    wrong = {(name, str(ids)): both for name in CLASSES for ids in IDS if (both := compare(version, source, name, ids))}
    assert wrong == {}


def compare(version, source, name, ids):
    """None where table and source agree, else (source, table)."""
    row = rules.rule_for(version, name)
    try:
        found = setters.captured(source, name, ids, LAYERS)
    except IndexError:
        found = IndexError
    if row is None or row.shift == rules.NO_SETTER:
        return None if found is None else (found, row)
    try:
        wanted = rules.boundaries_captured(version, name, ids, LAYERS)
    except rules.Stops:
        wanted = IndexError if row.flags or row.indexes else "boundary 0"
    if wanted == "boundary 0":  # what happens there is in the layers, which are no part of a stand-in
        return None if found and found[0] == 0 else (found, wanted)
    return None if found == wanted else (found, wanted)


def test_decode_graphs_read_the_ids_from_the_release_the_table_names(release):
    version, _ = release
    archive = zipfile.ZipFile(WHEELS[version])
    runner = [name for name in archive.namelist() if name.startswith("sglang/srt/model_executor/") and name.endswith(".py")]
    without_ids = any(b"set_eagle3_layers_to_capture()" in archive.read(name) for name in runner)
    assert without_ids == (rules.graphs_capture(version, "LlamaForCausalLM", [4, 5, 6], LAYERS) != [5, 6, 7])
