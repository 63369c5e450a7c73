"""evaluate: how many drafts would the target accept, and how does that compare?

In: data/export, data/target, data/prompts/eval, data/traces (only for the trigram baseline).
Out: metrics/evaluate.json, metrics/positions.csv, metrics/tau_by_set.csv.
Alone: `python -m stages.evaluate`. The target's own answers are kept in the state dir: another draft reuses them.
"""
from stages.lib import cpu  # noqa: F401  before torch
import functools

import torch

from stages.contract import check, rules, states as probe
from stages.contract.folder import open_folder
from stages.contract.forward import ServedDraft
from stages.engines import transformers_engine
from stages.lib import (answers, baselines, capture, chat, draft as drafts, files, gate, metrics, packing, params, parity, progress,
                        prompts, served, shards, state, target, traces, verifier, vocabulary, workers)
from stages.lib.refusal import Refusal, run

PROBED = 4  # answers whose states are compared with all boundaries of the target
NEAR_TIE = 1e-3  # two logits closer than this may change places with the batch shape, in fp32 too

tok = stop_ids = settings = boundaries = embed = None  # one set per worker process


def setup(folder, p, stop, taps):
    global tok, stop_ids, settings, boundaries, embed
    tok, stop_ids, settings, boundaries = chat.tokenizer(folder), stop, p, taps
    embed = target.head_and_norm(folder)["embed"].float()


@functools.cache
def engine(dtype):
    """This process's target in the traces' precision, and in fp32 for the few rows that are decoded for real."""
    return transformers_engine.of(target.open_target(), settings.engine, dtype)


