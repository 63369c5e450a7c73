"""One decoder layer of a checkpoint links two boundaries; whatever is not those boundaries is refused."""
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from stages.lib import files, layer_parity, parity
from stages.lib.refusal import Refusal

LAYERS = 6
DENSE = dict(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2,
             head_dim=16, max_position_embeddings=128)
EXPERTS = dict(DENSE, num_experts_per_tok=2, moe_intermediate_size=32)
MLA = dict(EXPERTS, num_key_value_heads=4, n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1,
           q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=16)
CONFIGS = {"llama": lambda: transformers.LlamaConfig(**DENSE), "qwen3": lambda: transformers.Qwen3Config(**DENSE),
           "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**EXPERTS, num_experts=4),
           "deepseek_v3": lambda: transformers.DeepseekV3Config(**MLA),
           "gemma3": lambda: transformers.Gemma3TextConfig(**DENSE, sliding_window=8, sliding_window_pattern=2)}


@pytest.fixture(scope="module", params=CONFIGS)
def states(request, tmp_path_factory):
    """(folder, token ids, rows of every boundary, post-norm last state, logits) of a random target."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[request.param]()).eval()
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, 0, 0.1)
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    ids = torch.randint(0, 96, (1, 40))
    with torch.inference_mode():
        out = model(ids, output_hidden_states=True)
    return folder, ids[0], [h[0] for h in out.hidden_states[:-1]], out.hidden_states[-1][0], out.logits[0]


def test_the_layer_between_two_boundaries_turns_one_into_the_other(states):
    folder, _, rows, _, _ = states
    for boundary in (0, 1, LAYERS - 2):
        figures = layer_parity.layer_parity(folder, boundary, rows[boundary], rows[boundary + 1])
        assert figures["update_cosine_p1"] > 0.9999 and figures["error_median"] < 1e-3


def test_a_wrapper_that_transformers_does_not_know_is_read_by_its_language_model(tmp_path):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS["deepseek_v3"]()).eval()
    model.save_pretrained(tmp_path)
    save_file({f"language_model.{name}": w for name, w in load_file(tmp_path / "model.safetensors").items()},
              tmp_path / "model.safetensors", {"format": "pt"})
    text = {**files.read_json(tmp_path / "config.json"), "model_type": "kimi_k2"}
    files.write_json(tmp_path / "config.json", {"model_type": "kimi_k25", "text_config": text})
    with torch.inference_mode():
        rows = [h[0] for h in model(torch.randint(0, 96, (1, 40)), output_hidden_states=True).hidden_states]
    assert layer_parity.layer_parity(tmp_path, 2, rows[2], rows[3])["update_cosine_p1"] > 0.9999
    files.write_json(tmp_path / "config.json", {"model_type": "kimi_k25", "text_config": {**text, "architectures": ["Unheard"]}})
    layer_parity.one_layer.cache_clear()
    with pytest.raises(Refusal, match="neither kimi_k25 nor Unheard"):
        layer_parity.layer_parity(tmp_path, 2, rows[2], rows[3])


def test_rows_of_other_boundaries_are_refused(states):
    folder, _, rows, _, _ = states
    for entering, leaving in ((1, 2), (3, 4), (2, 4), (3, 2), (2, 2)):
        with pytest.raises(Refusal, match="boundary 2"):
            layer_parity.layer_parity(folder, 2, rows[entering], rows[leaving])


def test_shifted_rows_and_partial_sums_are_refused(states):
    folder, _, rows, _, _ = states
    half = rows[2] + 0.5 * (rows[3] - rows[2]) + torch.randn_like(rows[2]) * (rows[3] - rows[2]).std()
    for entering, leaving in ((rows[2].roll(1, 0), rows[3].roll(1, 0)), (rows[2], half)):
        with pytest.raises(Refusal):
            layer_parity.layer_parity(folder, 2, entering, leaving)


def test_the_head_repeats_what_the_target_says(states):
    folder, _, rows, last, logits = states
    if "gemma3" not in str(folder):  # its folder ties the head by default
        assert layer_parity.repeats(folder, last, logits.argmax(-1)) == 1
        assert layer_parity.repeats(folder, rows[3], logits.argmax(-1)) < 0.9


def test_packed_four_bit_weights_are_unpacked():
    torch.manual_seed(0)
    values = torch.randint(-8, 8, (3, 32))
    scale = torch.rand(3, 2).bfloat16()
    nibbles = (values + 8).view(3, 4, 8).long() << torch.arange(0, 32, 4)
    packed = nibbles.sum(-1)
    packed = torch.where(packed >= 1 << 31, packed - (1 << 32), packed).int()
    weight = layer_parity._unpacked({"a.weight_packed": packed, "a.weight_scale": scale, "a.weight_shape": torch.tensor([3, 32])},
                                    torch.float32)["a.weight"]
    assert torch.equal(weight, values.float() * scale.float().repeat_interleave(16, 1))


def test_every_boundary_is_linked_to_a_neighbour_that_an_engine_may_capture():
    assert layer_parity.both_sides([2, 4], 6) == [2, 3, 4, 5]
    assert layer_parity.both_sides([0, 5], 6) == [0, 1, 4, 5]


def traces_and_capture(states, boundaries, shift=0):
    """One trace of the fixture's sequence, and a capture of `boundaries` that reads `shift` layers beside."""
    _, ids, rows, last, logits = states
    answer = logits.argmax(-1)
    trace = {"prompt_ids": ids[:30].tolist(), "response_ids": answer[29:-1].tolist()}
    aux = torch.cat([rows[b + shift] for b in boundaries], 1)
    return [trace], lambda sequences: [(aux, last) for _ in sequences]


