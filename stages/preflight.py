"""preflight: every check of the serving contract that needs no training, before anything is paid for.

In: data/target, data/prompts/train. Out: data/preflight (constant bytes: what follows is not made stale by a new check);
the report and the untrained draft stay in .eyrie/preflight.
Alone: `python -m stages.preflight`, or `make preflight`. A fault that would show after training shows here in a minute.
"""
from stages.lib import cpu  # noqa: F401  before torch
import copy
import shutil
import time

import torch

from stages.contract import check, config, dialects, probes, rules
from stages.engines import live
from stages.contract.folder import open_folder
from stages.contract.forward import ServedDraft
from stages.engines import transformers_engine
from stages.lib import (budget, capture, chat, draft as drafts, files, loss, packing, params, parity, progress, prompts,
                        served_folder, shards, state, target, vocabulary, warm_start)
from stages.lib.refusal import Refusal, run

SAMPLE = 64        # prompts that the plan's lengths are taken from
NEW_TOKENS = 8     # of each answer in the timed batch
# A draft may go on for a target that was tuned further or has another template; with another tokenizer ids mean other words.
RETARGETED = ("EY-TARGET-02", "EY-TARGET-03")
PROBE_BATCH = 96
PARITY_ROWS = 8    # of that batch, compared with a plain forward


def main():
    p = params.load("preflight")
    torch.set_num_threads(p.engine.threads)
    about, folder = target.manifest(), target.open_target()
    taps = capture.boundaries_of(p.capture.layer_ids, p.capture.offset, about["num_hidden_layers"])
    ids = ids_for(p.export.sglang, about, taps)
    weights = target.head_and_norm(folder)

    # An untrained draft with the real settings, exported as the trained one will be.
    draft, d2t = untrained(about, len(taps), p.draft, weights["embed"].float())
    out = fresh("draft")
    tensors = {name: w.detach() for name, w in draft.named_parameters()}
    served_folder.write(out, draft.shape, {**tensors, "d2t": d2t}, about, taps, ids, p.export.dtype)
    findings = check.check(open_folder(out), check.target_of(folder), check.Engine(p.export.sglang))
    if not check.wrong(findings):  # else the forwards differ for a reason that has been named
        draft.load_state_dict(served_folder.rounded(tensors, p.export.dtype))
        served = ServedDraft(out, draft.embed, weights["head"].float(), version=p.export.sglang)
        findings += check.sorted_findings(probes.forward(draft, served))

    if p.train.init not in warm_start.FRESH:
        findings += start_of(p, about, folder, taps)

    # The target's own side: its words, its states, and how fast it gives them. One that cannot be loaded here is extract's to probe.
    read, tok = prompts.read(p.prompts.files, p.prompts.limit, p.prompts.max_bad), chat.tokenizer(folder)
    asked, speed, figures = a_few(tok, read.rows, p), {}, {}
    if not parity.by_layers(p.engine):
        engine = transformers_engine.of(folder, p.engine)
        rows, speed["generate"] = answer(engine, asked, p, about["eos_token_ids"])
        figures = parity.probe(engine, rows, taps, PARITY_ROWS, True, p.engine.dtype)
        speed["extract"] = figures.pop("tokens_per_s")
    speed["train"] = training_speed(draft, weights, d2t, about, p)
    # The engine's side: this draft served for a few requests, the width that reaches it, calls of fc.
    if p.engine.name == "sglang" and not any(f.level == "fault" for f in findings):
        seen = live.watch(p.engine, folder, out, about, [ids for _, ids in asked[:4]])
        findings += check.sorted_findings(live.faults(seen, taps, about["hidden_size"]))
        figures["live"] = seen

    # The whole plan: disk and hours, upper bounds.
    need = plan(read.rows, tok, p)
    findings += check.sorted_findings(over_budget(need, len(taps), about, p, speed))
    report = {"boundaries": taps, "ids": ids, "sglang": p.export.sglang, "target": about["architecture"], "plan": need,
              "tokens_per_s": {name: round(value) for name, value in speed.items()}, "parity": figures,
              "findings": [f.as_dict() for f in findings]}
    files.write_json(state.piece("preflight", "report.json"), report)
    for note in (f for f in findings if f.level == "note"):
        print(f"preflight: note: {note}", flush=True)
    check.refuse(findings, "the planned draft")

    done = state.begin("preflight")
    files.write_json(done / "passed.json", {"passed": True})
    state.publish(done, "data/preflight")
    progress.summary("preflight", boundaries=taps, ids=ids, sglang=p.export.sglang, parity_p1=figures.get("cosine_p1_min", "by extract"),
                     tokens=f"at most {need['tokens']:,}", report=".eyrie/preflight/report.json")


