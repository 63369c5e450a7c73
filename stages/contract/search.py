"""Which convention was this draft trained with? Offline tau of the same weights under each plausible one, on the same answers.

A draft that learnt something accepts drafts under the convention of its training and hardly any under another, so the
convention names itself. A draft that accepts under none learnt nothing, or learnt it from other states.
"""
import itertools
from dataclasses import dataclass

import numpy as np
import torch

from stages.contract.forward import ServedDraft, matches
from stages.contract.states import candidates
from stages.lib import verifier

ALIVE = 1.3            # a convention that accepts less than this was not the training's
GAIN = 0.03            # a smaller gain in tau is not worth a remark
INTERVAL = (0.5, 99.5)  # per cent; wide, because dozens of conventions are compared
THETAS = (10_000.0, 500_000.0, 1_000_000.0)


@dataclass
class Convention:
    """One way to run the draft. states: indices into a document's candidates, one per chunk; shift: row t reads the states
    of token t+shift; ahead: a row predicts x[t+ahead]."""
    name: str
    group: str
    change: str            # what would have to change for the server to do the same
    draft: ServedDraft
    states: list
    shift: int = 0
    ahead: int = 2


@dataclass
class Row:
    name: str
    group: str
    change: str
    tau: float
    difference: float      # to the served convention, on the same answers, with its interval
    lo: float
    hi: float
    accepted: np.ndarray   # per answer
    passes: np.ndarray


