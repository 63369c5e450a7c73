"""What SGLang 0.5.15.post1 makes of draft folders, as plain data: which tensors it drops without a word, which parameters stay
unset, which error it ends with. No SGLang is needed to read it; test_draft.py holds it against SGLang's loader.

A case starts from a healthy folder (`healthy`) and changes its config and its tensors. `ignored` holds checkpoint names,
`unset` names of the server's module, `error` the exception's class name. The embedding is always unset: the server shares the target's.

An o_proj or down_proj of a wrong width is not among the cases: SGLang pads those on a CPU, and only there.
"""
from dataclasses import dataclass, field

import torch

LLAMA, MLA = "LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"
H, MLP, V, VD, D, NH, NK, K = 64, 128, 128, 64, 16, 4, 2, 3  # hidden, mlp, vocabularies, head size, heads, key heads, aux states
EMBEDDING = "model.embed_tokens.weight"
LAYER = "model.layers.0."
ABSENT = object()
# what the server has where the checkpoint has q, k, v and gate, up
LLAMA_LAYER = {LAYER + name + ".weight" for name in ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj",
                                                     "input_layernorm", "hidden_norm", "post_attention_layernorm")}


def healthy(architecture=LLAMA):
    """(config, {name: shape}) of a draft folder that loads completely."""
    config = {"architectures": [architecture], "hidden_size": H, "intermediate_size": MLP, "num_hidden_layers": 1,
              "num_attention_heads": NH, "vocab_size": V, "draft_vocab_size": VD, "target_hidden_size": H, "rms_norm_eps": 1e-5,
              "rope_theta": 1e4, "torch_dtype": "float32", "max_position_embeddings": 256,
              "tie_word_embeddings": False, "hidden_act": "silu",
              "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}}
    layer = {"self_attn.o_proj.weight": (H, NH * D), "mlp.gate_proj.weight": (MLP, H), "mlp.up_proj.weight": (MLP, H),
             "mlp.down_proj.weight": (H, MLP), "input_layernorm.weight": (H,), "hidden_norm.weight": (H,),
             "post_attention_layernorm.weight": (H,)}
    if architecture == LLAMA:
        config |= {"model_type": "llama", "num_key_value_heads": NK, "head_dim": D, "attention_bias": False}
        layer |= {"self_attn.q_proj.weight": (NH * D, 2 * H), "self_attn.k_proj.weight": (NK * D, 2 * H),
                  "self_attn.v_proj.weight": (NK * D, 2 * H)}
    else:
        config |= {"model_type": "deepseek_v3", "num_key_value_heads": NH, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
                   "qk_rope_head_dim": 16, "v_head_dim": 16, "attention_bias": False, "rope_scaling": {
                       "rope_type": "yarn", "type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 128,
                       "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1}}
        layer |= {"self_attn.q_a_proj.weight": (16, 2 * H), "self_attn.q_a_layernorm.weight": (16,),
                  "self_attn.q_b_proj.weight": (NH * 32, 16), "self_attn.kv_a_proj_with_mqa.weight": (32, 2 * H),
                  "self_attn.kv_a_layernorm.weight": (16,),
                  "self_attn.kv_b_proj.weight": (NH * 32, 16)}
    return config, {"fc.weight": (H, K * H), **{"midlayer." + name: shape for name, shape in layer.items()}, "norm.weight": (H,),
                    "lm_head.weight": (VD, H), "d2t": (VD,), "t2d": (V,)}


def layer_names(prefix, architecture=LLAMA):
    """The draft layer's checkpoint names under another prefix."""
    return {name.replace("midlayer.", prefix, 1) for name in healthy(architecture)[1] if name.startswith("midlayer.")}


@dataclass
class Case:
    name: str
    change: dict = field(default_factory=dict)    # config keys; None here means null, ABSENT takes the key out
    rename: tuple[str, str] = ("", "")            # prefix of tensor names, and what it becomes
    add: dict = field(default_factory=dict)       # tensors by shape; one that is there is replaced
    remove: tuple[str, ...] = ()
    ignored: set = field(default_factory=set)     # besides t2d
    unset: set = field(default_factory=set)       # besides the embedding
    error: str | None = None
    architecture: str = LLAMA

    def files(self):
        """(config, tensors) as the folder would hold them; the same bytes each time."""
        config, shapes = healthy(self.architecture)
        config = {k: v for k, v in {**config, **self.change}.items() if v is not ABSENT}
        old, new = self.rename
        shapes = {new + n[len(old):] if old and n.startswith(old) else n: s for n, s in shapes.items() if n not in self.remove} | self.add
        return config, {name: tensor(name, shape) for name, shape in shapes.items()}


def tensor(name, shape):
    if name == "d2t":
        return torch.arange(shape[0]) * 2 - torch.arange(shape[0])  # draft id i is target id 2i
    if name == "t2d":
        return torch.arange(shape[0]) % 2 == 0
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(name.encode())))


PREFIXES = ("midlayer.", "layers.0.", "model.midlayer.", "model.layers.0.")
O_BIAS = LAYER + "self_attn.o_proj.bias"
MLA_LAYER = {"model.midlayer." + name + ".weight" for name in (
    "self_attn.fused_qkv_a_proj_with_mqa", "self_attn.q_a_layernorm", "self_attn.q_b_proj", "self_attn.kv_a_layernorm",
    "self_attn.kv_b_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj", "input_layernorm", "hidden_norm",
    "post_attention_layernorm")}


def mla(name, **more):
    return Case("MLA: " + name, architecture=MLA, **more)


CASES = [
    *(Case(f"layer under {prefix}", rename=("midlayer.", prefix)) for prefix in PREFIXES),
    *(Case(f"layer under {prefix}", rename=("midlayer.", prefix), ignored=layer_names(prefix), unset=LLAMA_LAYER)
      for prefix in ("draft_model.midlayer.", "eagle.layers.0.", "midlayer.0.", "model.model.midlayer.", "layers.")),
    Case("q_norm and k_norm", add={"midlayer.self_attn.q_norm.weight": (D,), "midlayer.self_attn.k_norm.weight": (D,)},
         ignored={"midlayer.self_attn.q_norm.weight", "midlayer.self_attn.k_norm.weight"}),
    Case("q, k, v bias", add={f"midlayer.self_attn.{x}_proj.bias": (D * n,) for x, n in (("q", NH), ("k", NK), ("v", NK))},
         ignored={f"midlayer.self_attn.{x}_proj.bias" for x in "qkv"}),
    Case("attention_bias true, no bias in the file", change={"attention_bias": True}, unset={O_BIAS}),
    Case("fc.bias undeclared", add={"fc.bias": (H,)}, ignored={"fc.bias"}),
    Case("fc.bias declared: bias true reaches o_proj too", change={"bias": True}, add={"fc.bias": (H,)}, unset={O_BIAS}),
    Case("bias true, no fc.bias", change={"bias": True}, unset={"model.fc.bias", O_BIAS}),
    Case("bias true, both there", change={"bias": True}, add={"fc.bias": (H,), "midlayer.self_attn.o_proj.bias": (H,)}),
    Case("mlp_bias true", change={"mlp_bias": True}),
    Case("input_norm", add={"input_norm.weight": (H,)}, ignored={"input_norm.weight"}),
    Case("fc_norm undeclared", add={f"fc_norm.{i}.weight": (H,) for i in range(K)}, ignored={f"fc_norm.{i}.weight" for i in range(K)}),
    Case("fc_norm declared", change={"fc_norm": True}, add={f"fc_norm.{i}.weight": (H,) for i in range(K)}),
    Case("fc_norm under its older name", change={"use_aux_norm": True}, add={f"aux_norm_{x}.weight": (H,) for x in ("low", "mid", "high")}),
    Case("fc_norm declared, not there", change={"fc_norm": True}, unset={f"model.fc_norm.{i}.weight" for i in range(K)}),
    Case("rotary inv_freq", add={"midlayer.self_attn.rotary_emb.inv_freq": (D // 2,)}, ignored={"midlayer.self_attn.rotary_emb.inv_freq"}),
    Case("tie_word_embeddings true", change={"tie_word_embeddings": True}, ignored={"lm_head.weight"}, unset={"lm_head.weight"}),
    Case("tie_word_embeddings absent", change={"tie_word_embeddings": ABSENT}),
    Case("lm_head missing", remove=("lm_head.weight",), unset={"lm_head.weight"}),
    Case("lm_head under model.", remove=("lm_head.weight",), add={"model.lm_head.weight": (VD, H)}, ignored={"model.lm_head.weight"},
         unset={"lm_head.weight"}),
    Case("draft_vocab_size null, head of the target", change={"draft_vocab_size": None}, remove=("lm_head.weight", "d2t", "t2d"),
         unset={"lm_head.weight"}),
    Case("draft_vocab_size null, own small head", change={"draft_vocab_size": None}, error="AssertionError"),
    Case("draft_vocab_size absent", change={"draft_vocab_size": ABSENT}, error="AttributeError"),
    Case("norm missing", remove=("norm.weight",), unset={"model.norm.weight"}),
    Case("q_proj missing", remove=("midlayer.self_attn.q_proj.weight",), unset={LAYER + "self_attn.qkv_proj.weight"}),
    Case("fc missing", remove=("fc.weight",), unset={"model.fc.weight"}),
    Case("d2t missing", remove=("d2t",)),
    Case("embedding in the file", add={"embed_tokens.weight": (V, H)}),
    Case("three layers in the config", change={"num_hidden_layers": 3},
         unset={name.replace("layers.0", f"layers.{i}") for name in LLAMA_LAYER for i in (1, 2)}),
    Case("fc for two states", add={"fc.weight": (H, 2 * H)}, error="AssertionError"),
    Case("ids at the top level only", change={"eagle_config": ABSENT, "eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]},
         add={"fc.weight": (H, 4 * H)}, error="AssertionError"),
    Case("num_aux_hidden_states", change={"num_aux_hidden_states": 4}, add={"fc.weight": (H, 4 * H)}),
    Case("another target width", change={"target_hidden_size": 96}, add={"fc.weight": (H, K * 96)}),
    Case("target_hidden_size null", change={"target_hidden_size": None}, error="TypeError"),
    Case("q_proj of width H", add={"midlayer.self_attn.q_proj.weight": (NH * D, H)}, error="AssertionError"),
    Case("lm_head with the target's rows", add={"lm_head.weight": (V, H)}, error="AssertionError"),
    Case("norm of half the width", add={"norm.weight": (H // 2,)}, error="AssertionError"),
    Case("model_type absent", change={"model_type": ABSENT}, error="ValueError"),
    mla("layer under midlayer."),
    mla("layer under layers.0.", rename=("midlayer.", "layers.0.")),
    *(mla(f"layer under {prefix}", rename=("midlayer.", prefix), ignored=layer_names(prefix, MLA), unset=MLA_LAYER)
      for prefix in ("model.midlayer.", "model.layers.0.")),
    mla("kv_a_proj missing", remove=("midlayer.self_attn.kv_a_proj_with_mqa.weight",), ignored={"midlayer.self_attn.q_a_proj.weight"},
        unset={"model.midlayer.self_attn.fused_qkv_a_proj_with_mqa.weight"}),
    mla("q_a_proj missing", remove=("midlayer.self_attn.q_a_proj.weight",), ignored={"midlayer.self_attn.kv_a_proj_with_mqa.weight"},
        unset={"model.midlayer.self_attn.fused_qkv_a_proj_with_mqa.weight"}),
    mla("lm_head missing", remove=("lm_head.weight",), unset={"lm_head.weight"}),
    mla("draft_vocab_size null, head of the target", change={"draft_vocab_size": None}, remove=("lm_head.weight", "d2t", "t2d"),
        unset={"lm_head.weight"}),
    mla("draft_vocab_size absent, own small head", change={"draft_vocab_size": ABSENT}, error="AssertionError"),
    mla("tie_word_embeddings true", change={"tie_word_embeddings": True}, ignored={"lm_head.weight"}, unset={"lm_head.weight"}),
    mla("two layers in the config", change={"num_hidden_layers": 2}, error="ValueError"),
    mla("q_lora_rank null", change={"q_lora_rank": None}, error="ValueError"),
    mla("fc for two states", add={"fc.weight": (H, 2 * H)}, error="AssertionError"),
    mla("fc_norm declared, not there", change={"fc_norm": True}, unset={f"model.fc_norm.{i}.weight" for i in range(K)}),
    mla("attention_bias true", change={"attention_bias": True}),
    mla("bias true, no fc.bias", change={"bias": True}, unset={"model.fc.bias"}),
]
