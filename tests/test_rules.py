"""The table of engine rules against itself and against the cases that the serving contract names."""
import pytest
from hypothesis import given, settings, strategies as st
from packaging.version import Version

from stages.contract import rules
from stages.lib.refusal import Refusal

CLASSES = sorted({c for row in rules.RULES for c in row.classes})
PAIRS = [(v, c) for v in rules.versions() for c in CLASSES if rules.rule_for(v, c)]
SERVED = [(v, c) for v, c in PAIRS if rules.rule_for(v, c).shift not in (rules.NO_SETTER, rules.NOTHING)]
DEEPSEEK = ("DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration", "Glm4MoeLiteForCausalLM")


def captured(version, name, ids, layers):
    try:
        return rules.boundaries_captured(version, name, ids, layers)
    except rules.Stops:
        return None


@settings(max_examples=300)
@given(st.data(), st.sampled_from(SERVED), st.integers(4, 80))
def test_ids_written_are_captured_as_the_boundaries_asked_for(data, served, layers):
    asked = sorted(data.draw(st.sets(st.integers(0, layers), min_size=1, max_size=5)))
    try:
        ids = rules.ids_to_write(*served, asked, layers)
    except Refusal:
        return
    assert min(ids) >= 0 and rules.boundaries_captured(*served, ids, layers) == asked


@settings(max_examples=300)
@given(st.data(), st.sampled_from(SERVED), st.integers(4, 80))
def test_boundaries_that_a_server_captures_have_ids(data, served, layers):
    """The other way round; alone 1 of a DeepSeek (its ids [1] mean 2, [0] mean 0) and 0 (an id of -1) are left without."""
    ids = data.draw(st.lists(st.integers(0, layers), min_size=1, max_size=5))
    found = captured(*served, ids, layers)
    if found and len(found) == len(set(ids)):  # an id out of reach could stand in front of a 1 and hide it from the rule
        assert captured(*served, rules.ids_to_write(*served, found, layers), layers) == found


@given(st.data(), st.sampled_from(SERVED), st.integers(4, 80))
def test_boundaries_ascend_within_the_target_whatever_the_ids(data, served, layers):
    found = captured(*served, data.draw(st.none() | st.lists(st.integers(-3, layers + 3), max_size=6)), layers)
    if found is not None:
        assert found == sorted(set(found)) and all(0 <= b <= layers for b in found)


