"""golden.py against SGLang's own draft classes and loader."""
import pytest
import torch

from tests.contract import draft, golden


@pytest.mark.parametrize("case", golden.CASES, ids=lambda case: case.name)
def test_sglang_loads_a_draft_as_golden_says(case):
    config, tensors = case.files()
    ignored, unset, error = draft.served(config, tensors)
    assert (error and error[0]) == case.error, error
    if not error:
        assert ignored == case.ignored | ({"t2d"} & tensors.keys())
        assert unset == case.unset | ({golden.EMBEDDING} if "embed_tokens.weight" not in tensors else set())


@pytest.mark.parametrize("d2t,ids", [(torch.arange(64), [0, 2, 4, 6]),           # the offset of id 2i
                                     (torch.arange(64) * 2, [0, 3, 6, 9]),       # target ids in place of offsets: i is added again
                                     (torch.zeros(64, dtype=torch.int64), [0, 1, 2, 3])])
def test_d2t_is_read_as_an_offset(d2t, ids):
    config, tensors = golden.CASES[0].files()
    assert draft.load(config, {**tensors, "d2t": d2t}).get_hot_token_id()[:4].tolist() == ids


def test_d2t_in_bfloat16_rounds_target_ids():
    config, tensors = golden.CASES[0].files()
    offsets = torch.arange(64) + 1001
    hot = draft.load(config, {**tensors, "d2t": offsets.to(torch.bfloat16)}).get_hot_token_id()
    assert not torch.equal(hot.long(), torch.arange(64) + offsets)


def test_without_d2t_draft_ids_are_used_as_target_ids():
    config, tensors = golden.CASES[0].files()
    tensors.pop("d2t")
    assert draft.load(config, tensors).get_hot_token_id() is None