def main():
    p = params.load("evaluate")
    e, about, folder = p.evaluate, target.manifest(), target.open_target()
    torch.set_num_threads(p.engine.threads)
    if verifier.HEADLINE_CHAIN not in e.chains:
        raise Refusal(f"evaluate.chains is {list(e.chains)}; the headline needs chain {verifier.HEADLINE_CHAIN} among them")

    # The boundaries are those that the pinned server captures for the exported ids: what is served, not what was meant.
    exported = open_folder("data/export")
    check.refuse(check.check(exported, check.target_of(folder), check.Engine(p.export.sglang)), "data/export")
    ids = exported.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    taps = rules.boundaries_captured(p.export.sglang, about["architecture"], ids, about["num_hidden_layers"])

    read = prompts.read(e.files, None, e.max_bad)
    by = {"transformers": answered_here, "sglang": answered_by_servers}.get(p.engine.name)
    if by is None:
        raise Refusal(f"engine.name is {p.engine.name!r}; expected transformers or sglang")
    rows, bad, said, kept, decoded, live = by(p, about, folder, read, taps)

    # Replay the answers: every chain length from one pass over their states.
    setup(folder, p, about["eos_token_ids"], taps)
    draft, d2t = drafts.of_export("data/export", embed)
    states = shards.States(kept, {"dtype": p.engine.dtype})
    if not parity.by_layers(p.engine):  # else served.states_of has held them against single layers
        wrong = probe.states(documents_of(rows, states), engine(p.engine.dtype), exported.training["boundaries"])
        check.refuse(check.sorted_findings(wrong), "the states of the evaluation answers")
    target_ids = vocabulary.target_ids(d2t)
    with progress.bar("replay", sum(states.lengths)) as bar:
        found = verifier.replay(draft, states, list(range(len(rows))), target_ids, e.chains, max(states.lengths), 4, bar.update)
    drafters = {"trigram": baselines.Trigram(traces.read()), "prompt_lookup": baselines.PromptLookup()}
    beside = {name: [walk_baseline(drafter, row) for row in rows] for name, drafter in drafters.items()}
    decoding = check_decode(decoded, draft, target_ids)

    varied = [metrics.distinct_4grams(row["response_ids"]) >= e.distinct for row in rows]
    headline = lambda histograms, keep=varied: metrics.tau_with_interval([h for h, k in zip(histograms, keep) if k], e.bootstrap, e.seed)
    counted = live["chains"] if live else found  # the headline is what was served, where a server ran
    chain = counted[verifier.HEADLINE_CHAIN]
    at = lambda of, keep: metrics.positions([h for h, k in zip(of, keep) if k], verifier.HEADLINE_CHAIN)
    full = lambda keep, of=chain: {**headline(of, keep), **at(of, keep)}
    sets = {name: [v and row["source"] == name for v, row in zip(varied, rows)] for name in dict.fromkeys(row["source"] for row in rows)}
    # Other chains and temperatures of a server are other answers, all of them counted.
    tau_of = lambda histograms: headline(histograms, varied if len(histograms) == len(rows) and not live else [True] * len(histograms))
    tokens = torch.tensor([t for row in rows for t in row["response_ids"][1:]])
    result = {
        **headline(chain), "offline": full(varied, found[verifier.HEADLINE_CHAIN]), "all_rows": headline(chain, [True] * len(rows)),
        "sets": {name: {**full(keep), **{f"{b}_tau": headline(h, keep)["tau"] for b, h in beside.items()}} for name, keep in sets.items()},
        **{f"chain_{k}": tau_of(counted[k]) for k in e.chains if k != verifier.HEADLINE_CHAIN},
        "baselines": {name: headline(histograms) for name, histograms in beside.items()},
        "coverage": round(vocabulary.inside(d2t, about["vocab_size"])[tokens].float().mean().item(), 4),
        "answers": {"rows": len(rows), "looping": len(rows) - sum(varied), "response_tokens": len(tokens) + len(rows),
                    "cut_at_limit": sum(row["finish_reason"] == "length" for row in rows), "quarantined": len(bad)},
        "decode": decoding}
    if live:
        head = target.head_and_norm(folder)["head"].float()
        result |= {"served": full(varied), "t1": tau_of(live["t1"]),
                   "gate": gated(rows, live, head, exported.training["boundaries"], e.seed)}
        served.speed_file(live["tokens_per_s"], result["tau"])
    result["tau_macro"] = round(sum(s["tau"] for s in result["sets"].values()) / len(sets), metrics.DIGITS)
    files.write_json("metrics/evaluate.json", result)
    files.write_csv("metrics/positions.csv", ["set", "position", "accepted"], [
        [name, i, figures[f"pos_{i}"]] for name, figures in result["sets"].items() for i in range(1, verifier.HEADLINE_CHAIN + 1)])
    files.write_csv("metrics/tau_by_set.csv", ["set", "drafter", "tau", "tau_lo", "tau_hi"], [
        [name, drafter, *(headline(histograms, keep)[k] for k in ("tau", "tau_lo", "tau_hi"))]
        for name, keep in sets.items() for drafter, histograms in {"draft": chain, **beside}.items()])
    state.keep_only("evaluate", {path.name for path in said + kept})
    shown = {"offline": result["offline"]["tau"], "same_count": f"{result['gate']['same']:.1%} of passes"} if live else \
        {"decoded": f"{decoding['equal']} of {decoding['rows']} equal"}
    progress.summary("evaluate", tau=f"{result['tau']} [{result['tau_lo']}, {result['tau_hi']}]", n=result["n"],
                     trigram=result["baselines"]["trigram"]["tau"], prompt_lookup=result["baselines"]["prompt_lookup"]["tau"], **shown)


