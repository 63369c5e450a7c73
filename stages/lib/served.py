"""evaluate on real servers: what EAGLE-3 serving accepts on the evaluation prompts, how fast it is, and whether it is what the
exported draft does offline.

Counts are the requests' own, pass by pass (stages/engines/spec_counters.py); nothing is read from server-wide gauges.
"""
from pathlib import Path

import torch

from stages.contract.forward import ServedDraft, matches
from stages.engines import sglang_capture, sglang_engine, sglang_launch, sglang_server, throughput
from stages.engines.sglang_plugin import is_inert
from stages.lib import answers, files, gate, layer_parity, parity, state, verifier
from stages.lib.refusal import Refusal

IN_FLIGHT = 1       # streams at once: kernels round by batch, so that only answers given alone are the same words in every run
PROBED = 4          # answers for the parity of layers
BATCHES = (1, 8, 32)
SPEED_TOKENS = 128  # of each answer in a timed run


class Recorder:
    """An engine for answers.of_block that streams every answer and keeps its accepted drafts per verify pass."""

    def __init__(self, engine, chain):
        self.engine, self.chain, self.passes, self.last = engine, chain, {}, {}

    def generate(self, prompts, max_new_tokens, temperature, top_p, seeds, stop_ids, tick=lambda n: None):
        params = sglang_engine.sampling(max_new_tokens, temperature, top_p, stop_ids)
        results = []
        for prompt, found in zip(prompts, self.engine.stream(prompts, params, seeds, self.chain, IN_FLIGHT)):
            if isinstance(found, Exception):
                results.append(found)
                continue
            answer, self.passes[tuple(prompt)] = found
            self.last = answer.meta
            results.append((answer.ids, answer.reason))
            tick(len(answer.ids))
        return results


def histogram(passes, chain):
    """Entry j = verify passes with j accepted drafts."""
    return [passes.count(j) for j in range(chain + 1)]


def on_servers(p, about, folder, tok, prompt_rows, export="data/export"):
    """Everything that needs the EAGLE-3 servers: {"rows", "quarantined", "chains", "t1", "passes", "tokens_per_s"}.

    One server per chain length; the headline's also answers at temperature 1 and is timed, as is one without speculation. Greedy
    answers of the headline's server are the rows; other chains answer by themselves, since kernels round by batch.
    """
    if not is_inert():
        raise Refusal("EYRIE_CAPTURE or EYRIE_WATCH is set: the plugin would be awake in a server whose speed and acceptance are measured; "
                      "unset both")
    e, stop, found, speeds = p.evaluate, about["eos_token_ids"], {"chains": {}}, {}
    ask = lambda engine, temperature: answers.of_block(prompt_rows, engine, tok, stop, e.max_tokens, e.max_new_tokens, temperature, 1.0,
                                                       e.seed, len(prompt_rows), lambda n: None)
    for chain in sorted(e.chains, key=lambda k: k != verifier.HEADLINE_CHAIN):
        flags = sglang_launch.speculation(Path(export).resolve(), chain)
        with sglang_server.serve(f"evaluate-{chain}", folder, p.engine, flags, seed=e.seed) as servers:
            engine = sglang_engine.Engine(servers, about["vocab_size"])
            recorder = Recorder(engine, chain)
            rows, bad = ask(recorder, 0)
            passes = [recorder.passes[tuple(row["prompt_ids"])] for row in rows]
            files.write_json(state.piece("sglang", f"reply-chain-{chain}.json"), recorder.last)  # one of each, for whoever wonders
            found["chains"][chain] = [histogram(one, chain) for one in passes]
            if chain == verifier.HEADLINE_CHAIN:
                found |= {"rows": rows, "quarantined": bad, "passes": passes}
                warm = Recorder(engine, chain)
                sampled, _ = ask(warm, 1)
                found["t1"] = [histogram(warm.passes[tuple(row["prompt_ids"])], chain) for row in sampled]
                speeds["speculative"] = rates(engine, rows, stop)
    with sglang_server.serve("evaluate-plain", folder, p.engine, seed=e.seed) as servers:
        speeds["plain"] = rates(sglang_engine.Engine(servers, about["vocab_size"]), found["rows"], stop)
    return {**found, "tokens_per_s": speeds}


def rates(engine, rows, stop):
    """{batch: (median, lowest, highest) tokens/s} on prompts of the rows."""
    params = sglang_engine.sampling(SPEED_TOKENS, 0, 1.0, stop)
    prompts = [row["prompt_ids"] for row in rows]
    some = {batch: prompts[:max(4, 2 * batch)] for batch in BATCHES if batch <= len(prompts)}
    return {batch: throughput.tokens_per_s(engine, chosen, params, [0] * len(chosen), batch) for batch, chosen in some.items()}


