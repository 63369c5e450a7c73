"""Which row of which step is supervised, by what. One document, x its tokens, g its states:

    row t, step k     reads     fc(g[t]) at step 0, its own last output later; with embed(x[t+1+k]) at position t+k
                      predicts  x[t+2+k]
                      taught by head(last[t+1+k]), whose argmax is next_id[t+1+k]

    tokens       x0    x1    x2    x3    x4    x5          prompt x0 x1 x2, answer x3 x4 x5
    loss_mask     0     0     0     1     1     1
    step 0                   t=2   t=3                     (g2, x3) -> x4   (g3, x4) -> x5
    step 1                   t=2                           (.., x4) -> x5

Serving drafts from row t only when the target itself produced x[t+1], and a guess counts only where x[t+2+k] is still
part of the answer: loss_mask[t+1] and loss_mask[t+2+k], in one span. The last prompt token's row (t=2 above) is in, the
end token's is not (SpecForge#885 has both the other way round). All tensors are [B, S].
"""
import torch


def ahead(x_BS, n, fill):
    """x[t+n] at place t; `fill` where that is past the end."""
    tail = x_BS.new_full((x_BS.shape[0], min(n, x_BS.shape[1])), fill)
    return torch.cat([x_BS[:, n:], tail], 1)


def supervised(loss_mask, document, step):
    """Rows that serving reaches at `step`, whatever the draft's vocabulary: bool [B, S]."""
    span = torch.ones_like(loss_mask)
    for n in range(1, step + 3):  # x[t+1] .. x[t+2+step] without a gap: one span of one document
        span = span & ahead(loss_mask, n, False)
    return span & (ahead(document, step + 2, -1) == document)


def taught(loss_mask, document, next_id, in_vocabulary, step, stop_at_oov):
    """Rows whose loss counts at `step`: supervised, and the teacher's word is in the draft vocabulary.

    in_vocabulary: bool [V]. With stop_at_oov also the teacher's words of the earlier steps must be: once the target
    says a word that the draft does not have, serving ends the chain there and never reaches the later steps.
    """
    rows = supervised(loss_mask, document, step)
    for k in range(step + 1) if stop_at_oov else (step,):
        word = ahead(next_id, k + 1, -1)
        rows = rows & (word >= 0) & in_vocabulary[word.clamp_min(0)]
    return rows
