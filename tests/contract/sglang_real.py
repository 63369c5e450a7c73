"""SGLang's real code on a CPU, without a GPU, a kernel package or a server: import, parallel groups, shallow random models.

Some packages are hollow here (hollow.py).
"""
import functools
import importlib
import json
import logging
import tempfile
import types
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F

from tests.contract import hollow

hollow.install()
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import sglang  # noqa: E402
import transformers as hf  # noqa: E402
from sglang.srt.configs.model_config import ModelConfig  # noqa: E402
from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel  # noqa: E402
from sglang.srt.layers.dp_attention import initialize_dp_attention  # noqa: E402
from sglang.srt.layers.moe import initialize_moe_config  # noqa: E402
from sglang.srt.layers.radix_attention import RadixAttention  # noqa: E402
from sglang.srt.model_executor.forward_batch_info import ForwardMode  # noqa: E402
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler  # noqa: E402

VERSION = sglang.__version__
LAYERS, HIDDEN, VOCAB = 6, 64, 128
RAN = {}  # target class -> how a test has run it; printed at the end


@functools.cache
def boot():
    """One rank on gloo, with the server arguments of a CPU server. Once per process."""
    kept = tempfile.TemporaryDirectory(prefix="eyrie-contract-")  # until the process ends: the cache of this function holds it
    folder = Path(kept.name)
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
                                                    "vocab_size": VOCAB, **dense()}))
    arguments = ServerArgs(model_path=str(folder), device="cpu")
    set_global_server_args_for_scheduler(arguments)
    init_distributed_environment(world_size=1, rank=0, local_rank=0, backend="gloo", distributed_init_method=f"file://{folder}/meeting")
    initialize_model_parallel()
    initialize_moe_config(arguments)
    initialize_dp_attention(arguments, ModelConfig.from_server_args(arguments))
    RadixAttention.forward = causal_attention
    return kept


def causal_attention(self, q, k, v, forward_batch, **_):
    """One sequence without a cache, in the place of the server's paged attention. q and k: [T, heads * D], or [1, T, heads, D] from
    Gemma; v: [T, heads * D]."""
    tokens, heads, groups, size = len(v), self.tp_q_head_num, self.tp_k_head_num, self.qk_head_dim
    q, k, v = (x.reshape(tokens, -1, size).transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(heads // groups, 0) for x in (k, v))
    back = torch.arange(tokens)[:, None] - torch.arange(tokens)[None]
    window = self.sliding_window_size if self.sliding_window_size > 0 else tokens  # -1: none; else so many tokens back
    mask = (back >= 0) & (back <= window)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scaling).transpose(0, 1).reshape(tokens, heads * size)


def dense(**more):
    return {"hidden_size": HIDDEN, "intermediate_size": 128, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, **more}


def plain(**more):
    """Config classes that derive head_dim themselves."""
    return {k: v for k, v in dense(vocab_size=VOCAB, **more).items() if k != "head_dim"}


def experts(**more):
    return dense(vocab_size=VOCAB, num_experts_per_tok=2, moe_intermediate_size=32, **more)


def mla(**more):
    # yarn, since SGLang has no other rotary embedding of the MLA classes on a CPU
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 128, "mscale": 1.0,
            "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1}
    return experts(**{"num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
                      "first_k_dense_replace": 1, "moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
                      "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16,
                      "rope_scaling": yarn, **more})


def glm(**more):
    return experts(n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1, **more)


def of_sglang(module, name):
    return getattr(importlib.import_module("sglang.srt." + module), name)


VISION = {"depth": 1, "hidden_size": 64, "intermediate_size": 64, "num_heads": 4, "out_hidden_size": HIDDEN, "num_position_embeddings": 16,
          "deepstack_visual_indexes": [0]}


def kimi():
    vision = dict(num_hidden_layers=1, hidden_size=64, vt_hidden_size=64, num_attention_heads=4, intermediate_size=64,
                  text_hidden_size=HIDDEN)
    config = of_sglang("configs.kimi_k25", "KimiK25Config")(text_config=mla(architectures=["DeepseekV3ForCausalLM"]), vision_config=vision)
    config.encoder_only = False
    return config


def gemma3_mm():
    vision = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, image_size=28, patch_size=14)
    return hf.Gemma3Config(text_config=dense(vocab_size=VOCAB), vision_config=vision, mm_tokens_per_image=4)


