"""The training loss: soft cross-entropy with the target's own distribution on the draft vocabulary, per TTT step."""
import torch

from stages.lib import supervision


def chain_rows(loss_mask, document):
    """The rows that serving ever drafts from, padded: int64 [B, M], and which of them are no padding: bool [B, M].

    They are those supervised at step 0, a superset of every later step's. Any other row only lends its key and value.
    """
    wanted = supervision.supervised(loss_mask, document, 0)
    counts = wanted.sum(1)
    rows = torch.zeros(len(wanted), max(1, int(counts.max())), dtype=torch.long, device=wanted.device)
    for b, mask in enumerate(wanted):
        rows[b, :counts[b]] = mask.nonzero()[:, 0]
    return rows, torch.arange(rows.shape[1], device=wanted.device) < counts[:, None]


def teacher(batch, head_rows, in_vocabulary):
    """The target's distribution over the draft vocabulary, once per slot that can teach: p [R, Vd] and where [B, S] -> row of p.

    head_rows [Vd, H]: the target's head restricted to the draft vocabulary (renormalised: softmax over Vd).
    """
    teaches = (batch.next_id >= 0) & in_vocabulary[batch.next_id.clamp_min(0)]
    where = torch.full_like(batch.next_id, -1)
    where[teaches] = torch.arange(int(teaches.sum()), device=where.device)
    with torch.no_grad():
        return (batch.last[teaches].to(head_rows.dtype) @ head_rows.T).float().softmax(-1), where


class HeadLoss(torch.autograd.Function):
    """Head and soft cross-entropy in one, for rows x [R, H] and head weight [Vd, H].

    loss = sum_r weight_r * (logsumexp(z_r) - sum_v p_rv z_rv) with z = x W^T, since each p sums to 1; its gradient by z
    is weight_r * (softmax(z_r) - p_r), known as soon as z is. So it is formed at once, chunk by chunk while the logits
    are in the cache, and only its low-precision copy is kept: the step is bound by passes over [R, Vd], not by products.
    Also returns which rows have their largest logit at `word` [R], the draft id of the target's own word.
    """
    ROWS = {"cpu": 128, "cuda": 4096}

    @staticmethod
    def forward(ctx, x, weight, p, teacher_row, word, row_weight):
        gradient, size = x.new_empty(len(x), len(weight)), HeadLoss.ROWS[x.device.type]
        total, hits = x.new_zeros((), dtype=torch.float32), x.new_empty(len(x), dtype=torch.bool)
        for start in range(0, len(x), size):
            rows = slice(start, start + size)
            z, target = (x[rows] @ weight.T).float(), p[teacher_row[rows]]
            top = z.amax(-1, keepdim=True)
            hits[rows] = z.gather(1, word[rows, None])[:, 0] == top[:, 0]
            dot = torch.linalg.vecdot(target, z)
            e = z.sub_(top).exp_()
            mass = e.sum(-1, keepdim=True)
            total += (row_weight[rows] * (mass.log()[:, 0] + top[:, 0] - dot)).sum()
            gradient[rows] = e.div_(mass).sub_(target).mul_(row_weight[rows, None])
        ctx.save_for_backward(x, weight, gradient)
        ctx.mark_non_differentiable(hits)
        return total, hits

    @staticmethod
    def backward(ctx, scale, _):
        x, weight, gradient = ctx.saved_tensors
        return scale.to(x.dtype) * (gradient @ weight), scale.to(x.dtype) * (gradient.T @ x), None, None, None, None


def ttt_loss(draft, batch, head_rows, in_vocabulary, draft_ids, steps, decay, stop_at_oov):
    """Loss (scalar) of one batch, and per step (hits, supervised rows) for the accuracy.

    sum_k decay^k * mean over the rows taught at step k. A hit is a supervised row whose argmax is the target's own
    word; a word outside the draft vocabulary is a miss. draft_ids [V]: target id -> draft id. Products run in
    head_rows' dtype.
    """
    p, where = teacher(batch, head_rows, in_vocabulary)
    rows, filled = chain_rows(batch.loss_mask, batch.document)
    states, taught_by, words, weights, asked = [], [], [], [], []
    for step, state in enumerate(draft.chain(batch, steps, rows)):
        mask = supervision.taught(batch.loss_mask, batch.document, batch.next_id, in_vocabulary, step, stop_at_oov)
        mask = mask.gather(1, rows) & filled
        row_of = supervision.ahead(where, step + 1, -1).gather(1, rows)
        word = supervision.ahead(batch.next_id, step + 1, -1).gather(1, rows)
        states.append(draft.norm(state[mask]))
        taught_by.append(row_of[mask])
        words.append(draft_ids[word[mask]])
        weights.append(torch.full((len(states[-1]),), decay**step / max(1, len(states[-1])), device=rows.device))
        asked.append(int(supervision.supervised(batch.loss_mask, batch.document, step).sum()))
    with torch.autocast(rows.device.type, enabled=False):
        total, hits = HeadLoss.apply(torch.cat(states).to(head_rows.dtype), draft.lm_head.weight.to(head_rows.dtype), p,
                                     torch.cat(taught_by), torch.cat(words), torch.cat(weights))
    per_step = [int(part.sum()) for part in hits.split([len(s) for s in states])]
    return total, list(zip(per_step, asked))
