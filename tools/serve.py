"""The SGLang server with the exported draft, in the place of this process; `python -m tools.container serve` runs it in the gpu image.

    python -m tools.serve [--port 30000] [--chain 5]

Model, precision and flags are those of params.yaml, over what the GPUs here need (stages/engines/capability.py): what `evaluate` measured.
"""
import argparse
import os
from pathlib import Path

from stages.engines import capability, sglang_launch as launch, sglang_server
from stages.lib import params, target
from stages.lib.refusal import Refusal, run

EXPORT = Path("data/export")
PORT, CHAIN = 30000, 5


def main():
    parser = argparse.ArgumentParser(prog="python -m tools.serve", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--chain", type=int, default=CHAIN, help="draft tokens per verify pass")
    options = parser.parse_args()
    engine = params.load("evaluate").engine
    if engine.name != "sglang":
        raise Refusal(f"engine.name is {engine.name}, which serves nothing; choose a profile with SGLang (make repro PROFILE=...)")
    if not (EXPORT / "config.json").is_file():
        raise Refusal(f"{EXPORT} holds no draft; make one with `make repro`, or fetch it with `dvc pull export`")
    draft = launch.speculation(EXPORT.resolve(), options.chain)
    model = target.open_target()
    flags, variables = sglang_server.wanted(model, engine, draft, 0, capability.of_devices())
    line = launch.command(model, engine.dtype, flags, options.port)
    print(" ".join(line), flush=True)
    os.execvpe(line[0], line, launch.environment(variables, None))


if __name__ == "__main__":
    run(main)
