"""Is this the target that the draft was trained with? By the digests that export wrote into training.json."""
from stages.lib import target as targets

TEXT = {"tokenizer.json": "EY-TARGET-01", "tokenizer_config.json": "EY-TARGET-02", "chat_template.jinja": "EY-TARGET-02",
        "config.json": "EY-TARGET-03"}


def faults(folder, read, target, engine):
    """(code, evidence) from the small files; the weights' own digests are `weights`, which takes time."""
    recorded = (folder.training or {}).get("target_files", {})
    if target.folder is None or not recorded:
        return
    seen = set()
    for name, code in TEXT.items():
        found = _digest(target.folder, name)
        if recorded.get(name) != found and code not in seen:
            seen.add(code)
            yield code, f"{name} has sha256 {(found or 'none')[:12]}, {(recorded.get(name) or 'none')[:12]} in training"


def weights(folder, target):
    """(code, evidence): every weight file of the target against the record. Digests are remembered (stages/lib/target.py)."""
    recorded = {name: sha for name, sha in (folder.training or {}).get("target_files", {}).items() if name.endswith(".safetensors")}
    if target.folder is None or not recorded:
        return
    here = sorted(path.name for path in target.folder.glob("*.safetensors"))
    found = targets.digests(target.folder, here)
    if found != recorded:
        name = next(n for n in sorted({*found, *recorded}) if found.get(n) != recorded.get(n))
        yield "EY-TARGET-04", f"{name} has sha256 {found.get(name, 'none')[:12]}, {recorded.get(name, 'none')[:12]} in training"


def _digest(folder, name):
    return targets.digests(folder, [name])[name] if (folder / name).is_file() else None
