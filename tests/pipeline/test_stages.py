"""Bad inputs end in one clear sentence and cost nothing; what is captured is what was asked for."""
import json
import shutil
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from stages import extract, generate, target, train
from stages.engines.transformers_engine import Engine
from stages.lib import answers, capture, chat, files, parity, traces
from stages.lib.refusal import Refusal
from tests.pipeline import scratch


def outputs(folder):
    return {**scratch.bytes_of(folder / "data"), **scratch.bytes_of(folder / "metrics")}


def refused(folder, main, match):
    """`main()` refuses with these words, and every output is there as before."""
    before = outputs(folder)
    with pytest.raises(Refusal, match=match) as caught:
        main()
    assert outputs(folder) == before
    return str(caught.value)


def test_a_missing_prompt_file_is_named(inside):
    scratch.set_params(inside, {"prompts": {"files": ["data/prompts/train/absent.jsonl"]}})
    refused(inside, generate.main, "prompt file data/prompts/train/absent.jsonl does not exist")


def test_prompts_that_are_all_too_long_are_refused_with_their_length(inside):
    scratch.set_params(inside, {"prompts": {"max_tokens": 5, "limit": 4}})
    said = refused(inside, generate.main, "no answer at all from 4 prompts")
    assert "over the limit of 5" in said


@pytest.mark.parametrize("layer_ids, offset, said", [
    ([1, 2, 5], 1, r"boundaries \[2, 3, 6\]; this target has the boundaries 0 to 5"),
    ([0, 1, 2], -1, r"boundaries \[-1, 0, 1\]"),
    ([2, 1, 4], 1, "expected ascending ids, each once"),
    ([1, 2, 2], 1, "expected ascending ids, each once"),
])
def test_layer_ids_that_cannot_be_captured_are_refused(inside, layer_ids, offset, said):
    scratch.set_params(inside, {"capture": {"layer_ids": layer_ids, "offset": offset}})
    refused(inside, extract.main, said)


def test_too_little_disk_is_refused_before_any_work(inside, monkeypatch):
    shutil.rmtree(inside / ".eyrie/extract")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    said = refused(inside, extract.main, "extract needs .* GB are free: extract fewer prompts")
    assert "bytes" in said


def test_states_of_another_target_are_refused(inside):
    manifest = files.read_json("data/states/manifest.json")
    files.write_json("data/states/manifest.json", {**manifest, "target": "f" * 64})
    refused(inside, train.main, "data/states was extracted from target ffffffffffff, .* rerun extract")


def test_a_shard_that_was_changed_is_refused_and_named(inside):
    path = inside / "data/states/states-00001.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()
    path.write_bytes(content)
    refused(inside, train.main, "states-00001.safetensors is not what the states' manifest lists")


def test_a_diverging_training_names_step_and_batch(inside):
    shutil.rmtree(inside / ".eyrie/train")
    scratch.set_params(inside, {"train": {"lr": 1e6}})
    said = refused(inside, train.main, r"training diverged at step \d+: loss .*; batch of ")
    assert any(name in said for name, _ in files.read_json("data/states/manifest.json")["documents"])


def test_a_target_with_a_nan_is_refused_with_the_reason(inside, tiny):
    """Row by row the answers are lost, so nothing is left to train on."""
    weights = load_file(tiny / "model.safetensors")
    weights["model.layers.3.mlp.down_proj.weight"][5, 7] = torch.nan
    shutil.copytree(tiny, inside / ".eyrie/nan")
    save_file(weights, inside / ".eyrie/nan/model.safetensors", {"format": "pt"})
    scratch.set_params(inside, {"target": {"name": ".eyrie/nan"}, "prompts": {"limit": 2}})
    target.main()
    said = refused(inside, generate.main, "no answer at all from 2 prompts")
    assert "the target's logits are not finite" in said


def test_later_turns_are_asked_behind_the_targets_own_answers(tiny):
    tok, engine = chat.tokenizer(tiny), Engine(tiny, transformers.__version__, "float32", 1)
    block = [{"id": "a", "source": "chat", "turns": ["Name a bird.", "Why that one?", "Another?"]},
             {"id": "b", "source": "chat", "turns": ["Name a fish."]}]
    rows, bad = answers.of_block(block, engine, tok, [2], 400, 8, 0, 1.0, 0, 4, lambda n: None)
    assert bad == [] and [(row["id"], row["turn"]) for row in rows] == [("a", 0), ("a", 1), ("a", 2), ("b", 0)]
    second, third = (tok.decode(row["prompt_ids"]) for row in rows[1:3])
    assert rows[0]["text"].strip() and rows[1]["text"].strip()
    assert second.index("Name a bird.") < second.index(rows[0]["text"].strip()) < second.index("Why that one?")
    assert third.index(rows[0]["text"].strip()) < third.index(rows[1]["text"].strip()) < third.index("Another?")
    assert "Another?" not in second


@pytest.fixture(scope="module")
def counting(tmp_path_factory):
    """A Llama whose layer i adds i + 1 to every feature, whatever it reads: boundary b is the embedding + 1 + ... + b."""
    config = LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=4, num_hidden_layers=6, num_attention_heads=2,
                         num_key_value_heads=1, mlp_bias=True, tie_word_embeddings=True)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for i, layer in enumerate(model.model.layers):
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
            layer.mlp.down_proj.bias.fill_(i + 1)
    folder = tmp_path_factory.mktemp("counting")
    model.save_pretrained(folder)
    return Engine(folder, transformers.__version__, "float32", 1), model.model.embed_tokens.weight.detach()