# class -> (module in sglang.srt.models, a tiny config)
TARGETS = {
    "LlamaForCausalLM": ("llama", lambda: hf.LlamaConfig(**dense(vocab_size=VOCAB))),
    "MistralForCausalLM": ("mistral", lambda: hf.MistralConfig(**dense(vocab_size=VOCAB))),
    "Phi3ForCausalLM": ("llama", lambda: hf.Phi3Config(**plain(pad_token_id=0))),
    "ApertusForCausalLM": ("apertus", lambda: hf.ApertusConfig(**plain())),
    "Qwen2ForCausalLM": ("qwen2", lambda: hf.Qwen2Config(**plain())),
    "Qwen3ForCausalLM": ("qwen3", lambda: hf.Qwen3Config(**dense(vocab_size=VOCAB))),
    "Qwen2MoeForCausalLM": ("qwen2_moe", lambda: hf.Qwen2MoeConfig(**experts(num_experts=4, shared_expert_intermediate_size=32))),
    "Qwen3MoeForCausalLM": ("qwen3_moe", lambda: hf.Qwen3MoeConfig(**experts(num_experts=4))),
    "DeepseekV2ForCausalLM": ("deepseek_v2", lambda: hf.DeepseekV3Config(**mla())),
    "DeepseekV3ForCausalLM": ("deepseek_v2", lambda: hf.DeepseekV3Config(**mla())),
    "KimiK25ForConditionalGeneration": ("kimi_k25", kimi),
    "Glm4MoeForCausalLM": ("glm4_moe", lambda: hf.Glm4MoeConfig(**glm())),
    "Glm4MoeLiteForCausalLM": ("glm4_moe_lite", lambda: hf.Glm4MoeLiteConfig(**mla(rope_scaling=None))),
    "GptOssForCausalLM": ("gpt_oss", lambda: hf.GptOssConfig(**dense(vocab_size=VOCAB, num_local_experts=4, num_experts_per_tok=2,
                                                                       swiglu_limit=7.0))),
    "Gemma3ForCausalLM": ("gemma3_causal", lambda: hf.Gemma3TextConfig(**dense(vocab_size=VOCAB))),
    "Gemma3ForConditionalGeneration": ("gemma3_mm", gemma3_mm),
    "Gemma4ForCausalLM": ("gemma4_causal", lambda: hf.Gemma4TextConfig(**dense(vocab_size=VOCAB, vocab_size_per_layer_input=VOCAB))),
    "Llama4ForCausalLM": ("llama4", lambda: hf.Llama4TextConfig(**dense(vocab_size=VOCAB, num_local_experts=4, intermediate_size_mlp=128))),
    "Llama4ForConditionalGeneration": ("mllama4", lambda: hf.Llama4Config(text_config=dense(
        vocab_size=VOCAB, num_local_experts=4, intermediate_size_mlp=128))),
    "MiniMaxM2ForCausalLM": ("minimax_m2", lambda: hf.MiniMaxM2Config(**dense(
        vocab_size=VOCAB, num_local_experts=4, num_experts_per_tok=2, scoring_func="sigmoid", use_routing_bias=False))),
    "Qwen3VLMoeForConditionalGeneration": ("qwen3_vl_moe", lambda: hf.Qwen3VLMoeConfig(
        text_config=experts(num_experts=4), vision_config=VISION)),
    "Qwen3NextForCausalLM": ("qwen3_next", lambda: of_sglang("configs.qwen3_next", "Qwen3NextConfig")(
        **experts(num_experts=4, shared_expert_intermediate_size=32, full_attention_interval=2))),
    "Qwen3_5ForConditionalGeneration": ("qwen3_5", lambda: of_sglang("configs.qwen3_5", "Qwen3_5Config")(
        text_config=dense(vocab_size=VOCAB, full_attention_interval=2, rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
        vision_config={**VISION, "deepstack_visual_indexes": []})),
}


def target(name):
    """A random LAYERS-layer model of SGLang's own class `name`, fp32."""
    boot()
    module, config = TARGETS[name]
    config = config()
    config.architectures = [name]
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)
    return of_sglang("models." + module, name)(config)


def decoder(model):
    """The module with the layer loop: what the setter marks."""
    return next(m for m in model.modules() if hasattr(m, "layers") and len(m.layers) == LAYERS and hasattr(m, "embed_tokens"))


class Layer(torch.nn.Module):
    """In the place of a decoder layer: adds 1 to the stream, so that the stream that enters layer b is b everywhere.

    `form` is what this model's loop unpacks. Layers that capture by themselves get a list and put the stream they enter in it, as
    LayerCommunicator.prepare_attn_and_capture_last_layer_outputs does.
    """

    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, *arguments, captured_last_layer_outputs=None, **named):
        tensors = [a for a in (*arguments, *named.values()) if torch.is_tensor(a) and a.dtype == torch.float32 and a.shape[-1] == HIDDEN]
        entering = sum(tensors)  # hidden_states, and residual behind the first layer
        if captured_last_layer_outputs is not None:
            captured_last_layer_outputs.append(entering)
        return self.form(torch.ones_like(entering), entering)


PAIR = lambda hidden, residual: (hidden, residual)
WHOLE = lambda hidden, residual: (hidden + residual,)
FORMS = {"DeepseekV2Model": lambda hidden, residual: (hidden, residual, None), "Gemma3TextModel": WHOLE, "Gemma4TextModel": WHOLE}


class Batch(types.SimpleNamespace):
    """A forward batch of one prefill: whatever else is asked for is off."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def captured(name, ids):
    """Boundaries that the real setter and the real layer loop capture, in the order of capture; an exception as the server's."""
    model = target(name)
    loop = decoder(model)
    loop.layers = torch.nn.ModuleList(Layer(FORMS.get(type(loop).__name__, PAIR)) for _ in range(LAYERS))
    model.set_eagle3_layers_to_capture(ids)
    zeros = torch.zeros(3, HIDDEN)
    out = loop(None, torch.arange(3), Batch(forward_mode=ForwardMode.EXTEND), zeros)
    return [int(t.flatten()[0]) for t in out[1]] if isinstance(out, tuple) else []
