"""The live half of the preflight: serve the untrained draft for a few requests and see what reaches it.

A random draft accepts nothing, and need not: the width of its input, the calls of fc and the value of layers_to_capture are those of
any draft with this config.
"""
from pathlib import Path

from stages.engines import sglang_engine, sglang_launch, sglang_server
from stages.engines.sglang_path import plugin_environment
from stages.engines.sglang_plugin import WATCH
from stages.lib import files, state
from stages.lib.refusal import Refusal

CHAIN, TOKENS = 3, 8
# A replayed graph runs no Python, so the plugin would see nothing of it.
EAGER = {"disable-prefill-cuda-graph": True, "disable-decode-cuda-graph": True}


def watch(engine, model, draft, about, prompts, name="preflight"):
    """The plugin's report (stages/engines/sglang_watch.py) of an EAGLE-3 server with this draft, after it answered `prompts`."""
    report = state.piece(name, "watch.json")
    report.unlink(missing_ok=True)
    variables = {**plugin_environment(state.piece(name, "plugin")), WATCH: str(report.resolve())}
    flags = {**sglang_launch.speculation(Path(draft).resolve(), CHAIN), **EAGER}
    with sglang_server.serve(name, model, engine, flags, variables=variables) as servers:
        asked = sglang_engine.Engine(servers, about["vocab_size"])
        for answer in asked.generate(prompts, TOKENS, 0, 1.0, [0] * len(prompts), about["eos_token_ids"]):
            if isinstance(answer, Exception):
                raise Refusal(f"the server with the untrained draft answers nothing: {answer}")
    if not report.exists():
        raise Refusal("the server ran without this project's plugin, so nothing was seen of the draft; install the project where SGLang "
                      "runs (pip install --no-deps -e .)")
    return files.read_json(report)


def faults(seen, boundaries, hidden_size):
    """(code, evidence) where the report is not what the export says.

        step      prefill: one forward, K*H wide, fc once      verify: chain - 1 forwards of width H, then one K*H wide with fc
    """
    if seen.get("algorithm") != "EAGLE3":
        yield "EY-FLAG-01", f"the running server's algorithm is {seen.get('algorithm')}"
    value = seen.get("layers_to_capture")
    if value is None or sorted(value) != list(boundaries):
        yield "EY-RULE-03", f"the running server's layers_to_capture is {value}, the plan is {list(boundaries)}"
    width = len(boundaries) * hidden_size
    for step in ("prefill", "verify"):
        forwards = seen.get(step) or []
        if not any(f["width"] == width and f["fc_calls"] == 1 for f in forwards):
            says = ", ".join(f"{f['width']} wide with {f['fc_calls']} calls of fc" for f in forwards) or "nothing"
            yield "EY-FORWARD-03", f"in the {step} step the draft read {says}; expected one forward {width} wide with one call of fc"
            return
