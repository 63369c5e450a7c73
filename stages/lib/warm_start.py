"""Training that goes on from a finished draft: its sizes, weights and vocabulary map. preflight has judged it (stages/preflight.py)."""
import hashlib
import re

import torch

from stages.contract.folder import open_folder
from stages.lib import draft as drafts, target as targets
from stages.lib.refusal import Refusal

FRESH = ("target", "random")  # what train.init says where no draft is named


def load(init, sha256, about, boundaries, p):
    """(Shape, {name: fp32 tensor}, d2t) of the draft folder `init`, which must be one that this trainer's draft class is.

    sha256: train.init_sha256. about: data/target's manifest. boundaries: of the states. p: the params section `draft`. Refusal
    when the folder is not the pinned one, was trained on other boundaries or has other sizes than p.
    """
    folder = opened(init, sha256)
    trained = (folder.training or {}).get("boundaries", list(boundaries))
    if trained != list(boundaries):
        raise Refusal(f"{init} was trained on the boundaries {trained}, the states are of {list(boundaries)}; capture its layer ids")
    c, weights = folder.config, {}
    for name in folder.tensors:
        bare = re.sub(r"^(model\.)?(layers\.0|midlayer)\.", "midlayer.", name).removeprefix("model.")
        if bare not in ("t2d", "embed_tokens.weight"):
            weights[bare] = folder.read(name)
    d2t = weights.pop("d2t", torch.zeros(c["draft_vocab_size"])).long()  # without a map the two vocabularies are one
    theta = (c.get("rope_parameters") or {}).get("rope_theta") or c.get("rope_theta") or 10000.0
    heads = c["num_attention_heads"]
    shape = drafts.Shape(c["hidden_size"], c["intermediate_size"], heads, c.get("num_key_value_heads") or heads,
                         c.get("head_dim") or c["hidden_size"] // heads, len(boundaries), about["hidden_size"], about["vocab_size"],
                         c["draft_vocab_size"], c["rms_norm_eps"], theta)
    for key, value in (("vocab_size", shape.draft_vocab_size), ("intermediate_size", shape.intermediate_size)):
        if getattr(p, key) != value:
            raise Refusal(f"draft.{key} is {getattr(p, key)}, the draft in train.init has {value}; a warm start keeps its sizes and its "
                          f"vocabulary: set draft.{key} to {value}")
    return shape, {name: w.float() for name, w in weights.items()}, d2t


def opened(init, sha256):
    """The folder, if it is the one that train.init_sha256 pins."""
    folder = open_folder(init)
    found = targets.digests(folder.path, ["config.json", *folder.weight_files])
    digest = hashlib.sha256("".join(f"{sha}  {name}\n" for name, sha in sorted(found.items())).encode()).hexdigest()
    if digest != sha256:
        raise Refusal(f"train.init {init} has the digest {digest}, train.init_sha256 is {sha256 or 'empty'}; if this is the draft that you "
                      f"mean, set train.init_sha256 to {digest}")
    return folder