def ids_for(sglang, about, taps):
    """The layer ids that make the server capture `taps`; where there are none the fault is one of the contract's."""
    check.Engine(sglang)
    try:
        return rules.ids_to_write(sglang, about["architecture"], taps, about["num_hidden_layers"])
    except Refusal as refusal:
        row = rules.rule_for(sglang, about["architecture"])
        captures = row and row.shift not in (rules.NO_SETTER, rules.NOTHING)
        check.refuse([check.Finding("EY-RULE-06" if captures else "EY-RULE-01", str(refusal))], "the planned draft")


def fresh(name):
    out = state.piece("preflight", name)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    return out


def untrained(about, num_aux, p, embed):
    """A random draft of the planned shape, and a map to the first words: what training will change are values alone."""
    d2t = vocabulary.choose(torch.zeros(about["vocab_size"], dtype=torch.long), p.vocab_size)
    draft = drafts.Draft(drafts.shape_of(about, num_aux, p.vocab_size, p.intermediate_size), embed)
    drafts.initialise(draft, "random", None, None, d2t, 0)
    return draft, d2t


def start_of(p, about, folder, taps):
    """Findings on the draft that training is to go on from; a Refusal for what this trainer does not build."""
    init = warm_start.opened(p.train.init, p.train.init_sha256)
    known = dialects.learn(init)
    if init.boundaries != taps:
        raise Refusal(f"train.init {p.train.init}: trained {known}; the plan captures the boundaries {taps}; set capture.layer_ids to "
                      "its boundaries, or write them into its training.json where nothing records them")
    engine = check.Engine(p.export.sglang)
    findings = [f for f in check.check(init, check.target_of(folder), engine) if f.code not in RETARGETED]
    if check.wrong(findings):
        print(f"preflight: train.init is not ready; if the faults are ones of layout: python -m tools.doctor {p.train.init} --target "
              f"{folder} --fix OUT, and set train.init to OUT", flush=True)
        return findings
    read = config.read(init.config, engine.version)
    odd = {f"architectures {read.architecture}": read.mla, f"{read.num_hidden_layers} layers": read.num_hidden_layers != 1,
           "fc_norm": read.fc_norm or read.use_aux_norm, "norm_output": read.norm_output, "rope scaling": bool(read.rope),
           "a bias": read.bias, "the target's head": not read.loads_head,
           "another width than the target": read.hidden_size != about["hidden_size"]}
    if any(odd.values()):
        raise Refusal(f"train.init {p.train.init} has {', '.join(name for name, found in odd.items() if found)}, which this trainer does "
                      "not build")
    warm_start.load(p.train.init, p.train.init_sha256, about, taps, p.draft)
    return findings