def answered_here(p, about, folder, read, taps):
    """The target answers the prompts in this machine's processes; on a few it also decodes with the draft, for real."""
    e = p.evaluate
    blocks = [read.rows[i::e.blocks] for i in range(e.blocks)]
    key = [params.code_key("evaluate"), about["sha256"], params.plain(p.engine), e.max_tokens, e.max_new_tokens, e.batch]
    said = [state.piece("evaluate", f"{files.digest_of(key, answers.key_of(block))}.json") for block in blocks]
    kept = [state.piece("evaluate", f"{files.digest_of(key, answers.key_of(block), taps)}.safetensors") for block in blocks]
    tasks = [(answer_and_capture, block, a, s) for block, a, s in zip(blocks, said, kept) if not (a.exists() and s.exists())]
    probes = [read.rows[i * len(read.rows) // e.decode_rows] for i in range(e.decode_rows)]
    tasks += [(decode, probes[i::2]) for i in range(2)]
    most = sum(len(row["turns"]) for task in tasks if task[0] is answer_and_capture for row in task[1]) * e.max_new_tokens
    done = list(workers.run(work, tasks, p.exec.workers, setup, (folder, p, about["eos_token_ids"], taps), "evaluate",
                            most + 2 * e.decode_rows * e.decode_tokens))
    decoded = [row for task, result in done if task[0] is decode for row in result]
    results = [files.read_json(path) for path in said]
    bad = read.quarantined + [row for result in results for row in result["quarantined"]]
    return [row for result in results for row in result["rows"]], bad, said, kept, decoded, None


def answered_by_servers(p, about, folder, read, taps):
    """The EAGLE-3 server's own greedy answers, and their states from the same engine at the served boundaries."""
    live = served.on_servers(p, about, folder, chat.tokenizer(folder), read.rows)
    rows = live["rows"]
    live["states"] = served.states_of(p, folder, rows, taps, about["num_hidden_layers"])
    path = state.piece("evaluate", "served.safetensors")
    documents = [document(row, aux, aux[:, :0]) for row, aux in zip(rows, live["states"][0])]
    shards.write(path, {**{name: torch.cat([d[name] for d in documents]) for name in documents[0]},
                        "cu_seqlens": torch.tensor([0, *(len(d["input_ids"]) for d in documents)]).cumsum(0)})
    return rows, read.quarantined + live["quarantined"], [], [path], [], live


def gated(rows, live, head, boundaries, seed):
    """The gate's figures; a Refusal that names the suspects in order where served is not offline."""
    figures = served.compare(rows, live["passes"], *live["states"], embed, head, seed)
    f = figures
    print(f"evaluate: served {f['tau_served']}, offline {f['tau_offline']} on the same {f['passes']} passes; difference "
          f"{f['difference']:+} [{f['difference_lo']:+}, {f['difference_hi']:+}], detectable {f['detectable']}; same count on "
          f"{f['same']:.1%}, floor {f['floor']:.1%}", flush=True)
    if said := gate.faults(figures):
        if parity.by_layers(settings.engine):
            raise Refusal(f"what is served is not what was exported: {'; '.join(said)}. The states passed the parity of layers, so look at "
                          "what the server reads: tools/doctor --server, and the live preflight (EY-RULE-03, EY-FORWARD-03)")
        ranked = served.suspects(rows, live["passes"], engine(settings.engine.dtype), boundaries, embed, head)
        explained = "; ".join(f"{share:.1%} {name}" for share, name in ranked[:4])
        raise Refusal(f"what is served is not what was exported: {'; '.join(said)}. Share of passes that each reading of the states would "
                      f"explain: {explained}. Convict it with tools/doctor --states (EY-STATE-02, EY-RULE-03) or the live preflight")
    return figures


def documents_of(rows, states):
    """A few answers and the states that the replay reads, for the probe: are these the boundaries that were trained?"""
    picked = [i * len(rows) // PROBED for i in range(min(PROBED, len(rows)))]
    return [probe.Document(rows[i]["id"], rows[i]["prompt_ids"] + rows[i]["response_ids"], states.document(i, ("aux",))["aux"],
                           first=len(rows[i]["prompt_ids"])) for i in picked]


def work(task):
    function, *arguments = task
    return function(*arguments)


def answer_and_capture(block, said, kept):
    """The target's greedy answers to one block, and the states of prompt and answer at the served boundaries."""
    e = settings.evaluate
    if not said.exists():
        rows, bad = answers.of_block(block, engine(settings.engine.dtype), tok, stop_ids, e.max_tokens, e.max_new_tokens,
                                     0, 1.0, 0, e.batch, workers.tick)
        files.write_json(said, {"rows": rows, "quarantined": bad})
    rows = files.read_json(said)["rows"]
    sequences = [row["prompt_ids"] + row["response_ids"] for row in rows]
    documents = [None] * len(rows)
    for group in capture.batches_by_length([len(s) for s in sequences], 4096):
        for i, (aux, last) in zip(group, engine(settings.engine.dtype).capture([sequences[i] for i in group], boundaries)):
            documents[i] = document(rows[i], aux, last)
    tensors = {name: torch.cat([d[name] for d in documents]) for name in documents[0]}
    shards.write(kept, {**tensors, "cu_seqlens": torch.tensor([0, *map(len, sequences)]).cumsum(0)})


def document(row, aux, last):
    """Only what the replay reads: no teacher, so neither the last states nor the next ids."""
    ids = torch.tensor(row["prompt_ids"] + row["response_ids"], dtype=torch.int32)
    return {"input_ids": ids, "loss_mask": torch.arange(len(ids)) >= len(row["prompt_ids"]), "aux": aux,
            "last": last[:, :0], "next_id": torch.full_like(ids, -1)}


def decode(rows):
    """The first turns of a few prompts in fp32: plain greedy answers, their states, and real speculative decoding with the
    exported folder. Per row a dict; `margin` is the smallest distance between the target's two best logits."""
    limit, target32, results = settings.evaluate.decode_tokens, engine("float32"), []
    asked = [chat.render(tok, chat.messages(row, [])) for row in rows]
    plain = target32.generate(asked, limit, 0, 1.0, [0] * len(rows), stop_ids, workers.tick)
    for row, prompt, (answer, _) in zip(rows, asked, plain):
        ids, histogram, margin = verifier.decode(target32, ServedDraft("data/export", embed), prompt, limit, stop_ids,
                                                 verifier.HEADLINE_CHAIN, boundaries)
        (aux, _), = target32.capture([prompt + answer], boundaries)
        results.append({"id": row["id"], "prompt": prompt, "plain": answer, "ids": ids, "histogram": histogram,
                        "margin": margin, "aux": aux.numpy()})  # an array: torch would send it through shared memory
        workers.tick(len(ids))
    return results


def check_decode(decoded, draft, target_ids):
    """Real decoding must give the target's own greedy words, and the replay of the same words the same counts.

    A row whose best two logits came closer than a rounding error is a tie, set aside and counted. Anything else that
    differs is a Refusal: then either the verifier or the exported draft is not what the replay takes it for.
    """
    counts = {"rows": len(decoded), "tokens": 0, "equal": 0, "same_counts": 0, "ties": 0}
    for row in decoded:
        if row["ids"] != row["plain"]:
            if row["margin"] >= NEAR_TIE:
                raise Refusal(f"speculative decoding of {row['id']} differs from plain greedy decoding, and no two logits were "
                              f"closer than {row['margin']:.1e}: the verifier is not lossless")
            counts["ties"] += 1
            continue
        replayed = replay_one(draft, row, target_ids)
        if replayed != row["histogram"]:
            raise Refusal(f"{row['id']}: real decoding accepted {row['histogram']} (verify passes by accepted drafts), the replay "
                          f"of the same tokens {replayed}: the exported folder does not compute what the trainer's draft does")
        counts = {**counts, "equal": counts["equal"] + 1, "same_counts": counts["same_counts"] + 1,
                  "tokens": counts["tokens"] + len(row["ids"])}
    return counts


def replay_one(draft, row, target_ids):
    """Histogram of one decoded row by the batched replay, on states of a plain prefill."""
    tokens = torch.tensor([row["prompt"] + row["plain"]])
    slots = torch.arange(tokens.shape[1])
    batch = packing.Batch(tokens, (slots >= len(row["prompt"]))[None], torch.zeros_like(tokens), slots[None],
                          torch.from_numpy(row["aux"])[None], last=None, next_id=None, packs=None)
    right = verifier.matches(draft, batch, target_ids, verifier.HEADLINE_CHAIN)[0].tolist()
    return verifier.walk(right, len(row["prompt"]), tokens.shape[1] - 1)


def walk_baseline(drafter, row):
    right = baselines.matches(drafter, row["prompt_ids"], row["response_ids"], verifier.HEADLINE_CHAIN)
    return verifier.walk(right, len(row["prompt_ids"]), len(right) - 1)


if __name__ == "__main__":
    run(main)
