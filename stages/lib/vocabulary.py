"""The draft vocabulary: which target tokens the draft can say, and the map between the two numberings."""
import torch

from stages.lib.refusal import Refusal


def count(states, documents, vocab_size):
    """How often each target token is asked of the draft: int64 [V] over the supervised targets of step 0.

    That is every response token but each answer's first, which the target's prefill produces.
    """
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for index in documents:
        tensors = states.document(index, ("input_ids", "loss_mask"))
        mask = tensors["loss_mask"]
        counts += torch.bincount(tensors["input_ids"][2:][mask[1:-1] & mask[2:]].long(), minlength=vocab_size)
    return counts


def choose(counts, size):
    """The `size` most frequent tokens as d2t: int64 [size], target id minus draft id, target ids ascending.

    Ties by (-count, id), so unseen tokens fill up from the lowest id and the result never depends on the order of the
    data. SGLang reads d2t as offsets: target = i + d2t[i] (models/llama_eagle3.py, 0.5.15.post1).
    """
    if not 0 < size <= len(counts):
        raise Refusal(f"draft.vocab_size is {size}; expected 1 to {len(counts)}, the target's vocabulary")
    kept = sorted(sorted(range(len(counts)), key=lambda token: (-counts[token].item(), token))[:size])
    return torch.tensor(kept) - torch.arange(size)


def target_ids(d2t):
    """The target id of each draft id: int64 [Vd], ascending."""
    return torch.arange(len(d2t)) + d2t


def inside(d2t, vocab_size):
    """bool [V]: can the draft say this token?"""
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[target_ids(d2t)] = True
    return mask


def draft_ids(d2t, vocab_size):
    """int64 [V]: the draft id of each target id, -1 where it has none."""
    ids = torch.full((vocab_size,), -1)
    ids[target_ids(d2t)] = torch.arange(len(d2t))
    return ids


def coverage(counts, d2t):
    """Share of the counted tokens that the draft can say."""
    total = counts.sum().item()
    return counts[target_ids(d2t)].sum().item() / total if total else 0.0