@pytest.mark.parametrize("served", SERVED, ids="-".join)
def test_version_proof_ids_are_the_defaults(served):
    for layers in (12, 30, 36, 61):
        if served[1] != "MiniMaxM3SparseForConditionalGeneration":  # its defaults get +1 as well
            assert captured(*served, None, layers) == [2, layers // 2, layers - 3]
        assert captured(*served, [1, layers // 2 - 1, layers - 4], layers) == [2, layers // 2, layers - 3]


@pytest.mark.parametrize("version,found", [("0.5.10.post1", [3, 31, 59]), ("0.5.12.post1", [3, 31, 59]), ("0.5.13", [2, 30, 58]),
                                           ("0.5.15.post1", [2, 30, 58]), ("0.5.23", [2, 30, 58])])
def test_kimi_s_2_30_58_changed_its_meaning_in_0_5_13(version, found):
    assert rules.boundaries_captured(version, "KimiK25ForConditionalGeneration", [2, 30, 58], 61) == found


@pytest.mark.parametrize("name", DEEPSEEK)
def test_outputs_of_layers_2_30_58_need_other_ids_by_version(name):
    assert rules.ids_to_write("0.5.12.post1", name, [3, 31, 59], 61) == [2, 30, 58]
    assert rules.ids_to_write("0.5.15.post1", name, [3, 31, 59], 61) == [3, 31, 59]
    assert rules.portable_ids(name, [3, 31, 59], 61) is None
    assert rules.portable_ids(name, [2, 30, 58], 61) == [1, 29, 57]


def test_a_boundary_1_hides_from_the_first_id_rule_behind_another_id():
    ids = rules.ids_to_write("0.5.15.post1", "DeepseekV3ForCausalLM", [1, 8, 20], 61)
    assert ids[0] != 1 and rules.boundaries_captured("0.5.15.post1", "DeepseekV3ForCausalLM", ids, 61) == [1, 8, 20]
    with pytest.raises(Refusal, match="no layer ids make"):
        rules.ids_to_write("0.5.15.post1", "DeepseekV3ForCausalLM", [1], 61)


@pytest.mark.parametrize("name,ids,found", [
    ("LlamaForCausalLM", None, [2, 3]),             # six layers: 2, 3, 3
    ("LlamaForCausalLM", [2, 2, 4], [3, 5]),        # a duplicate is captured once
    ("LlamaForCausalLM", [1, 3, 5], [2, 4]),        # the last layer's output is out of reach ...
    ("Gemma3ForCausalLM", [1, 3, 5], [2, 4, 6]),    # ... but not of Gemma's
    ("LlamaForCausalLM", [4, 1, 2], [2, 3, 5]),     # order is not that of the ids
    ("LlamaForCausalLM", [40, 41], []),
    ("LlamaForCausalLM", [-1, 2], rules.Stops),
    ("Qwen2ForCausalLM", [-1, 2], [0, 3]), ("Qwen3MoeForCausalLM", [-1, 2], [0, 3]),  # the embedding, silently
    ("DeepseekV3ForCausalLM", [-1, 2], [2]),
    ("Qwen3MoeForCausalLM", [-2, 2], [3, 5]),       # layers[-1], silently
    ("Qwen3MoeForCausalLM", [1, 5], rules.Stops),   # layers[6] of six
    ("Qwen3_5ForConditionalGeneration", [1, 2, 3], []),
    ("GraniteForCausalLM", [1, 2, 3], rules.Stops),
])
def test_edge_ids_of_the_contract_on_six_layers(name, ids, found):
    if found is rules.Stops:
        with pytest.raises(rules.Stops):
            rules.boundaries_captured("0.5.15.post1", name, ids, 6)
    else:
        assert rules.boundaries_captured("0.5.15.post1", name, ids, 6) == found


def test_gpt_oss_takes_ids_with_n_as_boundaries_from_0_5_17_on():
    found = {v: rules.boundaries_captured(v, "GptOssForCausalLM", [12, 24], 24) for v in ("0.5.16", "0.5.17", "0.5.23")}
    assert found == {"0.5.16": [13], "0.5.17": [12, 24], "0.5.23": [12, 24]}
    assert rules.ids_to_write("0.5.23", "GptOssForCausalLM", [2, 12, 24], 24) == [1, 11, 23]


def test_decode_graphs_before_0_5_11_capture_the_defaults():
    assert rules.graphs_capture("0.5.10.post1", "LlamaForCausalLM", [2, 14, 26], 30) == [2, 15, 27]
    assert rules.graphs_capture("0.5.11", "LlamaForCausalLM", [2, 14, 26], 30) == [3, 15, 27]


@pytest.mark.parametrize("version", ["0.5.7", "0.5.8.dev0", "0.5.23.post1", "0.5.24", "1.0", "newest", ""])
def test_versions_outside_the_table_are_refused(version):
    assert rules.rule_for(version, "LlamaForCausalLM") is None
    with pytest.raises(Refusal, match="holds 0.5.8 to 0.5.23"):
        rules.boundaries_captured(version, "LlamaForCausalLM", None, 30)


def test_versions_compare_as_versions():
    rule = lambda version: rules.rule_for(version, "DeepseekV3ForCausalLM").shift
    assert rule("0.5.8.post1") == rule("0.5.9") == rule("0.5.10") == rule("0.5.12.post1") == rule("0.5.13rc1") == rules.PLUS_ONE
    assert rule("0.5.13") == rule("0.5.14") == rule("0.5.15.post1+cu130") == rules.PLUS_ONE_IF_FIRST_IS_1
    assert list(rules.versions()) == sorted(rules.versions(), key=Version)


def test_refusals_say_what_to_do():
    with pytest.raises(Refusal, match="no engine rule for FooForCausalLM in SGLang 0.5.15.post1; add a row"):
        rules.ids_to_write("0.5.15.post1", "FooForCausalLM", [2, 3], 30)
    with pytest.raises(Refusal, match="captures nothing of a Qwen3_5ForConditionalGeneration .*from 0.5.22 on"):
        rules.ids_to_write("0.5.15.post1", "Qwen3_5ForConditionalGeneration", [2, 3], 30)
    with pytest.raises(Refusal, match="1 to 29 can be reached"):
        rules.ids_to_write("0.5.15.post1", "LlamaForCausalLM", [0, 3], 30)
    with pytest.raises(rules.Stops, match="no EAGLE-3 capture in SGLang 0.5.9 .*from 0.5.10 on"):
        rules.boundaries_captured("0.5.9", "KimiK25ForConditionalGeneration", [1], 61)


@pytest.mark.parametrize("name", CLASSES)
def test_rows_of_a_class_start_at_different_known_releases(name):
    starts = [row.since for row in rules.RULES if name in row.classes]
    assert len(set(starts)) == len(starts) and set(starts) <= set(rules.versions())


def test_each_row_says_how_it_is_known():
    assert [row for row in rules.RULES if not (row.how.startswith(("executed", "read")) and row.where)] == []


def test_partial_sums_end_where_the_capture_moved_behind_the_reduction():
    assert rules.partial_sums("0.5.15.post1", "GptOssForCausalLM").fusion_is_default
    assert rules.partial_sums("0.5.13.post1", "KimiK25ForConditionalGeneration")
    assert rules.partial_sums("0.5.14", "KimiK25ForConditionalGeneration") is None
    assert rules.partial_sums("0.5.21", "GptOssForCausalLM") is rules.partial_sums("0.5.15.post1", "LlamaForCausalLM") is None
    assert rules.without_residual("0.5.17", "Gemma3ForCausalLM") and not rules.without_residual("0.5.16", "Gemma3ForCausalLM")
