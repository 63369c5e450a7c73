"""Acceptance figures: counts first, one ratio last, an interval beside it."""
import numpy as np

DIGITS = 4


def share(part, whole):
    """part / whole, rounded; 0 where there is nothing to count."""
    return round(part / whole, DIGITS) if whole else 0.0


def tau_with_interval(histograms, samples, seed):
    """Acceptance length over requests, with a 95 % bootstrap interval.

    histograms: one list per request, entry j = verify passes with j accepted drafts. Accepted drafts and passes are
    summed over all requests before they are divided (micro average), as SGLang's counters
    spec_num_correct_drafts / spec_verify_ct would be; requests are what is resampled. Returns tau, tau_lo, tau_hi, n
    (requests) and passes.
    """
    passes = np.array([sum(h) for h in histograms], dtype=np.int64)
    accepted = np.array([sum(j * count for j, count in enumerate(h)) for h in histograms], dtype=np.int64)
    total = int(passes.sum())
    if not total:
        return {"tau": 1.0, "tau_lo": 1.0, "tau_hi": 1.0, "n": len(histograms), "passes": 0}
    draws = np.random.default_rng(seed).integers(0, len(passes), (samples, len(passes)))
    taus = 1 + accepted[draws].sum(1) / np.maximum(passes[draws].sum(1), 1)
    low, high = np.quantile(taus, [0.025, 0.975])
    return {"tau": round(1 + int(accepted.sum()) / total, DIGITS), "tau_lo": round(float(low), DIGITS),
            "tau_hi": round(float(high), DIGITS), "n": len(histograms), "passes": total}


def positions(histograms, chain):
    """`pos_i`: share of verify passes that accept at least i drafts (they add up to tau - 1); `alpha_i`: the same given
    that the i-1 before it were accepted. Keys, not a list: DVC ignores lists in metrics."""
    total = [sum(h[j] for h in histograms) for j in range(chain + 1)]
    reach = [sum(total[i:]) for i in range(chain + 1)]
    return {**{f"pos_{i}": share(reach[i], reach[0]) for i in range(1, chain + 1)},
            **{f"alpha_{i}": share(reach[i], reach[i - 1]) for i in range(1, chain + 1)}}


def distinct_4grams(ids):
    """Share of distinct 4-grams in an answer; 1 for answers too short to have two. Under 0.7 the answer loops."""
    grams = list(zip(ids, ids[1:], ids[2:], ids[3:]))
    return len(set(grams)) / len(grams) if grams else 1.0
