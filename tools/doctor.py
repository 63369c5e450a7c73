"""Why does this draft not accept? One command for a draft folder of any trainer.

    python -m tools.doctor DRAFT --target T [--sglang VERSION] [--launch LINE] [--trained-on outputs|boundaries]
                           [--states DIR] [--traces FILE] [--search] [--static] [--fix OUT] [--json]

Static checks read headers and config.json alone. With the target's weights at hand the draft is also run: the target answers a few
prompts, and the draft is replayed on the answers as the server would run it. Exit code 0: nothing wrong; 1: faults; 2: cannot judge.
"""
from stages.lib import cpu  # noqa: F401  before torch
import argparse
import dataclasses
import json
import sys
import textwrap
import time
import traceback
from pathlib import Path

from stages.contract import check, dialects, launch
from stages.contract.folder import open_folder
from stages.lib.headers import read_object
from stages.lib.refusal import Refusal

HEALTHY, FAULTY, CANNOT_JUDGE = 0, 1, 2


def main(words=None):
    options = parse(words)
    try:
        report = examine(options)
    except Refusal as refusal:
        if options.json:
            print(json.dumps({"draft": str(options.draft), "healthy": None, "cannot_judge": str(refusal)}))
        else:
            print(f"cannot judge: {refusal}", file=sys.stderr)
        sys.exit(CANNOT_JUDGE)
    except Exception:  # a fault of ours must not read like a fault of the draft
        traceback.print_exc()
        sys.exit(CANNOT_JUDGE)
    print(json.dumps(report, indent=2) if options.json else as_text(report))
    sys.exit({True: HEALTHY, False: FAULTY, None: CANNOT_JUDGE}[report["healthy"]])


