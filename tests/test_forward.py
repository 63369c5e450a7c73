"""The served draft on folders that Eyrie's own export never writes."""
import torch
import pytest
from hypothesis import given, settings, strategies as st
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from stages.contract import forward
from stages.contract.forward import ServedDraft, matches
from stages.lib.refusal import Refusal

VOCAB, SIZE = 40, 16
CONFIG = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": SIZE, "intermediate_size": 24,
          "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB, "draft_vocab_size": 12,
          "target_hidden_size": SIZE, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 128,
          "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}


def tensors(layers=1, num_aux=3, prefix="midlayer.", seed=0, size=SIZE):
    """A checkpoint of random tensors, with a norm of its own everywhere."""
    noise = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=noise) * 0.4
    weights = {"fc.weight": draw(SIZE, num_aux * size), "norm.weight": draw(SIZE), "lm_head.weight": draw(12, SIZE),
               "d2t": torch.arange(12) * 2}
    for i in range(layers):
        wide = 2 * SIZE if i == 0 else SIZE
        shapes = {"self_attn.q_proj": (16, wide), "self_attn.k_proj": (8, wide), "self_attn.v_proj": (8, wide),
                  "self_attn.o_proj": (SIZE, 16), "mlp.gate_proj": (24, SIZE), "mlp.up_proj": (24, SIZE), "mlp.down_proj": (SIZE, 24),
                  "input_layernorm": (SIZE,), "hidden_norm": (SIZE,), "post_attention_layernorm": (SIZE,)}
        weights |= {f"{prefix if i == 0 else f'layers.{i}.'}{name}.weight": draw(*shape) for name, shape in shapes.items()}
    return weights


def inputs(n=7, num_aux=3, seed=3):
    noise = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (n,), generator=noise), torch.randn(n, num_aux * SIZE, generator=noise)


def embedding(seed=5):
    return torch.randn(VOCAB, SIZE, generator=torch.Generator().manual_seed(seed))


def out(config=CONFIG, weights=None, num_aux=3, **more):
    ids, aux = inputs(num_aux=num_aux)
    served = ServedDraft(({**CONFIG, **config}, weights or tensors()), embedding(), **more)
    return served, served.extend(ids[1:], aux[:-1])


@pytest.mark.parametrize("prefix", ["layers.0.", "model.midlayer.", "model.layers.0."])
def test_every_name_that_the_server_knows_loads_the_same_layer(prefix):
    assert torch.equal(out()[1], out(weights=tensors(prefix=prefix))[1])


def test_an_older_server_drops_the_new_name_and_has_no_layer():
    with pytest.raises(Refusal, match="layers.0.self_attn.q_proj"):
        out(weights=tensors(prefix="layers.0."), version="0.5.11")
    assert torch.equal(out(version="0.5.11")[1], out()[1])


@pytest.mark.parametrize("prefix", ["draft_model.midlayer.", "eagle.layers.0."])
def test_a_layer_under_an_unknown_prefix_is_said_to_be_missing(prefix):
    with pytest.raises(Refusal, match="no layers.0.self_attn.q_proj"):
        out(weights=tensors(prefix=prefix))


@pytest.mark.parametrize("name", ["fc.weight", "lm_head.weight", "midlayer.mlp.up_proj.weight"])
def test_a_missing_weight_is_named(name):
    weights = tensors()
    del weights[name]
    with pytest.raises(Refusal, match=name.replace("midlayer", "layers.0")):
        out(weights=weights)


def test_a_missing_norm_keeps_its_ones():
    weights, ones = tensors(), tensors()
    del weights["norm.weight"]
    ones["norm.weight"] = torch.ones(SIZE)
    a, b = out(weights=weights), out(weights=ones)
    assert torch.equal(a[0].logits(a[1]), b[0].logits(b[1]))


def test_rows_as_wide_as_the_embedding_bypass_fc():
    config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1]}}
    plain, moved = tensors(num_aux=1), tensors(num_aux=1)
    moved["fc.weight"] = moved["fc.weight"] + 1
    assert torch.equal(out(config, plain, 1)[1], out(config, moved, 1)[1])
    served, _ = out(config, plain, 1)
    assert not torch.equal(served.enter(inputs(num_aux=1)[1]), served.but(bypass_fc=False).enter(inputs(num_aux=1)[1]))


