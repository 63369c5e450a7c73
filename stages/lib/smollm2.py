"""SmolLM2's GGUF file as a model folder that transformers and SGLang load.

Two things in the file are llama.cpp's own and are undone here: the row order of q and k, and a tokenizer named by one
word. Everything else is copied. The bytes depend on the GGUF file alone, not on who writes them or when.
"""
import json

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file

from stages.lib import files
from stages.lib.refusal import Refusal

TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
CONTROL = 3  # gguf.TokenType.CONTROL: a token that text never produces piece by piece


def convert(gguf_path, out_dir):
    """Write config.json, model.safetensors (bf16), tokenizer.json, tokenizer_config.json, chat_template.jinja and
    generation_config.json into the existing folder `out_dir`. Refusal when the file is not a SmolLM model."""
    reader = GGUFReader(gguf_path)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    kind = meta.get("general.architecture"), meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre")
    if kind != ("llama", "gpt2", "smollm"):
        raise Refusal(f"the package's GGUF file is {kind} (architecture, tokenizer, pre-tokenizer); only SmolLM's is "
                      "converted, ('llama', 'gpt2', 'smollm'): use target.source folder, with safetensors")
    heads = {"attn_q": meta["llama.attention.head_count"], "attn_k": meta["llama.attention.head_count_kv"]}
    weights = {}
    for tensor in reader.tensors:
        *place, part, suffix = tensor.name.split(".")
        values = dequantize(tensor.data, tensor.tensor_type)
        if part in heads:
            values = halves_from_pairs(values, heads[part])
        name = f"model.layers.{place[1]}.{LAYER[part]}" if place else TOP[part]
        # A copy: torch must not see the file's read-only memory.
        weights[f"{name}.{suffix}"] = torch.from_numpy(np.array(values, np.float32)).to(torch.bfloat16)
    save_file(weights, out_dir / "model.safetensors", {"format": "pt"})
    (out_dir / "model.safetensors").chmod(0o644)  # safetensors creates it for its owner only; a cache may be shared

    files.write_json(out_dir / "config.json", config(meta, tied="lm_head.weight" not in weights))
    files.write_json(out_dir / "generation_config.json", special_ids(meta))
    files.write_text(out_dir / "tokenizer.json", json.dumps(tokenizer(meta), indent=1, ensure_ascii=False) + "\n")
    files.write_json(out_dir / "tokenizer_config.json", tokenizer_config(meta))
    files.write_text(out_dir / "chat_template.jinja", meta["tokenizer.chat_template"])


def halves_from_pairs(rows, heads):
    """Rows of one q or k matrix in the order that transformers' rotation expects.

    Both rotate pairs of rows of a head. llama.cpp keeps the two of a pair next to each other, transformers keeps the
    first of every pair in the head's first half and the second in its second half (rotate_half).

        file   a0 b0 a1 b1 a2 b2 ...      here   a0 a1 a2 ... b0 b1 b2 ...
    """
    pairs = rows.reshape(heads, -1, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def special_ids(meta):
    return {"bos_token_id": meta["tokenizer.ggml.bos_token_id"], "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
            "pad_token_id": meta["tokenizer.ggml.padding_token_id"]}


def config(meta, tied):
    """config.json of a LlamaForCausalLM."""
    hidden, heads = meta["llama.embedding_length"], meta["llama.attention.head_count"]
    theta = meta["llama.rope.freq_base"]
    return {
        **special_ids(meta), "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "vocab_size": len(meta["tokenizer.ggml.tokens"]), "max_position_embeddings": meta["llama.context_length"],
        "num_hidden_layers": meta["llama.block_count"], "hidden_size": hidden, "head_dim": hidden // heads,
        "num_attention_heads": heads, "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "intermediate_size": meta["llama.feed_forward_length"], "attention_bias": False, "mlp_bias": False,
        # The file holds the fp32 neighbour of 1e-5; its shortest spelling is the number that was meant.
        "rms_norm_eps": float(str(np.float32(meta["llama.attention.layer_norm_rms_epsilon"]))),
        # transformers 5 reads rope_parameters and dtype, SGLang and transformers 4 read rope_theta and torch_dtype.
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"}, "rope_theta": theta,
        "dtype": "bfloat16", "torch_dtype": "bfloat16",
        "tie_word_embeddings": tied, "use_cache": True}


def tokenizer(meta):
    """tokenizer.json, spelled out: what the `tokenizers` library would save may change with its version.

    llama.cpp splits single digits off before the GPT-2 pattern for `smollm`. transformers' own GGUF reader leaves that
    step out, and spaces before digits then give other ids.
    """
    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    plain = {"special": True, "normalized": False, "single_word": False, "lstrip": False, "rstrip": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": i, "content": token, **plain}
                         for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind == CONTROL],
        "pre_tokenizer": {"type": "Sequence",
                          "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": False, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in meta["tokenizer.ggml.merges"]]}}


def tokenizer_config(meta):
    """tokenizer_config.json. The class name keeps transformers from rebuilding the tokenizer as Llama's own."""
    named = {f"{name}_token": meta["tokenizer.ggml.tokens"][meta[f"tokenizer.ggml.{key}_token_id"]]
             for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))}
    return {**named, "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": meta["llama.context_length"],
            "add_prefix_space": False, "clean_up_tokenization_spaces": False}
