"""The target's batched decoding: nothing that a row says may depend on its neighbours."""
import pytest
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from stages.engines.transformers_engine import Engine
from stages.lib import answers
from stages.lib.capture import batches_by_length, boundaries_of
from stages.lib.refusal import Refusal

VOCAB = 80
PROMPTS = [[5, 6, 7], [9], [1, 2, 3, 4, 8, 11, 12], [30, 31]]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("target")
    config = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                         vocab_size=VOCAB, max_position_embeddings=256, initializer_range=0.3, eos_token_id=None)
    LlamaForCausalLM(config).save_pretrained(folder)
    return Engine(folder, transformers.__version__, "float32", 1)


def said(engine, prompts, temperature=0.0, seeds=None, stop=(VOCAB + 1,), new=24, top_p=1.0):
    return engine.generate(prompts, new, temperature, top_p, seeds or list(range(len(prompts))), list(stop))


def test_a_batch_says_what_each_prompt_gets_alone(engine):
    assert said(engine, PROMPTS) == [said(engine, [p])[0] for p in PROMPTS]


def test_greedy_words_are_those_of_a_forward_without_cache(engine):
    (answer, reason), = said(engine, PROMPTS[:1])
    tokens = list(PROMPTS[0])
    for word in answer:
        with torch.no_grad():
            assert engine.model(torch.tensor([tokens])).logits[0, -1].argmax() == word
        tokens.append(word)
    assert reason == "length" and len(answer) == 24


def test_a_stopped_row_keeps_its_stop_token_and_the_others_go_on(engine):
    free = [answer for answer, _ in said(engine, PROMPTS)]
    stop = free[0][2]
    for (answer, reason), whole in zip(said(engine, PROMPTS, stop=(stop,)), free):
        cut = whole[:whole.index(stop) + 1] if stop in whole else whole
        assert answer == cut and reason == ("stop" if stop in whole else "length")


def test_two_seeds_differ_and_one_seed_repeats_whatever_its_neighbours(engine):
    first, second = said(engine, [PROMPTS[0]] * 2, 1.0, [1, 2])
    assert first != second
    assert said(engine, [PROMPTS[2], PROMPTS[0]], 1.0, [7, 1])[1] == first


def test_a_tiny_nucleus_is_greedy(engine):
    assert said(engine, PROMPTS, 1.0, top_p=1e-6) == said(engine, PROMPTS)


def test_a_row_that_fails_is_lost_alone(engine):
    results = answers.decode(engine, [PROMPTS[0], [VOCAB + 5], PROMPTS[2]], 24, 0.0, 1.0, [0, 0, 0], [VOCAB + 1], lambda n: None)
    assert [results[0], results[2]] == said(engine, [PROMPTS[0], PROMPTS[2]])
    assert isinstance(results[1], IndexError)


def test_logits_that_are_not_finite_are_an_error(engine):
    weight = engine.head.weight.data
    kept = weight[0, 0].item()
    weight[0, 0] = float("nan")
    try:
        with pytest.raises(FloatingPointError, match="not finite"):
            said(engine, PROMPTS)
    finally:
        weight[0, 0] = kept


def test_right_padding_leaves_captured_rows_alone(engine):
    together = engine.capture(PROMPTS, [1, 3])
    for prompt, (aux, last) in zip(PROMPTS, together):
        plain_aux, plain_last = engine.plain_states(prompt, [1, 3])
        assert torch.allclose(aux, plain_aux, atol=1e-4) and torch.allclose(last, plain_last, atol=1e-4)


def test_another_transformers_version_is_refused(tmp_path):
    with pytest.raises(Refusal, match="engine.version is 0.0.1 but transformers"):
        Engine(tmp_path, "0.0.1", "float32", 1)


@pytest.mark.parametrize("ids, offset", [([2, 1], 1), ([1, 1, 2], 1), ([0, 3], 1), ([0, 1], -1), ([], 1)])
def test_ids_that_no_engine_can_serve_are_refused(ids, offset):
    with pytest.raises(Refusal, match="capture.layer_ids"):
        boundaries_of(ids, offset, 4)


def test_boundaries_are_ids_plus_offset():
    assert boundaries_of([1, 2], 1, 4) == [2, 3] and boundaries_of([0, 3], 0, 4) == [0, 3]


def test_groups_hold_every_row_once_and_stay_within_their_tokens():
    lengths = [5, 90, 3, 40, 41, 7, 200]
    groups = batches_by_length(lengths, 100)
    assert sorted(i for group in groups for i in group) == list(range(7))
    assert all(len(g) == 1 or len(g) * max(lengths[i] for i in g) <= 100 for g in groups)
