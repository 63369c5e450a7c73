"""Faults of the contract on a real server: what SGLang did with each, beside what Eyrie says and where it stops it.

    python -m tests.gpu.faults OUT [--prompts 32] [--side-by-side 5]

Run it in a workspace whose pipeline has trained a draft on SGLang (data/export healthy, params.yaml of that run). Each fault is planted
into a copy of data/export or into the launch, served, and asked the same evaluation prompts. The gate compares what was served with
the healthy folder: that is what was trained. Writes OUT/faults.json and OUT/README.md.
"""
from stages.lib import cpu  # noqa: F401  before torch
import argparse
import concurrent.futures
import json
import os
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch

from stages.contract import check
from stages.engines import live, sglang_engine, sglang_launch, sglang_server, spec_counters
from stages.lib import chat, files, gate, params, prompts, served, target, verifier
from tests import planted

CHAIN, TOKENS = verifier.HEADLINE_CHAIN, 96
# Several servers share the GPU: the pool's size is given, or each would take its share of what the others have left.
SHARED = {"mem-fraction-static": 0.9, "max-total-tokens": 131072, "max-running-requests": 64, "cuda-graph-max-bs-decode": 4}


class Case(NamedTuple):
    name: str
    plant: Callable = lambda p: None  # changes a tests.planted.Plan
    flags: dict = {}                  # put over the launch line's
    variables: dict = {}              # environment of the server


def ids_shifted(p):
    """What a trainer writes that means outputs where this server wants inputs, with nothing beside that says so."""
    p.eagle[planted.IDS] = [i - 1 for i in p.eagle[planted.IDS]]
    p.training = None


def one_id_shifted(p):
    first, middle, last = p.eagle[planted.IDS]
    p.eagle[planted.IDS] = [first, middle - 1, last]
    p.training = None


def reversed_order(p):
    """Trained on states put together from the deepest boundary to the first."""
    p.tensors["fc.weight"] = torch.cat(p.tensors["fc.weight"].chunk(3, 1)[::-1], 1)


def untrained_fc(p):
    """The fusion layer never took part in training: fresh weights."""
    fresh = torch.empty(p.tensors["fc.weight"].shape).normal_(0, 0.02, generator=torch.Generator().manual_seed(0))
    p.tensors["fc.weight"] = fresh.to(p.tensors["fc.weight"].dtype)


def without_record(plant):
    def changed(p):
        plant(p)
        p.training = None
    return changed


