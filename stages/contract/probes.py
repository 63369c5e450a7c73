"""Numeric probes of a draft: the forward, the vocabulary, the embedding, the outcome. Each yields (code, evidence).

The states that it was trained on have their own probe: stages/contract/states.py.
"""
from collections import Counter
from types import SimpleNamespace

import torch

from stages.lib import metrics, vocabulary
from stages.lib.refusal import Refusal

TOLERANCE = 2e-4  # relative, fp32 on both sides: what sums in another order may differ by
COVERED, ENOUGH = 0.8, 0.95  # shares of the answers' tokens in the draft vocabulary: under the first a fault, under the second a note
LIFELESS = 1.1    # tau: under one draft accepted in ten passes


def two_steps(trained, served, seed=0):
    """Trainer and server, over the prefill step and one recurrent step, in fp32 on random states.

        tokens  x0 x1 x2 ... x7 x8      rows 0..6 from states; row 6 reads x7 (step 0), then its own output and x8 (step 1)

    trained: lib.draft.Draft. served: a ServedDraft. Returns `first`, `second` and `entered` (largest difference, relative
    to the trainer's largest value) and `cosine` and `length` (of what the server feeds back after row 6, to what the
    trainer does). A Refusal where the server would stop.
    """
    shape, noise = trained.shape, torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, shape.vocab_size, (1, 9), generator=noise)
    aux = torch.randn(1, 9, shape.num_aux * shape.target_hidden_size, generator=noise) * 4
    batch = SimpleNamespace(input_ids=tokens, aux=aux, document=torch.zeros_like(tokens), position=torch.arange(9)[None])
    served = served.but()
    with torch.no_grad():
        first, second = trained.chain(batch, 2, rows=torch.arange(7)[None])
        outs = served.extend(tokens[0, 1:8], aux[0, :7])
        again = served.recur(outs[6:], tokens[0, 8:], torch.tensor([6]), 1, served.nothing_yet())
        ours, theirs = [trained.logits(first[0]), trained.logits(second[0, 6:])], [served.logits(outs), served.logits(again)]
        entered, fed_back = trained.fc(aux[0]), served.feedback(outs)[6]
        apart = lambda a, b, scale: ((a - b).abs().max() / scale.abs().max()).item()
        return {"first": apart(ours[0], theirs[0], torch.cat(ours)), "second": apart(ours[1], theirs[1], torch.cat(ours)),
                "entered": apart(entered, served.enter(aux[0]), entered),
                "cosine": torch.cosine_similarity(first[0, 6], fed_back, dim=0).item(),
                "length": (fed_back.norm() / first[0, 6].norm()).item()}


def forward(trained, served):
    """EY-FORWARD-01, -02 and -03: does the server compute what the trainer computed, and if not, where does it part?"""
    try:
        found = two_steps(trained, served)
    except Refusal as refusal:
        yield "EY-FORWARD-03", str(refusal)
        return
    if found["entered"] >= TOLERANCE:
        width = trained.fc.in_features
        bypassed = "; the server skips fc for rows as wide as the embedding" if width == served.width and served.bypass_fc else ""
        yield "EY-FORWARD-03", (f"fc reads {width} features in training and the hidden rows that it gives differ from the served ones by "
                                f"{found['entered']:.1e} of the largest{bypassed}")
    elif found["first"] >= TOLERANCE:
        yield "EY-FORWARD-01", (f"the logits of the first step differ by {found['first']:.1e} of the largest (allowed {TOLERANCE:.0e}), "
                                "with the same hidden rows behind fc")
    elif found["second"] >= TOLERANCE:
        same = found["cosine"] > 0.9999 and abs(found["length"] - 1) < 0.001
        yield "EY-FORWARD-02", (f"the first step agrees ({found['first']:.1e}), the recurrent one differs by {found['second']:.1e} of the "
                                f"largest; the state fed back has cosine {found['cosine']:.4f} to the trainer's and {found['length']:.3f} "
                                f"of its length: {'the position differs' if same else 'another norm'}")


def coverage(d2t, answers):
    """EY-VOCAB-10: can the draft say what the target says? answers: (prompt ids, response ids); each answer's first token
    comes from the prefill and is not asked of the draft."""
    said = Counter(token for _, response in answers for token in response[1:])
    total = sum(said.values())
    share = lambda ids: sum(said[t] for t in set(ids.tolist())) / max(1, total)
    offset, absolute = share(vocabulary.target_ids(d2t)), share(d2t)
    if offset < ENOUGH:
        words = set(vocabulary.target_ids(d2t).tolist())
        missing = [f"{token} ({n}x)" for token, n in said.most_common() if token not in words]
        other = f"; read as absolute ids d2t covers {absolute:.1%}" if absolute > offset + 0.1 else ""
        yield "EY-VOCAB-10", (f"the draft's {len(d2t)} words cover {offset:.1%} of {total} answer tokens of the target{other}; the most "
                              f"frequent without one: {', '.join(missing[:5])}"), *(("note",) if offset >= COVERED else ())


def embedding(tensors, embed):
    """EY-TENSOR-18: does the draft ship an embedding that is not the target's? tensors: {name: tensor} of the draft."""
    for name, own in tensors.items():
        if not name.endswith("embed_tokens.weight"):
            continue
        if own.shape != embed.shape:
            yield "EY-TENSOR-18", f"{name} has shape {list(own.shape)}, the target's embedding {list(embed.shape)}"
            continue
        differ = (own.float() - embed.float()).norm(dim=1) > 0.02 * embed.float().norm(dim=1).clamp_min(1e-6)
        if differ.any():
            yield "EY-TENSOR-18", f"{int(differ.sum())} of {len(own)} rows of {name} differ from the target's embedding by more than 2 %"


def acceptance(histograms, samples=1000, seed=0):
    """EY-TAU-01: does the draft accept anything? histograms: verify passes by accepted drafts, one list per answer."""
    t = metrics.tau_with_interval(histograms, samples, seed)
    if t["passes"] and (t["tau"] < LIFELESS or t["tau_lo"] <= 1):
        yield "EY-TAU-01", (f"offline tau is {t['tau']:.3f} [{t['tau_lo']:.3f}, {t['tau_hi']:.3f}] over {t['passes']} verify passes of "
                            f"{t['n']} answers")