def break_even(speeds, tau):
    """{batch: tau at which speculation pays}: a pass costs what it costs, so tokens/s grow with tau.

        tokens/s(spec) = tau / seconds per pass;   equal to plain where tau = plain * seconds per pass = tau measured * plain / spec
    """
    return {batch: tau * speeds["plain"][batch][0] / rate[0] for batch, rate in speeds["speculative"].items() if batch in speeds["plain"]}


def states_of(p, folder, rows, taps, num_layers):
    """aux [n, K*H] per row, from the same engine, at the served boundaries: many sequences in a step, and each alone.

    With engine.parity layers a few of them are held against single layers of the checkpoint first; a Refusal where they differ.
    """
    by_layers = parity.by_layers(p.engine)
    captured = layer_parity.both_sides(taps, num_layers) if by_layers else taps
    with sglang_capture.session("evaluate-states", folder, p.engine, captured) as (capture, _):
        together = lambda sequences: [(aux.clone(), last.clone()) for aux, last, _ in capture(sequences, [0] * len(sequences))]
        if by_layers:
            layer_parity.probe(together, folder, rows, taps, num_layers, PROBED, True, p.engine.dtype)
        served = lambda aux: aux.unflatten(1, (len(captured), -1))[:, [captured.index(b) for b in taps]].flatten(1)
        sequences = [row["prompt_ids"] + row["response_ids"] for row in rows]
        return ([served(aux) for aux, _ in together(sequences)],
                [served(aux) for sequence in sequences for aux, _ in together([sequence])])


def compare(rows, passes, together, alone, embed, head, seed, export="data/export"):
    """The gate's figures: served passes against the exported folder on states of the same engine; the noise is a second replay, in
    bf16 and on states that were captured one sequence at a time."""
    exact, rounded = (ServedDraft(export, embed, head, dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    replay = lambda draft, states: [counts(draft, row, one, aux) for row, one, aux in zip(rows, passes, states)]
    return gate.compare(passes, replay(exact, together), replay(rounded, alone), seed=seed)


def counts(draft, row, passes, aux):
    ids, first = row["prompt_ids"] + row["response_ids"], len(row["prompt_ids"])
    return gate.at_passes(matches(draft, ids, aux, first, verifier.HEADLINE_CHAIN).tolist(), passes, first, verifier.HEADLINE_CHAIN)


def suspects(rows, passes, engine, boundaries, embed, head, export="data/export", most=40):
    """[(share of passes, what the server would have to read)] best first: which states explain the served counts?

    engine: transformers' target, whose boundaries are beyond doubt. The exported boundaries, all of them shifted, each one shifted.
    """
    draft, layers = ServedDraft(export, embed, head), len(engine.decoder.layers)
    candidates = {"the exported boundaries": list(boundaries)}
    for by in (-1, 1):
        candidates[f"all boundaries {'one early' if by < 0 else 'one late'}"] = [b + by for b in boundaries]
        for i, b in enumerate(boundaries):
            candidates[f"boundary {b} {'one early' if by < 0 else 'one late'}"] = [*boundaries[:i], b + by, *boundaries[i + 1:]]
    candidates["reversed order"] = list(boundaries)[::-1]
    some = [i * len(rows) // min(most, len(rows)) for i in range(min(most, len(rows)))]
    held = []
    for i in some:
        (aux, _), = engine.capture([rows[i]["prompt_ids"] + rows[i]["response_ids"]], list(range(layers)))
        held.append(aux.unflatten(1, (layers, -1)))
    ranked = []
    for name, taps in candidates.items():
        if 0 <= min(taps) and max(taps) < layers:
            replayed = [counts(draft, rows[i], passes[i], aux[:, taps].flatten(1)) for i, aux in zip(some, held)]
            ranked.append((gate.share([passes[i] for i in some], replayed), name))
    return sorted(ranked, reverse=True)


def speed_file(speeds, tau, path="metrics/speed.json"):
    """Timings are no metric that DVC compares: they differ from run to run."""
    even = break_even(speeds, tau)
    files.write_json(path, {
        "tokens_per_s": {kind: {f"batch_{batch}": {"median": round(r[0], 1), "lowest": round(r[1], 1), "highest": round(r[2], 1)}
                                for batch, r in found.items()} for kind, found in speeds.items()},
        "tau": round(tau, 4), "break_even_tau": {f"batch_{batch}": round(value, 3) for batch, value in even.items()}})
