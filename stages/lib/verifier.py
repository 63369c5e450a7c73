"""The exact greedy verifier: how many drafts would the target have accepted?

At temperature 0 the target's answer is fixed, so speculative decoding can be replayed on it: as long as a chain agrees
with the answer, the draft's own tokens are the answer's tokens, and after its first miss the rest does not count. One
teacher-forced pass therefore gives every chain at once, and walking over them gives the same counts as decoding.

    p      the last verified token; the first one comes from the prompt's prefill
    drafts x[p+1] .. x[p+k] from row p-1, whose states the target has computed
    a      accepted: leading drafts that are right. The pass emits x[p+1] .. x[p+a+1], the last one being the bonus

The pass that emits the answer's last token is left out: a server counts drafts beyond the stop there, and the answer
does not say what those would have been.
"""
import torch

from stages.lib import packing, supervision
from stages.lib.loss import chain_rows

HEADLINE_CHAIN = 5


@torch.no_grad()
def matches(draft, batch, target_ids, chain):
    """bool [B, S, chain]: are drafts 0..k of row t the answer's x[t+2] .. x[t+2+k]? False past the answer's end.

    A chain that has missed once is dead, so its later words are not looked up.
    """
    rows, filled = chain_rows(batch.loss_mask, batch.document)
    right = torch.zeros(*batch.input_ids.shape, chain, dtype=torch.bool, device=rows.device)
    pack, alive = torch.arange(len(rows), device=rows.device)[:, None].expand_as(rows), filled.clone()
    for step, state in enumerate(draft.chain(batch, chain, rows)):
        alive &= supervision.supervised(batch.loss_mask, batch.document, step).gather(1, rows)
        truth = supervision.ahead(batch.input_ids, step + 2, -1).gather(1, rows)
        alive[alive.clone()] = target_ids[draft.logits(state[alive]).argmax(-1)] == truth[alive]
        right[pack[alive], rows[alive], step] = True
    return right


def walk(right, first, end):
    """Histogram of one answer: entry j = counted verify passes with j accepted drafts, length chain + 1.

    right: per row a list of `chain` booleans. first, end: places of the answer's first and last token in the document.
    """
    chain = len(right[0])
    histogram, verified = [0] * (chain + 1), first
    while verified < end:
        row, accepted = right[verified - 1], 0
        while accepted < chain and row[accepted]:
            accepted += 1
        verified += accepted + 1
        if verified < end:
            histogram[accepted] += 1
    return histogram


def replay(draft, states, documents, target_ids, chains, pack_tokens, batch_packs, tick=lambda n: None):
    """Histograms of `documents` for each chain length: {chain: [histogram per document]}. The draft is where target_ids are."""
    longest = max(chains)
    result = {chain: [None] * len(documents) for chain in chains}
    place = {document: i for i, document in enumerate(documents)}
    for packs in packing.plan(states.lengths, pack_tokens, batch_packs, documents):
        batch = packing.collate(states, packs, pack_tokens)
        right = matches(draft, batch.to(target_ids.device), target_ids, longest).cpu()
        for b, pack in enumerate(packs):
            start = 0
            for document in pack:
                stop = start + states.lengths[document]
                answer = batch.loss_mask[b, start:stop].nonzero()[:, 0]
                rows = right[b, start:stop].tolist()
                for chain in chains:
                    result[chain][place[document]] = walk([row[:chain] for row in rows], int(answer[0]), int(answer[-1]))
                start = stop
        tick(sum(states.lengths[d] for pack in packs for d in pack))
    return result


def decode(engine, served, prompt_ids, max_new_tokens, stop_ids, chain, boundaries):
    """Real greedy speculative decoding of one prompt with a KV cache on both sides, as a server does it.

    engine: the target (transformers_engine.Engine). served: a fresh contract.forward.ServedDraft. Returns the answer's
    ids, its histogram of accepted drafts (last pass left out), and the smallest margin between the target's two best
    logits: below rounding, a tie could as well go the other way.
    """
    from transformers import DynamicCache
    cache = DynamicCache()
    logits, aux = engine.verify(prompt_ids, cache, boundaries)
    answer, margins = [int(logits[-1].argmax())], [margin(logits[-1:])]
    served.extend([*prompt_ids[1:], answer[-1]], aux)
    histogram = [0] * (chain + 1)
    while answer[-1] not in stop_ids and len(answer) < max_new_tokens:
        drafts = served.propose(chain)
        logits, aux = engine.verify([answer[-1], *drafts], cache, boundaries)
        words = logits.argmax(-1).tolist()
        accepted = 0
        while accepted < chain and drafts[accepted] == words[accepted]:
            accepted += 1
        margins.append(margin(logits[:accepted + 1]))
        emitted = words[:accepted + 1]
        cache.crop(len(prompt_ids) + len(answer) + accepted)  # drop the refused drafts
        served.extend(emitted, aux[:accepted + 1])
        stop = next((i for i, token in enumerate(emitted) if token in stop_ids), None)
        answer += emitted if stop is None else emitted[:stop + 1]
        if stop is None and len(answer) < max_new_tokens:
            histogram[accepted] += 1
    return answer[:max_new_tokens], histogram, min(margins)


def margin(logits):
    """Smallest difference between the best and the second logit over the rows [n, V]."""
    best = logits.topk(2, -1).values
    return (best[:, 0] - best[:, 1]).min().item()