@pytest.mark.parametrize("offset", [0, 1])
def test_an_offset_of_1_stores_what_the_layers_wrote_and_0_what_they_read(counting, offset):
    engine, embed = counting
    layer_ids, sequences = [1, 2, 4], [[3, 1, 4], [1, 5, 9, 2, 6]]
    added = {0: [1, 1 + 2, 1 + 2 + 3 + 4], 1: [1 + 2, 1 + 2 + 3, 1 + 2 + 3 + 4 + 5]}[offset]
    found = engine.capture(sequences, capture.boundaries_of(layer_ids, offset, 6))
    for ids, (aux, _) in zip(sequences, found):
        expected = embed[ids][:, None] + torch.tensor(added)[:, None]
        torch.testing.assert_close(aux.unflatten(-1, (3, 8)), expected, rtol=0, atol=1e-4)


def test_the_pipelines_states_are_those_of_the_boundaries_in_their_manifest(pipeline, tiny):
    """Against transformers' own list of hidden states, for the first document of the first shard."""
    manifest = files.read_json(pipeline / "data/states/manifest.json")
    assert (manifest["layer_ids"], manifest["offset"], manifest["boundaries"]) == ([1, 2, 4], 1, [2, 3, 5])
    shard = load_file(pipeline / "data/states" / manifest["shards"][0]["file"])
    end = int(shard["cu_seqlens"][1])
    model = LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    with torch.no_grad():
        states = model(shard["input_ids"][None, :end].long(), output_hidden_states=True).hidden_states
    expected = torch.cat([states[b][0] for b in (2, 3, 5)], -1)
    torch.testing.assert_close(shard["aux"][:end].float(), expected, rtol=0.01, atol=0.01)
    torch.testing.assert_close(shard["last"][:end].float(), states[-1][0], rtol=0.01, atol=0.01)


@pytest.fixture(scope="module")
def probed(tiny, tmp_path_factory):
    """A random target whose final norm scales features differently, as a trained one's does, and greedy traces of it."""
    folder = tmp_path_factory.mktemp("probed") / "target"
    shutil.copytree(tiny, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = torch.rand(64, generator=torch.Generator().manual_seed(0)) * 3
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    engine = Engine(folder, transformers.__version__, "float32", 1)
    prompts = [torch.arange(100 + 50 * i, 110 + 53 * i).tolist() for i in range(4)]
    said = engine.generate(prompts, 12, 0, 1.0, [0] * 4, [2])
    return engine, [{"id": f"row-{i}", "prompt_ids": p, "response_ids": r} for i, (p, (r, _)) in enumerate(zip(prompts, said))]


def probe(engine, rows):
    return parity.probe(engine, rows, [2, 3, 5], 4, True, "float32")


def altered(engine, capture):
    """The engine with another capture, as a faulty plugin would have."""
    return SimpleNamespace(capture=capture, plain_states=engine.plain_states, head_weight=engine.head_weight)


def test_the_parity_probe_accepts_a_right_capture(probed):
    engine, rows = probed
    figures = probe(engine, rows)
    assert figures["cosine_p1_min"] == 1 and figures["head_repeats"] == 1


@pytest.mark.parametrize("shift", [-1, 1])
def test_the_parity_probe_refuses_a_capture_that_is_one_boundary_off(probed, shift):
    engine, rows = probed
    shifted = altered(engine, lambda sequences, boundaries: engine.capture(sequences, [min(b + shift, 5) for b in boundaries]))
    with pytest.raises(Refusal, match="captured rows of boundary 2 differ .* captures another boundary"):
        probe(shifted, rows)


def test_the_parity_probe_refuses_a_last_state_from_before_the_norm(probed):
    engine, rows = probed

    def before_norm(sequences, boundaries):
        seen = []
        hook = engine.decoder.norm.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0].clone()))
        found = engine.capture(sequences, boundaries)
        hook.remove()
        return [(aux, seen[0][r, :len(last)]) for r, (aux, last) in enumerate(found)]

    with pytest.raises(Refusal, match="is it taken before the final norm"):
        probe(altered(engine, before_norm), rows)


def test_the_parity_probe_refuses_traces_of_another_target(probed):
    engine, rows = probed
    foreign = [{**row, "response_ids": [(token + 1) % 49152 for token in row["response_ids"]]} for row in rows]
    with pytest.raises(Refusal, match="repeats .* of the traced greedy tokens .* another target"):
        probe(engine, foreign)


def test_the_parity_probe_refuses_rows_of_another_sequence(probed):
    engine, rows = probed
    mixed = altered(engine, lambda sequences, boundaries: engine.capture([s[::-1] for s in sequences], boundaries))
    with pytest.raises(Refusal, match="corrupts rows"):
        probe(mixed, rows)


def test_answers_are_read_back_as_they_were_written(pipeline):
    rows = traces.read(pipeline / "data/traces")
    assert len(rows) == json.loads((pipeline / "data/traces/manifest.json").read_text())["rows"] == 24
