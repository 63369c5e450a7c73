"""The trainer's forward against an independent one, on packed batches."""
import pytest
import torch
from hypothesis import given, settings, strategies as st

from stages.contract import probes
from stages.contract.forward import ServedDraft
from stages.lib import draft as drafts, loss, packing
from tests.small import VOCAB, exported, random_draft, states_of



def two_step_difference(folder, weights, shape, embed, dtype):
    """The larger difference of probes.two_steps between an exported folder and the trainer's weights, rounded to dtype."""
    trained = drafts.Draft(drafts.Shape(**shape), embed)
    trained.load_state_dict({n: w.to(dtype).float() for n, w in weights.items() if n != "d2t"})
    found = probes.two_steps(trained, ServedDraft(folder, embed))
    return max(found["first"], found["second"])


documents = st.lists(st.tuples(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6),
                               st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9)), min_size=1, max_size=4)


def served_chain(served, tokens, aux, row, steps):
    """Logits of the steps of one row, from the served draft alone: rows 0..row from states, then its own outputs."""
    out = served.extend(tokens[1:row + 2], aux[:row + 1])[-1:]
    logits, own = [served.logits(out)], served.nothing_yet()
    for step in range(1, steps):
        out = served.recur(out, [tokens[row + 1 + step]], torch.tensor([row]), step, own)
        logits.append(served.logits(out))
    return torch.cat(logits)


@given(documents, st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_packed_chain_equals_one_served_row_at_a_time(tmp_path_factory, docs, seed):
    folder = tmp_path_factory.mktemp("draft")
    draft, d2t = random_draft(seed)
    exported(folder, draft, d2t)
    states = states_of(folder, docs, seed=seed)
    for packs in packing.plan(states.lengths, 32, 2, range(len(docs))):
        batch, steps = packing.collate(states, packs, 32), 4
        rows = torch.arange(batch.input_ids.shape[1]).expand(len(packs), -1)[:, torch.randperm(batch.input_ids.shape[1])]
        with torch.no_grad():
            outs = [draft.logits(state) for state in draft.chain(batch, steps, rows)]
        for b, pack in enumerate(packs):
            start = 0
            for index in pack:
                tokens, aux = states.document(index)["input_ids"].tolist(), states.document(index)["aux"]
                for row in range(len(tokens) - 1):
                    reach = min(steps, len(tokens) - 1 - row)
                    expected = served_chain(ServedDraft(folder, draft.embed), tokens, aux, row, reach)
                    place = rows[b].tolist().index(start + row)
                    for step in range(reach):
                        assert torch.allclose(outs[step][b, place], expected[step], atol=1e-4)
                start += len(tokens)


@pytest.mark.parametrize("size, heads, kv_heads, head_dim, aux", [(16, 4, 4, 4, 3), (16, 4, 1, 8, 2), (18, 3, 3, 8, 5)])
def test_two_step_parity_holds_for_other_shapes(tmp_path, size, heads, kv_heads, head_dim, aux):
    draft, d2t = random_draft(hidden_size=size, target_hidden_size=size, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim,
                              num_aux=aux)
    exported(tmp_path, draft, d2t, range(1, aux + 1))
    weights = {**{n: p.detach() for n, p in draft.named_parameters()}, "d2t": d2t}
    assert two_step_difference(tmp_path, weights, draft.shape.as_dict(), draft.embed, torch.float32) < probes.TOLERANCE


@pytest.mark.parametrize("fault", ["midlayer.hidden_norm.weight", "fc.weight", "midlayer.self_attn.k_proj.weight", "norm.weight"])
def test_two_step_parity_sees_one_changed_tensor(tmp_path, fault):
    draft, d2t = random_draft()
    exported(tmp_path, draft, d2t)
    weights = {**{n: p.detach().clone() for n, p in draft.named_parameters()}, "d2t": d2t}
    weights[fault] *= 1.01
    assert two_step_difference(tmp_path, weights, draft.shape.as_dict(), draft.embed, torch.float32) > probes.TOLERANCE


def test_feeding_back_the_normed_state_is_seen(tmp_path, monkeypatch):
    draft, d2t = random_draft()
    exported(tmp_path, draft, d2t)
    monkeypatch.setattr(ServedDraft, "feedback", lambda self, out: self._norm(out, "norm.weight"))
    weights = {**{n: p.detach() for n, p in draft.named_parameters()}, "d2t": d2t}
    assert two_step_difference(tmp_path, weights, draft.shape.as_dict(), draft.embed, torch.float32) > probes.TOLERANCE


@pytest.mark.parametrize("count", [1, 7, 300])
def test_fused_head_loss_equals_the_written_out_cross_entropy(count):
    torch.manual_seed(0)
    x, w, p = torch.randn(count, 16, requires_grad=True), torch.randn(11, 16, requires_grad=True), torch.randn(5, 11).softmax(-1)
    teacher, weight, word = torch.randint(0, 5, (count,)), torch.rand(count), torch.randint(0, 11, (count,))
    total, hits = loss.HeadLoss.apply(x, w, p, teacher, word, weight)
    z = x @ w.T
    plain = -(weight[:, None] * p[teacher] * z.log_softmax(-1)).sum()
    assert torch.allclose(total, plain, rtol=1e-5) and torch.equal(hits, z.argmax(-1) == word)
    for ours, theirs in zip(torch.autograd.grad(3 * total, [x, w]), torch.autograd.grad(3 * plain, [x, w])):
        assert torch.allclose(ours, theirs, atol=1e-4)


def test_loss_ignores_states_of_other_documents_in_the_pack(tmp_path):
    docs = [([1, 2], [3, 4, 5, 6]), ([7], [8, 9, 10, 11])]
    states, (draft, _) = states_of(tmp_path, docs), random_draft(draft_vocab_size=VOCAB)
    batch = packing.collate(states, [[0, 1]], 16)
    head, words, ids = torch.randn(VOCAB, 16), torch.ones(VOCAB, dtype=torch.bool), torch.arange(VOCAB)
    batch.loss_mask[0, 6:] = False  # only the first document is supervised
    value = lambda: loss.ttt_loss(draft, batch, head, words, ids, 3, 0.8, False)[0].item()
    before = value()
    batch.aux[0, 6:] += 5
    batch.input_ids[0, 6:] = 0
    assert value() == pytest.approx(before, abs=1e-6)
    batch.aux[0, 1] += 5
    assert value() != pytest.approx(before, abs=1e-3)
