"""States on disk: what is damaged is named, what is compressed comes back."""
import pytest
import torch

from stages.lib import files, shards
from stages.lib.refusal import Refusal
from tests.small import states_of

DOCUMENTS = [([1, 2], [3, 4, 5]), ([6], [7, 8])]


def finished(folder, dtype="float32"):
    """A states folder with two shards and a manifest, as extract leaves it."""
    listed, names = [], []
    for number, documents in enumerate((DOCUMENTS, DOCUMENTS[:1])):
        states_of(folder, documents, dtype, seed=number)
        path = folder / f"states-{number:05d}.safetensors"
        (folder / "states-00000.safetensors").rename(path) if number else None
        names += [[f"d{number}{i}", 0] for i in range(len(documents))]
        listed.append({"file": path.name, "documents": len(documents)})
        if number == 0:
            (folder / "keep").write_bytes(path.read_bytes())
    (folder / "keep").rename(folder / "states-00000.safetensors")
    for shard in listed:
        shard["sha256"] = files.sha256(folder / shard["file"])
    files.write_json(folder / "manifest.json", {"dtype": dtype, "shards": listed, "documents": names})
    return folder


def test_a_finished_folder_reads_back_document_by_document(tmp_path):
    states = shards.load(finished(tmp_path))
    assert states.lengths == [5, 3, 5]
    assert states.document(1)["input_ids"].tolist() == [6, 7, 8]
    assert not torch.equal(states.document(0)["aux"], states.document(2)["aux"])  # another shard


@pytest.mark.parametrize("damage", ["truncate", "swap", "delete", "flip"])
def test_a_damaged_shard_is_named(tmp_path, damage):
    first, second = (finished(tmp_path) / f"states-0000{i}.safetensors" for i in (0, 1))
    if damage == "truncate":
        second.write_bytes(second.read_bytes()[:-50])
    elif damage == "swap":
        second.write_bytes(first.read_bytes())
    elif damage == "delete":
        second.unlink()
    else:
        data = bytearray(second.read_bytes())
        data[-1] ^= 1
        second.write_bytes(data)
    with pytest.raises(Refusal, match="states-00001.safetensors is not what the states' manifest lists.*dvc checkout"):
        shards.load(tmp_path)


def test_fp8_keeps_each_token_and_boundary_within_its_own_scale(tmp_path):
    aux = torch.randn(40, 3 * 16)
    aux[0, :16] *= 1000  # SmolLM2's first token is about that much larger
    back = shards.unpack(shards.pack(aux, 3, "fp8")).float()
    cosine = torch.nn.functional.cosine_similarity(aux.view(40, 3, 16), back.view(40, 3, 16), dim=-1)
    assert cosine.min() > 0.998


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "fp8"])
def test_bytes_per_token_is_what_a_shard_weighs(tmp_path, dtype):
    from safetensors.torch import save
    n, k, h = 4096, 3, 64
    tensors = {"input_ids": torch.zeros(n, dtype=torch.int32), "loss_mask": torch.zeros(n, dtype=torch.bool),
               "last": torch.zeros(n, h, dtype=torch.float32 if dtype == "float32" else torch.bfloat16),
               "next_id": torch.zeros(n, dtype=torch.int32), **shards.pack(torch.randn(n, k * h), k, dtype)}
    assert len(save(tensors)) == pytest.approx(n * shards.bytes_per_token(k, h, dtype), rel=0.01)
