"""Names, shapes and types of a draft's tensors: what this server version reads, what it drops, what it then lacks.

Mirrors LlamaForCausalLMEagle3.load_weights (models/llama_eagle3.py, 0.5.8.post1 to 0.5.23 compared) and
Eagle3DeepseekV2ForCausalLM.load_weights (models/kimi_k25_eagle3.py); `make test-contract` compares with the real classes.
"""
import re

from packaging.version import Version

from stages.contract.config import NORM_BEFORE_FC, WIDER, eagle_config

FLOATS = ("BF16", "F16", "F32", "F64")
OLD_NAMES = {"midlayer": "layers.0", "aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}
LAYER_NORMS = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
HARMLESS = re.compile(r"(^|\.)rotary_emb\.(inv_freq|cos_cached|sin_cached)$")  # made anew by every loader


def place(name, version, mla=False):
    """The parameter that a checkpoint tensor of this name is written to: `layers.0.*`, `fc.weight`, ..., `d2t`, `t2d` (read by
    nobody), or None where the name matches none. Whether that parameter exists is another matter: `expected`."""
    if mla:
        if name in ("d2t", "t2d") or name.endswith((".d2t", ".t2d")):
            return name[-3:]
        return None if name.startswith("model.") else re.sub(r"^midlayer\.", "layers.0.", name)
    if Version(version) >= WIDER:
        for old, new in OLD_NAMES.items():
            name = name.replace(old, new)
    elif re.match(r"(model\.)?layers\.", name):
        return None  # there the module is called midlayer
    else:
        name = name.replace("midlayer", "layers.0")
    for map_name in ("d2t", "t2d"):
        if map_name in name:
            return map_name
    if name == "model.lm_head.weight":
        return None
    return name.removeprefix("model.")


def expected(read, version):
    """{name: shape} of the parameters that the server builds for this config. `embed_tokens.weight` and `d2t` apart."""
    h, i, k = read.hidden_size, read.intermediate_size, read.num_aux
    heads, groups, size = read.num_attention_heads, read.num_key_value_heads, read.head_dim
    shapes = {"fc.weight": (h, k * read.target_hidden_size), "norm.weight": (h,)}
    if read.bias:
        shapes["fc.bias"] = (h,)
    for n in range(read.num_hidden_layers if Version(version) >= WIDER else 1):
        enter, layer = 2 * h if n == 0 else h, f"layers.{n}."
        if read.mla:
            q, kv = read.q_lora_rank or 1, read.kv_lora_rank
            attention = {"q_a_proj": (q, enter), "kv_a_proj_with_mqa": (kv + read.qk_rope_head_dim, enter), "q_a_layernorm": (q,),
                         "kv_a_layernorm": (kv,), "q_b_proj": (heads * (read.qk_nope_head_dim + read.qk_rope_head_dim), q),
                         "kv_b_proj": (heads * (read.qk_nope_head_dim + read.v_head_dim), kv), "o_proj": (h, heads * read.v_head_dim)}
        else:
            attention = {"q_proj": (heads * size, enter), "k_proj": (groups * size, enter), "v_proj": (groups * size, enter),
                         "o_proj": (h, heads * size)}
        shapes |= {f"{layer}self_attn.{name}.weight": shape for name, shape in attention.items()}
        if not read.mla and (read.bias or read.attention_bias):
            shapes[f"{layer}self_attn.o_proj.bias"] = (h,)
        mlp = (("gate_proj", (i, h)), ("up_proj", (i, h)), ("down_proj", (h, i)))
        shapes |= {f"{layer}mlp.{name}.weight": shape for name, shape in mlp}
        shapes |= {f"{layer}{name}.weight": (h,) for name in LAYER_NORMS}
    if read.loads_head:
        shapes["lm_head.weight"] = (read.draft_vocab_size, h)
    if read.fc_norm or read.use_aux_norm:
        shapes |= {f"fc_norm.{c}.weight": (read.target_hidden_size,) for c in range(k)}
    if read.norm_before_fc and Version(version) >= NORM_BEFORE_FC:
        shapes["input_norm.weight"] = (k * read.target_hidden_size,)
    if read.target_hidden_size != h:
        shapes["embed_tokens.weight"] = (read.vocab_size, h)
    return shapes


def placed(folder, read, version):
    """({parameter: checkpoint name}, [checkpoint names that are dropped]) for the tensors that the loader reads."""
    wanted, found, dropped = expected(read, version), {}, []
    optional = {"embed_tokens.weight", "d2t", "t2d"}
    for name in folder.tensors:
        parameter = place(name, version, read.mla)
        if parameter in wanted or parameter in optional:
            found[parameter] = name
        elif not HARMLESS.search(name):
            dropped.append(name)
    return found, dropped


# Dropped tensors, by what they were for.
DROPPED = {
    "EY-TENSOR-05": re.compile(r"self_attn\.[qk]_norm\."), "EY-TENSOR-06": re.compile(r"self_attn\.[qkv]_proj\.bias$"),
    "EY-TENSOR-07": re.compile(r"(^|\.)fc\.bias$"), "EY-TENSOR-08": re.compile(r"(^|\.)input_norm\."),
    "EY-TENSOR-12": re.compile(r"fc_norm\.|aux_norm_"), "EY-TENSOR-16": re.compile(r"^(model\.)?layers\.[1-9]\d*\."),
}
LAYER = re.compile(r"(.*?)((self_attn|mlp|input_layernorm|hidden_norm|post_attention_layernorm)\..*)")


def faults(folder, read, target, engine):
    """(code, evidence) from names, shapes and types; no tensor is read."""
    wanted, (found, dropped) = expected(read, engine.version), placed(folder, read, engine.version)
    outside = {place(name, engine.version, read.mla) for name in folder.left_out}  # EY-FILE-02 says those
    missing = [name for name in wanted if name not in found and name not in outside]

    # One prefix can hide all of the layer: that is one fault, not twenty.
    ends = {name.removeprefix("layers.0.") for name in missing if name.startswith("layers.0.")}
    hidden = [name for name in dropped if (m := LAYER.fullmatch(name)) and m[2] in ends and not DROPPED["EY-TENSOR-16"].match(name)]
    if hidden:
        prefix = LAYER.fullmatch(hidden[0])[1]
        if read.mla and prefix.startswith("model."):
            yield "EY-TENSOR-13", f"{len(hidden)} tensors are named {prefix}*"
        else:
            reads = "midlayer.* or layers.0.*" if Version(engine.version) >= WIDER else "midlayer.* only"
            yield "EY-TENSOR-01", f"{len(hidden)} tensors are named {prefix or '(no prefix) '}*, SGLang {engine.version} reads {reads}"
        outer = prefix.split(".")[0] + "."  # what the trainer's wrapper is called, around all tensors
        under = {name.removeprefix(outer) for name in dropped if name.startswith(outer)}
        dropped = [name for name in dropped if name not in hidden and not name.startswith(outer)]
        missing = [name for name in missing if name.removeprefix("layers.0.") not in {LAYER.fullmatch(n)[2] for n in hidden}
                   and name not in under]
    yield from _dropped(folder, read, target, dropped)
    yield from _missing(folder, read, missing)
    yield from _shapes(folder, read, target, wanted, found)
    odd = [f"{folder.tensors[name].dtype} {name}" for parameter, name in found.items()
           if parameter in wanted and folder.tensors[name].dtype not in FLOATS]
    if odd:
        yield "EY-TENSOR-10", some(odd)


def _dropped(folder, read, target, dropped):
    heads = [name for name in dropped if name.endswith("lm_head.weight")]
    if not read.loads_head and "draft_vocab_size" not in folder.config and not read.tie_word_embeddings:
        yield "EY-CONFIG-08", f"lm_head has {folder.tensors[heads[0]].shape[0]} rows" if heads else "no lm_head either"
    elif heads and not read.loads_head:
        code = "EY-CONFIG-07" if read.tie_word_embeddings else "EY-CONFIG-09"
        yield code, f"{heads[0]} {tuple(folder.tensors[heads[0]].shape)} is in the file, the target has {target.vocab_size} words"
    rest = [name for name in dropped if name not in heads or read.loads_head]
    for code, pattern in DROPPED.items():
        if names := [name for name in rest if pattern.search(name)]:
            rest = [name for name in rest if name not in names]
            declared = read.norm_before_fc or eagle_config(folder.config).get("norm_before_fc")
            if code != "EY-TENSOR-08" or not declared:  # else EY-CONFIG-23 has said it
                yield code, f"{some(names)} in the file"
    if rest:
        yield "EY-TENSOR-09", some(rest)


def _missing(folder, read, missing):
    """Missing parameters, by what they are for; each is said once."""
    said = set()

    def those(test):
        names = [name for name in missing if name not in said and test(name)]
        said.update(names)
        return names

    if those(lambda n: re.match(r"layers\.[1-9]", n)):
        numbers = [int(m[1]) for name in folder.tensors if (m := re.match(r"(?:model\.)?layers\.(\d+)\.", name))]
        yield "EY-CONFIG-06", f"num_hidden_layers is {read.num_hidden_layers}, the file holds {1 + max(numbers, default=0)}"
    if names := those(lambda n: n.endswith(".bias")):
        yield "EY-CONFIG-24", f"{some(names)} would be built, and the file has no such tensor"
    if names := those(lambda n: n.startswith("fc_norm.")):
        yield "EY-TENSOR-12", f"{some(names)} would be built, and the file has no such tensor"
    pair = [name for name in missing if name.endswith(("q_a_proj.weight", "kv_a_proj_with_mqa.weight"))]
    if len(pair) == 1:
        yield "EY-TENSOR-14", f"{those(pair.__contains__)[0]} is not in the file"
    if those(lambda n: n == "lm_head.weight"):
        yield "EY-TENSOR-03", f"draft_vocab_size is {read.draft_vocab_size}"
    if those(lambda n: n == "embed_tokens.weight"):
        yield "EY-TENSOR-15", f"target_hidden_size {read.target_hidden_size}, hidden_size {read.hidden_size}"
    if names := those(lambda n: True):
        yield "EY-TENSOR-02", some(names)


def _shapes(folder, read, target, wanted, found):
    """Shapes that do not fit, each said by the key that makes them so."""
    shape = lambda parameter: tuple(folder.tensors[found[parameter]].shape)
    wrong = [p for p in found if p in wanted and shape(p) != wanted[p]]
    if "fc.weight" in wrong and read.target_hidden_size != target.hidden_size:
        wrong.remove("fc.weight")  # EY-CONFIG-12 says it
    elif "fc.weight" in wrong and shape("fc.weight")[0] == read.hidden_size and shape("fc.weight")[-1] % target.hidden_size == 0:
        wrong.remove("fc.weight")
        states = shape("fc.weight")[-1] // target.hidden_size
        if states != len(read.ids or []):  # else EY-CONFIG-26 says it
            yield "EY-RULE-08", f"fc reads {states} states of {target.hidden_size}, the server builds it for {read.num_aux}"
    if "lm_head.weight" in wrong and shape("lm_head.weight")[-1] == read.hidden_size:
        wrong.remove("lm_head.weight")
        yield "EY-CONFIG-10", f"draft_vocab_size {read.draft_vocab_size}, lm_head has {shape('lm_head.weight')[0]} rows"
    heads = [p for p in wrong if re.search(r"self_attn\.[qkvo]_proj", p)]
    if heads and folder.config.get("head_dim") is None and not read.mla:
        wrong = [p for p in wrong if p not in heads]
        yield "EY-CONFIG-13", f"hidden_size / heads = {read.head_dim}, but {heads[0]} is {shape(heads[0])}"
    if wrong:
        yield "EY-TENSOR-04", some([f"{p} is {shape(p)}, expected {wanted[p]}" for p in wrong])


def values(folder, read, engine):
    """(code, evidence) from reading every weight once: only when asked for, a 1.2 B draft takes seconds."""
    import torch  # here: the static checks need not wait for it
    bad = []
    for name in placed(folder, read, engine.version)[0].values():
        if folder.tensors[name].dtype in FLOATS and not torch.isfinite(folder.read(name)).all():
            bad.append(name)
    if bad:
        yield "EY-TENSOR-11", some(bad)


def some(items):
    return ", ".join(items[:4]) + (f" and {len(items) - 4} more" if len(items) > 4 else "")
