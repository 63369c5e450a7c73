"""A planted fault is named by its own code and no other; a healthy draft raises nothing."""
import json

import pytest
import torch

from stages.contract import check
from stages.contract.faults import FAULTS, NOTES
from stages.contract.folder import open_folder
from stages.lib import files, served_folder
from tests import planted, small

SIZE, LAYERS, VOCAB, DRAFT_VOCAB = 48, 10, 400, 120


def target_folder(folder, **changes):
    folder.mkdir(parents=True)
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": SIZE, "num_hidden_layers": LAYERS, "vocab_size": VOCAB,
              "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 50000.0, "dtype": "bfloat16", "eos_token_id": 2,
              **changes}
    files.write_json(folder / "config.json", config)
    for name in ("tokenizer.json", "chat_template.jinja"):
        (folder / name).write_text(name)
    return check.target_of(folder)


def healthy(folder, target, boundaries=(2, 4, 7), dtype="bfloat16", **shape):
    """An exported random draft for `target`, as a Plan."""
    about = {"max_position_embeddings": 512, "bos_token_id": 1, "eos_token_ids": [2], "sha256": "1" * 64,
             "files": {name: files.sha256(target.folder / name) for name in ("config.json", "tokenizer.json", "chat_template.jinja")}}
    draft, d2t = small.random_draft(**{"hidden_size": SIZE, "intermediate_size": 64, "head_dim": 8, "num_aux": len(boundaries),
                                       "target_hidden_size": SIZE, "vocab_size": VOCAB, "draft_vocab_size": DRAFT_VOCAB,
                                       "rope_theta": 50000.0, **shape})
    if len(d2t) < VOCAB and 2 not in (d2t + torch.arange(len(d2t))):
        kept = torch.cat([torch.tensor([2]), (d2t + torch.arange(len(d2t)))[1:]]).sort().values
        d2t = kept - torch.arange(len(d2t))
    folder.mkdir(parents=True)
    served_folder.write(folder, draft.shape, {**{n: w.detach() for n, w in draft.named_parameters()}, "d2t": d2t}, about, boundaries,
                        [b - 1 for b in boundaries], dtype)
    return planted.plan_of(folder, target, check.Engine())


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    base = tmp_path_factory.mktemp("healthy")
    return healthy(base / "draft", target_folder(base / "target"))


def found(plan, folder):
    return check.check(open_folder(plan.write(folder)), plan.target, plan.engine)


def codes(findings):
    return [f.code for f in findings if f.level == "fault"]


@pytest.mark.parametrize("code, plant", planted.CASES, ids=[f"{code}-{plant.__name__}" for code, plant in planted.CASES])
def test_a_planted_fault_is_named_and_nothing_else(plan, code, plant, tmp_path):
    broken = plan.copy()
    plant(broken)
    said = found(broken, tmp_path / "draft")
    assert codes(said) == [code], "\n".join(map(str, said))
    assert said[0].evidence and said[0].remedy in FAULTS[code].remedy
    with pytest.raises(check.Refusal, match=code):
        check.refuse(said, "the draft")


def test_there_are_plants_for_more_than_45_faults():
    assert len(planted.PLANTS) >= 45 and not set(planted.PLANTS) & set(NOTES) and set(planted.PLANTS) <= set(FAULTS)


def test_the_healthy_draft_raises_nothing(plan, tmp_path):
    assert found(plan, tmp_path / "draft") == []


