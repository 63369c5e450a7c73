"""stages/contract/tensors.py against what SGLang's loader does with the same drafts (tests/contract/golden.py)."""
from pathlib import Path

import pytest

from stages.contract import config, tensors
from stages.contract.folder import Folder, Header
from tests.contract import golden

VERSION = "0.5.15.post1"
FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj",
         "q_a_proj": "fused_qkv_a_proj_with_mqa", "kv_a_proj_with_mqa": "fused_qkv_a_proj_with_mqa"}


def judged(case):
    """(dropped checkpoint names, unset parameters as the server names them) by our own table."""
    values, made = case.files()
    folder = Folder(Path(), values, {name: Header("", "F32", tuple(t.shape)) for name, t in made.items()}, {}, [], [], [], None)
    read = config.read(values, VERSION)
    found, dropped = tensors.placed(folder, read, VERSION)
    missing = tensors.expected(read, VERSION).keys() - found.keys()
    lone = [name for name in found if name.endswith(("q_a_proj.weight", "kv_a_proj_with_mqa.weight"))] if read.mla else []
    dropped += [found[name] for name in lone if len(lone) == 1]  # the pair is loaded together or not at all: EY-TENSOR-14
    return set(dropped), {served(name, read.mla) for name in missing}


def served(name, mla):
    parts = name.split(".")
    parts[-2] = FUSED.get(parts[-2], parts[-2])
    name = ".".join(parts)
    if mla:
        name = name.replace("layers.0.", "midlayer.")
    return name if name.startswith("lm_head.") else f"model.{name}"


@pytest.mark.parametrize("case", [c for c in golden.CASES if not c.error], ids=lambda case: case.name)
def test_names_dropped_and_unset_are_sglang_s(case):
    dropped, unset = judged(case)
    harmless = {name for name in case.ignored if tensors.HARMLESS.search(name)}
    shared = {golden.EMBEDDING} | ({"lm_head.weight"} if not config.read(case.files()[0], VERSION).loads_head else set())
    assert dropped == case.ignored - harmless
    assert unset - {golden.EMBEDDING} == case.unset - shared


@pytest.mark.parametrize("case", [c for c in golden.CASES if c.error == "AssertionError"], ids=lambda case: case.name)
def test_a_shape_that_ends_the_server_is_wrong_by_our_table_too(case):
    values, made = case.files()
    folder = Folder(Path(), values, {name: Header("", "F32", tuple(t.shape)) for name, t in made.items()}, {}, [], [], [], None)
    read = config.read(values, VERSION)
    wanted, (found, dropped) = tensors.expected(read, VERSION), tensors.placed(folder, read, VERSION)
    assert [p for p in found if p in wanted and folder.tensors[found[p]].shape != wanted[p]] or "lm_head.weight" in dropped
