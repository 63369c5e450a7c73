"""Small real things that several tests share: a random draft, states of random documents, an exported folder."""
import torch

from stages.lib import draft as drafts, served_folder, shards

VOCAB, SIZE, AUX = 50, 16, 3


def shape(**changes):
    return drafts.Shape(**{"hidden_size": SIZE, "intermediate_size": 24, "num_heads": 4, "num_kv_heads": 2, "head_dim": 4,
                           "num_aux": AUX, "target_hidden_size": SIZE, "vocab_size": VOCAB, "draft_vocab_size": 20,
                           "rms_norm_eps": 1e-5, "rope_theta": 10000.0, **changes})


def offsets(size, vocab, seed=0):
    kept = torch.randperm(vocab, generator=torch.Generator().manual_seed(seed))[:size].sort().values
    return kept - torch.arange(size)


def random_draft(seed=0, **changes):
    """A draft with weights large enough that argmaxes vary, and its d2t."""
    torch.manual_seed(seed)
    s = shape(**changes)
    draft = drafts.Draft(s, torch.randn(s.vocab_size, s.hidden_size))
    for p in draft.parameters():
        torch.nn.init.normal_(p, 0, 0.4)
    return draft.eval(), offsets(s.draft_vocab_size, s.vocab_size, seed)


ABOUT = {"max_position_embeddings": 512, "bos_token_id": 1, "eos_token_ids": [2], "architecture": "LlamaForCausalLM", "sha256": "0" * 64,
         "files": {}}


def exported(folder, draft, d2t, ids=(1, 2, 3)):
    """The folder that export writes for this draft, in fp32."""
    weights = {**{n: p.detach() for n, p in draft.named_parameters()}, "d2t": d2t}
    served_folder.write(folder, draft.shape, weights, ABOUT, [i + 1 for i in ids], list(ids), "float32")
    return folder


def states_of(folder, documents, dtype="float32", seed=0, vocab=VOCAB, size=SIZE):
    """States on disk for `documents`: (prompt ids, response ids) pairs with random aux and last."""
    noise = torch.Generator().manual_seed(seed)
    ids = [p + r for p, r in documents]
    count = sum(map(len, ids))
    mask = torch.cat([torch.arange(len(p) + len(r)) >= len(p) for p, r in documents])
    tokens = torch.tensor([t for s in ids for t in s], dtype=torch.int32)
    path = folder / "states-00000.safetensors"
    shards.write(path, {
        "input_ids": tokens, "loss_mask": mask, "last": torch.randn(count, size, generator=noise),
        **shards.pack(torch.randn(count, AUX * size, generator=noise), AUX, dtype),
        "next_id": torch.where(torch.cat([mask[1:], mask.new_zeros(1)]), torch.cat([tokens[1:], tokens[:1]]), -1).int(),
        "cu_seqlens": torch.tensor([0, *map(len, ids)]).cumsum(0)})
    return shards.States([path], {"dtype": dtype})