def conventions(served, boundaries, layers, theta):
    """The served one first. boundaries: what the server captures, ascending; the index layers+1 is the post-norm last state.
    theta: the target's."""
    post, K, ids = layers + 1, len(boundaries), list(boundaries)
    yield Convention("as served", "served", "nothing", served, ids)

    # Which states. A chunk of the last layer's output is mostly the post-norm one, since transformers lists that.
    seen = [ids]
    def states(name, group, change, chosen):
        if chosen not in seen and all(0 <= b <= post for b in chosen):
            seen.append(chosen)
            yield Convention(name, group, change, served, chosen)
    for offset in (-2, -1, 1, 2):
        moved = [b + offset for b in ids]
        if max(moved) <= layers:
            yield from states(f"states {abs(offset)} layer{'s' * (abs(offset) > 1)} {'earlier' if offset < 0 else 'later'}", "states",
                              f"layer ids {offset:+d}: boundaries {moved}", moved)
    if K == 3:
        yield from states("the server's default states", "states", "no layer ids", [2, layers // 2, layers - 3])
    yield from states("last chunk after the final norm", "states", "retrain: no chunk of a server is post-norm", [*ids[:-1], post])
    orders = itertools.permutations(ids) if K <= 3 else [ids[::-1]]
    for order in map(list, orders):
        yield from states("chunks in reverse order" if order == ids[::-1] else f"chunks in the order {order}", "order",
                          "the columns of fc.weight: the server's chunks ascend", order)
    for b in ids:
        yield from states(f"boundary {b} alone in every chunk", "states", "one layer id, and an fc of one chunk", [b] * K)
    # An untrained draft that starts as an early exit of the target accepts under the last two of these.
    exit_ = " (so does a draft that never left its start as an early exit of the target)"
    for shift in (-1, 1):
        yield Convention(f"states of token t{shift:+d} beside the embedding of t+1", "shift",
                         f"retrain: row t reads the states of token t{exit_ if shift == 1 else ''}", served, ids, shift=shift)
    yield Convention("labels not shifted: predicts the token it is given", "shift", f"retrain: the label of row t is x[t+2]{exit_}", served,
                     ids, ahead=1)

    # What the draft does with them.
    if served.width == K * served.state_size and served.bypass_fc and "fc.weight" in served.w:
        yield Convention("fc applied to one state", "fc", "two layer ids or more: the server skips fc for one",
                         served.but(bypass_fc=False), ids)
    for key, name in (("norm_output", "feedback after the final norm"), ("norm_before_residual", "residual after hidden_norm"),
                      ("norm_before_fc", "one norm before fc"), ("fc_norm", "a norm per chunk before fc")):
        now, weight = getattr(served, key), {"norm_before_fc": "input_norm.weight", "fc_norm": "fc_norm.0.weight"}.get(key)
        if weight is None or weight in served.w:
            yield Convention(f"without {name}" if now else name, "norm", f"{key} {str(not now).lower()}", served.but(**{key: not now}), ids)
    yield Convention("every recurrent step at the same position", "rope", "retrain: positions advance by one", served.but(stride=0), ids)
    half = torch.arange(0, served.head_dim, 2).float() / served.head_dim
    for other in sorted({*THETAS, float(theta)}):
        if not torch.allclose(frequency := 1.0 / other**half, served.frequency):
            yield Convention(f"rope theta {other:g}", "rope", f"rope_theta {other:g}", served.but(frequency=frequency, rope_scale=1.0), ids)
    rows, reach = torch.arange(len(served.target_ids)), len(served.embed)
    d2t = served.target_ids - rows
    if not torch.equal(d2t, torch.zeros_like(d2t)):
        yield Convention("no vocabulary map", "d2t", "d2t of zeros", served.but(target_ids=rows), ids)
        if 0 <= d2t.min() and d2t.max() < reach:
            yield Convention("d2t holds target ids", "d2t", "d2t minus arange: the server reads offsets", served.but(target_ids=d2t), ids)
        if (double := served.target_ids + rows).max() < reach:
            yield Convention("d2t short of arange", "d2t", "d2t plus arange", served.but(target_ids=double), ids)


def search(served, engine, boundaries, answers, chain=verifier.HEADLINE_CHAIN, samples=2000, seed=0, tick=lambda name: None):
    """Rows (`as served` first, then by falling tau). answers: (prompt ids, response ids), the target's own, greedy.

    boundaries: what the server captures for the draft's ids (rules.boundaries_captured). Every convention runs on the same
    states of one forward per answer, and its difference to the served one is resampled over the answers, in pairs.
    """
    layers, held = len(engine.decoder.layers), []
    for prompt, response in answers:
        held.append((prompt + response, len(prompt), candidates(engine, prompt + response)))
    theta = (getattr(engine.model.config.get_text_config(), "rope_parameters", None) or {}).get("rope_theta") or THETAS[0]
    draws = np.random.default_rng(seed).integers(0, len(answers), (samples, len(answers)))
    rows = []
    for c in conventions(served, boundaries, layers, theta):
        histograms = [histogram(c, *document, chain) for document in held]
        accepted = np.array([sum(j * count for j, count in enumerate(h)) for h in histograms])
        passes = np.array([sum(h) for h in histograms])
        row = Row(c.name, c.group, c.change, 1 + int(accepted.sum()) / max(1, int(passes.sum())), 0.0, 0.0, 0.0, accepted, passes)
        row.difference, row.lo, row.hi = paired(row, rows[0] if rows else row, draws)
        rows.append(row)
        tick(c.name)
    return [rows[0], *sorted(rows[1:], key=lambda row: -row.tau)]


def as_served(served, boundaries, prompt, response, states):
    """Verify passes of one answer by accepted drafts, under the convention of serving."""
    convention = Convention("as served", "served", "nothing", served, list(boundaries))
    return histogram(convention, prompt + response, len(prompt), states, verifier.HEADLINE_CHAIN)


def histogram(convention, ids, first, states, chain):
    """Verify passes of one answer by accepted drafts."""
    rows = (torch.arange(len(ids)) + convention.shift).clamp(0, len(ids) - 1)
    aux = states[rows][:, convention.states].flatten(1)
    right = matches(convention.draft, ids, aux, first, chain, convention.ahead)
    return verifier.walk(right.tolist(), first, len(ids) - 1)


def paired(row, base, draws):
    """tau of `row` minus tau of `base`: the difference and its interval over resampled answers."""
    tau = lambda r: 1 + r.accepted[draws].sum(1) / np.maximum(r.passes[draws].sum(1), 1)
    low, high = np.percentile(tau(row) - tau(base), INTERVAL)
    return row.tau - base.tau, float(low), float(high)


def verdict(rows, samples=2000, seed=1):
    """EY-TAU-02 where one convention is clearly the training's, EY-TAU-01 where none accepts, nothing for a draft that is served
    as it was trained. Conventions of different kinds that cannot be told apart are no verdict, but said."""
    served, best = rows[0], max(rows, key=lambda row: row.tau)
    says = lambda row: f"tau {row.tau:.3f} (difference {row.difference:+.3f} [{row.lo:+.3f}, {row.hi:+.3f}])"
    if best.tau < ALIVE:
        yield "EY-TAU-01", (f"no convention of {len(rows)} accepts on {len(served.passes)} answers: tau {served.tau:.3f} as served, "
                            f"{best.tau:.3f} at best ({best.name}): the draft is untrained, or its target is in another basis (fine-tuned, "
                            "quantised, another model)")
        return
    if best is served or best.lo <= 0 or best.difference < GAIN:
        return
    draws = np.random.default_rng(seed).integers(0, len(best.passes), (samples, len(best.passes)))
    # Only what itself clearly beats the served convention can stand beside the best: a wide interval alone is no tie.
    ties = [row for row in rows if row is not best and row.lo > 0 and paired(best, row, draws)[1] <= 0]
    close = f"; not told apart from: {', '.join(row.name for row in ties)}" if ties else ""
    if all(row.group == best.group for row in ties):
        yield "EY-TAU-02", f"trained with: {best.name}; {says(best)}, {served.tau:.3f} as served; to serve it: {best.change}{close}"
    else:
        yield "EY-TAU-02", (f"tau {served.tau:.3f} as served; another convention does better, but which is open: {best.name}, {says(best)}"
                            f"{close}; more answers (--answers) can tell"), *(() if served.tau < ALIVE else ("open",))
