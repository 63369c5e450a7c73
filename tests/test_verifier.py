"""Counters against brute force, and the replay against drafting one pass at a time."""
import torch
from hypothesis import given, settings, strategies as st

from stages.contract.forward import ServedDraft
from stages.lib import baselines, metrics, verifier, vocabulary
from tests.small import VOCAB, exported, random_draft, states_of


def brute_force(right, first, end, chain):
    """Speculative decoding written the long way: emit tokens one by one."""
    histogram, place = [0] * (chain + 1), first
    while place != end:
        emitted, accepted = [], 0
        for guess in range(chain):
            if not right[place - 1][guess]:
                break
            emitted.append(place + len(emitted) + 1)
            accepted += 1
        emitted.append(place + len(emitted) + 1)  # the bonus token
        if end in emitted:
            return histogram
        histogram[accepted] += 1
        place = emitted[-1]
    return histogram


@given(st.integers(1, 7), st.integers(1, 5), st.integers(1, 40), st.data())
def test_walk_equals_brute_force(chain, first, answer, data):
    right = data.draw(st.lists(st.lists(st.booleans(), min_size=chain, max_size=chain), min_size=first + answer, max_size=first + answer))
    end = first + answer - 1
    for t, row in enumerate(right):  # a guess past the answer's end is never right
        for k in range(chain):
            row[k] = row[k] and t + 2 + k <= end
    assert verifier.walk(right, first, end) == brute_force(right, first, end, chain)


@given(st.integers(0, 20))
@settings(max_examples=10, deadline=None)
def test_replay_counts_equal_drafting_pass_by_pass(tmp_path_factory, seed):
    folder = tmp_path_factory.mktemp("replay")
    draft, d2t = random_draft(seed, draft_vocab_size=12, vocab_size=14)
    exported(folder, draft, d2t)
    noise = torch.Generator().manual_seed(seed)
    draw = lambda n: torch.randint(0, 14, (n,), generator=noise).tolist()
    docs = [(draw(3), draw(n)) for n in (1, 2, 17, 30)]
    states = states_of(folder, docs, vocab=14, seed=seed)
    target_ids = vocabulary.target_ids(d2t)
    found = verifier.replay(draft, states, [0, 1, 2, 3], target_ids, [3, 5], 64, 2)
    for index, (prompt, answer) in enumerate(docs):
        tokens, aux, first = prompt + answer, states.document(index)["aux"], len(prompt)
        for chain in (3, 5):
            histogram, p, served = [0] * (chain + 1), first, ServedDraft(folder, draft.embed)
            held = 0
            while p < len(tokens) - 1:
                served.extend(tokens[held + 1:p + 1], aux[held:p])
                held = p
                guesses, accepted = served.propose(chain), 0
                while accepted < chain and p + 1 + accepted < len(tokens) and guesses[accepted] == tokens[p + 1 + accepted]:
                    accepted += 1
                p += accepted + 1
                if p < len(tokens) - 1:
                    histogram[accepted] += 1
            assert found[chain][index] == histogram


def test_words_outside_the_draft_vocabulary_are_misses(tmp_path):
    draft, d2t = random_draft(0, draft_vocab_size=5)
    outside = next(t for t in range(VOCAB) if t not in vocabulary.target_ids(d2t).tolist())
    states = states_of(tmp_path, [([1, 2], [outside] * 12)])
    assert verifier.replay(draft, states, [0], vocabulary.target_ids(d2t), [5], 32, 1)[5][0] == [10, 0, 0, 0, 0, 0]


def test_tau_is_summed_before_it_is_divided():
    # 10 passes with none accepted, 2 passes with all 5: (0 + 10) / 12, not the mean of 1 and 6
    result = metrics.tau_with_interval([[10, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 2]], 200, 0)
    assert result["tau"] == round(1 + 10 / 12, 4) and result["n"] == 2 and result["passes"] == 12
    assert result["tau_lo"] <= result["tau"] <= result["tau_hi"]


@given(st.lists(st.lists(st.integers(0, 9), min_size=6, max_size=6), min_size=1, max_size=8))
def test_positions_add_up_to_tau_minus_one(histograms):
    pos = metrics.positions(histograms, 5)
    tau = metrics.tau_with_interval(histograms, 10, 0)["tau"]
    assert abs(sum(pos[f"pos_{i}"] for i in range(1, 6)) - (tau - 1)) < 1e-3


def test_looping_answers_are_told_from_varied_ones():
    assert metrics.distinct_4grams([1, 2, 3, 4] * 10) < 0.7 < metrics.distinct_4grams(list(range(40)))


@given(st.lists(st.integers(0, 3), min_size=2, max_size=40), st.integers(1, 6))
def test_prompt_lookup_equals_a_plain_search(tokens, chain):
    def plain(t):
        for size in (3, 2):
            for end in range(t, size - 1, -1):  # the last earlier place of the same gram
                if t + 1 >= size and tokens[end - size:end] == tokens[t + 1 - size:t + 1]:
                    return tokens[end:min(end + chain, t + 1)]
        return []
    drafter = baselines.PromptLookup()
    for t in range(len(tokens)):
        assert drafter.guess(tokens, t, chain) == plain(t)


def test_trigram_takes_the_most_frequent_follower_and_breaks_ties_by_id():
    rows = [{"prompt_ids": [1, 2], "response_ids": [9, 1, 2, 7]}, {"prompt_ids": [0, 1], "response_ids": [2, 7]}]
    table = baselines.Trigram(rows)
    assert table.guess([1, 2], 1, 1) == [7]           # (1, 2) -> 9 once, 7 twice
    assert table.guess([5, 9], 1, 2) == [1, 2]        # the pair is unseen: 9 -> 1, then (9, 1) -> 2
    assert table.guess([5, 5], 1, 3) == []
