import pytest
import torch
from hypothesis import given, settings, strategies as st

from stages.lib import packing
from stages.lib.refusal import Refusal
from tests.small import states_of


@given(st.lists(st.integers(1, 64), min_size=1, max_size=120), st.integers(64, 200), st.integers(1, 5), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_every_document_is_placed_once_and_no_pack_overflows(lengths, pack_tokens, batch_packs, epoch):
    order = packing.shuffled(len(lengths), 0, epoch)
    batches = packing.plan(lengths, pack_tokens, batch_packs, order)
    assert sorted(d for batch in batches for pack in batch for d in pack) == list(range(len(lengths)))
    assert all(sum(lengths[d] for d in pack) <= pack_tokens for batch in batches for pack in batch)
    assert all(len(batch) <= batch_packs for batch in batches)


def test_a_document_longer_than_a_pack_is_refused_with_the_remedy():
    with pytest.raises(Refusal, match="train.pack_tokens is 10; raise it to at least the longest document .11 tokens"):
        packing.plan([3, 11], 10, 2, [0, 1])


def test_epochs_differ_and_repeat_with_the_seed():
    assert packing.shuffled(50, 1, 0) != packing.shuffled(50, 1, 1) != packing.shuffled(50, 2, 1)
    assert packing.shuffled(50, 1, 3) == packing.shuffled(50, 1, 3)


def test_collate_lays_documents_end_to_end_and_marks_empty_slots(tmp_path):
    states = states_of(tmp_path, [([1, 2], [3, 4]), ([5], [6, 7]), ([8, 9, 10], [11])])
    batch = packing.collate(states, [[0, 1], [2]], 8)
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 0, 0, 0]]
    assert batch.document.tolist() == [[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, -1, -1, -1]]
    assert batch.position.tolist() == [[0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 3, 0, 0, 0]]
    assert batch.loss_mask.tolist() == [[False, False, True, True, False, True, True], [False] * 3 + [True] + [False] * 3]
    assert torch.equal(batch.aux[0, 4:], states.document(1)["aux"])
