"""target: pin the model that everything else is about.

In: a packaged, local or hub model. Out: data/target (manifest.json with what the model is and the sha256 of each of
its files; copies of the tokenizer and the chat template). The weights stay where they are: stages/lib/target.py opens
them.
Alone: `python -m stages.target`.
"""
from stages.lib import cpu  # noqa: F401  before torch
import hashlib
import shutil

from stages.lib import files, params, progress, state, target
from stages.lib.headers import read_header, read_index, read_object
from stages.lib.refusal import Refusal, run

COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
COUNTED = ("config.json", "generation_config.json", *COPIED, "special_tokens_map.json", "added_tokens.json",
           "vocab.json", "merges.txt", "tokenizer.model")
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
INDEX_LIMIT = 100_000_000  # bytes; 140,000 experts fill a tenth of it
REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size",
            "max_position_embeddings", "rms_norm_eps")


def main():
    t = params.load("target").target
    folder = target.resolve(t)
    weights = check_weights(folder)
    config = check_text_files(folder)
    names = [name for name in COUNTED if (folder / name).exists()] + weights
    sha256 = target.digests(folder, names)
    about = {"source": t.source, "name": t.name, "revision": t.revision, **essentials(config, folder),
             "files": sha256, "sha256": total(sha256)}
    if t.source == "package":
        about["package_sha256"] = t.sha256
    elif t.sha256 and t.sha256 != about["sha256"]:
        raise Refusal(f"the files of {t.name} have the digest {about['sha256']}, but target.sha256 pins {t.sha256}; "
                      "restore the files, or correct the pin")

    out = state.begin("target")
    for name in COPIED:
        if (folder / name).exists():
            shutil.copyfile(folder / name, out / name)
    files.write_json(out / "manifest.json", about)
    state.publish(out, "data/target")
    size = sum((folder / name).stat().st_size for name in names)
    progress.summary("target", model=f"{t.name} {t.revision}".strip(), architecture=about["architecture"],
                     layers=about["num_hidden_layers"], hidden=about["hidden_size"], vocabulary=about["vocab_size"],
                     files=f"{len(names)} ({size / 1e6:.0f} MB)", sha256=about["sha256"][:12])


def total(sha256):
    """One digest over {file name: sha256}: the identity of the model, whatever it is called and wherever it lies."""
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(sha256.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def check_weights(folder):
    """Names of the weight files (the index with its shards, or model.safetensors), after their headers were read."""
    single, index = folder / "model.safetensors", folder / INDEX
    if not single.exists() and not index.exists():
        unsafe = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
        only = f", only pickles, which run code when they are opened ({', '.join(unsafe)})" if unsafe else ""
        raise Refusal(f"{folder} has no model.safetensors and no {INDEX}{only}; convert the weights to safetensors")
    if not index.exists():
        read_header(single)
        return [single.name]
    placed, tensors = read_index(index, INDEX_LIMIT), {}
    for shard in sorted(set(placed.values())):
        if not (folder / shard).exists():
            raise Refusal(f"{folder} lacks {shard}, which its index names; the download is not complete")
        tensors[shard] = read_header(folder / shard)
    if single.exists() and single.name not in tensors:
        raise Refusal(f"{folder} has {single.name} and an index that does not name it; engines differ in which they "
                      "read: remove one")
    for name, shard in placed.items():
        if name not in tensors[shard]:
            raise Refusal(f"{index} places {name} in {shard}, which lacks it; index and shards are of different models")
    return [INDEX, *tensors]


def check_text_files(folder):
    """The parsed config.json, after making sure of a tokenizer and a chat template, and that no code is asked for."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        if not (folder / name).exists():
            raise Refusal(f"{folder} has no {name}; the target needs its config and a fast tokenizer (tokenizer.json)")
    read = {name: read_object(folder / name) for name in ("config.json", "tokenizer_config.json")}
    for name, content in read.items():
        if content.get("auto_map"):
            raise Refusal(f"{folder / name} has an auto_map: the model wants Python code of its own to be run, "
                          "which is not done here")
    if not (folder / "chat_template.jinja").exists() and not read["tokenizer_config.json"].get("chat_template"):
        raise Refusal(f"{folder} has no chat template (chat_template.jinja, or chat_template in "
                      "tokenizer_config.json); a base model cannot answer prompts; use an instruction-tuned one")
    return read["config.json"]


def essentials(config, folder):
    """What later stages need to know of the model, by transformers' names (multimodal models: of their text_config)."""
    text = config.get("text_config") or config
    generation = read_object(folder / "generation_config.json") if (folder / "generation_config.json").exists() else {}

    def first(key):
        return next((part[key] for part in (config, text, generation) if part.get(key) is not None), None)

    absent = [key for key in REQUIRED if not text.get(key)]
    if absent or not config.get("architectures"):
        raise Refusal(f"{folder / 'config.json'} lacks {', '.join(absent or ['architectures'])}; expected the "
                      "config of a decoder-only language model")
    heads = text["num_attention_heads"]
    # A dict for its order. Engines stop at the ids of both files, so the traces must too.
    eos = dict.fromkeys(i for part in (config, text, generation) for i in as_list(part.get("eos_token_id")))
    if not eos:
        raise Refusal(f"{folder} names no eos_token_id, neither in config.json nor in generation_config.json: no "
                      "answer would ever end")
    return {
        "architecture": config["architectures"][0], **{key: text[key] for key in REQUIRED}, **rope(text),
        "num_key_value_heads": text.get("num_key_value_heads") or heads,
        "head_dim": text.get("head_dim") or text["hidden_size"] // heads,
        "dtype": first("dtype") or first("torch_dtype"), "tie_word_embeddings": bool(first("tie_word_embeddings")),
        "bos_token_id": first("bos_token_id"), "eos_token_ids": list(eos), "pad_token_id": first("pad_token_id")}


def as_list(ids):
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


def rope(text):
    """`rope_parameters` and `rope_theta`, whichever of the two spellings config.json has.

    Absent, theta is 10000, as in Llama's config class. Models that turn their layers by different thetas have one set
    per kind of layer; the draft, whose one layer sees everything, takes that of full attention.
    """
    found = text.get("rope_parameters") or {"rope_type": "default", **(text.get("rope_scaling") or {})}
    theta = found.get("full_attention", found).get("rope_theta") or text.get("rope_theta") or 10000.0
    return {"rope_parameters": found, "rope_theta": theta}


if __name__ == "__main__":
    run(main)
