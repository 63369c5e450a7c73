"""The engine rules against the capture of SGLang's own target classes, and the captured values against transformers."""
import dataclasses

import pytest
import torch

from stages.contract import rules
from tests.contract import setters, sglang_real as real

IDS = (None, [0, 2, 4], [1, 2], [2, 2, 4], [1, 3, 5], [4, 1, 2], [-1, 2], [-2, 2], [40], [], [0, 1, 6])
TABLE = sorted({name for row in rules.RULES for name in row.classes if rules.rule_for(real.VERSION, name)})
INSTALLED = setters.Release(next(iter(real.sglang.__path__)) + "/..")


def expected(name, ids):
    """What the table says; an exception's class where the server would end."""
    row = rules.rule_for(real.VERSION, name)
    try:
        return rules.boundaries_captured(real.VERSION, name, ids, real.LAYERS)
    except rules.Stops:
        return AttributeError if row.shift == rules.NO_SETTER else IndexError if row.flags else TypeError


def found(capture, *arguments):
    try:
        return capture(*arguments)
    except Exception as error:  # noqa: BLE001
        return type(error)


@pytest.mark.parametrize("name", real.TARGETS)
def test_a_real_model_captures_what_the_table_says(name):
    results = {str(ids): (found(real.captured, name, ids), expected(name, ids)) for ids in IDS}
    assert {ids: both for ids, both in results.items() if both[0] != both[1]} == {}
    real.RAN[name] = "model: real class, setter and layer loop on stand-in layers"


@pytest.mark.parametrize("name", [name for name in TABLE if name not in real.TARGETS])
def test_a_class_that_is_not_built_here_captures_what_the_table_says(name):
    """Its setter is run from the installed source on a stand-in."""
    row = rules.rule_for(real.VERSION, name)
    for ids in (None, [0, 2, 4], [1, 2], [2, 2, 4], [1, 3, 5], [4, 1, 2], [40]):
        got = setters.captured(INSTALLED, name, ids, real.LAYERS)
        assert got == (None if row.shift == rules.NO_SETTER else expected(name, ids)), ids
    real.RAN[name] = "no setter: looked up in the source" if row.shift == rules.NO_SETTER else "setter on a stand-in"


@pytest.mark.parametrize("name,change", [("LlamaForCausalLM", {"shift": rules.PLUS_ONE_IF_FIRST_IS_1}),
                                         ("DeepseekV3ForCausalLM", {"shift": rules.PLUS_ONE}), ("Gemma3ForCausalLM", {"last": False}),
                                         ("Qwen3MoeForCausalLM", {"flags": False}), ("LlamaForCausalLM", {"embedding_since": "0.5.8"}),
                                         ("Qwen3_5ForConditionalGeneration", {"shift": rules.PLUS_ONE})])
def test_a_wrong_row_is_noticed(monkeypatch, name, change):
    right = rules.rule_for(real.VERSION, name)
    monkeypatch.setattr(rules, "RULES", [dataclasses.replace(row, **change) if row is right else row for row in rules.RULES])
    with pytest.raises(AssertionError):
        test_a_real_model_captures_what_the_table_says(name)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
                                  "Gemma3ForCausalLM"])
def test_captured_values_are_transformers_hidden_states(name):
    """All of SGLang's layers are real here but its attention kernel. Boundary b is output_hidden_states[b]."""
    model = real.target(name)
    reference = getattr(real.hf, name)(model.config).eval().float()
    with torch.no_grad():
        for p in reference.parameters():
            p.normal_(0 if p.dim() > 1 else 1, 0.1)
        model.load_weights(reference.state_dict().items())
        ids = rules.ids_to_write(real.VERSION, name, [1, 3, 5], real.LAYERS)
        model.set_eagle3_layers_to_capture(ids[::-1])
        tokens = torch.randint(0, real.VOCAB, (1, 9))
        _, states = real.decoder(model)(tokens[0], torch.arange(9), real.Batch(forward_mode=real.ForwardMode.EXTEND))
        wanted = reference(tokens, output_hidden_states=True).hidden_states
    assert len(states) == 3
    for state, boundary in zip(states, (1, 3, 5)):
        torch.testing.assert_close(state, wanted[boundary][0], atol=1e-5, rtol=1e-5)
    real.RAN[name] += "; values equal transformers'"
