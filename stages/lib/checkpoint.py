"""Everything that must survive a kill, in one safetensors file that is replaced atomically."""
import json
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def save(path, draft, optimizer, best, progress):
    """progress: JSON-able dict (floats survive exactly). best: state dict of the best draft so far, or {}."""
    tensors = {f"draft.{name}": p.detach() for name, p in draft.named_parameters()}
    tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
    for name, p in draft.named_parameters():
        tensors |= {f"{moment}.{name}": optimizer.state[p][moment] for moment in MOMENTS}
    temporary = Path(path).with_suffix(".tmp")
    save_file({k: t.contiguous().clone() for k, t in tensors.items()}, temporary, {"progress": json.dumps(progress)})
    temporary.replace(path)


def load(path, draft, optimizer):
    """Fill draft and optimizer in place; returns (best, progress) as they were saved."""
    with safe_open(path, "pt") as file:
        names = list(file.keys())
        for name, p in draft.named_parameters():
            p.data.copy_(file.get_tensor(f"draft.{name}"))
            optimizer.state[p] = {moment: file.get_tensor(f"{moment}.{name}") for moment in MOMENTS}
            for moment in ("exp_avg", "exp_avg_sq"):  # AdamW counts its steps on the CPU
                optimizer.state[p][moment] = optimizer.state[p][moment].to(p.device)
        best = {n.removeprefix("best."): file.get_tensor(n) for n in names if n.startswith("best.")}
        return best, json.loads(file.metadata()["progress"])
