"""d2t: SGLang reads entry i as target id minus i (models/llama_eagle3.py, load_weights). What else it can hold by mistake.

In numpy, so that the static checks need not wait for torch to be imported.
"""
import hashlib

import numpy as np

from stages.contract import tensors

# A map of offsets repeats a value wherever two neighbours of the target's vocabulary are both kept; one of target ids never does.
PATTERN = 64
INTEGERS = ("I64", "I32", "U32", "I16", "U16", "U8", "I8", "U64")


def digest(d2t):
    """sha256 of the map's int64 bytes: what tells two draft vocabularies apart, recorded by train and export."""
    return hashlib.sha256(np.ascontiguousarray(d2t, dtype=np.int64).tobytes()).hexdigest()


def faults(folder, read, target, engine):
    """(code, evidence) from the map alone: at most 8 bytes a draft word are read."""
    found, _ = tensors.placed(folder, read, engine.version)
    size, vocab = read.draft_vocab_size, target.vocab_size
    if "d2t" not in found:
        if size and size < vocab:
            yield "EY-VOCAB-01", f"draft vocabulary {size}, target's {vocab}"
        return
    header, recorded = folder.tensors[found["d2t"]], (folder.training or {}).get("vocabulary")
    if header.dtype not in INTEGERS:
        yield "EY-VOCAB-02", f"d2t is {header.dtype}"
        return
    rows = folder.tensors[found["lm_head.weight"]].shape[0] if "lm_head.weight" in found else size
    if len(header.shape) != 1 or (rows and header.shape[0] != rows):
        yield "EY-VOCAB-09", f"d2t has shape {tuple(header.shape)}, lm_head {rows} rows"
        return
    t2d = folder.tensors.get(found.get("t2d"))
    comparable = t2d and t2d.dtype in ("BOOL", "U8", "I64") and tuple(t2d.shape) == (vocab,)
    kept = np.flatnonzero(folder.read(found["t2d"], "np")) if comparable else None
    yield from _reading(folder.read(found["d2t"], "np").astype(np.int64), kept, recorded, vocab, target)


def _reading(d2t, kept, recorded, vocab, target):
    step = np.arange(len(d2t))
    ids = d2t + step
    known = kept is not None or recorded is not None
    is_map = lambda its_ids, its_map: known and (digest(its_map) == recorded or kept is not None and np.array_equal(its_ids, kept))
    right, absolute = is_map(ids, d2t), is_map(d2t, d2t - step)
    counts = np.array_equal(d2t, step)
    if not known:
        absolute = len(d2t) >= PATTERN and bool((np.diff(d2t) > 0).all() and (d2t >= step).all()) and not counts
    falls = np.flatnonzero(np.diff(ids) <= 0)
    if absolute:
        yield "EY-VOCAB-03", f"d2t runs from {d2t[0]} to {d2t[-1]}; read as offsets it leads up to {ids.max()} of {vocab}"
    elif len(d2t) > 1 and counts and not right:
        yield "EY-VOCAB-04", f"d2t[i] = i for all {len(d2t)} entries"
    elif len(falls) and not right:
        yield "EY-VOCAB-05", f"draft ids {falls[0]} and {falls[0] + 1} are the target ids {ids[falls[0]]} and {ids[falls[0] + 1]}"
    elif ids.min() < 0 or ids.max() >= vocab:
        yield "EY-VOCAB-06", f"ids run from {ids.min()} to {ids.max()}, the target has {vocab}"
    elif kept is not None and not np.array_equal(ids, kept):
        yield "EY-VOCAB-07", f"d2t keeps {len(ids)} words, t2d {len(kept)}; {len(np.setxor1d(ids, kept))} differ"
    elif recorded is not None and digest(d2t) != recorded:
        yield "EY-VOCAB-08", f"sha256 of the map {digest(d2t)[:12]}, of the one in training {recorded[:12]}"
    elif missing := [token for token in target.end_tokens if token not in ids]:
        yield "EY-VOCAB-11", f"end token{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
