"""export: the draft as a folder that SGLang serves.

In: data/draft, data/target. Out: data/export (config.json, model.safetensors, training.json).
Alone: `python -m stages.export`. Nothing is published before the folder keeps the serving contract (stages/contract) and an
independent forward agrees with the trainer's.
"""
from stages.lib import cpu  # noqa: F401  before torch
import torch
from safetensors.torch import load_file

from stages.contract import check, probes, rules
from stages.contract.folder import open_folder
from stages.contract.forward import ServedDraft
from stages.lib import draft as drafts, files, params, progress, served_folder, state, target
from stages.lib.refusal import Refusal, run


def main():
    p = params.load("export")
    torch.set_num_threads(1)
    manifest, about, folder = files.read_json("data/draft/manifest.json"), target.manifest(), target.open_target()
    if manifest["target"] != about["sha256"]:
        raise Refusal(f"data/draft was trained on target {manifest['target'][:12]}, data/target is {about['sha256'][:12]}; rerun train")
    weights, shape = load_file("data/draft/draft.safetensors"), drafts.Shape(**manifest["shape"])
    if (found := served_folder.digest(weights["d2t"])) != manifest["vocabulary"]:
        raise Refusal(f"data/draft holds the vocabulary map {found}, but was trained with {manifest['vocabulary']}; rerun train")
    ids = rules.ids_to_write(p.export.sglang, about["architecture"], manifest["boundaries"], about["num_hidden_layers"])

    out = state.begin("export")
    served_folder.write(out, shape, weights, about, manifest["boundaries"], ids, p.export.dtype, ttt_steps=manifest["ttt_steps"],
                        step=manifest["step"])
    read, engine = open_folder(out), check.Engine(p.export.sglang)
    static = check.check(read, check.target_of(folder), engine) + check.sorted_findings(check.values(read, engine))
    check.refuse(static, "the exported draft")

    own = target.head_and_norm(folder)
    embed = own["embed"].float()
    trained = drafts.Draft(shape, embed)
    trained.load_state_dict(served_folder.rounded(weights, p.export.dtype))
    served = ServedDraft(out, embed, own["head"].float(), version=p.export.sglang)
    check.refuse(check.sorted_findings(probes.forward(trained, served)), "the exported draft")
    state.publish(out, "data/export")
    size = sum(w.numel() for w in weights.values()) / 1e6
    steps = probes.two_steps(trained, served)
    progress.summary("export", ids=ids, boundaries=manifest["boundaries"], parameters=f"{size:.2f} M",
                     two_step_difference=f"{max(steps['first'], steps['second']):.1e}")


if __name__ == "__main__":
    run(main)
