"""Each architecture with random weights on a real server: what reaches an EAGLE-3 draft, and what the capture plugin takes.

A case that SGLang cannot start on this machine fails with the server's own reason, which is also in its file (results.py).
"""
import os
from pathlib import Path

import pytest

from stages.contract import rules
from stages.engines import live
from stages.lib import layer_parity, parity
from tests.gpu import servers, targets
from tests.gpu.results import VERSION, case

LATER, EARLY = [3, 5, 6], [2, 4, 6]  # where DeepSeek's ids are boundaries, and where they are outputs: ids[0] == 1
LINKED = [2, 3, 5, 6]
SERVED = [(architecture, boundaries) for architecture in targets.ARCHITECTURES for boundaries in (LATER, EARLY)
          if boundaries is LATER or rules.rule_for(VERSION, architecture).shift == rules.PLUS_ONE_IF_FIRST_IS_1]
NEIGHBOUR, NEXT_IDS = 0.97, 0.8  # measured between transformers in fp32 and bf16: 0.94 and 0.93


@pytest.fixture(autouse=True)
def text_alone(monkeypatch):
    """Kimi's processor of images is code of its checkpoint. SGLang lets a package take its place (docs: external models)."""
    monkeypatch.setenv("SGLANG_EXTERNAL_MM_PROCESSOR_PACKAGE", "eyrie_text_alone")
    known = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent / "external"), *([known] if known else [])]))


@pytest.mark.parametrize("architecture,boundaries", SERVED, ids=[f"{a}-{b[0]}" for a, b in SERVED])
def test_a_draft_reads_the_states_that_it_was_exported_for(architecture, boundaries, folder_of, tmp_path):
    with case(f"serve-{architecture}-{boundaries[0]}", architecture=architecture, boundaries=boundaries) as figures:
        folder = folder_of(architecture)
        ids, about = servers.untrained(folder, tmp_path / "draft", boundaries)
        figures["ids"] = ids
        seen = live.watch(servers.engine(architecture), folder, tmp_path / "draft", about, servers.sequences((20, 150, 300)))
        figures.update(started=True, **{key: seen.get(key) for key in ("layers_to_capture", "target_class", "draft_class", "fc",
                                                                       "prefill", "verify")})
        assert list(live.faults(seen, boundaries, about["hidden_size"])) == []
        assert seen["target_class"] == architecture and seen["fc"] == [targets.HIDDEN, 3 * targets.HIDDEN]


@pytest.mark.parametrize("architecture", targets.ARCHITECTURES)
def test_captured_rows_are_transformers_own_of_their_boundary_and_of_no_neighbour(architecture, folder_of):
    with case(f"capture-{architecture}", architecture=architecture, tp=1, boundaries=LINKED) as figures:
        folder, asked = folder_of(architecture), servers.sequences()
        rows, report = servers.captured("capture", architecture, folder, LINKED, asked)
        figures.update(started=True, layers_to_capture=report["layers_to_capture"])
        figures.update(servers.compared(rows, folder, LINKED, asked))
        entering = dict(zip(LINKED, rows[-1][0].chunk(len(LINKED), -1)))
        figures["update_p1"] = {}
        for b in (2, 5):
            figures["update_p1"][b] = layer_parity.layer_parity(folder, b, entering[b], entering[b + 1])["update_cosine_p1"]
        assert report["model_class"] == architecture
        assert min(figures["p1"].values()) > parity.COSINE_P1
        assert max(figures["neighbours"].values()) < NEIGHBOUR
        assert figures["last"] < parity.LAST_ERROR and figures["next_ids"] > NEXT_IDS
