"""The doctor's second half: the target and the draft are run. See tools/doctor.py for the command."""
from stages.lib import cpu  # noqa: F401  before torch
from pathlib import Path

import torch
import transformers

from stages.contract import check, config, identity, ids, probes, search, states, tensors
from stages.contract.forward import ServedDraft
from stages.engines.transformers_engine import Engine
from stages.lib import chat, metrics, progress, prompts, target as targets, verifier
from stages.lib.refusal import Refusal

PROMPTS = Path(__file__).resolve().parents[1] / "data/prompts/eval"
SETS = ("chat.jsonl", "maths.jsonl", "code.jsonl", "rewriting.jsonl")


def examine(folder, target, engine, options, report, static_faults):
    """Findings of the numeric checks; figures and sentences go into `report`. static_faults: there are some, so only search is asked."""
    own = head_and_norm(target)
    embed, head = own["embed"].float(), own["head"].float()
    found = [] if static_faults else [*check.values(folder, engine), *identity.weights(folder, target)]
    read = config.read(folder.config, engine.version, engine.flags.get("dtype", "auto"))
    if read.target_hidden_size == read.hidden_size:  # else the draft keeps its own
        found += probes.embedding({name: folder.read(name) for name in folder.tensors if name.endswith("embed_tokens.weight")}, embed)
    model = load(target, options)
    if options.states and not static_faults:
        found += states.of_states(options.states, model, options.traces, target=(folder.training or {}).get("target"))
        if not options.traces:
            report["said"].append("the states' masks and answers were not compared with their traces (--traces)")
    findings = check.sorted_findings(found)
    explained = static_faults or check.wrong(findings)
    try:
        served, boundaries = runnable(folder, target, engine, read, embed, head)
        answers, where = answers_for(options, model, target)
        report["figures"]["answers"] = f"{len(answers)} of {sum(len(r) for _, r in answers)} tokens in all, {where}"
        if not static_faults:
            findings += check.sorted_findings(covered(folder, read, engine, answers))
        verdict = searched if options.search else replayed
        judged = check.sorted_findings(verdict(served, model, boundaries, answers, report))
    except (Refusal, RuntimeError, IndexError) as error:  # shapes that do not fit end a run anywhere
        if not (explained or isinstance(error, NotRunnable)):
            raise
        report["said"].append(f"the draft was not run: {(str(error) or repr(error)).splitlines()[0]:.300}")
        return findings
    if explained or check.wrong(findings):  # EY-TAU-01 is for a draft that accepts nothing although nothing else is wrong
        report["said"] += [f.evidence for f in judged if f.code == "EY-TAU-01"]
        judged = [f for f in judged if f.code != "EY-TAU-01"]
    return findings + judged


class NotRunnable(Refusal):
    """The server would not run this draft either, or this replay cannot."""


def runnable(folder, target, engine, read, embed, head):
    """(ServedDraft, boundaries that the server captures). NotRunnable with the reason."""
    try:
        served = ServedDraft((folder.config, {name: folder.read(name) for name in folder.tensors}), embed, head, engine.version)
    except Refusal as refusal:
        raise NotRunnable(str(refusal)) from None
    boundaries = ids.captured(engine.version, target, read.ids) or folder.boundaries
    if not boundaries or len(boundaries) != read.num_aux:
        raise NotRunnable(f"the server captures the boundaries {boundaries}, fc takes {read.num_aux} states")
    return served, boundaries


def covered(folder, read, engine, answers):
    placed, _ = tensors.placed(folder, read, engine.version)
    return probes.coverage(folder.read(placed["d2t"]), answers) if "d2t" in placed else []


def searched(served, model, boundaries, answers, report):
    """The verdict of the search over conventions; its table goes into the report."""
    with progress.bar("search", None, "convention") as bar:
        rows = search.search(served, model, boundaries, answers, tick=lambda name: bar.update(1))
    report["search"] = [{"name": row.name, "change": row.change, "tau": round(row.tau, 3), "difference": round(row.difference, 3),
                         "lo": round(row.lo, 3), "hi": round(row.hi, 3)} for row in rows]
    report["figures"]["offline"] = f"tau {rows[0].tau:.3f} as served, chain {verifier.HEADLINE_CHAIN}"
    report["tau"] = round(float(rows[0].tau), 4)
    return search.verdict(rows)


