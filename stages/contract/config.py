"""The draft's config.json as the server reads it: every key, its default where it is absent, and what then goes wrong.

Read and executed in SGLang 0.5.15.post1; `make test-contract` runs the same configs through SGLang's own ModelConfig.
"""
from dataclasses import dataclass

from packaging.version import Version

from stages.contract import trainers
from stages.contract.ids import captured
from stages.contract.launch import number

LLAMA, MLA = "LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"
# A draft of several layers or a number of states other than 3, names layers.0.*, fc_norm, norm_output, the MLA class: from here on
# (models/llama_eagle3.py and kimi_k25_eagle3.py of 0.5.12 are those of 0.5.12.post1 to the byte).
WIDER = Version("0.5.12")
NORM_BEFORE_FC = Version("0.5.18")
# Up to 0.5.9 the pinned transformers (4.57) knows no rope_parameters, so only the top-level rope_theta counts.
ROPE_PARAMETERS = Version("0.5.10")
IDS = "eagle_aux_hidden_state_layer_ids"

# key: (kind, what LlamaConfig or the server takes where it is absent). Kinds: "count" is an integer over 0.
KEYS = {
    "hidden_size": ("count", 4096), "intermediate_size": ("count", 11008), "num_hidden_layers": ("few", 32),
    "num_attention_heads": ("count", 32), "num_key_value_heads": ("count", None), "head_dim": ("count", None),
    "vocab_size": ("count", 32000), "draft_vocab_size": ("count", None), "target_hidden_size": ("count", None),
    "num_aux_hidden_states": ("few", None), "max_position_embeddings": ("count", 2048),
    "rms_norm_eps": ("number", 1e-6), "rope_theta": ("number", None),
    "tie_word_embeddings": ("flag", False), "bias": ("flag", False), "attention_bias": ("flag", False), "fc_norm": ("flag", False),
    "use_aux_norm": ("flag", False), "norm_output": ("flag", False), "norm_before_fc": ("flag", False),
    "norm_before_residual": ("flag", False),
    "hidden_act": ("text", "silu"), "model_type": ("text", None), "dtype": ("text", None), "torch_dtype": ("text", None),
    # MLA only
    "q_lora_rank": ("count", None), "kv_lora_rank": ("count", 512), "qk_nope_head_dim": ("count", 128),
    "qk_rope_head_dim": ("count", 64), "v_head_dim": ("count", 128),
}
# Keys of the target's config that are compared with, beside its architectures.
OF_TARGET = ("hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_parameters",
             "rope_scaling", "architectures")
KINDS = {
    "few": lambda v: isinstance(v, int) and not isinstance(v, bool) and 0 < v <= 1000,  # each is built in a loop
    "count": lambda v: isinstance(v, int) and not isinstance(v, bool) and 0 < v < 2**40,
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool) and 0 < v < 1e30,
    "flag": lambda v: isinstance(v, bool),
    "text": lambda v: isinstance(v, str),
}
MODEL_TYPES = ("llama", "llama4_text", "deepseek_v2", "deepseek_v3", "kimi_k2")
DTYPES = {"half": "float16", "float16": "float16", "float": "float32", "float32": "float32", "bfloat16": "bfloat16"}


