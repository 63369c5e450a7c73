"""Random targets of real architectures, 8 layers of width 512 and SmolLM2's tokenizer: about 120 MB each, written in seconds.

Widths are ones that SGLang's kernels take (head_dim 64; the MLA classes with their real ranks and head sizes), and numbers of experts
are none that would call FlashInfer. `python -m tests.gpu.targets ARCHITECTURE PATH` writes one.
"""
from stages.lib import cpu  # noqa: F401  before torch
import re
import shutil
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

from stages import target as stage_target
from stages.lib import files, target
from tools.tiny_target import SMOLLM2

LAYERS, HIDDEN, VOCAB, EXPERTS = 8, 512, 49152, 12
# The first CLASSES dimensions of the stream say which class a token is of, and no layer overwrites them: all that a router reads.
# With a router near a tie, the rounding of other kernels sends a row to other experts, and rows differ without any fault.
CLASSES = 6

COMMON = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 8, "num_key_value_heads": 4,
          "intermediate_size": 1024, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0,
          "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "attention_bias": False,
          "torch_dtype": "bfloat16"}
GROUPED = {**COMMON, "head_dim": 64}
YARN = {"type": "yarn", "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 512,
        "beta_fast": 32, "beta_slow": 1}
MLA = {**COMMON, "num_key_value_heads": 8, "q_lora_rank": 256, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
       "v_head_dim": 128, "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}, "moe_intermediate_size": 256,
       "n_routed_experts": EXPERTS, "n_shared_experts": 1,
       "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1, "norm_topk_prob": True,
       "topk_method": "noaux_tc", "scoring_func": "sigmoid", "routed_scaling_factor": 2.0}

