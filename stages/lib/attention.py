"""The draft's attention during training-time test (TTT), written out.

Step k of row t stands at position t+k. What it may see is what serving holds in the draft's KV cache at that moment:

    keys of step 0      rows 0..t of its own document   (KV that was written from target states)
    keys of steps 1..k  its own row t only              (the chain that it is drafting now)

B packs, S slots, M rows of a later step, D head_dim, n query heads, c key heads (n = c * g).
"""
import torch


def visible(document, rows=None):
    """Which step-0 keys each query row sees: bool [B, M, S]. rows: int64 [B, M], all slots if None."""
    slots = torch.arange(document.shape[1], device=document.device)
    if rows is None:
        rows = slots.expand_as(document)
    own = document.gather(1, rows)
    return (own[:, :, None] == document[:, None, :]) & (slots <= rows[:, :, None])


def attend(q_BMnD, prefix_k, prefix_v, mask_BMS, chain):
    """Softmax over the step-0 keys that `mask_BMS` shows and the chain's own keys.

    prefix_k, prefix_v: [B, S, c, D]. chain: list of (k, v), each [B, M, c, D], of steps 1..k. Returns [B, M, n*D].
    Softmax in fp32.
    """
    B, M, n, D = q_BMnD.shape
    c, S = prefix_k.shape[2], prefix_k.shape[1]
    q = q_BMnD.view(B, M, c, n // c, D).permute(0, 2, 3, 1, 4)                            # B c g M D
    k, v = prefix_k.permute(0, 2, 3, 1), prefix_v.transpose(1, 2)                         # B c D S, B c S D
    # The g query heads of a group are rows of one product: broadcasting would copy the keys g times.
    scores = (q.reshape(B, c, -1, D) @ k).view(B, c, -1, M, S) * D**-0.5                  # B c g M S
    scores = scores.masked_fill(~mask_BMS[:, None, None], float("-inf"))
    own = [(q * key.transpose(1, 2)[:, :, None]).sum(-1, keepdim=True, dtype=torch.float32) * D**-0.5 for key, _ in chain]
    weights = torch.cat([scores, *(x.to(scores.dtype) for x in own)], -1).softmax(-1, dtype=torch.float32).to(v.dtype)
    out = (weights[..., :S].reshape(B, c, -1, S) @ v).view(B, c, -1, M, D)
    for i, (_, value) in enumerate(chain):
        out = out + weights[..., S + i, None] * value.transpose(1, 2)[:, :, None]
    return out.permute(0, 3, 1, 2, 4).reshape(B, M, n * D)
