"""train: an EAGLE-3 draft learns to continue the target's hidden states.

In: data/states, data/target (embedding, head, norm). Out: data/draft (fp32 weights, d2t, manifest.json),
metrics/train.json, metrics/curve.csv, metrics/validation.csv.
Alone: `python -m stages.train`. Killed, it resumes from the last checkpoint and ends with the same bytes.
"""
from stages.lib import cpu  # noqa: F401  before torch
import hashlib
import math
import time

import torch
from safetensors.torch import save_file

from stages.lib import (checkpoint, draft as drafts, files, loss, metrics, packing, params, progress, shards, state, target,
                        verifier, vocabulary, warm_start)
from stages.lib.refusal import Refusal, run


def main():
    p = params.load("train")
    torch.set_num_threads(p.train.threads)
    states, about = shards.load(), target.manifest()
    if states.manifest["target"] != about["sha256"]:
        raise Refusal(f"data/states was extracted from target {states.manifest['target'][:12]}, data/target is "
                      f"{about['sha256'][:12]}; rerun extract")
    if p.train.autocast not in ("bfloat16", "float32"):
        raise Refusal(f"train.autocast is {p.train.autocast!r}; expected bfloat16 or float32")
    if p.train.device not in ("cpu", "cuda") or (p.train.device == "cuda" and not torch.cuda.is_available()):
        raise Refusal(f"train.device is {p.train.device!r}; expected cpu, or cuda where torch sees a GPU")
    device = torch.device(p.train.device)
    weights = target.head_and_norm(target.open_target())

    # The draft vocabulary comes from what is asked of the draft in training, never from the validation prompts.
    training, validation = split(states.manifest["documents"], p.train.validation)
    counts = vocabulary.count(states, training, about["vocab_size"])
    if p.train.init in warm_start.FRESH:
        d2t = vocabulary.choose(counts, p.draft.vocab_size)
        shape = drafts.shape_of(about, len(states.manifest["boundaries"]), len(d2t), p.draft.intermediate_size)
        draft = drafts.Draft(shape, weights["embed"])
        drafts.initialise(draft, p.train.init, weights["head"].float(), weights["norm"].float(), d2t, p.train.seed)
    else:
        shape, start, d2t = warm_start.load(p.train.init, p.train.init_sha256, about, states.manifest["boundaries"], p.draft)
        draft = drafts.Draft(shape, weights["embed"])
        draft.load_state_dict(start)
    draft.to(device)
    target_ids, draft_ids = vocabulary.target_ids(d2t).to(device), vocabulary.draft_ids(d2t, about["vocab_size"]).to(device)
    in_vocabulary = draft_ids >= 0
    head_rows = weights["head"].to(device)[target_ids].to(torch.bfloat16 if p.train.autocast == "bfloat16" else torch.float32)
    optimizer = torch.optim.AdamW(draft.parameters(), lr=p.train.lr, betas=(0.9, 0.95), weight_decay=p.train.weight_decay)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=p.train.autocast == "bfloat16")

    batches = [batch for epoch in range(p.train.epochs) for batch in
               packing.plan(states.lengths, p.train.pack_tokens, p.train.batch_packs,
                            [training[i] for i in packing.shuffled(len(training), p.train.seed, epoch)])]
    eval_steps = {round(len(batches) * (i + 1) / p.train.evals) for i in range(p.train.evals)}
    key = files.digest_of(params.code_key("train"), states.manifest, params.plain(p.train), params.plain(p.draft))
    latest = state.piece("train", f"{key}.safetensors")
    best, at = {}, {"step": 0, "curve": [], "validation": []}
    if latest.exists():
        best, at = checkpoint.load(latest, draft, optimizer)
        print(f"train: resumed at step {at['step']} of {len(batches)}", flush=True)

    tokens = sum(states.lengths[d] for packs in batches for pack in packs for d in pack)
    done = sum(states.lengths[d] for packs in batches[:at["step"]] for pack in packs for d in pack)
    saved = time.monotonic()
    with progress.bar("train", tokens) as bar:
        bar.update(done)
        for step in range(at["step"], len(batches)):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, len(batches), p.train)
            batch = packing.collate(states, batches[step], p.train.pack_tokens).to(device)
            with autocast:
                total, scores = loss.ttt_loss(draft, batch, head_rows, in_vocabulary, draft_ids, p.train.ttt_steps,
                                              p.train.step_decay, p.train.stop_at_oov)
            total.backward()
            norm = torch.nn.utils.clip_grad_norm_(draft.parameters(), p.train.clip)
            stop_if_diverged(step, total.item(), norm.item(), at["curve"], batches[step], states.manifest["documents"])
            optimizer.step()
            optimizer.zero_grad()
            at["step"] = step + 1
            at["curve"].append([step + 1, total.item(), *(metrics.share(hits, asked) for hits, asked in scores)])
            bar.set_postfix(loss=f"{total.item():.3f}", refresh=False)
            bar.update(sum(states.lengths[d] for pack in batches[step] for d in pack))

            if step + 1 in eval_steps:
                with autocast:
                    found = verifier.replay(draft, states, validation, target_ids, [verifier.HEADLINE_CHAIN],
                                            p.train.pack_tokens, p.train.batch_packs)[verifier.HEADLINE_CHAIN]
                score = {**metrics.tau_with_interval(found, 1000, p.train.seed), **metrics.positions(found, verifier.HEADLINE_CHAIN)}
                if score["tau"] > max([s["tau"] for _, s in at["validation"]], default=0):
                    best = {name: tensor.detach().cpu().clone() for name, tensor in draft.named_parameters()}
                at["validation"].append([step + 1, score])
                bar.write(f"train: step {step + 1}, validation tau {score['tau']} [{score['tau_lo']}, {score['tau_hi']}]")
            if time.monotonic() - saved >= 60 * p.exec.save_minutes or step + 1 == len(batches):
                checkpoint.save(latest, draft, optimizer, best, at)
                saved = time.monotonic()

    best_step, score = max(at["validation"], key=lambda entry: entry[1]["tau"])  # the first of equals
    out = state.begin("train")
    save_file({**best, "d2t": d2t}, out / "draft.safetensors")
    files.write_json(out / "manifest.json", {
        "shape": draft.shape.as_dict(), "boundaries": states.manifest["boundaries"], "target": about["sha256"],
        "states": files.digest_of(states.manifest), "vocabulary": hashlib.sha256(d2t.numpy().tobytes()).hexdigest(),
        "ttt_steps": p.train.ttt_steps, "step": best_step})
    result = {**score, "best_step": best_step, "steps": len(batches), "train_documents": len(training),
              "train_loss": round(sum(row[1] for row in at["curve"][-20:]) / len(at["curve"][-20:]), 3),
              "coverage": {"train": round(vocabulary.coverage(counts, d2t), 4), "validation": round(vocabulary.coverage(
                  vocabulary.count(states, validation, about["vocab_size"]), d2t), 4)}}
    files.write_json("metrics/train.json", result)
    files.write_csv("metrics/curve.csv", ["step", "loss", *(f"accuracy_{k + 1}" for k in range(p.train.ttt_steps))], smooth(at["curve"]))
    files.write_csv("metrics/validation.csv", ["step", "tau", "tau_lo", "tau_hi"],
                    [[step, s["tau"], s["tau_lo"], s["tau_hi"]] for step, s in at["validation"]])
    state.publish(out, "data/draft")
    state.keep_only("train", {latest.name})
    progress.summary("train", steps=len(batches), best_step=best_step, validation_tau=f"{score['tau']} (n {score['n']})",
                     coverage=result["coverage"]["train"])


