"""extract: the traces go through the target once more, and its aux hidden states are kept.

In: data/traces, data/target. Out: data/states (shards of stages/lib/shards.py, manifest.json).
Alone: `python -m stages.extract`. A finished shard survives a kill; the complete set is renamed into place.
"""
from stages.lib import cpu  # noqa: F401  before torch
import functools
from types import SimpleNamespace

import torch

from stages.engines import sglang_capture, transformers_engine
from stages.lib import budget, capture, files, layer_parity, params, parity, progress, shards, state, target, traces, workers
from stages.lib.refusal import Refusal, run

engine = server = settings = boundaries = None  # one set per worker process


def setup(folder, p, taps):
    global engine, settings, boundaries
    engine, settings, boundaries = transformers_engine.of(folder, p.engine), p, taps


def main():
    p = params.load("extract")
    if p.extract.dtype not in shards.DTYPES:
        raise Refusal(f"extract.dtype is {p.extract.dtype!r}; expected one of {', '.join(shards.DTYPES)}")
    about = target.manifest()
    taps = capture.boundaries_of(p.capture.layer_ids, p.capture.offset, about["num_hidden_layers"])
    rows = traces.read()

    plan = split(rows, p.extract.shard_tokens)
    key = [params.code_key("extract"), about["sha256"], params.plain(p.engine), taps, params.plain(p.extract)]
    paths = [state.piece("extract", f"{files.digest_of(key, shard)}.safetensors") for shard in plan]
    todo = [(shard, path) for shard, path in zip(plan, paths) if not path.exists()]
    if len(todo) < len(plan):
        print(f"extract: {len(plan) - len(todo)} of {len(plan)} shards are already there")
    tokens = sum(length(row) for shard, _ in todo for row in shard)
    per_token = shards.bytes_per_token(len(taps), about["hidden_size"], p.extract.dtype)
    budget.check_disk("extract", tokens, per_token, remedy="extract fewer prompts (prompts.limit), set extract.dtype to "
                      "fp8, or move the workspace and DVC's cache to a larger disk")

    folder = target.open_target()
    greedy = files.read_json("data/traces/manifest.json")["generate"]["temperature"] == 0
    if p.engine.name == "transformers":
        setup(folder, p, taps)
        figures = parity.probe(engine, rows, taps, p.extract.probe_rows, greedy, p.engine.dtype)
        budget.check_time("extract", tokens, figures.pop("tokens_per_s") * max(1, min(p.exec.workers, len(todo))), p.exec.max_hours)
        for _ in workers.run(extract, todo, p.exec.workers, setup, (folder, p, taps), "extract", tokens):
            pass
    elif p.engine.name == "sglang":
        figures = extract_served(folder, p, taps, rows, todo, tokens, greedy, about["num_hidden_layers"])
    else:
        raise Refusal(f"engine.name is {p.engine.name!r}; expected transformers or sglang")

    out = state.begin("extract")
    listed = []
    for number, (shard, path) in enumerate(zip(plan, paths)):
        name = f"states-{number:05d}.safetensors"
        state.link(path, out / name)
        listed.append({"file": name, "sha256": files.sha256(path), "documents": len(shard), "tokens": sum(map(length, shard))})
    files.write_json(out / "manifest.json", {
        "boundaries": taps, "layer_ids": list(p.capture.layer_ids), "offset": p.capture.offset, "dtype": p.extract.dtype,
        "hidden_size": about["hidden_size"], "engine": params.plain(p.engine), "target": about["sha256"], "shards": listed,
        "documents": [[row["id"], row["turn"]] for row in rows], "tokens": sum(map(length, rows)),
        "response_tokens": sum(len(row["response_ids"]) for row in rows), "parity": figures})
    state.publish(out, "data/states")
    state.keep_only("extract", {path.name for path in paths})
    progress.summary("extract", documents=len(rows), tokens=sum(map(length, rows)), bytes_per_token=per_token,
                     boundaries=taps, parity_p1=figures["cosine_p1_min"], head_repeats=figures["head_repeats"])


