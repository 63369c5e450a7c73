"""The parity probe: is what was captured what the target computes, and is `last` what its head reads?"""
import time

import torch

from stages.lib.refusal import Refusal

COSINE_P1 = 0.995  # 1st percentile over rows; a flattened cosine of two neighbouring boundaries can be 0.9999
LAST_ERROR = 0.2  # relative, per row: bf16 noise is a few hundredths, a missing norm several hundred
HEAD_REPEATS = {"float32": 0.999, "bfloat16": 0.975}
# Prefill and decode round differently, so a near tie may go the other way: 5 % of SmolLM2's tokens on a CPU without bf16 instructions,
# 10 % of a random 8 B Llama's on a GPU. In standard deviations of the row's logits; a word drawn blindly comes as near to the best once in
# ten thousand times.
TIE = 0.15


def by_layers(engine):
    """Is the engine's capture held against single layers of the checkpoint (engine.parity: layers), since the target cannot be loaded
    a second time? False: against a plain forward of the whole target. Refusal for another word, or where the engine is the forward."""
    if engine.parity not in ("forward", "layers") or (engine.parity == "layers" and engine.name == "transformers"):
        raise Refusal(f"engine.parity is {engine.parity!r} with engine {engine.name}; expected forward, or with sglang layers")
    return engine.parity == "layers"


def probe(engine, rows, boundaries, count, greedy, dtype):
    """Capture `count` traces, spread evenly, in one batch and compare with a plain forward of each alone.

    Per boundary: the 1st percentile of the per-row cosine, first token left out (its state is a thousand times larger
    than any other and would hide the rest). And for greedy traces the share of response tokens that head(last)
    says, near ties included. Returns the figures for the manifest, and tokens_per_s of the batched capture; a Refusal names what fails.
    """
    sample = [rows[i * len(rows) // min(count, len(rows))] for i in range(min(count, len(rows)))]
    sequences = [row["prompt_ids"] + row["response_ids"] for row in sample]
    started = time.perf_counter()
    captured = engine.capture(sequences, boundaries)
    tokens_per_s = sum(map(len, sequences)) / (time.perf_counter() - started)

    cosines, errors, repeated, asked = [], [], 0, 0
    for row, sequence, (aux, last) in zip(sample, sequences, captured):
        if len(aux) != len(sequence):
            raise Refusal(f"trace {row['id']}: {len(aux)} captured rows for {len(sequence)} tokens")
        plain, plain_last = engine.plain_states(sequence, boundaries)
        cosines.append(row_cosines(aux, plain, len(boundaries))[1:])
        errors.append(((last.float() - plain_last.float()).norm(dim=1) / plain_last.float().norm(dim=1))[1:])
        prompt = len(row["prompt_ids"])
        repeated += says(last[prompt - 1:-1], row["response_ids"], engine.head_weight).sum().item()
        asked += len(row["response_ids"])
    p1 = torch.quantile(torch.cat(cosines), 0.01, dim=0).tolist()
    for boundary, cosine in zip(boundaries, p1):
        if not cosine >= COSINE_P1:
            raise Refusal(f"captured rows of boundary {boundary} differ from the target's own forward: 1st percentile of the "
                          f"cosine {cosine:.4f}, expected {COSINE_P1}; the engine captures another boundary or corrupts rows")
    error = torch.quantile(torch.cat(errors), 0.99).item()
    if not error <= LAST_ERROR:
        raise Refusal(f"`last` differs from the target's own post-norm state: 99th percentile of the relative error {error:.2f}, "
                      f"expected {LAST_ERROR}; is it taken before the final norm?")
    share = repeated / asked
    if greedy and share < HEAD_REPEATS[dtype]:
        raise Refusal(f"head(last) repeats {share:.2%} of the traced greedy tokens in {dtype}, expected {HEAD_REPEATS[dtype]:.1%}: "
                      "the traces come from another target, another precision, or `last` is not the post-norm state")
    return {"rows": len(sample), "cosine_p1_min": round(min(p1), 4), "head_repeats": round(share, 3),
            "cosine_p1": {f"boundary_{b}": round(c, 4) for b, c in zip(boundaries, p1)}, "tokens_per_s": tokens_per_s}


def says(last, tokens, head):
    """bool [n]: is the token the best word of head(last), or within TIE of it? last [n, H] post-norm, tokens n ids, head [V, H]; in fp32,
    since bf16 logits of one row are often equal."""
    found, head = [], head.float()
    for states, said in zip(last.split(256), torch.as_tensor(tokens).split(256)):
        logits = states.float() @ head.T
        found.append(logits.amax(-1) - logits.gather(1, said[:, None].long())[:, 0] <= TIE * logits.std(-1))
    return torch.cat(found)


def row_cosines(aux, plain, num_boundaries):
    """Cosine per row and boundary, [n, K], in fp32."""
    a, b = (x.float().view(len(x), num_boundaries, -1) for x in (aux, plain))
    return torch.nn.functional.cosine_similarity(a, b, dim=-1)