def split(documents, share):
    """Training and validation documents (indices), by a hash of the prompt's id, so that a prompt never changes sides when
    others come or go and all turns of one dialogue stay together."""
    held = [int(hashlib.sha256(name.encode()).hexdigest(), 16) % 10_000 < 10_000 * share for name, _ in documents]
    training, validation = ([i for i, h in enumerate(held) if h == side] for side in (False, True))
    if not training or not validation:
        raise Refusal(f"{len(documents)} documents and train.validation = {share} leave {len(training)} for training and "
                      f"{len(validation)} for validation; both need at least one: more prompts, or another share")
    return training, validation


def learning_rate(step, steps, p):
    """Linear warm-up over the share `train.warmup`, then a cosine down to a twentieth."""
    warm = max(1, round(p.warmup * steps))
    return p.lr * min((step + 1) / warm, 0.05 + 0.475 * (1 + math.cos(math.pi * step / steps)))


def stop_if_diverged(step, total, norm, curve, packs, documents):
    """A Refusal that names step and batch: at a loss or gradient that is not finite, or a loss three times the first one."""
    if math.isfinite(total) and math.isfinite(norm) and (not curve or total < 3 * curve[0][1]):
        return
    names = [documents[d][0] for pack in packs for d in pack]
    raise Refusal(f"training diverged at step {step + 1}: loss {total:.3g}, gradient norm {norm:.3g}, first loss "
                  f"{curve[0][1] if curve else total:.3g}; batch of {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}. "
                  "Lower train.lr, raise train.warmup, or look at these traces")


def smooth(curve):
    """At most 200 rows: means over equal stretches of steps."""
    width = max(1, math.ceil(len(curve) / 200))
    parts = [curve[i:i + width] for i in range(0, len(curve), width)]
    return [[part[-1][0], *(round(sum(column) / len(part), 4) for column in list(zip(*part))[1:])] for part in parts]


if __name__ == "__main__":
    run(main)
