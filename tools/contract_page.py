"""docs/contract.md from the tables in stages/contract: `python -m tools.contract_page` writes it, --check says whether it is in step."""
from stages.lib import cpu  # noqa: F401  before torch
import argparse
import sys
from pathlib import Path

from stages.contract import config, rules, tensors
from stages.contract.faults import FAULTS, NOTES

PAGE = Path("docs/contract.md")
FAMILIES = {
    "FILE": ("Files", "static"), "TENSOR": ("Tensors", "static; TENSOR-11 and -18 read weights"), "CONFIG": ("config.json", "static"),
    "RULE": ("Layer ids", "static"), "VOCAB": ("Draft vocabulary", "static; VOCAB-10 needs answers"),
    "FLAG": ("Launch line", "static, with `--launch`"), "TARGET": ("Identity of the target", "static; TARGET-04 hashes the weights"),
    "STATE": ("States and answers", "numeric, with states"), "FORWARD": ("Both forwards", "numeric, with the trainer's weights"),
    "TAU": ("Acceptance", "numeric, with answers"), "PLAN": ("The plan", "preflight"),
}
INTRO = """# The serving contract

Made by `python -m tools.contract_page` from the tables in `stages/contract/`; edit those.

A draft that breaks one of these rules is loaded and served without a word, or fails late. Each fault has a code that
never changes its meaning. The same checks (`stages/contract/check.py`) run in four places:

| where | when | what |
|---|---|---|
| `preflight` | before the first answer | static checks and both forwards on an untrained draft with the real settings, the plan |
| `export` | after training | all static checks, both forwards on the trained weights |
| `evaluate` | before figures are written | all static checks, the states of the evaluation answers |
| `tools/doctor` | any time, any trainer's draft | everything; `--search` looks for the convention that a draft was trained in |

A *note* is said but refuses nothing."""


def page():
    return "\n\n".join([INTRO, *(family(key, *about) for key, about in FAMILIES.items()), rule_table(), name_table(), key_table()]) + "\n"


def family(key, title, found):
    rows = [[f"`{code}`{' (note)' if code in NOTES else ''}", f.cause, f.symptom, f.remedy, f.source]
            for code, f in FAULTS.items() if code.startswith(f"EY-{key}-")]
    return f"## {title} (EY-{key})\n\nFound: {found}.\n\n" + table(["code", "cause", "what the server does", "remedy", "source"], rows)


def rule_table():
    rows = [[", ".join(row.classes), row.since, row.shift,
             "yes" if row.last else "no", row.where, row.how] for row in rules.RULES]
    return ("## Engine rules: from ids to boundaries\n\nBoundary b is the residual stream that enters layer b. A row holds from its "
            f"release until the class's next row; checked releases: {', '.join(rules.versions())}. Without ids a class takes the "
            "boundaries 2, n/2, n-3 (MiniMax-M3's vision class one more of each).\n\n"
            + table(["target class", "since", "an id is", "last layer's output", "where", "how established"], rows))


def name_table():
    read = config.read({"architectures": [config.LLAMA], "draft_vocab_size": 32000}, "0.5.15.post1")
    read.keys["num_hidden_layers"] = 1
    h, heads, groups, size = read.hidden_size, read.num_attention_heads, read.num_key_value_heads, read.head_dim
    words = {2 * h: "2H", h: "H", read.num_aux * h: "K*Ht", read.intermediate_size: "I", 32000: "Vd"}
    shape = lambda s: "[" + ", ".join(words.get(d, str(d)) for d in s) + "]"
    rows = [[f"`{name.replace('layers.0.', 'midlayer.')}`", shape(s)] for name, s in tensors.expected(read, "0.5.15.post1").items()]
    rows += [["`d2t`", "[Vd] integers: target id minus draft id"], ["`t2d`", "never read"],
             ["`embed_tokens.weight`", "[V, H]; needed only if target_hidden_size is not hidden_size"]]
    assert heads * size == h and groups * size == h  # so q, k, v read as H here
    return ("## Tensors of `LlamaForCausalLMEagle3`\n\nH draft hidden size, Ht target hidden size, K states, I MLP, V and Vd "
            "vocabularies; q, k, v and o_proj with heads x head_dim = H. `midlayer.` is read by every version, `layers.0.` from "
            f"{config.WIDER} on, either with `model.` before it. Anything else is dropped.\n\n" + table(["name", "shape"], rows))


def key_table():
    rows = [[f"`{key}`", kind, "-" if default is None else str(default).lower()] for key, (kind, default) in config.KEYS.items()]
    return ("## Keys of the draft's config.json\n\nWhat the server takes where a key is absent.\n\n"
            + table(["key", "kind", "default"], rows))


def table(head, rows):
    cell = lambda text: text.replace("|", "\\|")
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(cell, row))} |" for row in lines)


def main():
    parser = argparse.ArgumentParser(prog="python -m tools.contract_page", description="Write docs/contract.md from stages/contract.")
    parser.add_argument("--check", action="store_true", help="only say whether the page is in step (exit 1 if not)")
    if parser.parse_args().check:
        in_step = PAGE.exists() and PAGE.read_text() == page()
        sys.exit(0 if in_step else f"{PAGE} is not what the tables say; run python -m tools.contract_page")
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
