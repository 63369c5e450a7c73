"""A healthy draft in seconds, for planting faults: a small random target, its own greedy answers, its states, and a draft that
has learnt those answers nearly by heart. Real code all the way: the engine, the shards, the trainer's loss, the exported folder."""
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from stages import extract
from stages.contract.forward import ServedDraft
from stages.engines.transformers_engine import Engine
from stages.lib import draft as drafts, files, loss, packing, served_folder, shards, traces, vocabulary

VOCAB, SIZE, HEADS, KV_HEADS = 200, 48, 4, 2
HEAD = 16  # of the draft: not SIZE / HEADS, which a loader takes where it is absent
PROMPTS, PROMPT, ANSWER = 40, 8, 24
THETA, EPS = 50000.0, 1e-5  # not what a loader takes where they are absent
TIED = 0.2  # a tied embedding is this much smaller: else the layers do not outweigh it, and the head repeats its token


@dataclass
class Healthy:
    """`answers`: (prompt ids, response ids) per document, greedy. boundaries: what the draft was trained on and what a Llama-type
    server captures for the exported ids."""
    target: Path
    export: Path
    states: Path
    traces: Path
    boundaries: list
    layers: int
    answers: list
    engine: Engine
    about: dict

    @property
    def embed(self):
        return self.engine.model.get_input_embeddings().weight.detach()

    @property
    def head(self):
        return self.engine.head.weight.detach()

    def served(self, folder=None, **version):
        return ServedDraft(folder or self.export, self.embed, self.head, **version)


def tiny_target(folder, layers=6, seed=1, tied=False):
    """A random Llama whose greedy answers vary and whose layers each change the state by much."""
    torch.manual_seed(seed)
    config = LlamaConfig(hidden_size=SIZE, intermediate_size=2 * SIZE, num_hidden_layers=layers, num_attention_heads=HEADS,
                         num_key_value_heads=KV_HEADS, vocab_size=VOCAB, max_position_embeddings=256, initializer_range=0.3,
                         tie_word_embeddings=tied, bos_token_id=1, eos_token_id=None, rope_theta=THETA, rms_norm_eps=EPS)
    model = LlamaForCausalLM(config)
    model.model.norm.weight.data.uniform_(0.5, 1.5)  # so that norming twice is not norming once
    if tied:
        model.get_input_embeddings().weight.data.mul_(TIED)
    model.save_pretrained(folder)
    # A server takes float32 for float16; the weights themselves stay as they are, for exact comparisons.
    files.write_json(folder / "config.json", {**files.read_json(folder / "config.json"), "dtype": "bfloat16"})
    return folder


def answers_of(engine, seed=0):
    noise = torch.Generator().manual_seed(seed)
    prompts = torch.randint(3, VOCAB, (PROMPTS, PROMPT), generator=noise).tolist()
    return [(p, r) for p, (r, _) in zip(prompts, engine.generate(prompts, ANSWER, 0, 1.0, [0] * PROMPTS, [VOCAB + 1]))]


def states_on_disk(folder, engine, answers, boundaries):
    """data/states as extract writes it, in fp32, with the parts of the manifest that later stages read."""
    folder.mkdir()
    extract.engine, extract.boundaries = engine, list(boundaries)
    extract.settings = type("P", (), {"extract": type("E", (), {"dtype": "float32"})})
    captured = engine.capture([p + r for p, r in answers], boundaries)
    rows = [{"prompt_ids": p, "response_ids": r} for p, r in answers]
    documents = [extract.document(row, aux, last, extract.next_words(row, last)) for row, (aux, last) in zip(rows, captured)]
    extract.engine = extract.boundaries = extract.settings = None
    tensors = {name: torch.cat([d[name] for d in documents]) for name in documents[0]}
    path = folder / "states-00000.safetensors"
    shards.write(path, {**tensors, "cu_seqlens": torch.tensor([0, *(len(p + r) for p, r in answers)]).cumsum(0)})
    files.write_json(folder / "manifest.json", {
        "boundaries": list(boundaries), "dtype": "float32", "hidden_size": SIZE, "target": "0" * 64, "engine": {"dtype": "float32"},
        "documents": [[f"row{i}", 0] for i in range(len(answers))],
        "shards": [{"file": path.name, "sha256": files.sha256(path), "documents": len(answers)}]})
    return shards.load(folder)


def traces_on_disk(folder, answers):
    """data/traces as generate writes it, without text."""
    folder.mkdir()
    (folder / "traces-00000.jsonl").write_text(traces.dump([
        {"id": f"row{i}", "source": "random", "turn": 0, "prompt_ids": p, "response_ids": r, "finish_reason": "length", "text": ""}
        for i, (p, r) in enumerate(answers)]))
    files.write_json(folder / "manifest.json", {"generate": {"temperature": 0}})
    return folder


def train(states, engine, d2t, num_aux, steps, ttt, lr=8e-3, theta=THETA):
    """A draft that has read all documents `steps` times."""
    embed, head = engine.model.get_input_embeddings().weight.detach(), engine.head.weight.detach()
    shape = drafts.Shape(SIZE, 2 * SIZE, HEADS, KV_HEADS, HEAD, num_aux, SIZE, VOCAB, len(d2t), EPS, theta)
    draft, ids = drafts.Draft(shape, embed), vocabulary.target_ids(d2t)
    drafts.initialise(draft, "random", head, torch.ones(SIZE), d2t, 0)
    inside, draft_ids = vocabulary.inside(d2t, VOCAB), vocabulary.draft_ids(d2t, VOCAB)
    optimizer = torch.optim.AdamW(draft.parameters(), lr=lr, weight_decay=0)
    batches = [packing.collate(states, packs, 64) for packs in packing.plan(states.lengths, 64, 64, range(len(states.lengths)))]
    # A larger head: a random target's distribution is flat, and this makes its first choice plain to the draft.
    teacher = head[ids] * (4 / TIED if engine.model.config.tie_word_embeddings else 4)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = lr * min(1, (step + 1) / 10) * (1 - step / steps)
        for batch in batches:
            loss.ttt_loss(draft, batch, teacher, inside, draft_ids, ttt, 0.9, False)[0].backward()
            optimizer.step()
            optimizer.zero_grad()
    return draft.eval()


def healthy(folder, boundaries=(1, 3, 5), layers=6, tied=False, draft_vocab=150, theta=THETA, steps=120, ttt=3, seed=1):
    """Everything of one run under `folder`. boundaries: any number of them, K = their count; draft_vocab None: all tokens."""
    folder = Path(folder)
    torch.set_num_threads(1)
    engine = Engine(tiny_target(folder / "target", layers, seed, tied), transformers.__version__, "float32", 1)
    answers = answers_of(engine)
    states = states_on_disk(folder / "states", engine, answers, list(boundaries))
    d2t = vocabulary.choose(vocabulary.count(states, range(len(answers)), VOCAB), draft_vocab or VOCAB)
    draft = train(states, engine, d2t, len(boundaries), steps, ttt, theta=theta)
    about = {"max_position_embeddings": 256, "bos_token_id": 1, "eos_token_ids": [2], "architecture": "LlamaForCausalLM",
             "sha256": "0" * 64, "files": {path.name: files.sha256(path) for path in sorted((folder / "target").iterdir())}}
    out = folder / "export"
    out.mkdir()
    served_folder.write(out, draft.shape, {**{n: p.detach() for n, p in draft.named_parameters()}, "d2t": d2t}, about, boundaries,
                        [b - 1 for b in boundaries], "bfloat16")
    return Healthy(folder / "target", out, folder / "states", traces_on_disk(folder / "traces", answers), list(boundaries), layers,
                   answers, engine, about)
