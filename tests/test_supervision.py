"""Which rows are supervised, against tables written by hand."""
import torch

from stages.lib import supervision


def table(mask, document, steps=3):
    mask, document = torch.tensor([mask]).bool(), torch.tensor([document])
    return [supervision.supervised(mask, document, k)[0].nonzero()[:, 0].tolist() for k in range(steps)]


def test_golden_table_of_a_two_turn_dialogue():
    #         user      answer        user     answer
    tokens = ["u", "u", "a", "b", "c", "v", "v", "d", "e"]
    mask = [0, 0, 1, 1, 1, 0, 0, 1, 1]
    # step 0: row 1 (last prompt token, reads a) -> b; row 2 (reads b) -> c; row 6 (reads d) -> e. The row of c is out.
    # step 1: row 1 reads b -> c. The second answer is too short. step 2: nothing.
    assert len(tokens) == len(mask)
    assert table(mask, [0] * 9) == [[1, 2, 6], [1], []]


def test_the_last_prompt_row_is_in_and_the_end_token_row_is_out():
    assert table([0, 0, 0, 1, 1, 1], [0] * 6) == [[2, 3], [2], []]


def test_no_chain_crosses_from_one_answer_into_the_next():
    # Two answers with a single prompt token between them: a chain of three targets never bridges it.
    assert table([1, 1, 1, 0, 1, 1, 1], [0] * 7, 2) == [[0, 3, 4], [3]]


def test_no_chain_crosses_into_the_next_document():
    # The second document starts with a response token right behind the first one's end.
    assert table([0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1], 1) == [[0, 3]]


def test_empty_slots_supervise_nothing():
    assert table([0, 1, 1, 0, 0], [0, 0, 0, -1, -1], 2) == [[0], []]


def test_the_teacher_of_row_t_at_step_k_is_the_state_before_its_target():
    # next_id[t+1+k] is the target's word for x[t+2+k]; token 9 is outside the draft vocabulary.
    mask, document = torch.tensor([[0, 0, 1, 1, 1, 1]]).bool(), torch.zeros(1, 6, dtype=torch.long)
    next_id = torch.tensor([[-1, 3, 9, 4, 5, -1]])  # row 1 -> x2, row 2 -> x3 = 9, row 3 -> x4, row 4 -> x5
    words = torch.ones(10, dtype=torch.bool)
    words[9] = False
    rows = lambda step, stop: supervision.taught(mask, document, next_id, words, step, stop)[0].nonzero()[:, 0].tolist()
    assert rows(0, False) == [2, 3]   # row 1 targets x3, which the draft cannot say
    assert rows(1, False) == [1, 2]   # row 1 -> x4, row 2 -> x5
    assert rows(1, True) == [2]       # serving never reaches row 1's second step
