"""SGLang's own draft classes and loader, asked what they make of a draft folder."""
import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.contract import sglang_real as real

MODULES = {"LlamaForCausalLMEagle3": "models.llama_eagle3", "Eagle3DeepseekV2ForCausalLM": "models.kimi_k25_eagle3"}


def served(config, tensors):
    """(ignored, unset, error) of a draft's config (dict) and tensors {name: tensor}.

    ignored: checkpoint names without which the loaded model would be the same, t2d among them. unset: parameters of the server's
    module with a value that no tensor wrote. error: (class name, message) where building or loading ends with an exception, else None.
    """
    try:
        model = load(config, tensors)
        everything = values(model)
        ignored = {name for name in tensors if same(everything, values(load(config, {n: t for n, t in tensors.items() if n != name})))}
    except Exception as error:  # noqa: BLE001  whatever the server would end with
        return set(), set(), (type(error).__name__, str(error))
    return ignored, {name for name, value in everything.items() if value.is_floating_point() and value.isnan().any()}, None


def load(config, tensors):
    """The draft class of the config, all parameters NaN, then the checkpoint in the order of its names."""
    model = build(config)
    for parameter in model.parameters():
        parameter.data.fill_(float("nan"))
    model.load_weights((name, tensors[name]) for name in sorted(tensors))
    return model


def build(config):
    real.boot()
    torch.set_default_dtype(torch.float32)
    architecture, = config["architectures"]
    return real.of_sglang(MODULES[architecture], architecture)(read(config))


def read(config):
    """The config as transformers reads it from a folder."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        return real.hf.AutoConfig.from_pretrained(folder)


def values(model):
    """Parameters by name (a tied head under both of its names), and the table that d2t becomes."""
    hot = model.get_hot_token_id()
    return {**{name: p.data for name, p in model.named_parameters(remove_duplicate=False)},
            "hot_token_id": torch.zeros(0) if hot is None else hot}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(a.nan_to_num(nan=1e30) if a.is_floating_point() else a,
                                                          b.nan_to_num(nan=1e30) if b.is_floating_point() else b)
                                              for a, b in zip(one.values(), other.values()))


def write(folder, config, tensors):
    folder = Path(folder)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder
