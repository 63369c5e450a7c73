"""Who wrote a draft's folder, by what only that trainer writes, and what is known of every draft of its.

A leaf: the checks of config.py and the repairs of dialects.py both ask here. Looked up in the trainers' sources: see TRAINERS.
"""
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Trainer:
    ids: str | None  # what the layer ids in its config mean: "outputs" of layers, "boundaries", or None: it writes none
    marks: str  # what its folder is known by
    facts: str  # what it writes, and the file that says so
    always: dict = field(default_factory=dict)  # training.json's keys with what they are for every draft of this trainer


TRAINERS = {
    "Eyrie": Trainer(None, "training.json", "midlayer.*; ids for the pinned server, trained boundaries in training.json "
                     "(stages/export.py)"),
    "SpecForge": Trainer(
        "outputs", "LlamaForCausalLMEagle3, midlayer.*, t2d",
        "midlayer.*, fc, norm, lm_head, t2d, d2t; embeddings dropped; a raw state has the prefix draft_model. "
        "(specforge/export/to_sglang.py). rope_scaling copied beside rope_parameters (export/checkpoint_io.py). Forward hooks on "
        "layers[id], so outputs, default 1, n//2-1, n-4; its SGLang backend captures what that SGLang makes of the ids "
        "(modeling/target/eagle3_target_model.py). norm_output false trained without the norm before lm_head, true trained plain "
        "EAGLE-3, until SpecForge#879"),
    "speculators": Trainer(
        "boundaries", "speculators_model_type",
        "layers.0.* with hidden_norm, q_norm and k_norm if its layer is Qwen3's, norm_before_residual "
        "(models/eagle3/model_definitions.py); lm_head, embed_tokens, d2t, t2d, input_norm, no verifier_* (models/eagle3/core.py); "
        "transformer_layer_config, draft_vocab_size, target_hidden_size null, ids at the top (models/eagle3/config.py); default ids "
        "2, n//2, n-3 (models/utils.py). vLLM takes an absent norm_before_residual as true (transformers_utils/configs/speculators/"
        "algos.py). Its converter lifts another trainer's ids unchanged (convert/eagle/eagle3_converter.py, speculators#142)"),
    "EAGLE": Trainer(
        None, "LlamaForCausalLM, midlayer.*, t2d",
        "midlayer.*, fc, norm, lm_head, d2t, t2d as a pickle by save_16bit_model (eagle/traineagle3/main.py); no ids: what enters "
        "layers 2, n//2, n-3, and rope_theta always 10000 (traineagle3/modeling_llama_kv.py, cnets.py)", {"rope_theta": 10000.0}),
    "ModelOpt": Trainer(
        "outputs", "eagle_module.*, or eagle_config with use_last_layernorm and the like",
        "raw: the whole target, the draft under eagle_module., its settings in modelopt_state.pth; exported (examples/"
        "speculative_decoding/scripts/export_hf_checkpoint.py): layers.0.*, d2t without "
        "t2d, lm_head always (modelopt/torch/export/plugins/hf_spec_export.py), the keys of hf_spec_configs.py. Forward hooks, so "
        "outputs, default 1, n//2-1, n-4 (modelopt/torch/speculative/plugins/hf_eagle.py); published NVIDIA drafts hold boundaries "
        "too (sglang#32334)"),
}
MODELOPT_KEYS = {"use_last_layernorm", "use_input_layernorm_in_first_layer", "use_mtp_layernorm", "next_layer_regular"}
# Left by trainers (DDP, torch.compile, a wrapper's attribute); the server drops what bears one. `model.` it mostly reads.
PREFIXES = ("draft_model.", "eagle_module.", "eagle_model.", "eagle.", "module.", "_orig_mod.", "model.")


def trainer_of(folder) -> str | None:
    """The key in TRAINERS, by what only that trainer writes; None where nothing tells."""
    if folder.training is not None:
        name = folder.training.get("trainer", "Eyrie")
        return name if isinstance(name, str) and name in TRAINERS else None
    if "speculators_model_type" in folder.config:
        return "speculators"
    eagle = folder.config.get("eagle_config")
    if any(name.startswith("eagle_module.") for name in folder.tensors) or isinstance(eagle, dict) and MODELOPT_KEYS & eagle.keys():
        return "ModelOpt"
    names = {bare(name) for name in folder.tensors}
    if {"t2d", "d2t"} <= names and any(name.startswith("midlayer.") for name in names):
        return {"LlamaForCausalLMEagle3": "SpecForge", "LlamaForCausalLM": "EAGLE"}.get(architecture(folder.config))
    return None


def facts(folder):
    """What is known of the training, in the keys of training.json: its record, and below it what its trainer always does."""
    trainer = trainer_of(folder)
    return {**(TRAINERS[trainer].always if trainer else {}), **(folder.training or {})}


def raw(folder):
    """Is this what ModelOpt's trainer saves: the target, the draft inside of it, the target's config.json?"""
    return len({name.startswith("eagle_module.") for name in folder.tensors}) == 2


def bare(name):
    """A tensor's name without the prefixes that trainers leave before it."""
    while prefix := next((p for p in PREFIXES if name.startswith(p)), None):
        name = name[len(prefix):]
    return name


def architecture(config):
    named = config.get("architectures")
    return named[0] if isinstance(named, list) and named and isinstance(named[0], str) else None
