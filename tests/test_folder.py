"""Opening a draft's folder from anywhere: what the server would read, or one line that says why it cannot be judged."""
from stages.lib import cpu  # noqa: F401  before torch
import json
import os
import pickle
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.torch import load_file, save_file

from stages.contract.folder import INDEX, Header, Unreadable, open_folder
from stages.lib import files, headers
from tests import small

ROOT = Path(__file__).parents[1]
TWO = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.fixture
def draft(tmp_path):
    path = tmp_path / "draft"
    path.mkdir()
    small.exported(path, *small.random_draft())
    (path / "training.json").unlink()
    return path


def shards(path, names=("a.safetensors", "b.safetensors"), index=True):
    """The exported draft in two files, its first half in the first."""
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    half = len(tensors) // 2
    parts = dict(list(tensors.items())[:half]), dict(list(tensors.items())[half:])
    for name, part in zip(names, parts):
        save_file(part, path / name)
    if index:
        files.write_json(path / INDEX, {"weight_map": {t: name for name, part in zip(names, parts) for t in part}})
    return tensors


def raw(header, data=b"0" * 8, length=None):
    """A safetensors file with this header, true or not."""
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def refused(path, match=None):
    """The one line; every hostile folder below must give it."""
    with pytest.raises(Unreadable, match=match) as caught:
        open_folder(path)
    said = str(caught.value)
    assert said.isprintable() and 20 < len(said) < 1100, said
    return said


def test_an_exported_draft_is_read_as_it_was_written(draft):
    found = open_folder(draft)
    stored = load_file(draft / "model.safetensors")
    assert found.tensors.keys() == stored.keys() and found.tensors["d2t"] == Header("model.safetensors", "I64", (20,))
    assert all(torch.equal(found.read(n), t) and found.tensors[n].shape == t.shape for n, t in stored.items())
    assert found.config == files.read_json(draft / "config.json")
    assert (found.left_out, found.weight_files, found.pickles, found.index_misses, found.training, found.repeated) == (
        {}, ["model.safetensors"], [], [], None, {})
    with pytest.raises(KeyError):
        found.read("nothing")


def test_a_training_record_is_read_where_it_lies(draft):
    files.write_json(draft / "training.json", {"boundaries": [2, 15, 27]})
    assert open_folder(draft).training == {"boundaries": [2, 15, 27]}


def test_an_index_decides_which_files_are_read_and_in_them_every_tensor(draft):
    tensors = shards(draft)
    save_file({"old.weight": torch.zeros(2)}, draft / "old.safetensors")
    index = files.read_json(draft / INDEX)["weight_map"]
    del index["d2t"]
    files.write_json(draft / INDEX, {"weight_map": index})
    found = open_folder(draft)
    assert found.tensors.keys() == tensors.keys() and found.left_out.keys() == {"old.weight"}
    assert found.weight_files == ["a.safetensors", "b.safetensors", "old.safetensors"]
    assert torch.equal(found.read("d2t"), tensors["d2t"]) and found.read("old.weight").shape == (2,)


def test_an_index_that_is_out_of_date_is_told_and_not_refused(draft):
    tensors = shards(draft)
    index = files.read_json(draft / INDEX)["weight_map"]
    first = next(n for n, name in index.items() if name == "a.safetensors")
    files.write_json(draft / INDEX, {"weight_map": {**index, first: "b.safetensors", "fc.bias": "gone.safetensors"}})
    found = open_folder(draft)
    assert found.index_misses == sorted(["fc.bias", first]) and first in found.tensors
    files.write_json(draft / INDEX, {"weight_map": {n: "b.safetensors" for n in tensors}})
    found = open_folder(draft)
    assert set(found.left_out) == set(found.index_misses) and first in found.left_out


def test_without_an_index_every_visible_file_is_read_and_the_last_name_wins(draft):
    shards(draft, index=False)
    save_file({"d2t": torch.arange(20)}, draft / "z.safetensors")
    (draft / ".hidden.safetensors").write_bytes(b"not looked at")
    found = open_folder(draft)
    place = next(name for name in ("a.safetensors", "b.safetensors") if "d2t" in load_file(draft / name))
    assert found.repeated == {"d2t": [place, "z.safetensors"]} and torch.equal(found.read("d2t"), torch.arange(20))