@pytest.mark.parametrize("ids, width", [([1], 1), ([0, 1], 2), ([0, 1, 2, 3, 4], 5)])
def test_any_number_of_states_is_read(ids, width):
    assert out({"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}, tensors(num_aux=width), width)[1].shape == (6, SIZE)


def test_fc_of_another_width_than_the_ids_is_refused():
    with pytest.raises(Refusal, match="fc.weight has shape"):
        out({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}}, num_aux=2)


def test_norms_before_fc_are_per_chunk_or_over_all_by_the_key_and_the_version():
    weights = tensors() | {f"fc_norm.{i}.weight": torch.full((SIZE,), 1.0 + i) for i in range(3)}
    weights["input_norm.weight"] = torch.full((48,), 3.0)
    old = tensors() | {f"aux_norm_{part}.weight": torch.full((SIZE,), 1.0 + i) for i, part in enumerate(("low", "mid", "high"))}
    chunks, legacy, off = out({"fc_norm": True}, weights)[1], out({"use_aux_norm": True}, old)[1], out({}, weights)[1]
    assert torch.equal(chunks, legacy) and not torch.equal(chunks, off)
    late = {"eagle_config": {**CONFIG["eagle_config"], "norm_before_fc": True}}
    assert torch.equal(out(late, weights)[1], off) and not torch.equal(out(late, weights, version="0.5.18")[1], off)
    ids, aux = inputs()
    served, _ = out({"fc_norm": True}, weights)
    by_hand = torch.cat([c / (c.pow(2).mean(1, keepdim=True) + 1e-5).sqrt() * (1 + i) for i, c in enumerate(aux.chunk(3, 1))], 1)
    assert torch.allclose(served.enter(aux), by_hand @ weights["fc.weight"].T, atol=1e-5)


def test_norm_output_feeds_the_normed_state_back():
    plain, normed = out()[0], out({"norm_output": True})[0]
    assert plain.propose(1) == normed.propose(1)
    assert torch.equal(plain.feedback(plain.out), plain.out)
    assert torch.allclose(normed.feedback(normed.out), plain._norm(plain.out, "norm.weight"))


def test_several_layers_read_the_residual_stream_in_one_width():
    weights, config = tensors(layers=2), {"num_hidden_layers": 2}
    two, one = out(config, weights)[1], out({}, weights)[1]
    assert not torch.allclose(one, two)
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        weights[f"layers.1.{name}.weight"] = torch.zeros_like(weights[f"layers.1.{name}.weight"])
    assert torch.equal(out(config, weights)[1], one)  # a layer that adds nothing
    with pytest.raises(Refusal, match="layers.1"):
        out(config)


def test_a_null_draft_vocabulary_takes_the_targets_head():
    weights = tensors()
    del weights["lm_head.weight"], weights["d2t"]
    head = torch.randn(VOCAB, SIZE)
    served, states = out({"draft_vocab_size": None}, weights, head=head)
    assert served.logits(states).shape == (6, VOCAB) and served.token(states) == int(served.logits(states)[-1].argmax())


def test_tied_embeddings_drop_the_trained_head_and_cut_the_embedding_to_the_drafts_size():
    served, states = out({"tie_word_embeddings": True})
    normed = served._norm(states, "norm.weight")
    assert torch.equal(served.logits(states), normed @ embedding()[:12].T)


def test_without_d2t_draft_ids_are_target_ids():
    weights = tensors()
    del weights["d2t"]
    served, _ = out(weights=weights)
    assert served.target_ids.tolist() == list(range(12))
    assert out()[0].target_ids.tolist() == [i * 3 for i in range(12)]


def test_a_draft_of_another_width_needs_an_embedding_of_its_own():
    config, weights = {"target_hidden_size": 24}, tensors(size=24)
    with pytest.raises(Refusal, match="embed_tokens"):
        ServedDraft(({**CONFIG, **config}, weights), torch.randn(VOCAB, 24))
    weights["embed_tokens.weight"] = embedding()
    served = ServedDraft(({**CONFIG, **config}, weights), torch.randn(VOCAB, 24))
    assert served.extend([1, 2], torch.randn(2, 72)).shape == (2, SIZE)


@pytest.mark.parametrize("config, match", [
    ({"target_hidden_size": None}, "target_hidden_size null"), ({"model_type": "nonesuch"}, "transformers cannot read"),
    ({"hidden_act": "gelu"}, "silu"), ({"attention_bias": True}, "o_proj.bias"), ({"num_hidden_layers": 3}, "layers.1"),
    ({"intermediate_size": 25}, "gate_proj"), ({"head_dim": 8}, "q_proj")])
def test_what_stops_the_server_is_refused(config, match):
    with pytest.raises(Refusal, match=match):
        out(config)


def test_a_config_without_draft_vocab_size_is_refused():
    with pytest.raises(Refusal, match="draft_vocab_size"):
        ServedDraft(({k: v for k, v in CONFIG.items() if k != "draft_vocab_size"}, tensors()), embedding())


SCALINGS = [{"rope_type": "default"}, {"rope_type": "linear", "factor": 4.0},
            {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16},
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: s["rope_type"])
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_rotation_equals_transformers_own(scaling, theta):
    config = LlamaConfig(hidden_size=SIZE, num_attention_heads=4, max_position_embeddings=128,
                         rope_parameters={**scaling, "rope_theta": theta})
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1, 9, 1), torch.arange(9)[None])
    served, _ = out({"rope_theta": theta, "rope_scaling": scaling})
    x = torch.randn(9, 1, 4)
    turned = torch.cat([-x[..., 2:], x[..., :2]], -1)
    assert torch.allclose(served._rotate(x, torch.arange(9)), x * cos[0][:, None] + turned * sin[0][:, None], atol=1e-5)


