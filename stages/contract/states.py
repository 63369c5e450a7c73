"""Are these states what this target computes at these boundaries, row for row? Each fault is (code, evidence with figures).

n rows of a document, K chunks, H hidden size. Candidates of a chunk: the boundaries 0 to the number of layers (the last one
is what the final norm reads), and behind them the post-norm last state, B+1 in all.
"""
from dataclasses import dataclass
from pathlib import Path

import torch

from stages.lib import parity, shards, target as targets, traces
from stages.lib.headers import read_object
from stages.lib.refusal import Refusal

IDENTIFIED = 0.5  # a boundary is found where its error is under half of the runner-up's, and of the state's own spread
REPEATED = 0.975  # share of greedy answer tokens that the target says again; ties apart it is all of them
TIE = 2**-6       # two logits this close, relative to the larger, change places with the batch's shape in bf16
NOISE = 0.1       # quartile of the centred error: storing states in bf16 costs 0.02, in 8 bits 0.04, on a 30-layer target
MANIFEST_LIMIT = 1_000_000_000  # bytes; a line for each document
BAD_ROWS = 0.02   # share of a document's rows that may lie further off than halfway to another boundary


@dataclass
class Document:
    """One document of somebody's states. first: the place of the answer's first token; what is None is not probed."""
    name: str
    ids: list
    aux: torch.Tensor                      # [n, K*H]
    last: torch.Tensor | None = None       # [n, H], post-norm
    loss_mask: torch.Tensor | None = None  # [n]
    first: int | None = None


@dataclass
class Chunk:
    """What one chunk of the aux states is. An error is a row's distance to the target's own state, relative to how far that
    lies from its mean over the rows: the large part that all rows share would flatten a plain ratio or cosine."""
    nearest: int              # the candidate with the smallest error
    error: float              # its first quartile over the rows
    runner_up: float          # the same of the second-nearest candidate
    cosines: torch.Tensor     # [B+1]: 1st percentile over the rows of the cosine to each candidate, their mean taken off
    rows: torch.Tensor        # [N]: the rows' errors at `nearest`

    @property
    def found(self):
        return self.error < self.limit

    @property
    def limit(self):
        """Halfway to another candidate, where a row belongs to neither."""
        return IDENTIFIED * min(1.0, self.runner_up)

    @property
    def bad(self):
        """[N]: rows that are none of this candidate's, beyond what noise spreads."""
        return self.rows > max(self.limit, 5 * self.error)


def identify(chunk, reference):
    """Which boundary is it? chunk [N, H] against the target's own states [N, B+1, H], row by row.

    The first quartile decides, so that a quarter of whole rows is enough; the corrupted ones are then told by their error.
    """
    errors, cosines = [], []
    for b in range(reference.shape[1]):
        x, s = chunk.float(), reference[:, b].float()
        mean = s.mean(0)
        errors.append((x - s).norm(dim=1) / (s - mean).norm(dim=1).clamp_min(1e-12))
        cosines.append(torch.cosine_similarity(x - mean, s - mean).quantile(0.01))
    errors = torch.stack(errors)
    quartile, order = errors.quantile(0.25, dim=1).sort()
    return Chunk(int(order[0]), quartile[0].item(), quartile[1].item(), torch.stack(cosines), errors[order[0]])


def states(documents, engine, expected, greedy=True):
    """EY-STATE-01 to -11: are the rows what this target computes at the boundaries `expected`, one per chunk, and is the rest
    of the document of one piece with them?

    engine: the target (engines.transformers_engine.Engine). greedy: the answers were decoded at temperature 0.
    """
    short, wild = [], []
    for d in documents:
        if len(d.aux) != len(d.ids) or d.last is not None and len(d.last) != len(d.ids):
            short.append(f"{d.name}: {len(d.aux)} rows of states for {len(d.ids)} tokens")
        elif not (finite := torch.isfinite(torch.cat([d.aux, *([] if d.last is None else [d.last])], 1).float()).all(1)).all():
            bad = (~finite).nonzero()[:, 0].tolist()
            wild.append(f"{d.name}: {len(bad)} of {len(d.ids)} rows are not finite, the first is row {bad[0]}")
    yield from together("EY-STATE-01", short)
    yield from together("EY-STATE-06", wild)
    if short or wild:
        return
    reference = [candidates(engine, d.ids) for d in documents]
    yield from aux_rows(documents, reference, expected)
    yield from last_rows(documents, reference, engine)
    if greedy:
        yield from answers(documents, reference, engine)
    yield from masks(documents)


