"""The gate between served and offline: did the server accept, pass by pass, what the exported draft accepts offline?

Both sides are looked at in the same places: where the server's own verify passes began. A token can differ because kernels round
otherwise; how often that alone happens is the floor, measured in the same run on two offline replays of the same answers.
"""
import numpy as np

SLACK = 0.015  # what the share may fall under the floor: one wrong boundary of three costs 1.8 points, all of them ten
SAME_TAU = 0.05  # the difference of tau that must be excluded, as a share of tau - 1
INTERVAL = (2.5, 97.5)


def leading(row, chain):
    """Accepted drafts of a chain: how many in a row are right. row: booleans."""
    count = 0
    while count < chain and row[count]:
        count += 1
    return count


def at_passes(right, passes, first, chain):
    """Offline counts at the places of the server's passes.

        answer   x[first] | x x x | x | x x ...          the prefill's token, then per pass its accepted drafts and the bonus
        pass     p = first, then p + accepted + 1        drafts of the pass come from row p - 1

    right: [rows, chain] booleans of verifier.matches for the document. passes: accepted drafts per served pass, the last left out.
    """
    counts, p = [], first
    for accepted in passes:
        counts.append(leading(right[p - 1], chain))
        p += accepted + 1
    return counts


def compare(served, offline, noise, samples=2000, seed=0):
    """Figures of the gate. served, offline, noise: per answer the accepted drafts per pass; noise is a second offline replay.

    same: share of passes on which server and offline agree. floor: on which the two offline replays do. difference: served tau minus
    offline tau over the same passes, resampled over answers in pairs. detectable: half the interval's width.
    """
    same = share(served, offline)
    floor = share(offline, noise)
    totals = np.array([[sum(s), sum(o), len(s)] for s, o in zip(served, offline)], float)
    draws = np.random.default_rng(seed).integers(0, len(totals), (samples, len(totals)))
    sums = totals[draws].sum(1)
    differences = (sums[:, 0] - sums[:, 1]) / np.maximum(sums[:, 2], 1)
    low, high = np.percentile(differences, INTERVAL)
    accepted, expected, passes = totals.sum(0)
    return {"same": round(same, 4), "floor": round(floor, 4), "passes": int(passes), "answers": len(served),
            "tau_served": round(1 + accepted / max(passes, 1), 4), "tau_offline": round(1 + expected / max(passes, 1), 4),
            "difference": round((accepted - expected) / max(passes, 1), 4), "difference_lo": round(float(low), 4),
            "difference_hi": round(float(high), 4), "detectable": round(float(high - low) / 2, 4)}


def share(one, other):
    pairs = [(a, b) for x, y in zip(one, other) for a, b in zip(x, y)]
    return sum(a == b for a, b in pairs) / max(1, len(pairs))


def faults(figures):
    """Sentences on what the gate does not let pass; none when served is offline."""
    said = []
    if figures["same"] < figures["floor"] - SLACK:
        said.append(f"server and offline replay accept the same number of drafts on {figures['same']:.1%} of {figures['passes']} passes; "
                    f"two offline replays agree on {figures['floor']:.1%}, and at most {SLACK:.1%} less is let pass")
    limit = SAME_TAU * (figures["tau_offline"] - 1)
    if not -limit < figures["difference_lo"] <= figures["difference_hi"] < limit:
        said.append(f"served tau minus offline tau is {figures['difference']:+.4f} [{figures['difference_lo']:+.4f}, "
                    f"{figures['difference_hi']:+.4f}]; the interval must lie within {limit:.4f} of zero ({SAME_TAU:.0%} of tau - 1), and "
                    f"{figures['answers']} answers can tell {figures['detectable']:.4f}")
    return said