CASES = [
    Case("healthy"), Case("unknown prefix", planted.unknown_prefix), Case("absolute d2t", without_record(planted.absolute_map)),
    Case("ids at top level", planted.ids_at_top_level), Case("ids shifted by one", ids_shifted),
    Case("one id of three shifted", one_id_shifted), Case("reversed order", reversed_order), Case("tie_word_embeddings", planted.tied),
    Case("algorithm EAGLE", flags={"speculative-algorithm": "EAGLE"}),
    Case("num_hidden_layers of the target", planted.layers_of_the_target),
    Case("rope theta absent", planted.no_theta), Case("untrained fc", untrained_fc), Case("aux states switched off", planted.aux_off),
    Case("no draft_vocab_size", planted.no_draft_vocab_size), Case("norm missing", planted.norm_missing),
    Case("simulated acceptance", variables={"SGLANG_SIMULATE_ACC_LEN": "3"}),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--side-by-side", type=int, default=5)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(4)
    run = setting(options.prompts)
    with concurrent.futures.ThreadPoolExecutor(options.side_by_side) as pool:
        results = list(pool.map(lambda case: on_server(case, run, options.out / "drafts"), CASES))
    write(options.out, results, run)  # what was served outlives a gate that does not come to its end
    judge(results, run)
    write(options.out, results, run)
    print((options.out / "README.md").read_text())


def write(out, results, run):
    shown = [{key: value for key, value in result.items() if key not in ("rows", "passes")} for result in results]
    files.write_json(out / "faults.json", shown)
    files.write_text(out / "README.md", table(shown, len(run.asked)))


def setting(count):
    """Everything that the cases share, from the workspace's params and outputs."""
    p = params.load("evaluate")
    about, folder = target.manifest(), target.open_target()
    tok, read = chat.tokenizer(folder), prompts.read(p.evaluate.files, None, p.evaluate.max_bad)
    some = [read.rows[i * len(read.rows) // count] for i in range(count)]
    engine = SimpleNamespace(**{**vars(p.engine), "flags": {**params.plain(p.engine.flags), **SHARED}, "servers": 1})
    record = files.read_json("data/export/training.json")
    return SimpleNamespace(p=p, about=about, folder=folder, engine=engine, tok=tok, boundaries=record["boundaries"],
                           asked=[chat.render(tok, chat.messages(row, [])) for row in some], ids=[row["id"] for row in some])


def on_server(case, run, drafts):
    """One case: planted, judged without a GPU, started, asked; a dict that says what happened."""
    name = case.name.replace(" ", "-")
    result = {"name": case.name, "started": False}
    try:
        healthy = planted.plan_of("data/export", check.target_of(run.folder), check.Engine(run.p.export.sglang))
        case.plant(healthy)
        draft = healthy.write(drafts / name)
        flags = {**params.plain(run.engine.flags), **sglang_launch.speculation(draft.resolve(), CHAIN), **case.flags}
        result["doctor"] = doctor(draft, run, flags, case.variables)
        started = time.monotonic()
        environment = {**os.environ, **sglang_launch.OFFLINE, **case.variables}
        line = lambda port: sglang_launch.command(run.folder, run.engine.dtype, {"random-seed": 0, **flags}, port)
        with sglang_server.Server(f"fault-{name}", line, environment, seconds=240) as server:
            result |= {"started": True, "seconds_to_start": round(time.monotonic() - started, 1)}
            info = server.http.call("/server_info", seconds=60.0)
            wanted = {"random-seed": 0, **flags, **sglang_launch.speculation(draft.resolve(), CHAIN)}
            result["launch"] = sglang_launch.differences(info, run.engine.version, run.folder, wanted)
            result |= asked(server, run)
        if case.variables or case.flags:
            try:
                sglang_launch.environment(case.variables, None)
            except ValueError as refusal:
                result["launch"] = [str(refusal)]
        elif case.name == "healthy" or not result["doctor"]["static"]:
            result["live"] = live_half(name, draft, run)
    except Exception as error:  # noqa: BLE001  one case must not take the others with it
        result["error"] = str(error)[:1500] or traceback.format_exc()[-1500:]
    print(json.dumps({k: v for k, v in result.items() if k not in ("rows", "passes")})[:400], flush=True)
    return result


def asked(server, run):
    """tau of the answers that the server streamed, pass by pass; what stopped it otherwise."""
    engine = sglang_engine.Engine([server], run.about["vocab_size"])
    sampling = sglang_engine.sampling(TOKENS, 0, 1.0, run.about["eos_token_ids"])
    found = engine.stream(run.asked, sampling, [0] * len(run.asked), CHAIN, served.IN_FLIGHT)
    good = [(i, f) for i, f in enumerate(found) if not isinstance(f, Exception)]
    passes = [f[1] for _, f in good]
    out = {"answers": len(good), "passes": passes, "rows": [
        {"id": run.ids[i], "prompt_ids": run.asked[i], "response_ids": f[0].ids} for i, f in good]}
    if len(good) < len(found):
        out["failed"] = str(next(f for f in found if isinstance(f, Exception)))[:500]
    if good:
        out["tau"] = round(spec_counters.tau([served.histogram(one, CHAIN) for one in passes]), 4)
        out["verify_passes"] = sum(map(len, passes))
    return out


def doctor(draft, run, flags, variables):
    """Codes of tools/doctor: from files and flags alone, and with the target's weights."""
    words = shlex.join([*(f"{k}={v}" for k, v in variables.items()), "python", "-m", "sglang.launch_server",
                        *sglang_launch.words({"model-path": str(run.folder), **flags})])
    command = [sys.executable, "-m", "tools.doctor", str(draft), "--target", str(run.folder), "--sglang", run.p.export.sglang, "--launch",
               words, "--json"]
    found = {}
    for name, more in (("static", ["--static"]), ("full", ["--search"])):
        done = subprocess.run(command + more, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "4"})
        report = json.loads(done.stdout) if done.stdout.startswith("{") else {"findings": [], "cannot_judge": done.stderr[-300:]}
        found[name] = [f["code"] for f in report["findings"] if f["level"] == "fault"]
        found[f"{name}_open"] = [f["code"] for f in report["findings"] if f["level"] == "open"]
        if report.get("search"):
            found["best_convention"] = [report["search"][0]["name"], report["search"][0]["tau"]]
        if report.get("cannot_judge"):
            found[f"{name}_cannot_judge"] = str(report["cannot_judge"])[:300]
    return found


def live_half(name, draft, run):
    """Codes of the live half of the preflight for this folder."""
    seen = live.watch(run.engine, run.folder, draft, run.about, run.asked[:4], name=f"watch-{name}")
    return {"codes": [f"{code}: {evidence}" for code, evidence in live.faults(seen, run.boundaries, run.about["hidden_size"])],
            "layers_to_capture": seen.get("layers_to_capture")}


def judge(results, run):
    """The gate on each case: served passes against the healthy folder on states of the same engine."""
    rows = {}
    for result in results:
        for row in result.get("rows", []):
            rows.setdefault(key_of(row), row)
    if not rows:
        return
    p = SimpleNamespace(engine=run.engine)
    together, alone = served.states_of(p, run.folder, list(rows.values()), run.boundaries, run.about["num_hidden_layers"])
    states = dict(zip(rows, zip(together, alone)))
    tensors = target.head_and_norm(run.folder)
    embed, head = tensors["embed"].float(), tensors["head"].float()

    def one(result):
        if not result.get("rows"):
            return
        try:
            mine = [states[key_of(row)] for row in result["rows"]]
            figures = served.compare(result["rows"], result["passes"], [t for t, _ in mine], [a for _, a in mine], embed, head, 0)
            result["gate"] = {**figures, "faults": gate.faults(figures)}
        except Exception as error:  # noqa: BLE001
            result["gate"] = {"error": str(error)[:500]}

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(one, results))
    from stages.engines import transformers_engine
    plain = transformers_engine.Engine(run.folder, None, run.engine.dtype, 8)
    for result in results:
        if result.get("gate", {}).get("faults"):
            ranked = served.suspects(result["rows"], result["passes"], plain, run.boundaries, embed, head, most=12)
            result["gate"]["suspects"] = [[round(share, 3), name] for share, name in ranked[:3]]


def key_of(row):
    return tuple(row["prompt_ids"]), tuple(row["response_ids"])


def table(results, count):
    """Markdown: a row a fault."""
    lines = [f"{count} evaluation prompts, at most {TOKENS} tokens, chain {CHAIN}, temperature 0 (`python -m tests.gpu.faults`).", "",
             "| planted | SGLang started | served tau | static doctor | full doctor | live half | launch | gate |",
             "|---|---|---|---|---|---|---|---|", *(row_of(result) for result in results)]
    errors = [f"- {r['name']}: {(r.get('error') or r.get('failed') or '').splitlines()[0][:300]}" for r in results
              if r.get("error") or r.get("failed")]
    return "\n".join(lines + ([""] + errors if errors else [])) + "\n"


def row_of(r):
    said, g = r.get("doctor", {}), r.get("gate", {})

    def codes(kind):
        open_ones = f" (open: {', '.join(said[f'{kind}_open'])})" if said.get(f"{kind}_open") else ""
        return (", ".join(said.get(kind, [])) or "nothing") + open_ones

    judged = "-"
    if "same" in g:
        judged = (f"same {g['same']:.1%}, floor {g['floor']:.1%}, difference {g['difference']:+.3f}: "
                  f"{'stopped' if g['faults'] else 'passes'}")
        if g.get("suspects"):
            judged += "; first suspect: {1} ({0:.0%})".format(*g["suspects"][0])
    live_codes = ", ".join(c.split(":")[0] for c in r["live"]["codes"]) or "nothing" if "live" in r else "-"
    return (f"| {r['name']} | {'yes' if r['started'] else 'no'} | {r.get('tau', '-')} | {codes('static')} | {codes('full')} | {live_codes} "
            f"| {'; '.join(r.get('launch', [])) or 'nothing'} | {judged} |")


if __name__ == "__main__":
    main()