def candidates(engine, sequence):
    """[n, B+1, H]: the sequence's states at every boundary 0 to the number of layers, and behind them the post-norm last one."""
    (aux, last), = engine.capture([sequence], list(range(len(engine.decoder.layers) + 1)))
    return torch.cat([aux, last], 1).unflatten(1, (-1, last.shape[1]))


def aux_rows(documents, reference, expected):
    """EY-STATE-02, -03, -07, -11. The first token is left out: its state is a thousand times larger than any other."""
    count = len(expected)
    width = {d.aux.shape[1] for d in documents}
    if width != {count * reference[0].shape[2]}:
        yield "EY-STATE-02", (f"rows are {sorted(width)} wide, {count} boundaries of this target are {count * reference[0].shape[2]}: "
                              "another number of boundaries, or another target")
        return

    def seen(shift):
        """Chunks, if row t holds the state of token t+shift."""
        pairs = [slices(len(d.ids), shift) for d in documents]
        theirs = torch.cat([d.aux[mine] for d, (mine, _) in zip(documents, pairs)]).unflatten(1, (count, -1))
        ours = torch.cat([r[true] for r, (_, true) in zip(reference, pairs)])
        return [identify(theirs[:, c], ours) for c in range(count)]

    chunks = seen(0)
    if not any(chunk.found for chunk in chunks):
        for shift in (-1, 1):
            if all(chunk.found for chunk in seen(shift)):
                yield "EY-STATE-07", (f"in every document row t holds the states of token t{shift:+d}: centred error "
                                      f"{max(c.error for c in seen(shift)):.3f} so, {min(c.error for c in chunks):.3f} as they stand")
                return
    name = lambda b: f"boundary {b}" if b < reference[0].shape[1] - 1 else "the post-norm last state"
    lost = [c for c, chunk in enumerate(chunks) if not chunk.found]
    noisy = [c for c, chunk in enumerate(chunks) if chunk.found and chunk.error > NOISE]
    if noisy:
        yield "EY-STATE-11", "; ".join(
            f"chunk {c} is {name(chunks[c].nearest)} only roughly: centred error {chunks[c].error:.2f}, storage alone costs under {NOISE}"
            for c in noisy) + ": the target of these states has another precision or other weights"
    if lost:
        yield "EY-STATE-11", "; ".join(
            f"chunk {c} is no boundary of this target: the nearest is {name(chunks[c].nearest)} with a centred error of "
            f"{chunks[c].error:.2f} and cosine {chunks[c].cosines[chunks[c].nearest]:.3f} (the right one has < {chunks[c].limit:.2f})"
            for c in lost) + ": the rows are in another basis (fine-tuned, quantised or another model)"
    found = [chunk.nearest for chunk in chunks]
    if not lost and found != list(expected):
        told = "; ".join(f"chunk {c} is {name(b)} (1st percentile of the centred cosine {chunk.cosines[b]:.4f}), expected {name(want)} "
                         f"({chunk.cosines[want]:.4f})" for c, (b, want, chunk) in enumerate(zip(found, expected, chunks)) if b != want)
        offset = {b - want for b, want in zip(found, expected)}
        if sorted(found) == sorted(expected):
            yield "EY-STATE-03", f"the boundaries {list(expected)} stand in the order {found}: {told}"
        else:
            together = f"all chunks are {abs(min(offset))} {'early' if min(offset) < 0 else 'late'}: " if len(offset) == 1 else ""
            yield "EY-STATE-02", together + told
    if len(lost) < count:
        yield from corrupted(documents, reference, [(c, chunk) for c, chunk in enumerate(chunks) if chunk.found])


def slices(n, shift):
    """(rows of the states, rows of the target) that pair row t with the target's t+shift, both without the first token."""
    return slice(1 + max(0, -shift), n - max(0, shift)), slice(1 + max(0, shift), n - max(0, -shift))


