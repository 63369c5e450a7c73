"""Who wrote a draft's folder, and how its layout becomes SGLang's: names, config keys, the vocabulary map, layer ids.

Only layout is changed, and only where the folder or a record leaves one answer. What training decided (norms, residual,
missing or broken weights) is left as it is and said. `fixed` computes, `write_fixed` writes a new folder; fixing what
`write_fixed` wrote changes nothing.

What is read here of a config or a tensor's name was looked up in the trainers' sources: see trainers.TRAINERS.
"""
from stages.lib import cpu  # noqa: F401  before torch
import copy
import os
import re
import shutil
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from packaging.version import InvalidVersion, Version

from stages.contract import launch, rules
from stages.contract.config import IDS, LLAMA, MLA, NORM_BEFORE_FC, WIDER, dtype_of, eagle_config
from stages.contract.faults import FAULTS
from stages.contract.tensors import some
from stages.contract.trainers import TRAINERS, architecture, bare, raw, trainer_of
from stages.lib import files
from stages.lib.refusal import Refusal

DRAFT = re.compile(r"(midlayer|layers\.\d+)\..+|(fc|norm|lm_head|embed_tokens|input_norm|fc_norm\.\d+|aux_norm_(low|mid|high))"
                   r"\.(weight|bias)|d2t|t2d")
NEEDED = {"": ("fc.weight", "norm.weight"), "layer.": (
    "input_layernorm.weight", "hidden_norm.weight", "post_attention_layernorm.weight", "self_attn.o_proj.weight",
    "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight")}