HEALTHY = {
    "two states": {"boundaries": (2, 7)}, "four states": {"boundaries": (1, 3, 5, 8)}, "five states": {"boundaries": (1, 3, 5, 7, 9)},
    "offset 0": {"boundaries": (1, 3, 6)}, "full vocabulary": {"draft_vocab_size": VOCAB}, "other MLP": {"intermediate_size": 96},
    "grouped heads": {"num_heads": 6, "num_kv_heads": 3}, "float16": {"dtype": "float16", "target": {"dtype": "float16"}},
    "a float32 target is served in float16": {"dtype": "float16", "target": {"dtype": "float32"}},
    "tied target": {"target": {"tie_word_embeddings": True}}, "six layers": {"boundaries": (1, 2, 4), "target": {"num_hidden_layers": 6}},
    "61 layers": {"boundaries": (2, 30, 58), "target": {"num_hidden_layers": 61}},
    "wider target": {"target_hidden_size": 2 * SIZE, "target": {"hidden_size": 2 * SIZE}, "embedding": True},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_variant_raises_nothing(name, tmp_path):
    options = dict(HEALTHY[name])
    target = target_folder(tmp_path / "target", **options.pop("target", {}))
    embedding = options.pop("embedding", False)
    plan = healthy(tmp_path / "made", target, **options)
    if embedding:
        plan.tensors["embed_tokens.weight"] = torch.zeros(VOCAB, SIZE, dtype=torch.bfloat16)
    assert found(plan, tmp_path / "draft") == []


def zero_map(p):
    p.tensors["d2t"] = torch.zeros_like(p.tensors["d2t"])


def sharded(p):
    names = list(p.tensors)
    p.shards = {"model-1.safetensors": names[:5], "model-2.safetensors": names[5:]}
    p.index = {name: shard for shard, held in p.shards.items() for name in held}


def eagle31(p):
    p.config |= {"fc_norm": True, "norm_output": True}
    p.training["norm_output"] = True
    p.tensors |= {f"fc_norm.{i}.weight": torch.ones(SIZE) for i in range(3)}


def head_of_the_target(p):
    p.config["draft_vocab_size"] = None
    del p.tensors["lm_head.weight"], p.tensors["d2t"]


def two_layers(p):
    p.config["num_hidden_layers"] = 2
    deeper = {n.replace("midlayer", "layers.1"): w for n, w in p.tensors.items() if n.startswith("midlayer")}
    for name in ("q_proj", "k_proj", "v_proj"):
        deeper[f"layers.1.self_attn.{name}.weight"] = deeper[f"layers.1.self_attn.{name}.weight"][:, :SIZE]
    p.tensors |= deeper


def default_ids_on_an_old_server(p):
    p.eagle[planted.IDS], p.training["boundaries"] = [1, 4, 6], [2, 5, 7]
    p.serve("0.5.8")


@pytest.mark.parametrize("change", [
    sharded, eagle31, head_of_the_target, two_layers,
    lambda p: p.rename(r"^midlayer\.", "layers.0."), lambda p: p.rename(r"^(midlayer|fc|norm)\.", r"model.\1."),
    lambda p: p.rename(r"^midlayer\.", "model.layers.0."), default_ids_on_an_old_server, lambda p: p.serve("0.5.23"),
    lambda p: p.serve(dtype="bfloat16"), lambda p: p.serve(tp_size="2"), lambda p: setattr(p, "training", None),
    lambda p: p.config.update(rope_theta=None), lambda p: p.tensors.update({"midlayer.self_attn.rotary_emb.inv_freq": torch.ones(4)}),
    lambda p: p.tensors.update({"t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill(
        0, p.tensors["d2t"] + torch.arange(DRAFT_VOCAB), True)}),
    lambda p: p.serve(quantization="fp8", speculative_draft_model_quantization="unquant"),
    lambda p: p.beside.update({"tokenizer.json": b"{}", "README.md": b"#"}),
], ids=["sharded", "eagle-3.1", "head of the target", "two layers", "layers.0", "model.", "model.layers.0", "0.5.8", "0.5.23", "--dtype",
        "--tp 2", "no record", "theta in rope_parameters", "inv_freq", "t2d", "unquantised draft", "other files"])
def test_a_healthy_change_raises_nothing(plan, change, tmp_path):
    changed = plan.copy()
    change(changed)
    assert codes(found(changed, tmp_path / "draft")) == []


def test_ids_out_of_order_are_no_fault_of_a_draft_that_was_trained_on_ascending_states(plan, tmp_path):
    changed = plan.copy()
    changed.eagle[planted.IDS] = changed.eagle[planted.IDS][::-1]
    assert found(changed, tmp_path / "draft") == []


def without_record(p, architecture, ids):
    p.training = None
    p.set_target(architectures=[architecture], num_hidden_layers=61)
    p.eagle[planted.IDS] = ids


@pytest.mark.parametrize("architecture, ids, level", [
    ("LlamaForCausalLM", [2, 30, 58], "note"),         # outputs of layers, as most trainers write them, are what it captures
    ("DeepseekV3ForCausalLM", [2, 30, 58], "open"),    # the story: right as boundaries, wrong as outputs
    ("DeepseekV3ForCausalLM", [1, 29, 57], "note")])
