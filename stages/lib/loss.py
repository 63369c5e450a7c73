"""The training loss: soft cross-entropy with the target's own distribution on the draft vocabulary, per TTT step."""
import torch

from stages.lib import supervision


def chain_rows(loss_mask, document, steps):
    """The rows that a later step reads, padded: int64 [B, M] and how many there are per pack.

    Rows that no supervised row of step 1 reads need no later step at all. Padding repeats slot 0 and is never scored.
    """
    wanted = supervision.supervised(loss_mask, document, 1) if steps > 1 else torch.zeros_like(loss_mask)
    counts = wanted.sum(1)
    rows = torch.zeros(len(wanted), max(1, int(counts.max())), dtype=torch.long)
    for b, mask in enumerate(wanted):
        rows[b, :counts[b]] = mask.nonzero()[:, 0]
    return rows, counts


def teacher(batch, head_rows, in_vocabulary):
    """The target's distribution over the draft vocabulary, once per slot that can teach: p [R, Vd] and where [B, S] -> row of p.

    head_rows [Vd, H]: the target's head restricted to the draft vocabulary (renormalised: softmax over Vd).
    """
    teaches = (batch.next_id >= 0) & in_vocabulary[batch.next_id.clamp_min(0)]
    where = torch.full(batch.next_id.shape, -1)
    where[teaches] = torch.arange(int(teaches.sum()))
    with torch.no_grad():
        return (batch.last[teaches].to(head_rows.dtype) @ head_rows.T).float().softmax(-1), where


def soft_cross_entropy(logits, p):
    """Mean over rows of -sum_v p_v log softmax(logits)_v; p sums to 1, so it is logsumexp minus a dot product."""
    logits = logits.float()
    return (logits.logsumexp(-1) - (p * logits).sum(-1)).mean()


def ttt_loss(draft, batch, head_rows, in_vocabulary, target_ids, steps, decay, stop_at_oov):
    """Loss (scalar) of one batch, and per step (hits, supervised rows) for the accuracy.

    sum_k decay^k * mean over the rows taught at step k. A hit is a supervised row whose argmax is the target's own
    word; a word outside the draft vocabulary is a miss.
    """
    p, where = teacher(batch, head_rows, in_vocabulary)
    rows, counts = chain_rows(batch.loss_mask, batch.document, steps)
    filled = torch.arange(rows.shape[1]) < counts[:, None]
    total, scores = 0.0, []
    for step, state in enumerate(draft.chain(batch, steps, rows)):
        at = (lambda x: x) if step == 0 else (lambda x: x.gather(1, rows) & filled if x.dtype == torch.bool else x.gather(1, rows))
        mask = at(supervision.taught(batch.loss_mask, batch.document, batch.next_id, in_vocabulary, step, stop_at_oov))
        asked = int(supervision.supervised(batch.loss_mask, batch.document, step).sum())
        if not mask.any():
            scores.append((0, asked))
            continue
        logits = draft.logits(state[mask])
        total = total + decay**step * soft_cross_entropy(logits, p[at(supervision.ahead(where, step + 1, -1))[mask]])
        word = at(supervision.ahead(batch.next_id, step + 1, -1))[mask]
        scores.append(((target_ids[logits.detach().argmax(-1)] == word).sum().item(), asked))
    return total, scores
