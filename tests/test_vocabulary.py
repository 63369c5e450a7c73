import pytest
import torch
from hypothesis import given, strategies as st

from stages.lib import vocabulary
from stages.lib.refusal import Refusal
from tests.small import states_of

counts = st.lists(st.integers(0, 5), min_size=3, max_size=60)


@given(counts, st.data())
def test_d2t_is_offsets_of_ascending_target_ids(values, data):
    size = data.draw(st.integers(1, len(values)))
    d2t = vocabulary.choose(torch.tensor(values), size)
    ids = vocabulary.target_ids(d2t)
    assert d2t.dtype == torch.int64 and (ids[1:] > ids[:-1]).all() and ids[0] >= 0 and ids[-1] < len(values)
    assert ids.tolist() == vocabulary.inside(d2t, len(values)).nonzero()[:, 0].tolist()


@given(counts, st.data())
def test_no_token_left_out_is_more_frequent_or_as_frequent_with_a_lower_id(values, data):
    size = data.draw(st.integers(1, len(values)))
    kept = set(vocabulary.target_ids(vocabulary.choose(torch.tensor(values), size)).tolist())
    for out in set(range(len(values))) - kept:
        assert all((-values[k], k) < (-values[out], out) for k in kept)


def test_unseen_tokens_fill_up_from_the_lowest_id():
    assert vocabulary.target_ids(vocabulary.choose(torch.tensor([0, 0, 0, 4, 0]), 3)).tolist() == [0, 1, 3]


def test_only_tokens_that_the_draft_is_asked_for_are_counted(tmp_path):
    states = states_of(tmp_path, [([1, 2], [3, 4, 4]), ([5], [6])])
    # 3 and 6 come from the prefill; prompt tokens are never asked for
    assert vocabulary.count(states, [0, 1], 10).nonzero()[:, 0].tolist() == [4]
    assert vocabulary.count(states, [0, 1], 10)[4] == 2


def test_a_vocabulary_larger_than_the_targets_is_refused():
    with pytest.raises(Refusal, match="draft.vocab_size is 9; expected 1 to 5"):
        vocabulary.choose(torch.zeros(5), 9)
