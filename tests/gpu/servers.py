"""Small servers that share a GPU, an untrained draft for each target, and what captured rows are held against."""
from types import SimpleNamespace

import torch

from stages import preflight
from stages.contract import check
from stages.contract.folder import open_folder
from stages.engines import sglang_capture
from stages.lib import parity, served_folder, target
from tests.gpu import targets
from tests.gpu.results import VERSION

# max-total-tokens bounds what a server takes. The fraction is only what must be free when it starts, and other servers start beside it.
FLAGS = {"attention-backend": "triton", "sampling-backend": "pytorch", "grammar-backend": "none", "moe-runner-backend": "triton",
         "disable-prefill-cuda-graph": True, "mem-fraction-static": 0.9, "max-total-tokens": 16384, "max-running-requests": 8,
         "cuda-graph-max-bs-decode": 8, "chunked-prefill-size": 128, "skip-server-warmup": True}
OF_TARGET = {targets.KIMI: {"mm-attention-backend": "triton_attn"}}  # for the images that never come; Hopper's own choice is fa3
LENGTHS = (2, 5, 64, 127, 128, 129, 130, 200, 256, 300, 500)  # one to four chunks of 128


def engine(architecture, **flags):
    """The params section of such a server."""
    return SimpleNamespace(name="sglang", version=VERSION, dtype="bfloat16", servers=1,
                           flags={**FLAGS, **OF_TARGET.get(architecture, {}), **flags})


def sequences(lengths=LENGTHS, seed=1):
    noise = torch.Generator().manual_seed(seed)
    return [torch.randint(3, targets.VOCAB - 1, (n,), generator=noise).tolist() for n in lengths]


def untrained(folder, out, boundaries):
    """Exports a random draft into `out` as the pipeline does; (ids, the target's manifest). Refusal where the contract is not kept."""
    about = targets.about(folder)
    embed = target.head_and_norm(folder)["embed"].float()
    draft, d2t = preflight.untrained(about, len(boundaries), SimpleNamespace(vocab_size=4096, intermediate_size=512), embed)
    ids = preflight.ids_for(VERSION, about, boundaries)
    out.mkdir()
    served_folder.write(out, draft.shape, {**{name: w.detach() for name, w in draft.named_parameters()}, "d2t": d2t}, about, boundaries,
                        ids, "bfloat16")
    check.refuse(check.check(open_folder(out), check.target_of(folder), check.Engine(VERSION)), "the untrained draft")
    return ids, about


def captured(name, architecture, folder, boundaries, asked, **flags):
    """(rows of each sequence, the plugin's report) of a server that was started for them."""
    with sglang_capture.session(name, folder, engine(architecture, **flags), boundaries) as (capture, report):
        return list(capture(asked, [len(ids) // 2 for ids in asked])), report


@torch.inference_mode()
def compared(rows, folder, boundaries, asked):
    """Figures of captured rows beside transformers' plain forward in fp32. A sequence's first row is left out, as in the parity probe.

    p1: per boundary the 1st percentile of the rows' cosine. neighbours: per boundary the highest cosine of any row with a boundary
    beside it. last: 99th percentile of the relative error. next_ids: share of equal argmaxes.
    by_chunk: p1 over all boundaries of the rows of each prefill chunk of 128.
    """
    model = targets.plain(folder)
    own, beside, errors, equal, chunks = {b: [] for b in boundaries}, {b: [] for b in boundaries}, [], [], {}
    for ids, (aux, last, next_id) in zip(asked, rows):
        out, first = model(torch.tensor([ids]), output_hidden_states=True), len(ids) // 2
        for b, chunk in zip(boundaries, aux.chunk(len(boundaries), -1)):
            cosine = lambda other: parity.row_cosines(chunk, out.hidden_states[other][0], 1)[1:, 0]  # noqa: B023
            own[b].append(cosine(b))
            for place, part in enumerate(torch.cat([torch.ones(1), own[b][-1]]).split(128)):
                chunks.setdefault(place, []).append(part)
            beside[b] += [cosine(other) for other in (b - 1, b + 1) if 0 <= other < len(out.hidden_states) - 1]
        post = out.hidden_states[-1][0]
        errors.append(((last.float() - post).norm(dim=1) / post.norm(dim=1))[1:])
        equal.append(next_id[first:].long() == out.logits[0, first:].argmax(-1))
    return {"rows": sum(map(len, asked)), "p1": {b: torch.cat(c).quantile(0.01).item() for b, c in own.items()},
            "neighbours": {b: torch.cat(c).max().item() for b, c in beside.items()},
            "by_chunk": {place: torch.cat(parts).quantile(0.01).item() for place, parts in chunks.items()},
            "last": torch.cat(errors).quantile(0.99).item(), "next_ids": torch.cat(equal).float().mean().item()}
