"""generate: the target answers the training prompts.

In: data/prompts/train, data/target. Out: data/traces (JSON lines, token ids as the engine emitted them; manifest.json).
Alone: `python -m stages.generate` in an environment from `make env`; `dvc repro generate` does the same and records it.
"""
from stages.lib import cpu  # noqa: F401  before torch
import contextlib
import functools

from stages.engines import sglang_engine, sglang_server, transformers_engine
from stages.lib import answers, chat, files, params, progress, prompts, self_prompts, state, target, traces, workers
from stages.lib.refusal import Refusal, run

SERVED_BLOCKS = 3  # blocks under way at once on SGLang servers

engine = tok = stop_ids = settings = None  # one set per worker process


def setup(folder, p, stop):
    global engine, tok, stop_ids, settings
    engine = transformers_engine.of(folder, p.engine)
    tok, stop_ids, settings = chat.tokenizer(folder), stop, p


def main():
    p = params.load("generate")
    about = target.manifest()
    folder = target.open_target()
    read = prompts.read(p.prompts.files, p.prompts.limit, p.prompts.max_bad)
    with contextlib.ExitStack() as running:
        spread = functools.partial(run_on_engine, running, folder, about, p)
        rows, key = read.rows, [params.code_key("generate"), about["sha256"], params.plain(p.engine)]
        if p.prompts.self:
            rows = rows + own_prompts(spread, folder, about, p, key)

        # Blocks of consecutive prompts of one file: appended prompts or another file leave the earlier blocks as they are.
        key += [params.plain(p.generate), p.prompts.max_tokens]
        blocks = split(rows, p.generate.block)
        paths = [state.piece("generate", f"{files.digest_of(key, answers.key_of(block))}.json") for block in blocks]
        todo = [(block, path) for block, path in zip(blocks, paths) if not path.exists()]
        if len(todo) < len(blocks):
            print(f"generate: {len(blocks) - len(todo)} of {len(blocks)} blocks are already answered")
        spread(answer, todo, "generate", sum(len(row["turns"]) for block, _ in todo for row in block) * p.generate.max_new_tokens)

    results = [files.read_json(path) for path in paths]
    rows = [row for result in results for row in result["rows"]]
    quarantined = read.quarantined + [bad for result in results for bad in result["quarantined"]]
    check(p, rows, quarantined, sum(map(len, blocks)) + len(read.quarantined))

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


def run_on_engine(running, folder, about, p, work, tasks, title, total):
    """Do the tasks: in worker processes that each hold the target, or in threads that ask SGLang servers.

    The servers start with the first task that there is, and stay until `running` ends.
    """
    if not tasks:
        return
    if p.engine.name == "transformers":
        done = workers.run(work, tasks, p.exec.workers, setup, (folder, p, about["eos_token_ids"]), title, total)
    elif p.engine.name == "sglang":
        global engine, tok, stop_ids, settings
        if engine is None:
            servers = running.enter_context(sglang_server.serve("generate", folder, p.engine, seed=p.generate.seed))
            engine, tok = sglang_engine.Engine(servers, about["vocab_size"]), chat.tokenizer(folder)
            stop_ids, settings = about["eos_token_ids"], p
        done = workers.threads(work, tasks, SERVED_BLOCKS, title, total)
    else:
        raise Refusal(f"engine.name is {p.engine.name!r}; expected transformers or sglang")
    for _ in done:
        pass


def own_prompts(spread, folder, about, p, key):
    """prompts.self user turns by the target itself (stages/lib/self_prompts.py), as prompt rows."""
    tok = chat.tokenizer(folder)
    header, seeds = self_prompts.header(tok), self_prompts.seeds(p.prompts.self, p.generate.seed)
    pieces = [seeds[i:i + p.generate.block] for i in range(0, len(seeds), p.generate.block)]
    paths = [state.piece("generate", f"self-{files.digest_of(key, header, piece, p.generate.batch)}.json") for piece in pieces]
    spread(draw, [(header, piece, path) for piece, path in zip(pieces, paths) if not path.exists()], "self-prompts",
           p.prompts.self * self_prompts.MAX_TOKENS)
    draws = [(ids, finish) for path in paths for ids, finish in files.read_json(path)]
    rows, reasons = self_prompts.keep(draws, tok, set(about["eos_token_ids"]) | set(tok.all_special_ids))
    print(f"generate: {len(rows)} of {len(draws)} turns that the target wrote itself are prompts "
          f"({', '.join(f'{n} {reason}' for reason, n in sorted(reasons.items()))})", flush=True)
    return rows


def draw(task):
    """One piece of self-written turns, kept in the state dir."""
    header, seeds, path = task
    draws = []
    for start in range(0, len(seeds), settings.generate.batch):
        some = seeds[start:start + settings.generate.batch]
        draws += answers.decode(engine, [header] * len(some), self_prompts.MAX_TOKENS, self_prompts.TEMPERATURE, self_prompts.TOP_P, some,
                                stop_ids, workers.tick)
    files.write_json(path, [[[], "failed"] if isinstance(d, Exception) else [d[0], d[1]] for d in draws])


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
    if isinstance(engine, sglang_engine.Engine):  # the server's own template must say what ours says
        engine.render(tok, [chat.messages(row, []) for row in block])
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