def replayed(served, model, boundaries, answers, report):
    """The verdict on the served convention alone; its acceptance length goes into the report."""
    histograms = [search.as_served(served, boundaries, prompt, response, states.candidates(model, prompt + response))
                  for prompt, response in answers]
    t = metrics.tau_with_interval(histograms, 1000, 0)
    report["figures"]["offline"] = f"tau {t['tau']} [{t['tau_lo']}, {t['tau_hi']}], n {t['n']}, chain {verifier.HEADLINE_CHAIN}, T=0"
    report["tau"] = t["tau"]
    return probes.acceptance(histograms)


def head_and_norm(target):
    try:
        return targets.head_and_norm(target.folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise error if isinstance(error, Refusal) else Refusal(f"the weights in {target.folder} cannot be read: {error!r:.200}") from None


def load(target, options):
    """The target in the precision of the states, if there are some to compare with; else in bf16, or fp32 if its config says so."""
    named = target.config.get("dtype") or target.config.get("torch_dtype")
    if options.states:
        engine = states.opened(options.states)[0].get("engine")
        named = engine.get("dtype", named) if isinstance(engine, dict) else named
    dtype = "float32" if named == "float32" else "bfloat16"
    try:
        return Engine(target.folder, transformers.__version__, dtype, torch.get_num_threads())
    except Exception as error:  # whatever the model's class, or the reader of its files, makes of a folder that is none
        raise Refusal(f"the target in {target.folder} cannot be run here ({(str(error) or repr(error)).splitlines()[0]:.200}); --static "
                      "checks the files alone") from None


def answers_for(options, model, target):
    """((prompt ids, response ids) per answer, in words where they are from); responses are cut to options.tokens."""
    if options.traces:
        rows = [(row["prompt_ids"], row["response_ids"]) for row in states.read_traces(options.traces)]
        where = f"of {options.traces}"
    elif options.states:
        rows, where = of_states(options.states), f"of {options.states}"
    else:
        rows, where = made(options, model, target), "made by the target just now, greedy"
    rows = [(list(p), list(r)[:options.tokens]) for p, r in rows if p and len(r) > 2]
    picked = [rows[i * len(rows) // options.answers] for i in range(options.answers)] if len(rows) > options.answers else rows
    if not picked:
        raise Refusal(f"no answer of three tokens or more {where}; expected prompt_ids and response_ids")
    worst = max(max(p + r) for p, r in picked), min(min(p + r) for p, r in picked)
    if worst[0] >= target.vocab_size or worst[1] < 0:
        raise Refusal(f"token ids from {worst[1]} to {worst[0]} {where}; the target's vocabulary has {target.vocab_size}: another "
                      "tokenizer")
    return picked, where


def of_states(directory):
    """Prompts and answers of a states folder, by its loss masks."""
    held, rows = states.opened(directory)[1](), []
    for index in range(len(held.lengths)):
        t = held.document(index, ("input_ids", "loss_mask"))
        first = int(t["loss_mask"].int().argmax())
        rows.append((t["input_ids"][:first].tolist(), t["input_ids"][first:].tolist()))
    return rows


def made(options, model, target):
    """The target's greedy answers to a few of the project's evaluation prompts."""
    if not (target.folder / "tokenizer.json").is_file():
        raise Refusal(f"{target.folder} has no tokenizer.json to make answers with; give token ids with --traces or --states")
    tok, paths = chat.tokenizer(target.folder), [str(PROMPTS / name) for name in SETS]
    read = prompts.read([path for path in paths if Path(path).is_file()], None, 1.0).rows
    count = min(options.answers, len(read))
    some = [read[i * len(read) // count] for i in range(count)]
    try:
        asked = [chat.render(tok, chat.messages(row, [])) for row in some]
    except ValueError as error:  # no chat template
        raise Refusal(f"{target.folder} cannot render a prompt ({error}); give token ids with --traces or --states") from None
    said = model.generate(asked, options.tokens, 0, 1.0, [0] * len(asked), target.end_tokens)
    return [(prompt, response) for prompt, (response, _) in zip(asked, said)]