def test_what_ids_meant_in_training_is_asked_where_it_decides(plan, architecture, ids, level, tmp_path):
    changed = plan.copy()
    without_record(changed, architecture, ids)
    said = {f.code: f for f in found(changed, tmp_path / "draft")}
    assert said["EY-RULE-14"].level == level and "outputs of layers" in said["EY-RULE-14"].evidence


@pytest.mark.parametrize("config", [
    {"num_hidden_layers": 10**6}, {"num_hidden_layers": 10**9}, {"num_aux_hidden_states": 2 * 10**6, "fc_norm": True}])
def test_a_config_cannot_make_the_check_build_millions_of_layers(plan, config, tmp_path):
    changed = plan.copy()
    changed.config |= config
    assert codes(found(changed, tmp_path / "draft")) == ["EY-CONFIG-31"]


def test_the_default_boundaries_need_no_ids(tmp_path):
    plan = healthy(tmp_path / "made", target_folder(tmp_path / "target"), boundaries=(2, 5, 7))
    planted.no_ids(plan)
    assert found(plan, tmp_path / "draft") == []


def test_ids_that_other_versions_read_differently_are_a_note(plan, tmp_path):
    changed = plan.copy()
    planted.ids_of_an_older_deepseek(changed)
    changed.training["boundaries"] = [2, 30, 58]
    said = found(changed, tmp_path / "draft")
    assert [f.code for f in said] == ["EY-RULE-10"] and said[0].level == "note" and "[3, 31, 59] in" in said[0].evidence


def test_an_end_token_outside_the_map_is_a_note(plan, tmp_path):
    changed = plan.copy()
    changed.set_target(eos_token_id=[3] if 3 not in (plan.tensors["d2t"] + torch.arange(DRAFT_VOCAB)) else [5])
    assert [(f.code, f.level) for f in found(changed, tmp_path / "draft")] == [("EY-VOCAB-11", "note")]


