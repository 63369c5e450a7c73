"""Tokens per second of a server at a batch: warmed up, median of repeats."""
import statistics
import time

from stages.lib.refusal import Refusal


def tokens_per_s(engine, prompts, params, seeds, batch, repeats=3):
    """(median, lowest, highest) emitted tokens per second with `batch` requests in flight all the time, each answer's end replaced by
    the next prompt. One run of all prompts before the clock; the prefix cache is emptied before each run, or a repeat would have no
    prefill. Refusal where the server decodes fewer at once than `batch`."""
    if batch > (most := sum(engine.room) // 2):
        raise Refusal(f"a batch of {batch} does not run at once on servers that decode {most}; raise max-running-requests in engine.flags")
    if len(prompts) < batch:
        raise Refusal(f"{len(prompts)} prompts do not fill a batch of {batch}")
    rates = []
    for _ in range(repeats + 1):
        for server in engine.servers:
            server.http.call("/flush_cache", {})
        start = time.perf_counter()
        answers = engine.ask(prompts, params, seeds, in_flight=batch)
        seconds = time.perf_counter() - start
        if failed := [a for a in answers if isinstance(a, Exception)]:
            raise failed[0]
        rates.append(sum(len(a.ids) for a in answers) / seconds)
    return statistics.median(rates[1:]), min(rates[1:]), max(rates[1:])