def extract_served(folder, p, taps, rows, todo, tokens, greedy, num_layers):
    """The same shards from an SGLang server that runs the capture plugin. Its rows are held against a plain forward of transformers, or
    (engine.parity: layers) against single layers of the checkpoint. Returns the figures for the manifest."""
    states_alone = lambda capture, sequences: [states[:2] for states in capture(sequences, [0] * len(sequences))]
    if parity.by_layers(p.engine):
        with sglang_capture.session("parity", folder, p.engine, layer_parity.both_sides(taps, num_layers)) as (capture, _):
            figures = layer_parity.probe(functools.partial(states_alone, capture), folder, rows, taps, num_layers, p.extract.probe_rows,
                                         greedy, p.engine.dtype)
    with sglang_capture.session("extract", folder, p.engine, taps) as (capture, report):
        if not parity.by_layers(p.engine):
            setup(folder, p, taps)
            both = SimpleNamespace(capture=lambda sequences, _: states_alone(capture, sequences),
                                   plain_states=engine.plain_states, head_weight=engine.head_weight)
            figures = parity.probe(both, rows, taps, p.extract.probe_rows, greedy, p.engine.dtype)
        budget.check_time("extract", tokens, figures.pop("tokens_per_s"), p.exec.max_hours)
        for _ in workers.run(extract_served_shard, todo, p.exec.workers, setup_client, (p, taps, capture), "extract", tokens):
            pass
    return {**figures, "plugin": report}


def setup_client(p, taps, capture):
    global server, settings, boundaries
    server, settings, boundaries = capture, p, taps


def extract_served_shard(task):
    """One shard from the server. Several processes take one each: what a server of an 8 B target captures is more than one can write."""
    rows, path = task
    found = server([row["prompt_ids"] + row["response_ids"] for row in rows], [len(row["prompt_ids"]) - 1 for row in rows], ahead=2)
    documents = []
    for (aux, last, next_id), row in zip(found, rows):
        next_id[-1] = -1  # nothing supervised follows
        documents.append(document(row, aux, last, next_id))
        workers.tick(length(row))
    put(rows, path, documents)  # rows_of has looked for what is not finite


def length(row):
    return len(row["prompt_ids"]) + len(row["response_ids"])


def split(rows, shard_tokens):
    """Consecutive rows, at most `shard_tokens` tokens a shard (one row at least), so that appended rows only touch the last."""
    pieces, room = [], 0
    for row in rows:
        if not pieces or room < length(row):
            pieces.append([])
            room = shard_tokens
        pieces[-1].append(row)
        room -= length(row)
    return pieces


def extract(task):
    """One shard: batches of rows of like length through the target, put back in trace order."""
    rows, path = task
    sequences = [row["prompt_ids"] + row["response_ids"] for row in rows]
    documents = [None] * len(rows)
    for group in capture.batches_by_length([len(s) for s in sequences], settings.extract.batch_tokens):
        for i, (aux, last) in zip(group, engine.capture([sequences[i] for i in group], boundaries)):
            documents[i] = document(rows[i], aux, last, next_words(rows[i], last))
        workers.tick(sum(len(sequences[i]) for i in group))
    write(rows, path, documents)


def write(rows, path, documents):
    """One shard of these documents. A Refusal names a row whose states are not finite."""
    for row, states in zip(rows, documents):
        for name in ("aux", "last"):
            if not all(end.float().isfinite() for end in states[name].aminmax()):  # a mask of all values takes forty times as long
                raise Refusal(f"the {name} states of trace {row['id']} turn {row['turn']} are not finite; check the target's "
                              f"weights and engine.dtype ({settings.engine.dtype})")
    put(rows, path, documents)


def put(rows, path, documents):
    tensors = {name: torch.cat([d[name] for d in documents]) for name in documents[0]}
    cu_seqlens = torch.tensor([0, *map(length, rows)]).cumsum(0)
    shards.write(path, {**tensors, "cu_seqlens": cu_seqlens})


def next_words(row, last):
    """The head runs only where its argmax is ever read: before supervised tokens.

        token      x0   x1  ...  x(P-1)   xP   ...  xE          P prompt tokens, E the last response token
        loss_mask   0    0         0       1         1
        next_id    -1   -1       head    head       -1           next_id[t] is the target's word for x[t+1]
    """
    next_id = torch.full((length(row),), -1, dtype=torch.int32)
    next_id[len(row["prompt_ids"]) - 1:-1] = engine.next_ids(last[len(row["prompt_ids"]) - 1:-1]).int()
    return next_id


def document(row, aux, last, next_id):
    """One row's tensors."""
    return {"input_ids": torch.tensor(row["prompt_ids"] + row["response_ids"], dtype=torch.int32),
            "loss_mask": torch.arange(length(row)) >= len(row["prompt_ids"]),
            "last": last.to(torch.float32 if settings.extract.dtype == "float32" else torch.bfloat16), "next_id": next_id,
            **shards.pack(aux, len(boundaries), settings.extract.dtype)}


if __name__ == "__main__":
    run(main)