@dataclass(frozen=True)
class Read:
    """What the server makes of a draft's config: `keys` with the defaults filled in, and what follows from them."""
    keys: dict
    architecture: str
    ids: list | None       # eagle_config's layer ids; None = the server's defaults
    use_aux: bool
    num_aux: int           # states that fc is built for
    target_hidden_size: int
    theta: float
    rope: dict             # scaling type and its numbers, without theta; {} = plain
    dtype: str             # what the weights are loaded as
    loads_head: bool       # False: the head is the embedding (tied) or the target's (draft_vocab_size null)

    def __getattr__(self, name):
        try:
            return self.__dict__["keys"][name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def mla(self):
        return self.architecture == MLA


def wrong_kinds(config):
    """Sentences on values that are not of the kind that their key needs."""
    said = [f"{key} is {config[key]!r:.60}" for key, (kind, _) in KEYS.items()
            if config.get(key) is not None and not KINDS[kind](config[key])]
    ids = eagle_config(config).get(IDS)
    if ids is not None and not (isinstance(ids, list) and 0 < len(ids) <= 64 and all(type(i) is int for i in ids)):
        said.append(f"eagle_config.{IDS} is {ids!r:.60}")
    if not isinstance(eagle_config(config).get("use_aux_hidden_state", True), bool):
        said.append(f"eagle_config.use_aux_hidden_state is {eagle_config(config)['use_aux_hidden_state']!r:.60}")
    named = config.get("architectures")
    if named is not None and not (isinstance(named, list) and all(isinstance(name, str) for name in named)):
        said.append(f"architectures is {named!r:.60}")
    for key in ("rope_parameters", "rope_scaling"):
        rope = config.get(key)
        if rope is not None and not isinstance(rope, dict):
            said.append(f"{key} is {rope!r:.60}")
        else:
            said += [f"{key}.{name} is {rope[name]!r:.60}" for name in ("rope_theta", "factor")
                     if rope and not KINDS["number"](1 if rope.get(name) is None else rope[name])]
    return said


def read(config, version, dtype_flag="auto"):
    """config.json (dict, kinds checked) as this server version reads it."""
    keys = {key: default if config.get(key) is None else config[key] for key, (_, default) in KEYS.items()}
    keys["num_key_value_heads"] = keys["num_key_value_heads"] or keys["num_attention_heads"]
    keys["head_dim"] = keys["head_dim"] or max(1, keys["hidden_size"] // keys["num_attention_heads"])
    eagle, wider = eagle_config(config), Version(version) >= WIDER
    ids = eagle.get(IDS)
    num_aux = (keys["num_aux_hidden_states"] or (len(ids) if ids else 3)) if wider else 3
    theta, rope = rope_of(config, version)
    architectures = config.get("architectures")
    architecture = architectures[0] if isinstance(architectures, list) and architectures else None
    return Read(keys, architecture, ids, eagle.get("use_aux_hidden_state", True), num_aux,
                keys["target_hidden_size"] or keys["hidden_size"], theta or 10000.0, rope, dtype_of(config, dtype_flag),
                not keys["tie_word_embeddings"] and keys["draft_vocab_size"] is not None)


def rope_of(config, version):
    """(theta or None where the config has none, scaling {}): transformers 5 reads rope_parameters first."""
    nested = config.get("rope_parameters") or {}
    scaling = nested or config.get("rope_scaling") or {}
    theta = config.get("rope_theta")
    if Version(version) >= ROPE_PARAMETERS:
        theta = nested.get("rope_theta", theta if theta is not None else (config.get("rope_scaling") or {}).get("rope_theta"))
    else:
        scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    plain = kind in (None, "default") and "mrope_section" not in scaling
    return theta, {} if plain else {"rope_type": kind, **{k: v for k, v in scaling.items() if k not in ("rope_type", "type", "rope_theta")}}


def dtype_of(config, flag="auto"):
    """What the server loads a model in: --dtype, else the config's, where absent and float32 both mean float16."""
    if flag and flag != "auto":
        return DTYPES.get(str(flag).lower(), str(flag))
    named = config.get("dtype") or config.get("torch_dtype")
    found = DTYPES.get(named, "float32") if isinstance(named, str) else "float32"
    gemma = str(config.get("model_type", "")).startswith("gemma")
    return ("bfloat16" if gemma else "float16") if found == "float32" else found


def context_length(config):
    """How many positions a target serves: max_position_embeddings, times the factor of scalings that count from it."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type"))
    counts_from_it = "original_max_position_embeddings" not in rope and kind in ("linear", "dynamic", "yarn")
    return int((config.get("max_position_embeddings") or 2048) * ((rope.get("factor") or 1) if counts_from_it else 1))


def faults(folder, read, target, engine):
    """(code, evidence[, "note"]) for every key that makes the server compute something else than was trained."""
    if isinstance(folder.config.get("transformer_layer_config"), dict):
        yield "EY-CONFIG-27", f"transformer_layer_config holds {', '.join(sorted(folder.config['transformer_layer_config'])[:6])}, ..."
        return  # every other key is missing for that reason
    for part in (_class, _states, _norms, _positions, _numbers):
        yield from part(folder, read, target, engine)


def _class(folder, read, target, engine):
    config = folder.config
    version = Version(engine.version)
    if read.architecture not in (LLAMA, MLA):
        yield "EY-CONFIG-01", f"architectures is {config.get('architectures')!r:.80}; expected [{LLAMA!r}] or [{MLA!r}]"
    if config.get("model_type") not in MODEL_TYPES:
        yield "EY-CONFIG-02", f"model_type is {config.get('model_type')!r:.60}; expected 'llama'"
    if read.hidden_act != "silu":
        yield "EY-CONFIG-25", f"hidden_act is {read.hidden_act!r}"
    if config.get("quantization_config"):
        yield "EY-CONFIG-29", f"quantization_config is {str(config['quantization_config']):.80}"
    states = len(read.ids or [1, 2, 3])
    needs = {MLA: read.mla, "fc_norm": read.fc_norm or read.use_aux_norm, "norm_output": read.norm_output, f"{states} states": states != 3}
    if version < WIDER and any(needs.values()):
        yield "EY-CONFIG-32", f"{', '.join(what for what, found in needs.items() if found)}: from SGLang {WIDER} on; this is {version}"


def _states(folder, read, target, engine):
    """Which states reach the draft."""
    config = folder.config
    if not read.use_aux:
        yield "EY-CONFIG-05", "eagle_config.use_aux_hidden_state is false"
    if read.ids is None:
        elsewhere, trained = _find(config, IDS), folder.boundaries
        default = captured(engine.version, target, None)
        if elsewhere:
            place = f"in {elsewhere.rpartition('.')[0]}" if "." in elsewhere else "at the top level"
            yield "EY-CONFIG-04", f"{IDS} stands {place}; the server reads eagle_config.{IDS} and takes the boundaries {default}"
        elif trained is None:
            yield "EY-CONFIG-03", f"the server takes the boundaries {default}; no record says what was trained (--trained-on)", "note"
        elif trained != default:
            yield "EY-CONFIG-03", f"the server takes the boundaries {default}, the draft was trained on {trained}"
    elif config.get("num_aux_hidden_states") not in (None, len(read.ids)):
        yield "EY-CONFIG-26", f"num_aux_hidden_states {read.num_aux_hidden_states}, {len(read.ids)} ids"
    if read.use_aux and read.num_aux == 1 and read.target_hidden_size == read.hidden_size:
        yield "EY-CONFIG-30", f"one state of width {read.target_hidden_size}, and the draft's hidden_size is {read.hidden_size}"
    if config.get("target_hidden_size", 0) is None:
        yield "EY-CONFIG-12", "target_hidden_size is null: a TypeError at start"
    elif read.target_hidden_size != target.hidden_size:
        absent = "" if config.get("target_hidden_size") else " (absent: hidden_size)"
        fc = folder.tensors.get("fc.weight") or folder.tensors.get("model.fc.weight")
        width = fc.shape[-1] if fc and fc.shape else None
        fits = f"; fc.weight has {width} columns, {'' if width % target.hidden_size == 0 else 'no '}multiple of that" if width else ""
        yield "EY-CONFIG-12", f"{read.target_hidden_size}{absent}, the target has {target.hidden_size}{fits}"


def _norms(folder, read, target, engine):
    """Norms that the server has elsewhere, or not at all."""
    config, training = folder.config, folder.training or {}
    eagle = eagle_config(config)
    if read.norm_output and not training.get("norm_output"):
        if "norm_output" in training:
            yield "EY-CONFIG-21", "norm_output is true; the record says that the un-normed output was fed back"
        elif "fc_norm" not in config:  # EAGLE-3.1 has both; SpecForge's own meaning of the key comes alone
            yield "EY-CONFIG-21", "norm_output is true and there is no fc_norm, as SpecForge writes it in a meaning of its own"
    if read.norm_before_residual or eagle.get("norm_before_residual"):
        yield "EY-CONFIG-22", "norm_before_residual is true"
    if (read.norm_before_fc or eagle.get("norm_before_fc")) and Version(engine.version) < NORM_BEFORE_FC:
        yield "EY-CONFIG-23", f"norm_before_fc is true; SGLang {engine.version} reads it from {NORM_BEFORE_FC} on"


def _positions(folder, read, target, engine):
    config, training = folder.config, trainers.facts(folder)
    theta, (target_theta, target_rope) = rope_of(config, engine.version)[0], rope_of(target.config, "0.5.23")
    wanted, says, level = _wanted(training, "rope_theta", target_theta or 10000)
    top, inner = config.get("rope_theta"), (config.get("rope_parameters") or {}).get("rope_theta")
    write = f"write rope_theta {wanted:g}, at the top level and in rope_parameters{', if it was trained with that' if level else ''}"
    if theta is None and wanted != 10000:
        ignored = config.get("rope_parameters") and Version(engine.version) < ROPE_PARAMETERS
        yield "EY-CONFIG-14", f"the server takes 10000, {says} {wanted:g}" \
            + (f"; SGLang {engine.version} does not read rope_parameters" if ignored else "") + f": {write}"
    elif None not in (top, inner) and top != inner and (level or theta != wanted):
        yield "EY-CONFIG-15", f"rope_theta is {top:g} and rope_parameters.rope_theta {inner:g}: SGLang {engine.version} reads {theta:g}, " \
            f"other versions the other; {says} {wanted:g}: {write}"
    elif theta is not None and theta != wanted:
        yield "EY-CONFIG-15", f"the server reads {theta:g}, {says} {wanted:g}: {write}", *level
    wanted, says, level = _wanted(training, "rope_scaling", target_rope)
    if "mrope_section" in target_rope and "mrope_section" not in read.rope:
        yield "EY-CONFIG-28", f"the target's mrope_section is {target_rope['mrope_section']}"
    elif read.rope != wanted:
        yield "EY-CONFIG-16", f"the server reads {read.rope or 'no scaling'}, {says} {wanted or 'none'}", *level
    context = number(engine.flags.get("context-length")) or context_length(target.config)
    if read.max_position_embeddings < context:
        absent = "" if config.get("max_position_embeddings") else " (absent)"
        yield "EY-CONFIG-19", f"{read.max_position_embeddings}{absent}, the target serves {context}"


def _numbers(folder, read, target, engine):
    config, training = folder.config, folder.training or {}
    wanted, says, level = _wanted(training, "rms_norm_eps", target.config.get("rms_norm_eps", read.rms_norm_eps))
    if read.rms_norm_eps != wanted:
        absent = "" if config.get("rms_norm_eps") else " (absent)"
        yield "EY-CONFIG-20", f"the server reads {read.rms_norm_eps:g}{absent}, {says} {wanted:g}", *level
    served, named = dtype_of(target.config, engine.flags.get("dtype")), config.get("dtype") or config.get("torch_dtype")
    if read.dtype != served:
        code = "EY-CONFIG-17" if named in (None, "float32", "float") else "EY-CONFIG-18"
        yield code, f"the config says {named}, so the server loads {read.dtype}; the target is served in {served}"
    if read.vocab_size != target.vocab_size:
        absent = "" if config.get("vocab_size") else " (absent)"
        yield "EY-CONFIG-11", f"{read.vocab_size}{absent}, the target has {target.vocab_size}"


def _wanted(training, key, of_target):
    """(value, words, level) to compare with: the record's, else the target's, which proves nothing."""
    if key in training:
        return training[key], "the draft was trained with", ()
    return of_target, "no record says what was trained, the target has", ("note",)


def eagle_config(config):
    """eagle_config as the server takes it: anything but a mapping counts as absent (model_runner.py:467-479)."""
    found = config.get("eagle_config")
    return found if isinstance(found, dict) else {}


def _find(node, key, path=""):
    """Where `key` stands in nested mappings, as a dotted path, or None."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == key and isinstance(value, list):
                return f"{path}{name}"
            if found := _find(value, key, f"{path}{name}."):
                return found
    return None
