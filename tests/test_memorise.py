"""The whole alignment in one number: a dialogue that is learnt by heart must be accepted almost whole.

From the target's own greedy answer through capture, shards, supervision, training and the verifier. Any shift between
tokens, states, positions and teacher leaves tau far below, however long one trains.
"""
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from stages import extract
from stages.engines.transformers_engine import Engine
from stages.lib import draft as drafts, loss, metrics, packing, shards, verifier
from tests.small import shape

VOCAB, SIZE, BOUNDARIES = 60, 32, [1, 2, 3]


def tiny_engine(folder):
    torch.manual_seed(1)
    config = LlamaConfig(hidden_size=SIZE, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                         vocab_size=VOCAB, max_position_embeddings=256, initializer_range=0.3, eos_token_id=None)
    LlamaForCausalLM(config).save_pretrained(folder)
    import transformers
    return Engine(folder, transformers.__version__, "float32", 1)


def test_one_memorised_dialogue_reaches_tau_over_five_and_a_half_of_six(tmp_path, monkeypatch):
    engine, prompt = tiny_engine(tmp_path / "target"), [7, 3, 9, 4, 1]
    (answer, _), = engine.generate([prompt], 48, 0, 1.0, [0], [VOCAB + 1])
    assert len(set(answer)) > 10  # not one word for ever, which any draft would guess
    monkeypatch.setattr(extract, "engine", engine)
    monkeypatch.setattr(extract, "boundaries", BOUNDARIES)
    monkeypatch.setattr(extract, "settings", type("P", (), {"extract": type("E", (), {"dtype": "float32"})}))
    (aux, last), = engine.capture([prompt + answer], BOUNDARIES)
    row = {"prompt_ids": prompt, "response_ids": answer}
    shards.write(tmp_path / "s.safetensors", {**extract.document(row, aux, last, extract.next_words(row, last)),
                                              "cu_seqlens": torch.tensor([0, len(prompt + answer)])})
    states = shards.States([tmp_path / "s.safetensors"], {"dtype": "float32"})
    head = engine.head.weight.detach()
    s = shape(hidden_size=SIZE, target_hidden_size=SIZE, intermediate_size=64, head_dim=8, vocab_size=VOCAB, draft_vocab_size=VOCAB)
    draft, ids = drafts.Draft(s, engine.model.get_input_embeddings().weight.detach()), torch.arange(VOCAB)
    drafts.initialise(draft, "random", head, torch.ones(SIZE), torch.zeros(VOCAB, dtype=torch.long), 0)
    optimizer = torch.optim.AdamW(draft.parameters(), lr=5e-3, weight_decay=0)
    batch = packing.collate(states, [[0]], 80)
    # Four times the head: a random target's distribution is flat, and this makes its first choice plain to the draft.

    def tau():
        return metrics.tau_with_interval(verifier.replay(draft, states, [0], ids, [5], 80, 1)[5], 10, 0)["tau"]

    before = tau()
    for step in range(300):
        optimizer.param_groups[0]["lr"] = 5e-3 * (1 - step / 300)
        total, _ = loss.ttt_loss(draft, batch, 4 * head, torch.ones(VOCAB, dtype=torch.bool), ids, 5, 1.0, False)
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert before < 1.5 and tau() > 5.5
