"""The gate compares server and offline replay in the same places, lets noise pass and no shift of the states."""
import torch
from hypothesis import given, strategies as st

from stages.contract.forward import matches
from stages.lib import gate, served, verifier

CHAIN = 5


@given(st.data())
def test_offline_counts_are_taken_where_the_servers_passes_began(data):
    """Along the walk of the replay itself both sides are equal, and the histogram is that of verifier.walk."""
    length, first = data.draw(st.integers(4, 40)), data.draw(st.integers(1, 3))
    right = [[data.draw(st.booleans()) for _ in range(CHAIN)] for _ in range(length)]
    passes, p = [], first
    while p < length - 1:
        accepted = gate.leading(right[p - 1], CHAIN)
        p += accepted + 1
        if p < length - 1:
            passes.append(accepted)
    assert gate.at_passes(right, passes, first, CHAIN) == passes
    assert served.histogram(passes, CHAIN) == verifier.walk(right, first, length - 1)


def figures(**changes):
    return {"same": 0.991, "floor": 0.993, "passes": 12000, "answers": 150, "tau_served": 1.46, "tau_offline": 1.46, "difference": 0.0,
            "difference_lo": -0.003, "difference_hi": 0.003, "detectable": 0.003, **changes}


def test_noise_passes():
    assert gate.faults(figures()) == []


def test_a_share_that_falls_under_the_floor_does_not_pass():
    assert "at most 1.5% less is let pass" in gate.faults(figures(same=0.969))[0]


def test_a_difference_of_tau_that_cannot_be_excluded_does_not_pass():
    assert "can tell 0.0300" in gate.faults(figures(difference_hi=0.04, detectable=0.03))[0]
    assert gate.faults(figures(tau_offline=1.46, difference_hi=0.022)) == []


def test_equal_sides_differ_by_nothing():
    passes = [[0, 1, 3], [2, 0]]
    found = gate.compare(passes, passes, passes)
    assert (found["same"], found["floor"], found["difference"], found["detectable"]) == (1, 1, 0, 0) and found["tau_served"] == 2.2


def replayed(run, boundaries, passes=None):
    """Per answer the accepted drafts per pass of the exported draft on states at `boundaries`: its own walk, or at given passes."""
    draft, counts = run.served(), []
    for i, (prompt, response) in enumerate(run.answers):
        (aux, _), = run.engine.capture([prompt + response], boundaries)
        right = matches(draft, prompt + response, aux, len(prompt), CHAIN).tolist()
        if passes is None:
            own, p, end = [], len(prompt), len(prompt + response) - 1
            while p < end:
                accepted = gate.leading(right[p - 1], CHAIN)
                p += accepted + 1
                own += [accepted] * (p < end)
            counts.append(own)
        else:
            counts.append(gate.at_passes(right, passes[i], len(prompt), CHAIN))
    return counts


def rows_of(run):
    return [{"prompt_ids": p, "response_ids": r} for p, r in run.answers]


def test_a_server_that_reads_all_boundaries_one_early_is_stopped_and_named(healthy_run):
    early = [b - 1 for b in healthy_run.boundaries]
    passes = replayed(healthy_run, early)
    right = replayed(healthy_run, healthy_run.boundaries, passes)
    assert gate.faults(gate.compare(passes, right, right))
    ranked = served.suspects(rows_of(healthy_run), passes, healthy_run.engine, healthy_run.boundaries, healthy_run.embed, healthy_run.head,
                             export=healthy_run.export)
    assert ranked[0] == (1.0, "all boundaries one early")


def test_a_server_that_reads_one_boundary_of_three_wrong_is_stopped_and_named(healthy_run):
    low, middle, high = healthy_run.boundaries
    passes = replayed(healthy_run, [low, middle + 1, high])
    right = replayed(healthy_run, healthy_run.boundaries, passes)
    assert gate.faults(gate.compare(passes, right, right))
    ranked = served.suspects(rows_of(healthy_run), passes, healthy_run.engine, healthy_run.boundaries, healthy_run.embed, healthy_run.head,
                             export=healthy_run.export)
    assert ranked[0] == (1.0, f"boundary {middle} one late")


def test_a_right_server_passes_and_is_explained_by_the_exported_boundaries(healthy_run):
    passes = replayed(healthy_run, healthy_run.boundaries)
    states = [healthy_run.engine.capture([p + r], healthy_run.boundaries)[0][0] for p, r in healthy_run.answers]
    found = served.compare(rows_of(healthy_run), passes, states, states, healthy_run.embed, healthy_run.head, 0, export=healthy_run.export)
    assert gate.faults(found) == [] and found["same"] == 1 and 0.9 < found["floor"] <= 1
    assert torch.tensor(found["tau_served"]) > 2