def parse(words=None):
    parser = argparse.ArgumentParser(prog="python -m tools.doctor", description="Why does this draft not accept?",
                                     epilog="exit code 0: nothing wrong, 1: faults, 2: cannot judge")
    parser.add_argument("draft", type=Path, metavar="DRAFT", help="the folder that the server is given, by whatever trainer")
    parser.add_argument("--target", type=Path, required=True, metavar="T", help="the target's folder; its config.json is enough for the "
                        "static checks")
    parser.add_argument("--sglang", default=check.PINNED, metavar="VERSION", help="the server's version (default %(default)s)")
    parser.add_argument("--launch", metavar="LINE", help="the server's launch line, or @FILE with it: checks its flags too")
    parser.add_argument("--server", metavar="URL", help="a running server: its version and flags are asked of it")
    parser.add_argument("--says", metavar="LINE", help="a `Decode batch` line of the server's log, or @FILE with the meta_info of one "
                        "request: what its figures mean in that version")
    parser.add_argument("--trained-on", choices=("outputs", "boundaries"), help="what the ids in the config mean: outputs of layers, or "
                        "boundaries (the inputs of layers); default: what its trainer writes, where that is known")
    parser.add_argument("--states", type=Path, metavar="DIR", help="Eyrie's data/states: which boundary is each chunk?")
    parser.add_argument("--traces", type=Path, metavar="FILE", help="a .jsonl file of traces, or their folder, to take answers from; "
                        "with --states: the traces that the states are of")
    parser.add_argument("--search", action="store_true", help="try the conventions that a trainer may have used, ranked by tau")
    parser.add_argument("--static", action="store_true", help="headers and configs only")
    parser.add_argument("--answers", type=int, default=8, metavar="N", help="answers to replay (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=48, metavar="N", help="tokens of each answer that are used (default %(default)s)")
    parser.add_argument("--fix", type=Path, metavar="OUT", help="write a corrected copy if the faults are ones of layout")
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args(words)
    if options.answers < 1 or options.tokens < 3:
        parser.error(f"--answers {options.answers} --tokens {options.tokens}; expected one answer of three tokens, or more")
    return options


def examine(options):
    """The whole report as a dict. Refusal when the draft, the target, the version or the data cannot be judged."""
    started = time.monotonic()
    engine = check.Engine(*asked_of(options.server)) if options.server else check.Engine(options.sglang, launch_flags(options.launch))
    folder, target = open_folder(options.draft), check.target_of(options.target)
    asked = [f"--{name}" for name in ("search", "states", "traces") if getattr(options, name)]
    weights = any(options.target.glob("*.safetensors"))
    if asked and not weights:
        raise Refusal(f"{', '.join(asked)} needs the target's weights, and {options.target} has none; leave it out, or give the whole "
                      "folder")
    for path in (options.states, options.traces):
        if path and not path.exists():
            raise Refusal(f"{path} does not exist; expected what extract or generate wrote")
    trainer, learned = dialects.trainer_of(folder), dialects.learn(folder, options.trained_on)
    findings = check.check(folder, target, engine)
    report = {"draft": str(options.draft), "target": str(options.target), "architecture": target.architecture, "sglang": engine.version,
              "trainer": trainer or "unknown", "trained_on": learned, "figures": {}, "said": []}
    if options.says:
        report["figures"]["says"] = meaning(options.says, engine)
    if options.static:
        report["said"].append("numeric checks were not asked for (--static)")
    elif not weights:
        report["said"].append(f"numeric checks need the target's weights, {options.target} has none")
    elif "EY-CONFIG-31" in [f.code for f in findings]:
        report["said"].append("numeric checks need a config whose values are of the right kind")
    elif check.wrong(findings) and not options.search:
        report["said"].append("numeric checks wait until the faults above are gone (--search tries other conventions all the same)")
    else:
        from tools import doctor_numeric  # here: transformers takes seconds to import
        findings += doctor_numeric.examine(folder, target, engine, options, report, check.wrong(findings))
    if options.search and report.get("tau") and not any(f.code.startswith("EY-TAU") for f in findings):
        # The served convention accepts, and no other one does better: what the ids meant has been answered.
        findings = [dataclasses.replace(f, level="note") if f.code in ("EY-RULE-03", "EY-RULE-14") and f.level == "open" else f
                    for f in findings]
    if options.fix:
        report["fix"] = fix(options, target, engine)
    report["findings"] = [f.as_dict() for f in check.ordered(findings)]
    report["healthy"] = False if check.wrong(findings) else None if any(f.level == "open" for f in findings) else True
    report["seconds"] = round(time.monotonic() - started, 1)
    return report


def asked_of(url):
    """(version, flags) of a running server. Refusal when it does not answer."""
    from stages.engines.http_json import Broken, Http, Refused
    try:
        return launch.of_server(Http(url.rstrip("/")).call("/server_info", seconds=30.0))
    except (Broken, Refused) as error:
        raise Refusal(f"the server at {url} does not say what it is: {error}") from None


def meaning(text, engine):
    """What the figures of one request or log line mean in this version: before 0.5.11 the rate counts the bonus token."""
    from stages.engines import spec_counters
    if text.startswith("@"):
        given = read_object(Path(text[1:]))
        given = given.get("meta_info", given)
    else:
        given = text
    return spec_counters.meaning(given, engine.version, launch.number(engine.flags.get("speculative-num-draft-tokens"))).says


def launch_flags(text):
    if not text:
        return {}
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise Refusal(f"the launch line cannot be read: {error}") from None
    return launch.parse(text)


def fix(options, target, engine):
    """Write the corrected folder and judge it; what was changed, what cannot be.

    Only a record or --trained-on decides what the ids must be: what a trainer usually writes is a guess.
    """
    folder = open_folder(options.draft)
    if options.trained_on:
        dialects.learn(folder, options.trained_on)
    changes, cannot = dialects.write_fixed(folder, options.fix, target, engine, folder.boundaries)
    left = [f for f in check.check(open_folder(options.fix) if changes else folder, target, engine) if f.level == "fault"]
    cannot += [] if cannot else [f"{f.cause}: {f.remedy}" for f in left]
    return {"out": str(options.fix) if changes else None, "changes": changes, "cannot": cannot, "faults_left": [f.code for f in left]}


def as_text(report):
    """The same for people: what was looked at, a block for each finding, what comes next."""
    lines = [f"draft    {report['draft']} (by {report['trainer']})", f"target   {report['architecture']}, {report['target']}",
             f"engine   SGLang {report['sglang']}", f"trained  {report['trained_on']}"]
    lines += [f"{name:<8} {value}" for name, value in report["figures"].items()]
    for finding in report["findings"]:
        level = {"fault": "", "open": " (open)", "note": " (note)"}[finding["level"]]
        lines += ["", f"{finding['code']}{level}  {finding['cause']}"]
        lines += [wrapped("found: " + finding["evidence"]), wrapped("do:    " + finding["remedy"])]
    if report.get("search"):
        lines += ["", "convention                                       tau   difference to the served one"]
        lines += [f"{row['name']:<46} {row['tau']:5.3f}   {row['difference']:+.3f} [{row['lo']:+.3f}, {row['hi']:+.3f}]"
                  for row in report["search"]]
    if report.get("fix"):
        lines += ["", f"fixed: {report['fix']['out'] or 'nothing' + (' to fix' if report['healthy'] else '')}"]
        lines += [wrapped(f"changed: {change}") for change in report["fix"]["changes"]]
        lines += [wrapped(f"cannot: {sentence}") for sentence in report["fix"]["cannot"]]
        if report["fix"]["out"]:
            left = report["fix"]["faults_left"]
            lines.append(wrapped(f"{report['fix']['out']} {'still has ' + ', '.join(left) if left else 'has no static fault left'}"))
    lines += [""] + [wrapped(sentence, "") for sentence in report["said"]]
    count = sum(f["level"] == "fault" for f in report["findings"])
    verdict = {True: "nothing wrong found", False: f"{count} fault{'s' if count > 1 else ''}",
               None: "open: nothing wrong found, but not all could be judged"}[report["healthy"]]
    lines.append(f"{verdict}{' in ' + report['draft'] if report.get('fix') else ''} ({report['seconds']} s)")
    return "\n".join(lines)


def wrapped(text, indent="    "):
    return textwrap.fill(text, 118, initial_indent=indent, subsequent_indent=indent + ("       " if indent else ""))


if __name__ == "__main__":
    main()