def test_a_consolidated_file_is_skipped_beside_model_safetensors_alone(draft):
    save_file({"x": torch.zeros(1)}, draft / "consolidated.safetensors")
    found = open_folder(draft)
    assert "x" not in found.tensors and found.left_out.keys() == {"x"}
    save_file({"y": torch.zeros(1)}, draft / "other.safetensors")
    assert {"x", "y"} <= open_folder(draft).tensors.keys()


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_pickles_are_named_and_never_opened(draft, in_tmp):
    (draft / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    os.mkfifo(draft / "training_args.bin")
    assert open_folder(draft).pickles == ["pytorch_model.bin", "training_args.bin"]
    (draft / "model.safetensors").unlink()
    assert "run code" in refused(draft, r"only pickles \(pytorch_model\.bin.*sandbox.*save_file")
    assert not Path("exploded").exists()


@pytest.mark.parametrize("spoil, said", [
    (lambda d: (d / "config.json").unlink(), "no config.json"),
    (lambda d: (d / "config.json").write_text("{"), "is not JSON"),
    (lambda d: (d / "config.json").write_bytes(b"\xff"), "is not JSON"),
    (lambda d: (d / "config.json").write_text("\ufeff{}"), "is not JSON"),
    (lambda d: (d / "config.json").write_text('{"a": NaN}'), "NaN is no number"),
    (lambda d: (d / "config.json").write_text('{"a": 1e999}'), "out of range"),
    (lambda d: (d / "config.json").write_text('{"a": "\\ud800"}'), "surrogates not allowed"),
    (lambda d: (d / "config.json").write_text('{"a": ' + "9" * 5000 + "}"), "is not JSON"),
    (lambda d: (d / "config.json").write_text("[" * 200_000), "RecursionError"),
    (lambda d: (d / "config.json").write_text('{"a":' * 200_000), "RecursionError"),
    (lambda d: (d / "config.json").write_text("[]"), "holds a list"),
    (lambda d: os.truncate(d / "config.json", 16_000_001), "at most 16000000"),
    (lambda d: ((d / "config.json").unlink(), (d / "config.json").mkdir()), "not a regular file"),
    (lambda d: ((d / "config.json").unlink(), os.mkfifo(d / "config.json")), "not a regular file"),
    (lambda d: (d / "training.json").write_text("3"), "holds a int"),
    (lambda d: os.mkfifo(d / "training.json"), "not a regular file"),
    (lambda d: (d / "model.safetensors").unlink(), "no .*safetensors; expected"),
    (lambda d: (d / "model.safetensors").rename(d / ".model.safetensors"), "no .*safetensors; expected"),
    (lambda d: (d / "x.safetensors").mkdir(), "x.safetensors is not a regular file"),
    (lambda d: os.mkfifo(d / "x.safetensors"), "x.safetensors is not a regular file"),
    (lambda d: (d / "x.safetensors").symlink_to("/dev/zero"), "outside the folder"),
    (lambda d: (d / "x.safetensors").symlink_to("x.safetensors"), "cannot be read"),
    (lambda d: (d / "x.safetensors").symlink_to("nowhere"), "cannot be read"),
    (lambda d: [(d / f"{i}.safetensors").touch() for i in range(1001)], "at most 1000"),
    (lambda d: (d / INDEX).write_text("{}"), "no weight_map"),
    (lambda d: (d / INDEX).write_text('{"weight_map": {}}'), "no weight_map"),
    (lambda d: (d / INDEX).write_text('{"weight_map": [1]}'), "no weight_map"),
    (lambda d: (d / INDEX).write_text('{"weight_map": {"a": "gone.safetensors"}}'), "none of the files"),
    (lambda d: (d / INDEX).write_text("[" * 200_000), "RecursionError"),
    (lambda d: os.mkfifo(d / INDEX), "not a regular file"),
    (lambda d: (d / INDEX).mkdir(), "not a regular file"),
    (lambda d: [(d / f"{i}\n\x1b[31m.safetensors").write_bytes(b"") for i in range(2)], r"0\\n\\x1b\[31m"),
])
def test_a_folder_that_cannot_be_judged_is_refused_in_one_line(draft, spoil, said):
    spoil(draft)
    refused(draft, said)


@pytest.mark.parametrize("name", [
    "../model.safetensors", "/etc/model.safetensors", "sub/model.safetensors", "..\\model.safetensors", "model.bin", "", "..",
    3, None, True, ["model.safetensors"], {"a": 1}])
def test_an_index_may_only_name_plain_safetensors_files(draft, name):
    files.write_json(draft / INDEX, {"weight_map": {"fc.weight": "model.safetensors", "x": name}})
    refused(draft, "plain name")


HEADERS = [
    (b"", "claims 0 bytes|no safetensors"),
    (b"\x05\x00", "no safetensors file"),
    (raw(b"{}", b"", length=1 << 62), f"claims {1 << 62} bytes"),
    (raw(b"{}", b"", length=3), "claims 3 bytes"),
    (raw({"a": TWO}, length=10), "header cannot be read"),
    (raw(b"[]", b""), "does not begin"),
    (raw(b' {"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'), "does not begin"),
    (raw(json.dumps({"a": TWO}).encode("utf-16")), "header cannot be read"),
    (raw(b"{" + b'"a":{' * 100_000, b""), "RecursionError"),
    (raw(b'{"a":' + b"[" * 200_000, b""), "RecursionError"),
    (raw(b'{"a":' + b"{}," * 200_001, b""), "more than 100000 tensors"),
    (raw(b'{"a":[' + b"0," * 2_000_001, b""), "more than 100000 tensors"),
    (raw(b'{"a":%s,"a":%s}' % ((json.dumps(TWO).encode(),) * 2)), "'a' is given 2 times"),
    (raw(b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}'), "'dtype' is given 2 times"),
    (raw(b'{"a\\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'), "surrogates"),
    (raw({"a": {**TWO, "more": 1}}), "needs dtype, shape"),
    (raw({"a": [TWO]}), "needs dtype, shape"),
    (raw({"a": None}), "needs dtype, shape"),
    (raw({"a": {"dtype": "F32"}}), "needs dtype, shape"),
    (raw({"a": {**TWO, "dtype": "F31"}}), "dtype 'F31'"),
    (raw({"a": {**TWO, "dtype": ["F32"]}}), "dtype"),
    (raw({"a": {**TWO, "shape": [-2]}}), "negative"),
    (raw({"a": {**TWO, "shape": [2.0]}}), "shape"),
    (raw({"a": {**TWO, "shape": [True, 2]}}), "shape"),
    (raw({"a": {**TWO, "shape": "22"}}), "shape"),
    (raw({"a": {**TWO, "shape": [1] * 9}}), "shape"),
    (raw({"a": {**TWO, "shape": [0, 1 << 41], "data_offsets": [0, 0]}}, b""), "shape"),
    (raw({"a": {**TWO, "shape": [0, 1 << 40, 1 << 40], "data_offsets": [0, 0]}}, b""), "shape"),
    (raw({"a": {**TWO, "shape": [3]}}), "is F32 of shape"),
    (raw({"a": {**TWO, "data_offsets": [8, 0]}}), "is F32 of shape"),
    (raw({"a": {**TWO, "data_offsets": [0, 8, 8]}}), "data_offsets"),
    (raw({"a": {**TWO, "data_offsets": [-8, 0]}}), "negative"),
    (raw({"a": {**TWO, "data_offsets": [1 << 70, (1 << 70) + 8]}}), "end to end"),
    (raw({"a": TWO, "b": TWO}), "end to end"),
    (raw({"a": TWO, "b": {**TWO, "data_offsets": [9, 17]}}, b"0" * 17), "end to end"),
    (raw({"a": {**TWO, "data_offsets": [1, 9]}}, b"0" * 9), "end to end"),
    (raw({"a": TWO}, b"0" * 7), "not complete"),
    (raw({"a": TWO}, b"0" * 9), "not complete"),
    (raw({"a": TWO, "__metadata__": {"k": 1}}), "__metadata__"),
    (raw({"a": TWO, "__metadata__": [1]}), "header cannot be read"),
    (raw({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}, b"0"), "is F4 of shape"),
    (raw({"x\n" * 100_000: None}, b""), r"x\\n"),
]


@pytest.mark.parametrize("content, said", HEADERS, ids=range(len(HEADERS)))
def test_a_header_that_contradicts_itself_is_refused(draft, content, said):
    (draft / "model.safetensors").write_bytes(content)
    refused(draft, said)


@pytest.mark.parametrize("header, data", [
    ({}, b""), ({"__metadata__": {}}, b""), ({"__metadata__": None}, b""), ({"": TWO}, b"0" * 8),
    ({"a": {**TWO, "shape": []}, }, b""), ({"a": {**TWO, "shape": [0, 3], "data_offsets": [0, 0]}, "b": TWO}, b"0" * 8),
    ({"a": {"dtype": "BOOL", "shape": [8], "data_offsets": [0, 8]}}, b"\x05" * 8),
    ({"a": {"dtype": "F4", "shape": [16], "data_offsets": [0, 8]}}, b"0" * 8),
    ({"a": {"dtype": "U16", "shape": [4], "data_offsets": [0, 8]}}, b"0" * 8),
])
def test_odd_files_are_either_readable_to_the_last_tensor_or_refused(draft, header, data):
    (draft / "model.safetensors").write_bytes(raw(header, data))
    judged(draft)


def test_every_dtype_that_is_listed_can_be_read(draft):
    for dtype, bits in headers.BITS.items():
        header = {"a": {"dtype": dtype, "shape": [16], "data_offsets": [0, 2 * bits]}}
        (draft / "model.safetensors").write_bytes(raw(header, bytes(2 * bits)))
        assert judged(draft).tensors["a"].dtype == dtype


def test_a_header_over_100_mb_is_refused_unread(draft):
    with open(draft / "model.safetensors", "wb") as file:
        file.write((headers.HEADER_LIMIT + 1).to_bytes(8, "little"))
        file.truncate(headers.HEADER_LIMIT + 100)  # sparse
    refused(draft, "limit of a header: 100000000")


def test_a_path_that_is_no_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "none", tmp_path / "file", tmp_path / "a\0b", tmp_path / ("x" * 5000)):
        refused(path)


def test_links_inside_the_folder_and_into_stores_by_content_are_followed_and_no_others(draft, tmp_path):
    content = (draft / "model.safetensors").read_bytes()

    def link(place, folder):
        place.parent.mkdir(parents=True)
        place.write_bytes(content)
        folder.mkdir(parents=True, exist_ok=True)
        files.write_json(folder / "config.json", {})
        (folder / "model.safetensors").symlink_to(os.path.relpath(place, folder))
        return folder

    hub = link(tmp_path / "models--x/blobs/1234", tmp_path / "models--x/snapshots/rev")
    dvc = link(tmp_path / f".dvc/cache/files/md5/ab/{'0' * 30}", tmp_path / "data/export")
    for folder in (hub, dvc):
        assert judged(folder).tensors.keys() == open_folder(draft).tensors.keys()
    assert judged(link(tmp_path / "here/stored.bin", tmp_path / "here"))
    for place, folder in ((tmp_path / "secret", tmp_path / "a"), (tmp_path / "models--y/blobs/1", tmp_path / "models--z/snapshots/rev"),
                          (tmp_path / "blobs/1", tmp_path / "b/rev")):
        place.parent.mkdir(exist_ok=True, parents=True)
        place.write_bytes(content)
        folder.mkdir(parents=True)
        files.write_json(folder / "config.json", {})
        (folder / "model.safetensors").symlink_to(place)
        refused(folder, "outside the folder")
    (tmp_path / "a/model.safetensors").unlink()
    (tmp_path / "a/model.safetensors").write_bytes(content)
    (tmp_path / "a/config.json").unlink()
    (tmp_path / "a/config.json").symlink_to("/etc/hostname")
    refused(tmp_path / "a", "outside the folder")
    linked = tmp_path / "linked"
    linked.symlink_to(draft)  # the folder itself may be reached by a link
    judged(linked)


def test_a_file_that_is_cut_after_it_was_opened_is_refused_when_it_is_read(draft):
    found = open_folder(draft)
    os.truncate(draft / "model.safetensors", 1000)
    with pytest.raises(Unreadable, match="any more"):
        found.read("d2t")
    (draft / "model.safetensors").unlink()
    with pytest.raises(Unreadable, match="any more"):
        found.read("d2t")


def large(path):
    """A draft of 1.2 B parameters whose 2.4 GB are holes."""
    shapes = {"fc.weight": [7168, 21504], "lm_head.weight": [32000, 7168], **{f"midlayer.{i}": [7168, 14336] for i in range(8)},
              "norm.weight": [7168]}
    end, header = 0, {}
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    path.mkdir()
    files.write_json(path / "config.json", {})
    (path / "model.safetensors").write_bytes(start := raw(header, b""))
    os.truncate(path / "model.safetensors", len(start) + end)
    return path


def test_a_draft_of_1_2_b_parameters_opens_in_a_moment_and_one_tensor_costs_that_tensor(tmp_path):
    path = large(tmp_path / "large")
    began = time.perf_counter()
    assert sum(h.shape[0] * (h.shape + (1,))[1] for h in open_folder(path).tensors.values()) > 1.2e9
    assert time.perf_counter() - began < 0.5
    code = ("import resource, sys; from stages.contract.folder import open_folder; f = open_folder(sys.argv[1]); "
            "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; before = peak(); f.read('norm.weight'); "
            "assert f.read('norm.weight').shape == (7168,); print(peak() - before)")
    done = subprocess.run([sys.executable, "-c", code, path], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 50_000  # KB


def test_hostile_headers_cost_little_more_than_their_bytes(tmp_path):
    """20 MB of small objects would be 1 GB of Python's."""
    path = tmp_path / "draft"
    path.mkdir()
    files.write_json(path / "config.json", {})
    (path / "model.safetensors").write_bytes(raw(b'{"a":' + b"{}," * 7_000_000, b""))
    code = ("import resource, sys; from stages.contract.folder import open_folder, Unreadable\n"
            "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\nbefore = peak()\n"
            "try: open_folder(sys.argv[1])\nexcept Unreadable: print(peak() - before)")
    done = subprocess.run([sys.executable, "-c", code, path], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100_000  # KB


def judged(path):
    """The invariant: a folder whose every listed tensor can be read as its header says, or Unreadable, and nothing else."""
    try:
        found = open_folder(path)
    except Unreadable as unreadable:
        assert str(unreadable).isprintable()
        return None
    for name, header in {**found.tensors, **found.left_out}.items():
        tensor = found.read(name)
        if header.dtype != "F4":  # torch packs two in a byte
            assert tuple(tensor.shape) == header.shape
    json.dumps(found.config, allow_nan=False, ensure_ascii=False).encode()
    assert set(found.index_misses).isdisjoint(found.tensors) or found.index_misses
    return found


@st.composite
def mutations(draw):
    """(file, function on its bytes)."""
    name = draw(st.sampled_from(["a.safetensors", "b.safetensors", INDEX, "config.json", "training.json"]))
    at, byte, size = draw(st.integers(0, 2500)), draw(st.integers(0, 255)), draw(st.integers(0, 60))
    content = draw(st.binary(max_size=12) | st.sampled_from([b"null", b"-1", b"1e9", b"[]", b"{}", b'""', b"NaN", b"\\ud800", b"true"]))
    kind = draw(st.sampled_from(["flip", "cut", "insert", "remove", "length", "digit", "replace"]))

    def change(data):
        i = at % max(len(data), 1)
        if kind == "flip":
            return data[:i] + bytes([byte]) + data[i + 1:]
        if kind == "cut":
            return data[:i]
        if kind == "insert":
            return data[:i] + content + data[i:]
        if kind == "remove":
            return data[:i] + data[i + size:]
        if kind == "length":
            return struct.pack("<Q", draw_length) + data[8:]
        if kind == "digit":  # the likeliest to leave JSON and make a lie
            digits = [k for k, c in enumerate(data[:3000]) if chr(c).isdigit()]
            k = digits[at % len(digits)] if digits else 0
            return data[:k] + str(byte % 10).encode() + data[k + 1:]
        return data[:i] + content + data[i + len(content):]

    draw_length = draw(st.integers(0, 1 << 64 - 1) | st.integers(0, 3000))
    return name, change


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(mutations(), min_size=1, max_size=3))
def test_whatever_is_done_to_a_folders_bytes_it_is_read_whole_or_refused(tmp_path_factory, changes):
    path = tmp_path_factory.mktemp("fuzz", numbered=True)
    for name, content in ORIGINAL.items():
        (path / name).write_bytes(content)
    for name, change in changes:
        (path / name).write_bytes(change((path / name).read_bytes()))
    judged(path)
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


def original():
    """Two small shards with an index and a record, as bytes."""
    import tempfile
    with tempfile.TemporaryDirectory() as work:
        path = Path(work)
        save_file({"fc.weight": torch.ones(2, 3), "norm.weight": torch.ones(3).bfloat16()}, path / "a.safetensors", {"format": "pt"})
        save_file({"d2t": torch.arange(4), "t2d": torch.tensor([True, False])}, path / "b.safetensors")
        files.write_json(path / INDEX, {"metadata": {"total_size": 100}, "weight_map": {
            "fc.weight": "a.safetensors", "norm.weight": "a.safetensors", "d2t": "b.safetensors", "t2d": "b.safetensors"}})
        files.write_json(path / "config.json", {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 3, "rms_norm_eps": 1e-5})
        files.write_json(path / "training.json", {"boundaries": [2, 15, 27]})
        return {file.name: file.read_bytes() for file in path.iterdir()}


ORIGINAL = original()
