"""A draft as the folder that SGLang serves: config.json, model.safetensors, and training.json, which no server reads.

training.json says what the draft was trained on, so that a later check can compare it with what a server makes of the folder.
"""
import torch
from safetensors.torch import save_file

from stages.contract.vocabulary import digest
from stages.lib import files
from stages.lib.refusal import Refusal

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def write(folder, shape, weights, about, boundaries, ids, dtype, **more):
    """Write the three files into the existing `folder`.

    weights: {name: tensor} with the trainer's names and `d2t` (int64 [Vd]); floats are stored as `dtype`. about: data/target's
    manifest. boundaries: what the draft was trained on. ids: what the engine turns into them. more: further facts for
    training.json. Refusal for an unknown dtype.
    """
    if dtype not in DTYPES:
        raise Refusal(f"export.dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    files.write_json(folder / "config.json", config(shape, about, ids, dtype))
    save_file({name: w.contiguous() if name == "d2t" else w.to(DTYPES[dtype]).contiguous() for name, w in weights.items()},
              folder / "model.safetensors", {"format": "pt"})
    files.write_json(folder / "training.json", {
        "trainer": "Eyrie", "boundaries": list(boundaries), "target": about["sha256"], "target_files": about["files"],
        "vocabulary": digest(weights["d2t"]), "rope_theta": shape.rope_theta, "rope_scaling": {},
        "rms_norm_eps": shape.rms_norm_eps, "norm_output": False, **more})


def rounded(weights, dtype):
    """The weights as the folder will give them back, in fp32 and without the map: what the trainer's forward is compared with."""
    return {name: w.to(DTYPES[dtype]).float() for name, w in weights.items() if name != "d2t"}


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
