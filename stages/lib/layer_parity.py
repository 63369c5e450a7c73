"""Parity of captured states for targets that cannot be loaded a second time: one decoder layer links two boundaries.

    rows of boundary b  ->  layer b of the checkpoint, in transformers' own class  ->  must be the rows of boundary b+1

A capture that is a layer off, in another order, a partial sum or of other rows fails this, whatever the size of the target: only the
tensors of one layer are read. `repeats` does the same for `last` and the head, and `probe` all of it for a few traces of a run
(engine.parity: layers).
"""
import copy
import functools
import time
from pathlib import Path

import torch
import transformers
from safetensors import safe_open
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from stages.lib import files, parity, target
from stages.lib.refusal import Refusal

UPDATE_COSINE_P1 = 0.9  # of what the layer adds; one layer off is near 0 (tests/test_layer_parity.py)
def both_sides(boundaries, num_layers):
    """The boundaries to capture for `probe`: each of `boundaries` and a neighbour that one layer links it to. Ascending."""
    return sorted({side for b in boundaries for side in link_of(b, num_layers)})


def link_of(boundary, num_layers):
    """(b, b+1), or (b-1, b) where the engine may not capture b+1: boundary n is not captured of every class."""
    return (boundary, boundary + 1) if boundary + 1 < num_layers else (boundary - 1, boundary)


