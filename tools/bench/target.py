"""A Llama of 8 billion parameters' shape with SmolLM2's tokenizer: a target for measuring.

    python -m tools.bench.target PATH [--weights]

Without --weights the folder has no weights (engine.flags: {load-format: dummy}); with it random bf16 ones, 14.4 GiB, in files of 2 GB.
"""
import argparse
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from stages.lib import files, target
from stages.lib.refusal import run
from tools.tiny_target import SMOLLM2

SHAPE = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
         "intermediate_size": 14336, "tie_word_embeddings": True}
FILE_BYTES = 2_000_000_000


def make(path, weights):
    path, source = Path(path), target.resolve(SMOLLM2)
    path.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copyfile(source / name, path / name)
    config = {**files.read_json(source / "config.json"), **SHAPE}
    files.write_json(path / "config.json", config)
    if weights:
        with torch.device("meta"):
            shapes = {name: p.shape for name, p in LlamaForCausalLM(LlamaConfig(**config)).named_parameters()}
        write(path, shapes)


def write(path, shapes):
    """Random tensors, each from a seed of its own, so that threads can draw them. Matrices of std 0.02, the embedding 0.05: the layers
    add enough to the residual stream for neighbouring boundaries to differ."""
    groups, room, index = [], 0, {}
    for number, (name, shape) in enumerate(sorted(shapes.items())):
        size = 2 * shape.numel()
        if not groups or room < size:
            groups.append([])
            room = FILE_BYTES
        groups[-1].append((name, shape, number))
        room -= size

    def draw(item):
        name, shape, number = item
        noise = torch.Generator().manual_seed(number)
        std = 0.05 if "embed" in name else 0.02
        return name, torch.ones(shape, dtype=torch.bfloat16) if len(shape) == 1 else torch.empty(
            shape, dtype=torch.bfloat16).normal_(0, std, generator=noise)

    def put(numbered):
        number, group = numbered
        file = f"model-{number + 1:05d}-of-{len(groups):05d}.safetensors"
        save_file(dict(map(draw, group)), path / file, {"format": "pt"})
        index.update({name: file for name, _, _ in group})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, enumerate(groups)))
    files.write_json(path / "model.safetensors.index.json",
                     {"metadata": {"total_size": sum(2 * s.numel() for s in shapes.values())}, "weight_map": dict(sorted(index.items()))})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--weights", action="store_true")
    options = parser.parse_args()
    make(options.path, options.weights)
    print(options.path)


if __name__ == "__main__":
    run(main)