def test_theta_is_ten_thousand_without_one_and_an_old_server_reads_the_old_key_only():
    frequency = lambda config, version="0.5.15.post1": forward.rotary(forward.parsed(config, forward.release(version)), 4)[0][1].item()
    bare = {k: v for k, v in CONFIG.items() if k != "rope_theta"}
    new = {**bare, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}
    assert frequency(bare) == pytest.approx(0.01) and frequency(new) == pytest.approx(0.1)
    assert frequency(new, "0.5.8.post1") == pytest.approx(0.01)
    assert frequency({**bare, "rope_theta": 100.0}, "0.5.8.post1") == pytest.approx(0.1)


@given(st.integers(0, 50), st.integers(1, 5), st.integers(1, 2), st.booleans(), st.integers(1, 6), st.integers(1, 25))
@settings(max_examples=25, deadline=None)
def test_one_pass_over_a_document_equals_drafting_row_by_row(seed, chain, layers, normed, prompt, answer):
    config = {**CONFIG, "num_hidden_layers": layers, "norm_output": normed, "vocab_size": 14, "draft_vocab_size": 12}
    weights = tensors(layers=layers, seed=seed) | {"d2t": torch.zeros(12, dtype=torch.long)}
    served = ServedDraft((config, weights), embedding())
    noise = torch.Generator().manual_seed(seed)
    ids, aux = torch.randint(0, 4, (prompt + answer,), generator=noise), torch.randn(prompt + answer, 3 * SIZE, generator=noise)
    for i in range(prompt + 1, prompt + answer):  # half the answer is what the draft says, or nothing would ever match
        if i % 2:
            ids[i] = served.target_ids[served.logits(served.but().extend(ids[1:i], aux[:i - 1])[-1:]).argmax()]
    right, expected = matches(served, ids, aux, prompt, chain), torch.zeros(prompt + answer, chain, dtype=torch.bool)
    for row in range(prompt - 1, len(ids) - 2):
        alone = served.but()
        alone.extend(ids[1:row + 2], aux[:row + 1])
        guesses, truth = alone.propose(chain), ids[row + 2:row + 2 + chain].tolist()
        for k in range(len(truth)):
            if guesses[k] != truth[k]:
                break
            expected[row, k] = True
    assert torch.equal(right, expected)