def probe(capture, folder, rows, boundaries, num_layers, count, greedy, dtype):
    """As parity.probe, without a second copy of the target: figures for the manifest, a Refusal where something does not fit.

    capture: function of a list of sequences -> per sequence (aux at both_sides(boundaries), last). `count` traces, spread evenly.
    """
    sides = both_sides(boundaries, num_layers)
    sample = [rows[i * len(rows) // min(count, len(rows))] for i in range(min(count, len(rows)))]
    started = time.perf_counter()
    captured = capture([row["prompt_ids"] + row["response_ids"] for row in sample])
    seconds = time.perf_counter() - started
    streams = [aux.unflatten(1, (len(sides), -1)) for aux, _ in captured]
    found = {}
    for boundary in boundaries:
        entering, leaving = link_of(boundary, num_layers)
        figures = [layer_parity(folder, entering, s[:, sides.index(entering)], s[:, sides.index(leaving)]) for s in streams]
        found[boundary] = {name: min(f[name] for f in figures) for name in ("update_cosine_p1", "cosine_p1")}
    repeated = [(len(row["response_ids"]), repeats(folder, last[len(row["prompt_ids"]) - 1:-1], torch.tensor(row["response_ids"])))
                for row, (_, last) in zip(sample, captured) if row["response_ids"]]
    share = sum(n * r for n, r in repeated) / sum(n for n, _ in repeated)
    if greedy and share < parity.HEAD_REPEATS[dtype]:
        raise Refusal(f"head(last) repeats {share:.2%} of the traced greedy tokens in {dtype}, expected {parity.HEAD_REPEATS[dtype]:.1%}: "
                      "the traces come from another target, another precision, or `last` is not the post-norm state")
    return {"rows": len(sample), "cosine_p1_min": round(min(f["cosine_p1"] for f in found.values()), 4), "head_repeats": round(share, 3),
            "update_cosine_p1": {f"boundary_{b}": round(f["update_cosine_p1"], 4) for b, f in found.items()},
            "tokens_per_s": sum(map(len, streams)) / seconds}


@torch.inference_mode()
def layer_parity(folder, boundary, entering, leaving, dtype=torch.float32):
    """Figures of layer `boundary` of the target in `folder`: {"update_cosine_p1", "cosine_p1", "error_median"}.

    entering, leaving [n, H]: captured rows of one whole sequence at boundaries b and b+1 (b+1 below the number of layers). The
    comparison is of what the layer adds, leaving - entering: the streams themselves are nearly parallel, and a cosine of 0.999 between
    them says little. Row 0 is left out: its state is a thousand times larger than any other. Refusal when the rows do not agree.
    """
    entering, leaving = (x.to(dtype)[None] for x in (entering, leaving))
    computed = one_layer(folder, boundary, dtype)(inputs_embeds=entering, use_cache=False).last_hidden_state
    added, wanted = ((x - entering)[0, 1:].float() for x in (leaving, computed))
    cosine = torch.cosine_similarity(added, wanted, dim=1)
    figures = {"update_cosine_p1": cosine.quantile(0.01).item(),
               "cosine_p1": torch.cosine_similarity(leaving[0, 1:].float(), computed[0, 1:].float(), dim=1).quantile(0.01).item(),
               "error_median": ((added - wanted).norm(dim=1) / wanted.norm(dim=1)).median().item()}
    if not figures["update_cosine_p1"] >= UPDATE_COSINE_P1:
        raise Refusal(f"layer {boundary} of {folder} does not turn the rows of boundary {boundary} into those of boundary {boundary + 1}: "
                      f"1st percentile of the cosine of what it adds {figures['update_cosine_p1']:.3f}, expected {UPDATE_COSINE_P1}; the "
                      "engine captures other boundaries, a partial sum, or corrupts rows")
    return figures


@torch.inference_mode()
def repeats(folder, last, tokens):
    """Share of rows whose head(last) says the token behind them (parity.says). last [n, H], tokens [n]."""
    return parity.says(last, tokens, target.head_and_norm(folder)["head"]).float().mean().item()


@functools.lru_cache(maxsize=1)  # several sequences go through one layer after the other
def one_layer(folder, index, dtype):
    """transformers' decoder with layer `index` of the checkpoint alone, no final norm and no embedding; the rest has no memory."""
    config = copy.deepcopy(_text_config(Path(folder)))
    config.dtype = config.torch_dtype = dtype
    config._attn_implementation = "eager"
    with torch.device("meta"):
        decoder = AutoModelForCausalLM.from_config(config).get_decoder()
    layer = decoder.layers[index]
    layer.load_state_dict(_fused(_tensors(folder, index, dtype), layer), strict=True, assign=True)
    decoder.layers, decoder.norm = torch.nn.ModuleList([layer]), torch.nn.Identity()
    decoder.rotary_emb = type(decoder.rotary_emb)(config=config)  # its frequencies are computed, not stored
    decoder.config.num_hidden_layers = 1
    if getattr(config, "layer_types", None):
        decoder.config.layer_types = config.layer_types[index:index + 1]
    return decoder.eval()


def _text_config(folder):
    """transformers' config of the language model. Of a wrapper that it does not know (Kimi-K2.5), by the class that the wrapper names."""
    written = files.read_json(folder / "config.json")
    text = written.get("text_config")
    if written["model_type"] in CONFIG_MAPPING or not text:
        return AutoConfig.from_pretrained(folder).get_text_config()
    name = (text.get("architectures") or ["none"])[0]
    if not hasattr(transformers, name):
        raise Refusal(f"transformers {transformers.__version__} knows neither {written['model_type']} nor {name}, the language model "
                      f"in {folder / 'config.json'}")
    known = getattr(transformers, name).config_class
    return known(**{**text, "model_type": known.model_type})


def _tensors(folder, index, dtype):
    """{name in the layer: tensor}, packed 4-bit weights unpacked."""
    names = _names(Path(folder))
    for body in ("model.", "language_model.model.", "model.language_model."):
        prefix = f"{body}layers.{index}."
        if mine := [name for name in names if name.startswith(prefix) and not name.endswith("inv_freq")]:
            return _unpacked({name.removeprefix(prefix): target.read_tensor(folder, name) for name in mine}, dtype)
    raise Refusal(f"{folder} has no model.layers.{index}.* tensors: not named like Llama's")


def _names(folder):
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return sorted(files.read_json(index)["weight_map"])
    with safe_open(folder / "model.safetensors", "pt") as file:
        return sorted(file.keys())


def _unpacked(tensors, dtype):
    """compressed-tensors' `pack-quantized` 4-bit weights: eight values of an int32, lowest bits first, 8 meaning zero; one scale per
    group of a row. weight_packed [out, in / 8] int32, weight_scale [out, in / group], weight_shape [2]."""
    plain = {}
    for name, tensor in tensors.items():
        stem, dot, kind = name.rpartition(".weight_")
        if not dot:
            plain[name] = tensor.to(dtype)
        elif kind == "packed":
            rows, columns = tensors[f"{stem}.weight_shape"].tolist()
            values = (tensor[..., None] >> torch.arange(0, 32, 4, dtype=torch.int32)) & 15
            scale = tensors[f"{stem}.weight_scale"].float()
            values = values.flatten(1)[:, :columns].float().sub(8).unflatten(1, (scale.shape[1], -1))
            plain[f"{stem}.weight"] = (values * scale[..., None]).view(rows, columns).to(dtype)
        elif kind not in ("scale", "shape"):
            raise Refusal(f"{name}: this quantisation cannot be undone here; compare with a server of the unquantised target")
    return plain


def _fused(tensors, layer):
    """Checkpoints hold an expert's matrices one by one, transformers' classes hold them together: gate_up_proj [E, 2I, H],
    down_proj [E, H, I]."""
    if "mlp.experts.gate_up_proj" not in dict(layer.named_parameters()) or "mlp.experts.gate_up_proj" in tensors:
        return tensors
    part = lambda e, name: tensors.pop(f"mlp.experts.{e}.{name}_proj.weight")
    count = len(layer.mlp.experts.gate_up_proj)
    fused = {"mlp.experts.gate_up_proj": torch.stack([torch.cat([part(e, "gate"), part(e, "up")]) for e in range(count)]),
             "mlp.experts.down_proj": torch.stack([part(e, "down") for e in range(count)])}
    return {**tensors, **fused}