def corrupted(documents, reference, chunks):
    """EY-STATE-07 for the documents of which a part of the rows is not what most rows are."""
    told, start = [], 0
    for d, r in zip(documents, reference):
        n = len(d.ids) - 1
        bad = torch.stack([chunk.bad[start:start + n] for _, chunk in chunks]).any(0)
        start += n
        if bad.sum() > BAD_ROWS * n:
            rows = (bad.nonzero()[:, 0] + 1).tolist()
            told.append(f"{d.name}: {len(rows)} of {n} rows, {rows[0]} to {rows[-1]}{shifted(d, r, chunks)}")
    if told:
        yield "EY-STATE-07", f"{len(told)} of {len(documents)} documents hold rows that are not their tokens': " + "; ".join(told)


def shifted(d, r, chunks):
    """Is a whole document one row off? The words for it."""
    theirs = d.aux.unflatten(1, (-1, r.shape[2]))
    for shift in (-1, 1):
        mine, true = slices(len(d.ids), shift)
        again = [(identify(theirs[mine, c], r[true]), chunk) for c, chunk in chunks]
        if all(now.found and now.nearest == chunk.nearest for now, chunk in again):
            return f" (row t holds token t{shift:+d})"
    return ""


def last_rows(documents, reference, engine):
    """EY-STATE-04: is `last` what the head reads?"""
    pairs = [(d.last[1:].float(), r[1:, -2:].float()) for d, r in zip(documents, reference) if d.last is not None]
    if not pairs:
        return
    given, before, after = torch.cat([g for g, _ in pairs]), *(torch.cat([r[:, i] for _, r in pairs]) for i in (0, 1))
    with torch.inference_mode():
        twice = engine.decoder.norm(after.to(engine.model.dtype)).float()
    error = {name: ((given - s).norm(dim=1) / s.norm(dim=1)).quantile(0.99).item()
             for name, s in (("post-norm", after), ("pre-norm", before), ("normed twice", twice))}
    if error["post-norm"] > parity.LAST_ERROR:
        best = min(error, key=error.get)
        what = f"it is {best} (error {error[best]:.2f})" if error[best] <= parity.LAST_ERROR else "nor is it pre-norm or normed twice"
        yield "EY-STATE-04", (f"`last` is not the post-norm last state: 99th percentile of the relative error {error['post-norm']:.2f}, "
                              f"allowed {parity.LAST_ERROR}; {what}")


def answers(documents, reference, engine):
    """EY-STATE-05: does the target say these answers itself? Judged on its own states, so that a wrong `last` does not count."""
    own = asked = 0
    for d, r in zip(documents, reference):
        if d.first and d.first < len(d.ids):
            with torch.inference_mode():
                logits = engine.head(r[d.first - 1:-1, -1]).float()
            best, said = logits.amax(1), logits.gather(1, torch.tensor(d.ids[d.first:])[:, None])[:, 0]
            own += int((best - said <= TIE * best.abs()).sum())
            asked += len(best)
    if asked and own / asked < REPEATED:
        yield "EY-STATE-05", (f"the target would say {own / asked:.1%} of {asked} answer tokens itself, ties included, expected "
                              f"{REPEATED:.1%}: they are not its own greedy ones, or those of another target or precision")


def masks(documents):
    """EY-STATE-08: is the answer supervised, and nothing else?"""
    told = []
    for d in documents:
        if d.loss_mask is None:
            continue
        mask = d.loss_mask.bool()
        if not mask.any():
            told.append(f"{d.name}: no token of {len(mask)} is supervised")
        elif d.first is not None:
            right = torch.arange(len(mask)) >= d.first
            outside, missed = int((mask & ~right).sum()), int((right & ~mask).sum())
            if outside or missed:
                inner = lambda x, n: x[max(0, n):len(x) + min(0, n)]
                steps = [n for n in (-2, -1, 1, 2) if torch.equal(inner(mask, n), inner(right, -n))]
                moved = f"; it is the right one moved by {steps[0]:+d}" if steps else ""
                told.append(f"{d.name}: the mask covers {outside} tokens before the answer and misses {missed} of its "
                            f"{int(right.sum())}{moved}")
    yield from together("EY-STATE-08", told)


def together(code, sentences):
    """One fault of several documents."""
    if sentences:
        yield code, "; ".join(sentences[:3]) + (f"; and {len(sentences) - 3} more documents" if len(sentences) > 3 else "")


def of_states(directory, engine, traces_path=None, count=4, target=None):
    """`states` for a few documents of data/states, spread evenly, with their traces where there are any.

    traces_path: their folder or one file of them. target: the digest of the target that the states must be of, where it is known.
    Refusal for a folder that is none of extract's.
    """
    about, held = opened(directory)
    if target and about.get("target", target) != target:
        yield "EY-STATE-10", f"the states are of the target {about['target']:.12}, the draft was trained on {target[:12]}"
        return
    if foreign := swapped(directory, about):
        yield "EY-STATE-09", "; ".join(foreign)
        return
    held = held()
    rows = {(row.get("id"), row.get("turn")): row for row in (read_traces(traces_path) if traces_path else [])}
    if len(about["documents"]) != len(held.lengths):
        yield "EY-STATE-09", f"the shards hold {len(held.lengths)} documents, the manifest names {len(about['documents'])}"
        return
    documents = []
    for index in [i * len(held.lengths) // min(count, len(held.lengths)) for i in range(min(count, len(held.lengths)))]:
        tensors, name = held.document(index), tuple(about["documents"][index])
        row, ids = rows.get(name), tensors["input_ids"].tolist()
        if row and row["prompt_ids"] + row["response_ids"] != ids:
            yield "EY-STATE-01", f"document {name[0]} turn {name[1]}: its {len(ids)} tokens are not those of its trace"
            return
        documents.append(Document(f"document {name[0]} turn {name[1]}", ids, tensors["aux"], tensors["last"], tensors["loss_mask"],
                                  len(row["prompt_ids"]) if row else None))
    yield from states(documents, engine, about["boundaries"], traces_path is not None and greedy(traces_path))


def opened(directory):
    """(manifest, function that opens the shards) of a folder as extract writes it; Refusal for any other."""
    path = Path(directory) / "manifest.json"
    about = read_object(path, MANIFEST_LIMIT)
    try:
        names = [shard["file"] for shard in about["shards"] if shard["sha256"] and Path(shard["file"]).name == shard["file"]]
        right = (len(names) == len(about["shards"]) > 0 and about["dtype"] in shards.DTYPES and about["boundaries"]
                 and all(type(b) is int for b in about["boundaries"])
                 and all(isinstance(name, str) and type(turn) is int for name, turn in about["documents"]))
    except (KeyError, TypeError, ValueError):
        right = False
    if not right:
        raise Refusal(f"{path} does not say boundaries, dtype, documents and shards; expected data/states as extract writes it")
    return about, lambda: shards.States([Path(directory) / name for name in names], about)


def swapped(directory, about):
    """Sentences on shards that are not the ones of the manifest. Digests are remembered (stages/lib/target.py)."""
    said = []
    for shard in about["shards"]:
        found = targets.digests(directory, [shard["file"]])[shard["file"]] if (Path(directory) / shard["file"]).is_file() else None
        if found != shard["sha256"]:
            said.append(f"{shard['file']} has sha256 {(found or 'none: no such file')[:12]}, the manifest lists {shard['sha256'][:12]}")
    return said


def read_traces(path):
    """The rows of a traces folder, or of one file of them. Refusal for what is none."""
    path = Path(path)
    if not (path.is_dir() or path.is_file()):
        raise Refusal(f"{path} is no file; expected traces, one JSON object with prompt_ids and response_ids a line")
    try:
        rows = traces.read(path) if path.is_dir() else traces.read_file(path)
    except (UnicodeDecodeError, RecursionError, OSError) as error:
        raise Refusal(f"{path} holds no traces: {error}") from None
    for row in rows:
        for key in ("prompt_ids", "response_ids"):
            if not (isinstance(row[key], list) and all(type(token) is int for token in row[key])):
                raise Refusal(f"{path}: a row has the {key} {row[key]!r:.60}; expected a list of token ids")
    return rows


def greedy(path):
    """Does the traces' manifest say temperature 0? Where none lies beside them, nothing is asked of the answers."""
    manifest = (Path(path) if Path(path).is_dir() else Path(path).parent) / "manifest.json"
    generate = read_object(manifest).get("generate") if manifest.is_file() else None
    return isinstance(generate, dict) and generate.get("temperature") == 0
