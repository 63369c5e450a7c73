"""Training that goes on from a finished draft of any trainer: its weights and its vocabulary map, once it is known to serve."""
import hashlib
from pathlib import Path

import torch

from stages.contract import check, config, dialects
from stages.contract.folder import open_folder
from stages.contract.tensors import place
from stages.lib import draft as drafts, state, target as targets
from stages.lib.refusal import Refusal

# A draft may go on for a target that was tuned further or has another template; another tokenizer means other words.
ALLOWED = ("EY-TARGET-02", "EY-TARGET-03")


def load(init, sha256, target_folder, boundaries, p):
    """(Shape, {name: fp32 tensor}, d2t) of the draft folder `init`, in the trainer's own names.

    sha256: train.init_sha256, the digest of its config and weights. boundaries: of the states. p: the params section `draft`.
    A layout that the server would misread is corrected as tools/doctor --fix does, in the state dir. Refusal for a draft with
    other faults, of another target, map, size or set of boundaries, and for what this trainer does not build.
    """
    folder, target, engine = open_folder(init), check.target_of(target_folder), check.Engine()
    if (found := digest(folder)) != sha256:
        raise Refusal(f"train.init {init} has the digest {found}, train.init_sha256 is {sha256 or 'empty'}; if this is the draft you "
                      f"mean: train.init_sha256={found}")
    dialects.learn(folder)
    trained = (folder.training or {}).get("boundaries")
    if trained != list(boundaries):
        raise Refusal(f"{init} was trained on {f'the boundaries {trained}' if trained else 'boundaries that nothing records'}, data/states "
                      f"holds {list(boundaries)}; extract with its layer ids" + ("" if trained else ", and write them into its training.json "
                      "as boundaries"))
    folder = corrected(folder, target, engine, trained)
    found = check.check(folder, target, engine)
    check.refuse([f for f in found if f.code not in ALLOWED], f"train.init {init}")

    read = config.read(folder.config, engine.version)
    odd = {f"architectures {read.architecture}": read.mla, f"{read.num_hidden_layers} layers": read.num_hidden_layers != 1,
           "fc_norm": read.fc_norm or read.use_aux_norm, "norm_output": read.norm_output, "rope scaling": bool(read.rope), "a bias": read.bias,
           "the target's head": not read.loads_head, "another width than the target": read.hidden_size != target.hidden_size}
    if any(odd.values()):
        raise Refusal(f"train.init {init} has {', '.join(name for name, found in odd.items() if found)}, which this trainer does not build")
    for key, value in (("vocab_size", read.draft_vocab_size), ("intermediate_size", read.intermediate_size)):
        if getattr(p, key) != value:
            raise Refusal(f"draft.{key} is {getattr(p, key)}, the draft in train.init has {value}; a warm start keeps its sizes and its "
                          f"vocabulary: draft.{key}={value}")
    shape = drafts.Shape(read.hidden_size, read.intermediate_size, read.num_attention_heads, read.num_key_value_heads, read.head_dim,
                         read.num_aux, read.target_hidden_size, read.vocab_size, read.draft_vocab_size, read.rms_norm_eps, read.theta)
    weights = {place(name, engine.version).replace("layers.0.", "midlayer."): folder.read(name) for name in folder.tensors
               if place(name, engine.version) not in (None, "t2d", "embed_tokens.weight")}
    d2t = weights.pop("d2t", torch.zeros(read.draft_vocab_size)).long()  # without a map the two vocabularies are one
    return shape, {name: w.float() for name, w in weights.items()}, d2t


def digest(folder):
    """sha256 over the draft's config and weight files: what train.init_sha256 pins."""
    found = targets.digests(folder.path, ["config.json", *folder.weight_files])
    return hashlib.sha256("".join(f"{sha}  {name}\n" for name, sha in sorted(found.items())).encode()).hexdigest()


def corrected(folder, target, engine, trained):
    """The folder with its layout put right, in the state dir; the folder itself where nothing is wrong."""
    out = Path(state.piece("train", f"init-{digest(folder)[:16]}"))
    if not out.exists():
        changes, cannot = dialects.write_fixed(folder, out, target, engine)
        if cannot:
            raise Refusal(f"train.init {folder.path} cannot be continued: {'; '.join(cannot)}")
        if not changes:
            return folder
        print("train: corrected the layout of train.init: " + "; ".join(changes), flush=True)
    fixed = open_folder(out)
    fixed.training = {**(fixed.training or {}), "boundaries": trained}
    return fixed
