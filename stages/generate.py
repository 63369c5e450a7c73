"""generate: the target answers the training prompts.

In: data/prompts/train, data/target. Out: data/traces (JSON lines, token ids as the engine emitted them; manifest.json).
Alone: `python -m stages.generate` in an environment from `make env`; `dvc repro generate` does the same and records it.
"""
from stages.lib import cpu  # noqa: F401  before torch
from stages.engines.transformers_engine import Engine
from stages.lib import answers, chat, files, params, progress, prompts, state, target, traces, workers
from stages.lib.refusal import Refusal, run

engine = tok = stop_ids = settings = None  # one set per worker process


def setup(folder, p, stop):
    global engine, tok, stop_ids, settings
    engine = Engine(folder, p.engine.version, p.engine.dtype, p.engine.threads)
    tok, stop_ids, settings = chat.tokenizer(folder), stop, p


def main():
    p = params.load("generate")
    about = target.manifest()
    folder = target.open_target()
    read = prompts.read(p.prompts.files, p.prompts.limit, p.prompts.max_bad)

    # Blocks of consecutive prompts of one file: appended prompts or another file leave the earlier blocks as they are.
    key = [params.code_key("generate"), about["sha256"], params.plain(p.engine), params.plain(p.generate), p.prompts.max_tokens]
    blocks = split(read.rows, p.generate.block)
    paths = [state.piece("generate", f"{files.digest_of(key, answers.key_of(block))}.json") for block in blocks]
    todo = [(block, path) for block, path in zip(blocks, paths) if not path.exists()]
    if len(todo) < len(blocks):
        print(f"generate: {len(blocks) - len(todo)} of {len(blocks)} blocks are already answered")
    most = sum(len(row["turns"]) for block, _ in todo for row in block) * p.generate.max_new_tokens
    for _ in workers.run(answer, todo, p.exec.workers, setup, (folder, p, about["eos_token_ids"]), "generate", most):
        pass

    results = [files.read_json(path) for path in paths]
    rows = [row for result in results for row in result["rows"]]
    quarantined = read.quarantined + [bad for result in results for bad in result["quarantined"]]
    check(p, rows, quarantined, len(read.rows) + len(read.quarantined))

    cut = sum(row["finish_reason"] == "length" for row in rows)
    kept = rows if p.generate.cut == "keep" else [row for row in rows if row["finish_reason"] == "stop"]
    out = state.begin("generate")
    for number, block in enumerate(split(kept, 10_000)):
        files.write_text(out / f"traces-{number:05d}.jsonl", traces.dump(block))
    files.write_json(out / "quarantined.json", quarantined)
    files.write_json(out / "manifest.json", {
        "target": about["sha256"], "engine": params.plain(p.engine), "generate": params.plain(p.generate),
        "rows": len(kept), "response_tokens": sum(len(row["response_ids"]) for row in kept),
        "prompt_tokens": sum(len(row["prompt_ids"]) for row in kept),
        "cut_at_limit": cut, "dropped": len(rows) - len(kept), "quarantined": len(quarantined)})
    state.publish(out, "data/traces")
    state.keep_only("generate", {path.name for path in paths})
    progress.summary("generate", rows=len(kept), response_tokens=sum(len(r["response_ids"]) for r in kept),
                     cut_at_limit=f"{cut} ({p.generate.cut})", quarantined=len(quarantined))


def split(rows, size):
    """Consecutive pieces of at most `size` rows, none across two sources."""
    pieces = []
    for row in rows:
        if not pieces or len(pieces[-1]) == size or pieces[-1][-1]["source"] != row["source"]:
            pieces.append([])
        pieces[-1].append(row)
    return pieces


def answer(task):
    """One block of prompts, kept in the state dir."""
    block, path = task
    g = settings.generate
    rows, quarantined = answers.of_block(block, engine, tok, stop_ids, settings.prompts.max_tokens, g.max_new_tokens,
                                         g.temperature, g.top_p, g.seed, g.batch, workers.tick)
    files.write_json(path, {"rows": rows, "quarantined": quarantined})


def check(p, rows, quarantined, asked):
    """What must not be trained on in silence."""
    if not any(row["response_ids"] for row in rows):
        reasons = "; ".join(f"{bad['id']}: {bad['reason']}" for bad in quarantined[:3])
        raise Refusal(f"no answer at all from {asked} prompts ({len(quarantined)} quarantined): nothing to train on; "
                      f"look at prompts.files and at the target's chat template. First: {reasons or 'empty answers'}")
    prompts.check_share(asked - len(quarantined), quarantined, p.prompts.max_bad)
    cut = sum(row["finish_reason"] == "length" for row in rows) / len(rows)
    if cut > p.generate.max_cut:
        raise Refusal(f"{cut:.0%} of the answers were cut at generate.max_new_tokens = {p.generate.max_new_tokens}, over "
                      f"generate.max_cut = {p.generate.max_cut}; raise the first, or allow more cut rows")
    if p.generate.cut not in ("keep", "drop"):
        raise Refusal(f"generate.cut is {p.generate.cut!r}; expected keep (train on cut answers, without an end token) or drop")


if __name__ == "__main__":
    run(main)