def test_a_run_is_probed_layer_by_layer(states):
    rows, capture = traces_and_capture(states, [1, 2, 4, 5])
    figures = layer_parity.probe(capture, states[0], rows, [1, 5], LAYERS, 4, True, "float32")
    assert figures["head_repeats"] == 1 and figures["rows"] == 1 and figures["tokens_per_s"] > 0
    assert min(figures["update_cosine_p1"].values()) > 0.9999 and list(figures["update_cosine_p1"]) == ["boundary_1", "boundary_5"]


def test_a_run_whose_capture_is_one_layer_early_is_refused(states):
    rows, capture = traces_and_capture(states, [1, 2, 4, 5], shift=-1)
    with pytest.raises(Refusal, match="the engine captures other boundaries"):
        layer_parity.probe(capture, states[0], rows, [1, 5], LAYERS, 4, True, "float32")


def test_a_run_whose_last_state_is_another_rows_is_refused(states):
    rows, capture = traces_and_capture(states, [1, 2, 4, 5])
    shifted = lambda sequences: [(aux, last.roll(1, 0)) for aux, last in capture(sequences)]
    with pytest.raises(Refusal, match="repeats .* of the traced greedy tokens"):
        layer_parity.probe(shifted, states[0], rows, [1, 5], LAYERS, 4, True, "float32")


@pytest.mark.parametrize("name, word", [("transformers", "layers"), ("sglang", "rows")])
def test_a_parity_that_there_is_not_is_refused(name, word):
    with pytest.raises(Refusal, match="expected forward, or with sglang layers"):
        parity.by_layers(SimpleNamespace(name=name, parity=word))


def test_a_near_tie_counts_as_repeated_and_another_word_does_not(states):
    folder, ids, _, last, logits = states
    second = logits.topk(2, -1).indices[:, 1]
    near = (logits.amax(-1) - logits.gather(1, second[:, None])[:, 0]) / logits.std(-1) <= parity.TIE
    assert layer_parity.repeats(folder, last, second) == near.float().mean().item()
    assert layer_parity.repeats(folder, last, logits.argmin(-1)) == 0
