"""How much of a server's own prefill rate is left when its states are captured and written to shards?

    python -m tools.bench.extract TARGET OUT.json [--lengths 512 2048 4096] [--tokens 262144] [--workers 8] [--in-process 2048]
                                  [--flags '{"load-format": "dummy"}']

The floor is the same server with the same flags and the same requests, without the plugin. Each figure is the median of three runs
after a warm-up one; sequences are random ids. --in-process also captures through sglang.Engine in this process, at these lengths.
"""
from stages.lib import cpu  # noqa: F401  before torch
import argparse
import json
import multiprocessing
import resource
import shutil
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import torch

from stages import extract
from stages.engines import sglang_capture, sglang_server
from stages.engines.sglang_path import plugin_environment
from stages.lib import files, params, workers

REPEATS = 3
GROUP_TOKENS = 16384  # as sglang_capture.capture sends them


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 4096])
    parser.add_argument("--tokens", type=int, default=262_144)
    parser.add_argument("--shard-tokens", type=int, default=16_384)
    parser.add_argument("--workers", type=int, nargs="+", default=[8])
    parser.add_argument("--flags", type=json.loads, default={})
    parser.add_argument("--in-process", type=int, nargs="*", default=[], metavar="LENGTH")
    options = parser.parse_args()
    config = files.read_json(options.target / "config.json")
    n = config["num_hidden_layers"]
    taps = [2, n // 2, n - 3]
    base = params.load("extract")
    engine = SimpleNamespace(**{**vars(base.engine), "servers": 1, "flags": {**params.plain(base.engine.flags), **options.flags}})
    p = SimpleNamespace(engine=engine, extract=SimpleNamespace(dtype="bfloat16"), exec=base.exec)
    batches = {length: sequences(length, options.tokens, config["vocab_size"]) for length in options.lengths}
    rows = []

    def note(system, length, rate, **more):
        peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 2**20
        rows.append({"system": system, "target": config["architectures"][0], "hidden_size": config["hidden_size"], "layers": n,
                     "boundaries": taps, "length": length, "tokens": options.tokens,
                     **dict(zip(("tokens_per_s", "lowest", "highest"), rate)), "largest_process_gib": round(peak, 2), **more})
        print(json.dumps(rows[-1]), flush=True)
        files.write_json(options.out, rows)

    with sglang_server.serve("bench-prefill", options.target, engine, sglang_capture.flags()) as servers:
        send = sglang_capture.over_http(servers[0].url)
        for length, batch in batches.items():
            note("prefill without capture", length, timed(lambda batch=batch: prefill(send, batch), options.tokens))
    with sglang_capture.session("bench-capture", options.target, engine, taps) as (capture, _):
        for length, batch in batches.items():
            for count in options.workers:
                note("eyrie extract", length, of_shards(p, taps, capture, batch, count, options), workers=count)
    if options.in_process:
        for length, rate in in_process(options, engine, taps, {length: batches[length] for length in options.in_process}):
            note("eyrie capture, in process", length, rate)


def sequences(length, tokens, vocab):
    noise = torch.Generator().manual_seed(length)
    return [torch.randint(3, vocab, (length,), generator=noise).tolist() for _ in range(tokens // length)]


def timed(work, tokens):
    """(median, lowest, highest) tokens per second."""
    rates = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        work()
        rates.append(round(tokens / (time.perf_counter() - started)))
    return statistics.median(rates[1:]), min(rates[1:]), max(rates[1:])


def prefill(send, batch):
    groups = sglang_capture.grouped([(f"bench-{i}", ids) for i, ids in enumerate(batch)], GROUP_TOKENS)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda group: send([name for name, _ in group], [ids for _, ids in group]), groups))


def of_shards(p, taps, capture, batch, count, options):
    """As stages/extract.py does it: `count` processes, shards written to the disk of the workspace (and removed). The processes live for
    all runs: their start, some seconds of a run of hours, is not what is measured."""
    documents = [{"id": str(i), "turn": 0, "prompt_ids": ids[:len(ids) // 2], "response_ids": ids[len(ids) // 2:]}
                 for i, ids in enumerate(batch)]
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=".eyrie"))
    tasks = [(shard, folder / f"{i}.safetensors") for i, shard in enumerate(extract.split(documents, options.shard_tokens))]
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(count, mp_context=context, initializer=client, initargs=(p, taps, capture)) as pool:
            list(pool.map(time.sleep, [1] * count))  # all of them are there
            return timed(lambda: list(pool.map(extract.extract_served_shard, tasks)), options.tokens)
    finally:
        shutil.rmtree(folder)


def client(p, taps, capture):
    workers.tick = lambda n: None
    extract.setup_client(p, taps, capture)


def in_process(options, engine, taps, batches):
    """(length, rate) of capture without HTTP, shards not written."""
    import os

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        rows = Path(folder) / "rows"
        # the schedulers are processes of their own: they find the plugin as a server's do
        os.environ.update({**plugin_environment(Path(folder) / "plugin"), **sglang_capture.environment(taps, rows)})
        import sglang
        flags = {**params.plain(engine.flags), **sglang_capture.flags()}
        made = sglang.Engine(model_path=str(options.target), dtype=engine.dtype, log_level="warning",
                             **{name.replace("-", "_"): value for name, value in flags.items()})
        try:
            send = sglang_capture.in_process(made)

            def drain(batch):
                for _ in sglang_capture.capture(send, rows, batch, [0] * len(batch)):
                    pass
            for length, batch in batches.items():
                yield length, timed(lambda batch=batch: drain(batch), options.tokens)
        finally:
            made.shutdown()


if __name__ == "__main__":
    main()
