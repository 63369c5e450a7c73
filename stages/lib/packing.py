"""Several documents in one row of fixed length, and what keeps them apart.

A pack is one row of S slots; a batch is B packs. Legend: B packs, S slots, K boundaries, H hidden size.
"""
from dataclasses import dataclass

import torch

from stages.lib.refusal import Refusal

OPEN_PACKS = 32  # how many packs may wait for a document that fits; bounds the work on large corpora


def plan(lengths, pack_tokens, batch_packs, order):
    """Documents -> batches of packs: a list of batches, each a list of packs, each a list of document indices.

    order: the documents in the order to place them. First fit into the packs still open. Every document appears
    exactly once. A document longer than a pack is a Refusal, never cut in silence.
    """
    packs, open_packs = [], []
    for document in order:
        need = lengths[document]
        if need > pack_tokens:
            raise Refusal(f"a document has {need} tokens and train.pack_tokens is {pack_tokens}; raise it to at least the longest "
                          f"document ({max(lengths)} tokens), or lower prompts.max_tokens or generate.max_new_tokens")
        place = next((i for i, (_, room) in enumerate(open_packs) if room >= need), None)
        if place is None:
            packs.append([])
            open_packs.append((packs[-1], pack_tokens))
            place = len(open_packs) - 1
        pack, room = open_packs[place]
        pack.append(document)
        open_packs[place] = (pack, room - need)
        if len(open_packs) > OPEN_PACKS:
            open_packs.pop(min(range(len(open_packs)), key=lambda i: open_packs[i][1]))
    return [packs[i:i + batch_packs] for i in range(0, len(packs), batch_packs)]


def shuffled(count, seed, epoch):
    """A permutation that depends on the seed and the epoch alone, so that a resumed run sees the same batches."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch)).tolist()


@dataclass
class Batch:
    """Tensors [B, S, ...]; empty slots have document -1."""
    input_ids: torch.Tensor   # int64
    loss_mask: torch.Tensor   # bool
    document: torch.Tensor    # int64, the place of the document inside its pack, -1 where empty
    position: torch.Tensor    # int64, from 0 inside each document
    aux: torch.Tensor         # [B, S, K*H]
    last: torch.Tensor        # [B, S, H]
    next_id: torch.Tensor     # int64
    packs: list               # document indices, as planned

    def to(self, device):
        """The same batch there; itself where it is there already."""
        return Batch(**{name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in vars(self).items()})


def collate(states, packs, pack_tokens):
    """Read the documents of `packs` from the states and lay them out."""
    first = states.document(packs[0][0])
    shape = (len(packs), max(sum(states.lengths[d] for d in pack) for pack in packs))
    assert shape[1] <= pack_tokens
    batch = Batch(torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.bool), torch.full(shape, -1),
                  torch.zeros(shape, dtype=torch.long), first["aux"].new_zeros(*shape, first["aux"].shape[-1]),
                  first["last"].new_zeros(*shape, first["last"].shape[-1]), torch.full(shape, -1), packs)
    for b, pack in enumerate(packs):
        start = 0
        for place, index in enumerate(pack):
            tensors = states.document(index)
            rows = slice(start, start := start + states.lengths[index])
            batch.input_ids[b, rows] = tensors["input_ids"].long()
            batch.loss_mask[b, rows] = tensors["loss_mask"]
            batch.document[b, rows] = place
            batch.position[b, rows] = torch.arange(states.lengths[index])
            batch.aux[b, rows], batch.last[b, rows] = tensors["aux"], tensors["last"]
            batch.next_id[b, rows] = tensors["next_id"].long()
    return batch
