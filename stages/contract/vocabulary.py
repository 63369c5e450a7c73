"""d2t: SGLang reads entry i as target id minus i (models/llama_eagle3.py, load_weights). What else it can hold by mistake."""
import torch

from stages.contract import tensors
from stages.lib.served_folder import digest

# A map of offsets repeats a value wherever two neighbours of the target's vocabulary are both kept; one of target ids never does.
PATTERN = 64


def target_ids(d2t):
    """The target id of each draft id, int64 [Vd], as the server reads the map."""
    return d2t.long() + torch.arange(len(d2t))


def faults(folder, read, target, engine):
    """(code, evidence) from the map alone: at most 8 bytes a draft word are read."""
    found, _ = tensors.placed(folder, read, engine.version)
    size, vocab = read.draft_vocab_size, target.vocab_size
    if "d2t" not in found:
        if size and size < vocab:
            yield "EY-VOCAB-01", f"draft vocabulary {size}, target's {vocab}"
        return
    header, recorded = folder.tensors[found["d2t"]], (folder.training or {}).get("vocabulary")
    if header.dtype not in ("I64", "I32", "U32", "I16", "U16", "U8", "I8", "U64"):
        yield "EY-VOCAB-02", f"d2t is {header.dtype}"
        return
    rows = folder.tensors[found["lm_head.weight"]].shape[0] if "lm_head.weight" in found else size
    if len(header.shape) != 1 or (rows and header.shape[0] != rows):
        yield "EY-VOCAB-09", f"d2t has shape {tuple(header.shape)}, lm_head {rows} rows"
        return
    d2t = folder.read(found["d2t"]).long()
    t2d = folder.tensors.get(found.get("t2d"))
    comparable = t2d and t2d.dtype in ("BOOL", "U8", "I64") and tuple(t2d.shape) == (vocab,)
    kept = folder.read(found["t2d"]).bool().nonzero()[:, 0] if comparable else None
    yield from _reading(d2t, kept, recorded, vocab, target)


def _reading(d2t, kept, recorded, vocab, target):
    n, ids = len(d2t), target_ids(d2t)
    step = torch.arange(n)
    known = kept is not None or recorded is not None
    right = (kept is not None and torch.equal(ids, kept)) or (recorded is not None and digest(d2t) == recorded)
    absolute = (kept is not None and torch.equal(d2t, kept)) or (recorded is not None and digest(d2t - step) == recorded)
    if not known:
        absolute = n >= PATTERN and bool((d2t.diff() > 0).all()) and bool((d2t >= step).all()) and not torch.equal(d2t, step)
    if absolute:
        yield "EY-VOCAB-03", f"d2t runs from {d2t[0]} to {d2t[-1]}; read as offsets it leads up to {ids.max()} of {vocab}"
    elif n > 1 and torch.equal(d2t, step) and not right:
        yield "EY-VOCAB-04", f"d2t[i] = i for all {n} entries"
    elif bool((ids.diff() <= 0).any()) and not right:
        place = int((ids.diff() <= 0).nonzero()[0])
        yield "EY-VOCAB-05", f"draft ids {place} and {place + 1} are the target ids {ids[place]} and {ids[place + 1]}"
    elif int(ids.min()) < 0 or int(ids.max()) >= vocab:
        yield "EY-VOCAB-06", f"ids run from {ids.min()} to {ids.max()}, the target has {vocab}"
    elif kept is not None and not torch.equal(ids, kept):
        yield "EY-VOCAB-07", f"d2t keeps {n} words, t2d {len(kept)}; {len(set(ids.tolist()) ^ set(kept.tolist()))} differ"
    elif recorded is not None and digest(d2t) != recorded:
        yield "EY-VOCAB-08", f"sha256 of the map {digest(d2t)[:12]}, of the one in training {recorded[:12]}"
    elif missing := [token for token in target.end_tokens if token not in set(ids.tolist())]:
        yield "EY-VOCAB-11", f"end token{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
