"""A second run of what evaluate measures at temperature 0, beside the first: the same served tau?

    python -m tests.gpu.again OUT.json

Run it in a workspace whose evaluate ran on SGLang. A fresh EAGLE-3 server streams the same evaluation prompts; passes and accepted
drafts must be those of metrics/evaluate.json. It also times both servers anew, for a machine that had other work the first time.
"""
from stages.lib import cpu  # noqa: F401  before torch
import sys
from pathlib import Path

from stages.engines import sglang_engine, sglang_launch, sglang_server
from stages.lib import answers, chat, files, gate, params, prompts, served, target, verifier


def main():
    p, about, folder = params.load("evaluate"), target.manifest(), target.open_target()
    e, chain, tok = p.evaluate, verifier.HEADLINE_CHAIN, chat.tokenizer(folder)
    rows = prompts.read(e.files, None, e.max_bad).rows
    flags = sglang_launch.speculation(Path("data/export").resolve(), chain)
    with sglang_server.serve("again", folder, p.engine, flags, seed=e.seed) as servers:
        engine = sglang_engine.Engine(servers, about["vocab_size"])
        recorder = served.Recorder(engine, chain)
        said, _ = answers.of_block(rows, recorder, tok, about["eos_token_ids"], e.max_tokens, e.max_new_tokens, 0, 1.0, e.seed, len(rows),
                                   lambda n: None)
        passes = [recorder.passes[tuple(row["prompt_ids"])] for row in said]
        speeds = {"speculative": served.rates(engine, said, about["eos_token_ids"])}
    figures = gate.compare(passes, passes, passes)
    first = files.read_json("metrics/evaluate.json")["gate"]
    result = {"passes": figures["passes"], "tau_served": figures["tau_served"], "answers": figures["answers"],
              "first": {name: first[name] for name in ("passes", "tau_served", "answers")}}
    print(result, flush=True)
    files.write_json(sys.argv[1], result)
    with sglang_server.serve("again-plain", folder, p.engine, seed=e.seed) as servers:
        speeds["plain"] = served.rates(sglang_engine.Engine(servers, about["vocab_size"]), said, about["eos_token_ids"])
    served.speed_file(speeds, files.read_json("metrics/evaluate.json")["tau"], Path(sys.argv[1]).with_suffix(".speed.json"))
    files.write_json(sys.argv[1], result)


if __name__ == "__main__":
    main()
