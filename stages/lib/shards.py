"""States on disk: flat safetensors shards and a manifest that says what they are.

One shard holds S whole documents (one answered turn each) end to end, N tokens in all:
  input_ids [N] int32          loss_mask [N] bool   true on response tokens
  aux [N, K*H]                 residual stream at K boundaries, chunks ascending (bf16, fp32, or e4m3 with a scale)
  aux_scale [N, K] float32     only with fp8: one scale per token and boundary
  last [N, H]                  post-norm last state, the input of the target's head
  next_id [N] int32            the target's argmax where the next token is supervised, else -1
  cu_seqlens [S+1] int64       document i is rows cu_seqlens[i] to cu_seqlens[i+1]
"""
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from stages.lib import files
from stages.lib.refusal import Refusal

E4M3_MAX = 448.0
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "fp8": torch.float8_e4m3fn}


def pack(aux, num_boundaries, dtype):
    """aux [n, K*H] as stored: a dict of `aux` and, for fp8, `aux_scale`."""
    if dtype != "fp8":
        return {"aux": aux.to(DTYPES[dtype])}
    chunks = aux.float().view(len(aux), num_boundaries, -1)
    scale = chunks.abs().amax(-1).clamp_min(1e-12) / E4M3_MAX
    return {"aux": (chunks / scale[..., None]).to(torch.float8_e4m3fn).view_as(aux), "aux_scale": scale}


def unpack(tensors):
    """The stored aux in bf16 or fp32 again."""
    if "aux_scale" not in tensors:
        return tensors["aux"]
    scale = tensors["aux_scale"]
    chunks = tensors["aux"].float().view(*scale.shape, -1) * scale[..., None]
    return chunks.view(len(scale), -1).bfloat16()


def write(path, tensors):
    """Through a temporary neighbour: the file exists only when it is complete. The neighbour is this process's own: a
    worker that outlives a killed stage may still be at the same shard as the next run's."""
    temporary = Path(path).with_suffix(f".{os.getpid()}.tmp")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary)
    temporary.replace(path)


def bytes_per_token(num_boundaries, hidden_size, dtype):
    """Disk bytes of one token: what the extract stage plans with."""
    width = {"bfloat16": 2, "float32": 4, "fp8": 1}[dtype]
    last = 4 if dtype == "float32" else 2
    scale = 4 * num_boundaries if dtype == "fp8" else 0
    return num_boundaries * hidden_size * width + scale + hidden_size * last + 4 + 1 + 4


class States:
    """Read access to shards, document by document; nothing is held in memory."""

    def __init__(self, paths, manifest):
        self.manifest, self.documents, self.lengths, self.shards = manifest, [], [], []
        for path in paths:
            try:
                reader = safe_open(path, "pt")
                bounds = reader.get_tensor("cu_seqlens").tolist()
            except (SafetensorError, OSError) as error:
                raise Refusal(f"{path} cannot be read: {error}") from None
            self.documents += [(len(self.shards), a, b) for a, b in zip(bounds, bounds[1:])]
            self.lengths += [b - a for a, b in zip(bounds, bounds[1:])]
            self.shards.append(reader)

    def document(self, index, names=("input_ids", "loss_mask", "aux", "last", "next_id")):
        """The tensors of one document, aux already decoded."""
        shard, a, b = self.documents[index]
        reader = self.shards[shard]
        tensors = {name: reader.get_slice(name)[a:b] for name in names}
        if "aux" in tensors and self.manifest["dtype"] == "fp8":
            tensors["aux"] = unpack({"aux": tensors["aux"], "aux_scale": reader.get_slice("aux_scale")[a:b]})
        return tensors


def load(directory="data/states"):
    """The finished states of extract. A missing, truncated or swapped shard is a Refusal that names it."""
    directory = Path(directory)
    manifest = files.read_json(directory / "manifest.json")
    for shard in manifest["shards"]:
        path = directory / shard["file"]
        found = files.sha256(path) if path.exists() else "no file"
        if found != shard["sha256"]:
            raise Refusal(f"{path} is not what the states' manifest lists (sha256 {shard['sha256'][:12]}, found "
                          f"{found[:12]}); bring it back with `dvc checkout data/states` or rerun extract")
    states = States([directory / shard["file"] for shard in manifest["shards"]], manifest)
    if len(states.documents) != len(manifest["documents"]):
        raise Refusal(f"{directory}: {len(states.documents)} documents in the shards, {len(manifest['documents'])} in the manifest")
    return states
