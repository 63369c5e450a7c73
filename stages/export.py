"""export: the draft as a folder that SGLang serves.

In: data/draft, data/target. Out: data/export (config.json, model.safetensors).
Alone: `python -m stages.export`. Nothing is written before an independent forward agrees with the trainer's.
"""
from stages.lib import cpu  # noqa: F401  before torch
import torch
from safetensors.torch import load_file, save_file

from stages.contract import probes, rules
from stages.lib import draft as drafts, files, params, progress, state, target
from stages.lib.refusal import Refusal, run

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def main():
    p = params.load("export")
    if p.export.dtype not in DTYPES:
        raise Refusal(f"export.dtype is {p.export.dtype!r}; expected one of {', '.join(DTYPES)}")
    torch.set_num_threads(1)
    manifest, about = files.read_json("data/draft/manifest.json"), target.manifest()
    if manifest["target"] != about["sha256"]:
        raise Refusal(f"data/draft was trained on target {manifest['target'][:12]}, data/target is {about['sha256'][:12]}; rerun train")
    weights = load_file("data/draft/draft.safetensors")
    ids = rules.ids_to_write(p.export.sglang, about["architecture"], manifest["boundaries"], about["num_hidden_layers"])

    out = state.begin("export")
    files.write_json(out / "config.json", config(drafts.Shape(**manifest["shape"]), about, ids, p.export.dtype))
    save_file({name: w if name == "d2t" else w.to(DTYPES[p.export.dtype]) for name, w in weights.items()},
              out / "model.safetensors", {"format": "pt"})
    embed = target.head_and_norm(target.open_target())["embed"].float()
    difference = probes.two_step_difference(out, weights, manifest["shape"], embed, DTYPES[p.export.dtype])
    if not difference < probes.TOLERANCE:
        raise Refusal(f"the exported folder, read as SGLang reads it, differs from the trainer's forward by {difference:.2e} "
                      f"(relative, two recurrent steps; allowed {probes.TOLERANCE:.0e}): the export is not the draft that was trained")
    state.publish(out, "data/export")
    size = sum(w.numel() for w in weights.values()) / 1e6
    progress.summary("export", ids=ids, boundaries=manifest["boundaries"], parameters=f"{size:.2f} M",
                     two_step_difference=f"{difference:.1e}")


def config(shape, about, ids, dtype):
    """Every key that SGLang's draft loader reads, written out: its defaults are silent (theta 10000, fp16, 61 layers of a
    copied target config). Never copied from the target's config.json."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "torch_dtype": dtype, "hidden_act": "silu",
        "hidden_size": shape.hidden_size, "intermediate_size": shape.intermediate_size, "num_hidden_layers": 1,
        "num_attention_heads": shape.num_heads, "num_key_value_heads": shape.num_kv_heads, "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size, "draft_vocab_size": shape.draft_vocab_size, "target_hidden_size": shape.target_hidden_size,
        "rms_norm_eps": shape.rms_norm_eps, "rope_theta": shape.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "max_position_embeddings": about["max_position_embeddings"], "tie_word_embeddings": False,
        "attention_bias": False, "mlp_bias": False, "bias": False,
        "bos_token_id": about["bos_token_id"], "eos_token_id": about["eos_token_ids"][0],
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": ids}}


if __name__ == "__main__":
    run(main)