def a_few(tok, rows, p):
    """[(prompt row, token ids)] of a few prompts, the first turns of each."""
    count = min(p.generate.batch, PROBE_BATCH, len(rows))
    some = [rows[i * len(rows) // count] for i in range(count)]
    asked = [(row, chat.render(tok, chat.messages(row, []))) for row in some]
    asked = [(row, ids) for row, ids in asked if len(ids) <= p.prompts.max_tokens]
    if not asked:
        raise Refusal(f"none of {len(some)} prompts fits prompts.max_tokens = {p.prompts.max_tokens}; raise it")
    return asked


def answer(engine, asked, p, stop_ids):
    """Greedy beginnings of their answers as trace rows, and the rate in tokens/s of the batch."""
    started = time.perf_counter()
    answers = engine.generate([ids for _, ids in asked], min(NEW_TOKENS, p.generate.max_new_tokens), 0, 1.0, [0] * len(asked), stop_ids)
    rate = sum(len(a) for a, _ in answers) / (time.perf_counter() - started)
    return [{"id": row["id"], "prompt_ids": ids, "response_ids": a} for (row, ids), (a, _) in zip(asked, answers)], rate


def training_speed(draft, weights, d2t, about, p):
    """Tokens/s of one training step on random states, the second of two: the first one also builds things."""
    torch.set_num_threads(p.train.threads)
    device = torch.device(p.train.device)
    draft = copy.deepcopy(draft).to(device)
    noise, shape = torch.Generator().manual_seed(0), (2, 256)
    tokens = torch.randint(0, about["vocab_size"], shape, generator=noise)
    slots = torch.arange(shape[1]).expand(shape)
    batch = packing.Batch(tokens, slots > 85, torch.zeros_like(tokens), slots, torch.randn(*shape, draft.fc.in_features, generator=noise),
                          torch.randn(*shape, about["hidden_size"], generator=noise), tokens, None).to(device)
    half = p.train.autocast == "bfloat16"
    target_ids, words = vocabulary.target_ids(d2t).to(device), vocabulary.draft_ids(d2t, about["vocab_size"]).to(device)
    head_rows = weights["head"].to(device)[target_ids].to(torch.bfloat16 if half else torch.float32)
    for _ in range(2):
        started = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            total, _ = loss.ttt_loss(draft, batch, head_rows, words >= 0, words, p.train.ttt_steps, 1.0, False)
        total.backward()
        total.item()  # a GPU would only have been told to compute
    rate = tokens.numel() / (time.perf_counter() - started)
    torch.set_num_threads(p.engine.threads)
    if device.type == "cuda":
        del draft, batch, head_rows, total
        torch.cuda.empty_cache()  # the live half's server shares the card
    return rate


def plan(rows, tok, p):
    """Documents and tokens of the whole run, counted with answers of full length: an upper bound.

    A dialogue's turn t carries the t answers before it.
    """
    sample = [rows[i * len(rows) // min(SAMPLE, len(rows))] for i in range(min(SAMPLE, len(rows)))]
    documents = tokens = 0
    new = p.generate.max_new_tokens
    for row in sample:
        said = []
        for _ in row["turns"]:
            prompt = len(chat.render(tok, chat.messages(row, said))) + new * len(said)
            if prompt > p.prompts.max_tokens:
                break
            documents, tokens = documents + 1, tokens + prompt + new
            said.append("")
    scale = len(rows) / len(sample)
    return {"prompts": len(rows), "documents": round(documents * scale), "tokens": round(tokens * scale),
            "response_tokens": round(documents * scale) * new}


def over_budget(need, num_aux, about, p, speed):
    """(code, evidence) where disk or time of the plan do not suffice; prints the plan."""
    per_token = shards.bytes_per_token(num_aux, about["hidden_size"], p.extract.dtype)
    copies = budget.dvc_copies()
    size, free = need["tokens"] * per_token * (1 + copies), shutil.disk_usage(".").free
    if p.engine.name == "sglang":
        speed = {"train": speed["train"]}  # the probes ran on this machine's CPU, the stages do not
    spread = max(1, p.exec.workers)
    work = {"generate": need["response_tokens"] / spread, "extract": need["tokens"] / spread, "train": need["tokens"] * p.train.epochs}
    hours = {name: work[name] / rate / 3600 for name, rate in speed.items()}
    print(f"preflight: {need['prompts']:,} prompts, at most {need['tokens']:,} tokens; states {size / 1e9:.2f} GB"
          f"{' with the copy in the DVC cache' if copies else ''} of {free / 1e9:.1f} GB free; at most "
          f"{', '.join(f'{name} {60 * h:.0f} min' for name, h in hours.items())} at the rates of short probes", flush=True)
    if size > 0.95 * free:
        yield "EY-PLAN-01", f"{need['tokens']:,} tokens x {per_token:,} bytes{' x 2 (DVC keeps a copy)' if copies else ''} = " \
            f"{size / 1e9:.1f} GB, free are {free / 1e9:.1f} GB"
    slowest = max(hours, key=hours.get)
    if hours[slowest] > p.exec.max_hours:
        yield "EY-PLAN-02", f"{slowest} alone would take up to {hours[slowest]:.1f} hours, exec.max_hours is {p.exec.max_hours}"


if __name__ == "__main__":
    run(main)