ATTENTION = {LLAMA: ("q_proj", "k_proj", "v_proj"), MLA: ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")}
STORED = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
EXACT = {"F16": 1 << 11, "BF16": 1 << 8, "F32": 1 << 24, "F64": 1 << 53}  # up to here a float keeps every integer


SAY_BOUNDARIES = "say what they mean with --trained-on, or write `boundaries` into training.json"


def ids_convention(folder) -> str | None:
    """What the layer ids in the config mean to their trainer: "outputs" of layers, "boundaries", or None where nothing tells.

    None too where training.json records the boundaries: the ids are then written for a server, not for a trainer.
    """
    trainer = trainer_of(folder)
    return TRAINERS[trainer].ids if trainer and not (folder.training or {}).get("boundaries") else None


def fixed(folder, target, engine, trained_boundaries=None):
    """(config, tensors, changes, cannot): the folder as the server of `engine` reads it, in front of `target`.

    tensors: {name: function that reads it}. changes, cannot: sentences; no changes means that the layout is right.
    trained_boundaries: what the draft was trained on, if the folder does not record it. Refusal if it records other ones.
    """
    fix = _fix(folder, target, engine, trained_boundaries)
    return fix.config, fix.tensors, fix.changes, fix.cannot


def write_fixed(folder, out, target, engine, trained_boundaries=None):
    """Write the fixed folder to `out`; returns (changes, cannot). Nothing is written where nothing changes.

    `out` appears whole or not at all, and the folder itself is never touched. Holds the draft once in memory, and a few
    copies of its largest tensor.
    Refusal if `out` exists, lies in the folder, or cannot be written.
    """
    from safetensors.torch import save_file  # here: to say what is wrong needs no torch, whose import takes longer than the checks
    out = Path(out)
    if os.path.lexists(out):
        raise Refusal(f"{out} exists; name a folder that does not")
    if Path(os.path.realpath(folder.path)) in (place := Path(os.path.realpath(out)), *place.parents)[1:]:
        raise Refusal(f"{out} lies in {folder.path}, which is only read; name a place outside of it")
    fix = _fix(folder, target, engine, trained_boundaries)
    if not fix.changes:
        return fix.changes, fix.cannot
    work = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        work.mkdir()
        tensors = {}
        for name, read in fix.tensors.items():
            tensors[name] = read()
            if tensors[name].is_floating_point() and tensors[name].itemsize > 1 and not tensors[name].isfinite().all():
                fix.cannot.append(f"{name} holds NaN or infinite values; train it again, or take an earlier checkpoint")
        save_file(tensors, work / "model.safetensors", {"format": "pt"})
        files.write_json(work / "config.json", fix.config)
        files.write_json(work / "training.json", fix.record())
        work.rename(out)
    except OSError as error:
        raise Refusal(f"{out} cannot be written: {error}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return fix.changes, fix.cannot


@dataclass
class _Fix:
    """A folder on its way: every step below reads it, changes it and says so."""
    folder: object
    target: dict  # config.json of the target
    version: str
    trained: list | None  # boundaries, once known for sure
    trainer: str | None
    config: dict
    flags: dict = field(default_factory=dict)  # of the server
    stored: dict = field(default_factory=dict)  # name -> Header, as found
    tensors: dict = field(default_factory=dict)  # name -> function that reads it
    headers: dict = field(default_factory=dict)  # bare name -> Header
    changes: list = field(default_factory=list)
    cannot: list = field(default_factory=list)

    def set(self, key, value, why):
        """Write a key of the config unless it holds the value already."""
        if key not in self.config or type(self.config[key]) is not type(value) or self.config[key] != value:
            self.changes.append(f"{key} {self.config[key]!r} -> {value!r}: {why}" if key in self.config else f"{key} = {value!r}: {why}")
            self.config[key] = value

    def shape(self, *names):
        """The shape of the first of these tensors (bare names; `layer.` is the first layer) that is there, else None."""
        for name in names:
            for spelled in ([name.replace("layer.", first, 1) for first in ("midlayer.", "layers.0.")]
                            if name.startswith("layer.") else [name]):
                if spelled in self.headers:
                    return self.headers[spelled].shape
        return None

    def size(self, name, axis=0):
        shape = self.shape(name)
        return shape[axis] if shape and len(shape) > axis and shape[axis] else None

    def since(self, release):
        return _since(self.version, release)

    @property
    def mla(self):
        return self.shape("layer.self_attn.kv_a_proj_with_mqa.weight") is not None

    def record(self):
        """What training.json is to say: without it a fixed folder looks like another trainer's."""
        known = {"boundaries": self.trained} if self.trained else {}
        return {"trainer": self.trainer or "unknown", **(self.folder.training or {}), **known}


def _fix(folder, target, engine, trained_boundaries):
    recorded = _ids((folder.training or {}).get("boundaries"))
    given = list(trained_boundaries) if trained_boundaries is not None else None
    if given is not None and (not _ids(given) or sorted(set(given)) != given or given[0] < 0):
        raise Refusal(f"the trained boundaries are {given}; expected ascending numbers, each once")
    if given and recorded and given != recorded:
        raise Refusal(f"{folder.path / 'training.json'} records the boundaries {recorded}, but {given} were given; correct one of them")
    fix = _Fix(folder, target.config or {}, engine.version, given or recorded, trainer_of(folder), copy.deepcopy(folder.config),
               engine.flags)
    if raw(folder):
        fix.cannot.append(f"{FAULTS['EY-FILE-05'].cause}: {FAULTS['EY-FILE-05'].remedy}")
        return fix
    _take_tensors(fix)
    if (kind := folder.config.get("speculators_model_type", "eagle3")) != "eagle3":
        fix.cannot.append(f"speculators_model_type is {kind!r}; only eagle3 drafts can be brought into SGLang's form")
        return fix
    for step in (_flatten, _rename, _architectures, _sizes, _vocabulary, _layer_ids, _rope, _recorded, _dtype, _what_training_decided):
        step(fix)
    return fix


def _take_tensors(fix):
    """What the server would read, and from files that a stale index leaves out what that index places elsewhere."""
    folder = fix.folder
    fix.stored = dict(folder.tensors)
    if stale := sorted(set(folder.index_misses) & set(folder.left_out)):
        fix.stored |= {name: folder.left_out[name] for name in stale}
        fix.changes.append(f"took {some(stale)} from {folder.left_out[stale[0]].file}, where it lies: the index places it elsewhere")
    if folder.repeated:
        fix.cannot.append(f"{some(sorted(folder.repeated))} lies in several files ({', '.join(next(iter(folder.repeated.values())))}); "
                          "the server keeps the last one that it reads: remove the wrong file")
    fix.tensors = {name: partial(folder.read, name) for name in fix.stored}
    fix.headers = dict(fix.stored)


def _flatten(fix):
    """speculators: the layer's config is nested, and auto_map asks for code of its own."""
    nested = fix.config.get("transformer_layer_config")
    if not isinstance(nested, dict):
        return
    own = {key: value for key, value in fix.config.items() if key not in (
        "transformer_layer_config", "speculators_config", "speculators_model_type", "speculators_version", "auto_map",
        "embed_requires_grad", "has_no_defaults_at_init", "model_type")}
    fix.config = {**nested, **own}
    fix.changes.append(f"flattened transformer_layer_config ({len(nested)} keys) and left out speculators' own keys")


def _rename(fix):
    """Names that the server reads, instead of those that it drops without a word."""
    mla, midlayer_only = any("kv_a_proj_with_mqa" in name for name in fix.stored), not fix.since(WIDER)
    names = {}
    for name in fix.stored:
        plain = bare(name)
        loads = name == plain or not mla and name == f"model.{plain}" and not plain.startswith("lm_head.")
        new = name if loads or not DRAFT.fullmatch(plain) else plain
        names[name] = re.sub(r"^(model\.)?layers\.0\.", r"\1midlayer.", new) if midlayer_only else new
    taken = {new: [old for old in names if names[old] == new] for new in names.values()}
    for new, olds in taken.items():
        if len(olds) > 1:
            fix.cannot.append(f"{' and '.join(olds)} would both become {new}; remove the wrong one")
            names |= {old: old for old in olds}
    renamed = {old: new for old, new in names.items() if old != new}
    if renamed:
        fix.changes.append(f"renamed {len(renamed)} tensors ({', '.join(f'{o} -> {n}' for o, n in sorted(renamed.items())[:2])}"
                           f"{', ...' if len(renamed) > 2 else ''}): SGLang {fix.version} drops the old names")
    fix.tensors = {new: fix.tensors[old] for old, new in names.items()}
    fix.headers = {bare(new): fix.stored[old] for old, new in names.items()}


def _architectures(fix):
    wanted = MLA if fix.mla else LLAMA
    if architecture(fix.config) != wanted:
        fix.set("architectures", [wanted], "the class by which SGLang loads such a draft")
    if fix.config.get("model_type") in (None, "eagle3", "eagle", "speculator_model") and not fix.mla:
        fix.set("model_type", "llama", "transformers knows the layer by it")
    if fix.mla and not fix.since(WIDER):
        fix.cannot.append(f"SGLang {fix.version} has no {MLA}; serve with {WIDER} or later")


def _sizes(fix):
    """Keys of the config that the tensors' shapes or the target decide."""
    c = fix.config
    layers = {int(m[1]) if m[1] else 0 for name in fix.headers if (m := re.match(r"(?:midlayer|layers\.(\d+))\.", name))}
    if layers == set(range(len(layers))) and layers:
        fix.set("num_hidden_layers", len(layers), "as many layers as the file holds; others would stay uninitialised")
        if len(layers) > 1 and not fix.since(WIDER):
            fix.cannot.append(f"the draft has {len(layers)} layers, SGLang {fix.version} serves 1; use {WIDER} or later")
    vocabulary, embedded = fix.target.get("vocab_size"), fix.size("embed_tokens.weight")
    if vocabulary and embedded not in (None, vocabulary):
        fix.cannot.append(f"embed_tokens has {embedded} rows, the target {vocabulary}; the draft is for another target")
    elif vocabulary:
        fix.set("vocab_size", vocabulary, "the target's, whose embedding the server shares")
    if c.get("quantization_config"):
        fix.cannot.append("the weights are quantised (quantization_config), so their shapes were not compared with the config")
        return
    if (hidden := fix.size("norm.weight")) and fix.size("fc.weight") == hidden:
        fix.set("hidden_size", hidden, "the rows of fc.weight")
    if (inner := fix.size("layer.mlp.gate_proj.weight")) and c.get("model_type") != "llama4_text":
        fix.set("intermediate_size", inner, "the rows of mlp.gate_proj.weight")
    heads, groups = c.get("num_attention_heads"), c.get("num_key_value_heads") or c.get("num_attention_heads")
    q, k = fix.size("layer.self_attn.q_proj.weight"), fix.size("layer.self_attn.k_proj.weight")
    if _count(heads) and _count(groups) and q and k and q % heads == 0 and k == q // heads * groups:
        derived = c["hidden_size"] // heads if _count(c.get("hidden_size")) else None
        if q // heads != (c.get("head_dim") or derived):
            fix.set("head_dim", q // heads, "the rows of q_proj, k_proj and v_proj, by head")
    rows = fix.size("lm_head.weight")
    if rows and (c.get("draft_vocab_size") != rows) and not (c.get("draft_vocab_size", 0) is None and rows == c.get("vocab_size")):
        fix.set("draft_vocab_size", rows, "the rows of lm_head.weight")
    if rows and c.get("tie_word_embeddings"):
        fix.set("tie_word_embeddings", False, "true would discard the lm_head.weight that the file holds")
    if c.get("attention_bias") and not fix.shape("layer.self_attn.o_proj.bias", "layer.self_attn.q_proj.bias"):
        fix.set("attention_bias", False, "the file has no such bias; the server's would stay uninitialised")
    if fix.shape("fc_norm.0.weight", "aux_norm_low.weight") and not (c.get("fc_norm") or c.get("use_aux_norm")):
        fix.set("fc_norm", True, "the file holds these norms; without the key the server drops them")
    width, fc = fix.target.get("hidden_size"), fix.size("fc.weight", 1)
    if _count(width) and fc and fc % width == 0 and (c.get("target_hidden_size", width) != width or
                                                     "target_hidden_size" not in c and width != c.get("hidden_size")):
        fix.set("target_hidden_size", width, "the target's; null is a TypeError, absence means the draft's own")


def _vocabulary(fix):
    """d2t as int64 offsets, target id minus draft id. t2d stays: the server skips it."""
    import torch
    name = next((n for n in fix.tensors if bare(n) == "d2t"), None)
    rows, vocabulary = fix.size("lm_head.weight"), fix.config.get("vocab_size")
    kept = _kept(fix)
    if name is None:
        if rows and kept is not None and _count(vocabulary) and len(kept) == rows < vocabulary:
            fix.tensors["d2t"] = lambda: kept - torch.arange(rows)
            fix.changes.append(f"made d2t from t2d: its {rows} tokens are the rows of lm_head in order")
        elif rows and _count(vocabulary) and rows < vocabulary:
            fix.cannot.append(f"lm_head has {rows} rows of {vocabulary} tokens and there is no d2t; the map of the training run is needed")
        return
    header = fix.headers["d2t"]
    if len(header.shape) != 1 or header.shape[0] != rows or not _count(vocabulary):
        fix.cannot.append(f"d2t has the shape {list(header.shape)}; expected [{rows}], the rows of lm_head.weight")
        return
    stored = fix.tensors[name]()
    if header.dtype not in EXACT and not header.dtype.startswith(("I", "U")):
        fix.cannot.append(f"d2t is {header.dtype}; expected int64 offsets")
        return
    numbers, count = stored.long(), torch.arange(rows)
    why = []
    if header.dtype in EXACT:
        if not (stored.isfinite().all() and torch.equal(numbers.to(stored.dtype), stored)):
            fix.cannot.append(f"d2t is {header.dtype} and holds fractions or NaN; the map of the training run is needed")
            return
        if numbers.abs().max() > EXACT[header.dtype]:  # rounded: only t2d can tell what it was
            meant = [m for m in ((kept - count, kept) if kept is not None and len(kept) == rows else ())
                     if torch.equal(m.to(stored.dtype), stored)]
            if not meant:
                fix.cannot.append(f"d2t is {header.dtype}, which rounds ids over {EXACT[header.dtype]}, and no t2d tells what they were; "
                                  "the map of the training run is needed")
                return
            numbers = meant[0]
        why.append(f"{header.dtype} -> int64")
    readings = {"offsets": numbers + count, "absolute ids": numbers}
    fit = [how for how, ids in readings.items() if _is_map(ids, vocabulary) and (kept is None or torch.equal(ids.sort().values, kept))]
    if len(fit) == 2 and (numbers.diff() > 0).all():  # as offsets: a gap behind every single token
        if rows * rows < 8 * vocabulary:  # among so few tokens that happens: about exp(-rows^2 / vocabulary)
            fix.cannot.append("d2t reads as offsets and as absolute ids alike, and no t2d tells; the map of the training run is needed")
            return
        fit = ["absolute ids"]
    if fit == ["absolute ids"]:
        why.append("absolute ids -> offsets")
        numbers = numbers - count
    elif "offsets" not in fit:
        fix.cannot.append(f"d2t is no map into {vocabulary} tokens, neither as offsets nor as absolute ids"
                          f"{' that agree with t2d' if kept is not None else ''}; the map of the training run is needed")
        return
    if why:
        fix.tensors[name] = lambda: numbers
        fix.changes.append(f"d2t: {', '.join(why)} (first target ids {(numbers + count)[:3].tolist()})")


def _layer_ids(fix):
    """The ids inside eagle_config, such that this server captures the boundaries that were trained on."""
    c, layers, width = fix.config, fix.target.get("num_hidden_layers"), fix.target.get("hidden_size")
    eagle, fc = eagle_config(c), fix.size("fc.weight", 1)
    chunks = fc // width if fc and _count(width) and fc % width == 0 else None
    inside, top = _ids(eagle.get(IDS)), _ids(c.get(IDS)) or _ids(c.get("aux_hidden_state_layer_ids"))
    ids = inside or top
    if chunks and chunks > 1 and "use_aux_hidden_state" in eagle and eagle["use_aux_hidden_state"] is not True:
        eagle = {**eagle, "use_aux_hidden_state": True}
        c["eagle_config"] = eagle
        fix.changes.append(f"use_aux_hidden_state = True: fc takes {chunks} states")
    if chunks and c.get("num_aux_hidden_states", chunks) != chunks:
        fix.set("num_aux_hidden_states", chunks, "the columns of fc.weight, by the target's hidden size")
    if chunks and ids and len(ids) != chunks or chunks and fix.trained and len(fix.trained) != chunks:
        fix.cannot.append(f"fc takes {chunks} states, the config or the record names {len(fix.trained or ids)} layers "
                          f"({fix.trained or ids}); {SAY_BOUNDARIES}")
        return
    if ids and sorted(set(ids)) != ids and not fix.trained:
        fix.cannot.append(f"the layer ids {ids} are not ascending: the server joins states in ascending order, and whether training "
                          f"did is not recorded; {SAY_BOUNDARIES}")
        return
    wanted = ids
    try:
        fix.trained = fix.trained or _trained(fix, ids, layers)
        if fix.trained and not (inside and _captured(fix, inside, layers) == fix.trained):
            if inside or _captured(fix, None, layers) != fix.trained or top:
                wanted = rules.ids_to_write(fix.version, architecture(fix.target), fix.trained, layers)
    except Refusal as refusal:
        fix.cannot.append(str(refusal))
        return
    if wanted and wanted != inside:
        c["eagle_config"] = {"use_aux_hidden_state": True, **eagle, IDS: wanted}
        why = (f"by them SGLang {fix.version} captures the trained boundaries {fix.trained}" if fix.trained else
               "as they were, for no record says what they mean")
        fix.changes.append(f"eagle_config.{IDS} {inside or 'absent'} -> {wanted}: {why}")
    if wanted and not inside:
        for key in (IDS, "aux_hidden_state_layer_ids"):
            if key in c:
                fix.changes.append(f"removed {key} {c.pop(key)!r} from the top level, where the server does not look for it")


def _trained(fix, ids, layers):
    """The boundaries that the config's ids mean, if their trainer leaves no doubt; else None, said where it matters."""
    convention = ids_convention(fix.folder)
    if not ids or not convention or not _count(layers):
        return None
    if convention == "boundaries" and ids != [1, layers // 2 - 1, layers - 4]:
        return ids
    outputs = [i + 1 for i in ids]
    if convention == "boundaries":
        fix.cannot.append(f"the ids {ids} are the default of trainers that count outputs of layers, in a config of speculators, which "
                          f"counts boundaries; {SAY_BOUNDARIES}")
    elif (captured := _captured(fix, ids, layers)) == outputs:
        return outputs
    else:
        fix.cannot.append(f"the ids {ids}, read as outputs of layers, are the boundaries {outputs}; SGLang {fix.version} captures "
                          f"{captured} for them. Drafts of {fix.trainer} that mean either are about: {SAY_BOUNDARIES}")
    return None


def _captured(fix, ids, layers):
    """The boundaries that this server captures for these ids; a Refusal where no rule says."""
    if not _count(layers):
        raise Refusal("the target's config has no num_hidden_layers; give the config.json of the target that is served")
    return rules.boundaries_captured(fix.version, architecture(fix.target), ids, layers)


def _rope(fix):
    """rope_theta and rope_parameters that say the same: transformers 4 reads the one, 5 the other first."""
    c = fix.config
    inner = c.get("rope_parameters") if isinstance(c.get("rope_parameters"), dict) else None
    known = (fix.folder.training or {}).get("rope_theta")
    theta, nested = c.get("rope_theta"), (inner or {}).get("rope_theta")
    if isinstance(known, int | float) and (nested if nested is not None else theta) != known:
        fix.set("rope_theta", known, "recorded by training.json")
        fix.set("rope_parameters", {"rope_type": "default", **(inner or {}), "rope_theta": known}, "the same for transformers 5")
    elif (fix.folder.training or {}).get("rope_scaling") == {} and (inner or {}).get("rope_type", "default") != "default" and known:
        fix.set("rope_parameters", {"rope_type": "default", "rope_theta": known}, "training.json records no scaling")
    elif theta is None and nested is not None:
        fix.set("rope_theta", nested, "as rope_parameters has it; servers with transformers 4 read only this key")
    elif nested is None and inner is not None and theta is not None:
        fix.set("rope_parameters", {**inner, "rope_theta": theta}, "as rope_theta has it")
    elif theta is not None and nested is not None and theta != nested:
        fix.cannot.append(f"rope_theta is {theta} and rope_parameters has {nested}; which one was trained with is not recorded")


def _recorded(fix):
    """Other keys that the record decides."""
    for key in ("rms_norm_eps", "norm_output"):
        known = (fix.folder.training or {}).get(key)
        if known is not None and fix.config.get(key, False) != known:
            fix.set(key, known, "recorded by training.json")


def _dtype(fix):
    """The dtype of the weights where none is given, or where the one given parts them from the target for no reason."""
    stored = {STORED[h.dtype] for name, h in fix.headers.items() if h.dtype in STORED and name != "d2t"}
    known = stored.pop() if len(stored) == 1 else "float32"
    served = dtype_of(fix.target, fix.flags.get("dtype", "auto"))
    if not fix.config.get("torch_dtype") and not fix.config.get("dtype"):
        known = known if known != "float32" else fix.target.get("torch_dtype") or fix.target.get("dtype")
        if isinstance(known, str):
            fix.set("torch_dtype", known, "the server takes float16 where no dtype is given")
    elif known == served != dtype_of(fix.config):
        key = "dtype" if fix.config.get("dtype") else "torch_dtype"
        fix.set(key, known, "all weights are stored in it, and the target is served in it")


def _what_training_decided(fix):
    """What no change of layout mends."""
    c, say = fix.config, fix.cannot.append
    retrain = "train it for SGLang, or serve it where it was made for"
    before = c.get("norm_before_residual")
    if before:
        say(f"norm_before_residual is {before!r}: the residual is the normed state, SGLang's is not; {retrain}")
    elif before is None and "speculators_model_type" in fix.folder.config:
        say("the config does not say norm_before_residual, which vLLM takes as true and SGLang never computes; ask who trained it")
    for kind in ("q_norm", "k_norm"):
        if fix.shape(f"layer.self_attn.{kind}.weight"):
            say(f"the layer has {kind} (Qwen3's attention), which SGLang drops; {retrain}")
    for part in ("q_proj", "k_proj", "v_proj"):
        if fix.shape(f"layer.self_attn.{part}.bias"):
            say(f"the layer has {part}.bias, which SGLang drops; {retrain}")
    if (c.get("norm_before_fc") or fix.shape("input_norm.weight")) and not fix.since(NORM_BEFORE_FC):
        say(f"norm_before_fc (input_norm.weight) is not computed by SGLang {fix.version}; serve with {NORM_BEFORE_FC} or later")
    if (c.get("fc_norm") or c.get("norm_output")) and not fix.since(WIDER):
        say(f"fc_norm and norm_output are not computed by SGLang {fix.version}; serve with {WIDER} or later")
    if c.get("fc_norm") and not fix.shape("fc_norm.0.weight", "aux_norm_low.weight"):
        say("fc_norm is on and the file has no fc_norm.*: those norms would stay 1")
    if c.get("norm_output") and fix.trainer == "SpecForge":
        say("norm_output is true: before SpecForge#879 that trained plain EAGLE-3, while the server feeds back the normed state; "
            "remove the key if the draft is older")
    if (window := launch.trained_window(fix.folder, c)) != launch.served_window(fix.flags):
        serve = f"with --speculative-draft-window-size {window}" if window else "without --speculative-draft-window-size"
        say(f"trained {launch.windowed(window)}, which SGLang takes from its launch line only; serve {serve}"
            + ("" if fix.since(WIDER) or not window else f", with {WIDER} or later"))
    needed = [name for group in NEEDED for name in (group + part for part in NEEDED[group])]
    needed += [f"layer.self_attn.{part}.weight" for part in ATTENTION[MLA if fix.mla else LLAMA]]
    if c.get("draft_vocab_size", 0) is not None and not c.get("tie_word_embeddings"):
        needed.append("lm_head.weight")
    if missing := [name.replace("layer.", "layers.0.", 1) if name.startswith("layer.") else name for name in needed if not fix.shape(name)]:
        say(f"the file lacks {some(missing)}, which the server would leave uninitialised")


def _kept(fix):
    """The target ids that t2d marks, ascending, or None without a usable t2d."""
    name = next((n for n in fix.tensors if bare(n) == "t2d"), None)
    header = fix.headers.get("t2d")
    if name is None or len(header.shape) != 1 or header.dtype not in ("BOOL", "U8", "I8", "I32", "I64"):
        return None
    marked = fix.tensors[name]()
    return marked.nonzero()[:, 0] if bool(((marked == 0) | (marked == 1)).all()) else None


def _is_map(ids, vocabulary):
    """Whether these are distinct target ids."""
    return bool(((ids >= 0) & (ids < vocabulary)).all()) and len(ids.unique()) == len(ids)


def _since(version, release):
    try:
        return Version(str(version)) >= release
    except InvalidVersion:
        return True


def _ids(value):
    return value if isinstance(value, list) and value and all(type(i) is int for i in value) else None


def _count(value):
    return type(value) is int and value > 0


def learn(folder, trained_on=None):
    """Note in folder.learned what the draft was trained on, where no record says it; returns in words how that is known.

    trained_on: what the ids in its config mean, "outputs" of layers or "boundaries"; None: as its trainer writes them. An output
    of layer i is boundary i + 1.
    """
    ids, meaning = layer_ids(folder), trained_on or ids_convention(folder)
    boundaries = [i + 1 for i in ids] if ids and meaning == "outputs" else ids
    if recorded := (folder.training or {}).get("boundaries"):
        if trained_on and boundaries != recorded:
            raise Refusal(f"{folder.path / 'training.json'} records the boundaries {recorded}, --trained-on {trained_on} makes the ids "
                          f"{ids} the boundaries {boundaries}; leave the option out, or correct the record")
        return f"on the boundaries {recorded} (training.json)"
    if not ids or not meaning:
        return "on what is not known, so the ids were not judged: no record, and what they mean was not given (--trained-on)"
    folder.learned = boundaries, "given" if trained_on else "assumed" if meaning == "outputs" else "written"
    how = "as given" if trained_on else f"as {trainer_of(folder)} writes them"
    return f"on the boundaries {boundaries} (ids {ids} as {meaning}, {how})"


def layer_ids(folder):
    """The ids in the config, wherever they stand, or None."""
    return _ids(eagle_config(folder.config).get(IDS)) or _ids(folder.config.get(IDS))