CONFIGS = {
    "LlamaForCausalLM": {**GROUPED, "model_type": "llama"},
    "Qwen3MoeForCausalLM": {**GROUPED, "model_type": "qwen3_moe", "moe_intermediate_size": 256, "num_experts": EXPERTS,
                            "num_experts_per_tok": 2, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
    "GptOssForCausalLM": {**GROUPED, "model_type": "gpt_oss", "intermediate_size": 256, "num_local_experts": EXPERTS,
                          # no mscale keys: transformers reads them here, SGLang's YaRN of this class does not (the states' p1 was 0.94)
                          "num_experts_per_tok": 2, "sliding_window": 64, "attention_bias": True, "swiglu_limit": 7.0,
                          "rope_scaling": {**YARN, "truncate": False},
                          "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2)},
    "DeepseekV3ForCausalLM": {**MLA, "model_type": "deepseek_v3"},
}
# Kimi-K2.5: one group of experts, and a tower for images in front that none is ever sent to: its weights stay as SGLang allocates them.
KIMI = "KimiK25ForConditionalGeneration"
KIMI_TEXT = {**MLA, "n_group": 1, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2"}
KIMI_VISION = {"num_hidden_layers": 1, "hidden_size": 64, "vt_hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 64,
               "text_hidden_size": HIDDEN, "mm_hidden_size": 64}
ARCHITECTURES = (*CONFIGS, KIMI)


def make(architecture, folder, seed=0):
    """Write the model folder; equal arguments give equal weights."""
    folder, source = Path(folder), target.resolve(SMOLLM2)
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copyfile(source / name, folder / name)
    if architecture == KIMI:
        config = {"architectures": [KIMI], "model_type": "kimi_k25", "text_config": KIMI_TEXT, "vision_config": KIMI_VISION,
                  "media_placeholder_token_id": VOCAB - 1, "pad_token_id": 2, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
        weights = {f"language_model.{name}": w for name, w in drawn("DeepseekV3ForCausalLM", KIMI_TEXT, seed).items()}
    else:
        config = {"architectures": [architecture], **CONFIGS[architecture]}
        weights = drawn(architecture, config, seed)
    files.write_json(folder / "config.json", config)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def plain(folder):
    """transformers' own model of the folder, fp32, all its tensors from there; of a wrapper its language model."""
    config = files.read_json(folder / "config.json")
    if "text_config" in config:  # transformers has no class for the wrapper
        folder = text_of(folder, config)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True,
                                                                      output_loading_info=True)
    if wrong := {kind: names for kind, names in report.items() if names}:
        raise ValueError(f"transformers and {folder} disagree on the tensors: {wrong}")
    return model.eval()


def text_of(folder, config):
    """A folder beside this one with its language model alone."""
    from safetensors.torch import load_file
    alone = folder.with_name(f"{folder.name}-text")
    if not alone.exists():
        alone.mkdir()
        files.write_json(alone / "config.json", {**config["text_config"], "model_type": "deepseek_v3"})
        save_file({name.removeprefix("language_model."): w for name, w in load_file(folder / "model.safetensors").items()},
                  alone / "model.safetensors", {"format": "pt"})
    return alone


def about(folder):
    """What stages/target.py would write of the folder."""
    config = stage_target.check_text_files(folder)
    names = [name for name in stage_target.COUNTED if (folder / name).exists()] + stage_target.check_weights(folder)
    sha256 = target.digests(folder, names)
    return {**stage_target.essentials(config, folder), "files": sha256, "sha256": stage_target.total(sha256)}


def drawn(architecture, config, seed):
    """{checkpoint name: tensor}: shapes from transformers' class, experts one by one where that is how checkpoints hold them."""
    built = getattr(transformers, architecture)
    with torch.device("meta"):
        shapes = {name: t.shape for name, t in built(built.config_class(**{**config, "model_type": built.config_class.model_type}))
                  .state_dict().items()}
    noise, weights = torch.Generator().manual_seed(seed), {}
    for name, shape in sorted(shapes.items()):
        tensor = values(name, shape, noise)
        if architecture != "GptOssForCausalLM" and name.endswith("mlp.experts.gate_up_proj"):
            for e, (gate, up) in enumerate(zip(*tensor.chunk(2, 1))):
                weights[name.replace("gate_up_proj", f"{e}.gate_proj.weight")] = gate.contiguous()
                weights[name.replace("gate_up_proj", f"{e}.up_proj.weight")] = up.contiguous()
        elif architecture != "GptOssForCausalLM" and name.endswith("mlp.experts.down_proj"):
            weights.update({name.replace("down_proj", f"{e}.down_proj.weight"): w.contiguous() for e, w in enumerate(tensor)})
        else:
            weights[name] = tensor
    return weights


def values(name, shape, noise):
    """Matrices keep the scale of what they are given, so that attention stays soft and bf16 noise small; each layer adds about as much
    as is in the stream, so that the boundaries around it differ."""
    normal = lambda std: torch.empty(shape).normal_(0, std, generator=noise)
    if name.endswith("e_score_correction_bias"):
        return torch.zeros(shape)  # SGLang keeps it in fp32, as checkpoints do
    if name.endswith("embed_tokens.weight"):
        tensor = normal(0.5)
        tensor[:, :CLASSES] = torch.nn.functional.one_hot(torch.arange(shape[0]) % CLASSES, CLASSES)
    elif re.search(r"mlp\.(gate|router)\.weight$", name):  # a token of class c: experts 2c and 2c + 1, in front by far
        tensor = torch.zeros(shape)
        for expert in range(shape[0]):
            tensor[expert, expert // 2 % CLASSES] = 5 if expert % 2 else 8
    elif re.search(r"mlp\.router\.bias$", name):
        tensor = torch.zeros(shape)
    elif len(shape) == 1 and "norm" in name:
        tensor = 1 + normal(0.1)
        if "input_layernorm" in name or "post_attention" in name:
            tensor[:CLASSES] = 1
    elif "bias" in name:
        tensor = normal(0.1)
    elif name.endswith("sinks"):
        tensor = normal(1)
    else:
        # gpt-oss holds an expert's matrices as [in, out]
        fan_in = shape[-2] if shape[-1] == HIDDEN and name.endswith("experts.down_proj") else shape[-1]
        tensor = normal((2 if "o_proj" in name else 1.5 if "down_proj" in name else 1) * fan_in ** -0.5)
    if re.search(r"(o_proj|down_proj)(\.weight|\.bias|_bias)?$", name):
        tensor.narrow(-2 if len(shape) > 1 and shape[-2] == HIDDEN else -1, 0, CLASSES).zero_()
    return tensor.bfloat16()


def main():
    if len(sys.argv) != 3:
        sys.exit(f"usage: python -m tests.gpu.targets ARCHITECTURE PATH\narchitectures: {', '.join(ARCHITECTURES)}")
    print(make(*sys.argv[1:]))


if __name__ == "__main__":
    main()