@pytest.fixture(scope="module")
def mla(plan):
    """A draft of the MLA class, as SGLang 0.5.12.post1 and later can serve one for a Kimi target."""
    made = plan.copy()
    made.config |= {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2", "q_lora_rank": 16, "kv_lora_rank": 12,
                    "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
    heads, a = made.config["num_attention_heads"], "midlayer.self_attn."
    for name in ("q_proj", "k_proj", "v_proj"):
        del made.tensors[f"{a}{name}.weight"]
    made.tensors |= {f"{a}{name}.weight": torch.zeros(*shape, dtype=torch.bfloat16) for name, shape in {
        "q_a_proj": (16, 2 * SIZE), "kv_a_proj_with_mqa": (16, 2 * SIZE), "q_a_layernorm": (16,), "kv_a_layernorm": (12,),
        "q_b_proj": (heads * 12, 16), "kv_b_proj": (heads * 16, 12), "o_proj": (SIZE, heads * 8)}.items()}
    return made


def model_prefix(p):
    p.rename(r"^", "model.")


def lone_projection(p):
    del p.tensors["midlayer.self_attn.q_a_proj.weight"]


@pytest.mark.parametrize("code, plant", [
    (None, lambda p: None), (None, lambda p: p.rename(r"^midlayer\.", "layers.0.")), ("EY-TENSOR-13", model_prefix),
    ("EY-TENSOR-14", lone_projection), ("EY-TENSOR-03", planted.head_missing), ("EY-TENSOR-02", planted.norm_missing),
    ("EY-CONFIG-32", lambda p: p.serve("0.5.11"))],
    ids=["healthy", "layers.0", "model.", "lone projection", "no head", "no norm", "0.5.11"])
def test_mla_drafts_have_rules_of_their_own(mla, code, plant, tmp_path):
    changed = mla.copy()
    plant(changed)
    assert codes(found(changed, tmp_path / "draft")) == ([code] if code else [])


def test_a_version_outside_the_tables_is_refused():
    for version in ("0.4.9", "0.6.0", "latest"):
        with pytest.raises(check.Refusal, match="0.5.8 to 0.5.23"):
            check.Engine(version)


def test_every_fault_has_cause_symptom_remedy_and_source():
    for code, fault in FAULTS.items():
        assert all((fault.cause, fault.symptom, fault.remedy, fault.source)), code
        assert not fault.cause.endswith("."), code


@pytest.mark.parametrize("value", [None, 0, -1, True, "text", [], {}, 1e400, 2**70, [[1]], {"a": {"b": []}}], ids=repr)
@pytest.mark.parametrize("key", ["hidden_size", "eagle_config", "rope_parameters", "architectures", "draft_vocab_size", "head_dim",
                                 "rms_norm_eps", "torch_dtype", "rope_theta", "max_position_embeddings"])
def test_no_value_of_a_key_ends_the_check(plan, key, value, tmp_path):
    changed = plan.copy()
    changed.config[key] = value
    folder = plan.copy().write(tmp_path / "draft")
    read = open_folder(folder)
    read.config = json.loads(json.dumps(changed.config))
    check.check(read, changed.target, changed.engine)


def said_of(plan, folder, code):
    return next(f for f in found(plan, folder) if f.code == code)


def two_thetas(p):
    p.training = None
    p.config["rope_parameters"]["rope_theta"] = 10000


def only_the_target_differs(p):
    p.training = None
    planted.other_theta(p)


@pytest.mark.parametrize("code, level, plant, words", [
    ("EY-CONFIG-15", "fault", two_thetas, ["rope_theta is 50000 and rope_parameters.rope_theta 10000", "reads 10000"]),
    ("EY-CONFIG-15", "fault", planted.other_theta, ["write rope_theta 50000"]),
    ("EY-CONFIG-15", "note", only_the_target_differs, ["write rope_theta 50000", "if it was trained with that"]),
    ("EY-CONFIG-14", "fault", planted.no_theta, ["write rope_theta 50000"]),
    ("EY-CONFIG-04", "fault", planted.ids_at_top_level, ["stands at the top level;"]),
    ("EY-CONFIG-04", "fault", planted.ids_nested_once_more, ["stands in eagle_config.eagle_config;"]),
    ("EY-CONFIG-11", "fault", lambda p: p.config.pop("vocab_size"), ["32000 (absent), the target has 400"]),
    ("EY-CONFIG-12", "fault", lambda p: p.set_target(hidden_size=5 * SIZE), ["fc.weight has 144 columns, no multiple"]),
    ("EY-CONFIG-12", "fault", planted.no_target_hidden_size_of_a_wider_target, ["fc.weight has 288 columns, multiple"]),
    ("EY-CONFIG-31", "fault", lambda p: p.config.update(dtype=3), ["dtype is 3"]),
    ("EY-RULE-01", "fault", planted.class_without_capture, ["no release of the table captures"]),
    ("EY-RULE-01", "fault", lambda p: (p.set_target(architectures=["Gemma3ForCausalLM"]), p.serve("0.5.11")), ["from 0.5.12 on"]),
    ("EY-RULE-02", "fault", planted.class_that_captures_nothing, ["from 0.5.22 on"]),
    ("EY-RULE-10", "note", planted.ids_of_one_deepseek_release, ["the ids [1, 29, 57] are these boundaries in every release"]),
], ids=lambda value: getattr(value, "__name__", None))
def test_the_evidence_says_what_to_do_with_this_draft(plan, code, level, plant, words, tmp_path):
    broken = plan.copy()
    plant(broken)
    said = said_of(broken, tmp_path / "draft", code)
    assert said.level == level and all(word in said.evidence for word in words), said


def test_a_note_claims_nothing_that_no_record_says(plan, tmp_path):
    broken = plan.copy()
    only_the_target_differs(broken)
    assert "no record says" in said_of(broken, tmp_path / "draft", "EY-CONFIG-15").cause


def test_a_copied_plan_keeps_its_files(plan, tmp_path):
    changed = plan.copy()
    sharded(changed)
    changed.beside["README.md"] = b"#"
    copied = changed.copy()
    assert (copied.shards, copied.index, copied.beside) == (changed.shards, changed.index, changed.beside)
    copied.shards.clear()
    assert changed.shards


def test_deeper_drafts_are_served_from_the_release_that_reads_their_names(plan, tmp_path):
    changed = plan.copy()
    changed.rename(r"^midlayer\.", "layers.0.")
    for version, wrong in (("0.5.11", ["EY-TENSOR-01"]), ("0.5.12", []), ("0.5.12.post1", [])):
        changed.serve(version)
        assert codes(found(changed, tmp_path / version)) == wrong
