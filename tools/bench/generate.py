"""Tokens per second that generate gets out of the engine, beside what the engine makes of the same prompts in its own process.

    python -m tools.bench.generate TARGET OUT.json [--batches 32 256 1024] [--servers 1 2 4] [--tokens 192]

For each batch: sglang.Engine.generate (the floor: the engine's own throughput, no HTTP), and Eyrie's client on one server with as
many requests in flight; then several servers on the card with the largest batch on each. Median of three runs after a warm-up one.
"""
from stages.lib import cpu  # noqa: F401  before torch
import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from stages.engines import sglang_engine, sglang_server
from stages.lib import chat, files, params, prompts

REPEATS = 3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 256, 1024])
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--floor", action="store_true", help="only the engine in this process (it is started by the first form)")
    options = parser.parse_args()
    p = params.load("generate")
    flags = {**params.plain(p.engine.flags), "mem-fraction-static": 0.85, "max-total-tokens": 600_000,
             "max-running-requests": max(options.batches)}
    asked = questions(options.target, p)
    eos = files.read_json(options.target / "config.json")["eos_token_id"]
    sampling = sglang_engine.sampling(options.tokens, 0, 1.0, eos if isinstance(eos, list) else [eos])
    if options.floor:
        return floor(options, flags, p, asked, sampling)
    vocab, rows = files.read_json(options.target / "config.json")["vocab_size"], []

    def note(row):
        rows.append(row)
        print(json.dumps(row), flush=True)
        files.write_json(options.out, rows)

    # in a process of its own, which ends before the servers need the card
    part = options.out.with_suffix(".floor.json")
    words = [str(options.target), str(part), "--floor", "--tokens", str(options.tokens), "--batches", *map(str, options.batches)]
    subprocess.run([sys.executable, "-m", "tools.bench.generate", *words], check=False, timeout=400)
    for row in files.read_json(part) if part.exists() else []:
        note(row)
    for count in options.servers:
        engine = SimpleNamespace(**{**vars(p.engine), "servers": count, "flags": flags})
        with sglang_server.serve("bench-generate", options.target, engine) as servers:
            client = sglang_engine.Engine(servers, vocab)
            for batch in options.batches if count == 1 else options.batches[-1:]:
                client.room = [batch] * count
                some = many(asked, 4 * batch * count if batch < 1024 else 2 * batch * count)
                ask = lambda some=some, client=client: spoken(client.ask(some, sampling, [0] * len(some)))
                note(figures("eyrie generate", batch, timed(ask), servers=count))


def questions(folder, p):
    tok = chat.tokenizer(folder)
    return [chat.render(tok, chat.messages(row, [])) for row in prompts.read(p.prompts.files, None, p.prompts.max_bad).rows]


def many(asked, count):
    return [asked[i % len(asked)] for i in range(count)]


def spoken(answers):
    if failed := [a for a in answers if isinstance(a, Exception)]:
        raise failed[0]
    return sum(len(a.ids) for a in answers)


def floor(options, flags, p, asked, sampling):
    """sglang.Engine in this process: all prompts in one call, as many running at once as the batch."""
    import sglang
    rows, own = [], {k: v for k, v in sampling.items() if k != "n"}
    for batch in options.batches:
        given = {**flags, "max-running-requests": batch}
        engine = sglang.Engine(model_path=str(options.target), dtype=p.engine.dtype, log_level="warning", random_seed=0,
                               **{name.replace("-", "_"): value for name, value in given.items()})
        try:
            some = many(asked, 4 * batch if batch < 1024 else 2 * batch)
            count = lambda some=some, engine=engine: sum(len(r["output_ids"]) for r in engine.generate(input_ids=some, sampling_params=own))
            rows.append(figures("sglang.Engine, in process", batch, timed(count)))
        finally:
            engine.shutdown()
        files.write_json(options.out, rows)


def timed(work):
    rates = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        tokens = work()
        rates.append(round(tokens / (time.perf_counter() - started)))
    return statistics.median(rates[1:]), min(rates[1:]), max(rates[1:])


def figures(system, batch, rate, **more):
    return {"system": system, "batch": batch, **dict(zip(("tokens_per_s", "lowest", "highest"), rate)), **more}


if __name__ == "__main__":
    main()
