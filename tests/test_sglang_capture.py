"""The client of the capture plugin, against a small stand-in for the server that writes pieces as the plugin does."""
import json
import threading
import time
from importlib.metadata import distributions
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from stages.engines import sglang_capture, sglang_path, sglang_plugin, sglang_rows, sglang_tap
from stages.lib import files
from stages.lib.refusal import Refusal

BOUNDARIES, H = [2, 5], 4
TYPES = torch.bfloat16


def rows_for(ids, index, first):
    """What a target would give: every row tells its request and its position."""
    n = len(ids)
    place = torch.arange(n)[:, None] + 100 * index
    return {"input_ids": torch.tensor(ids, dtype=torch.int32), "aux": (place + torch.arange(2 * H) / 16).to(TYPES),
            "last": (place - torch.arange(H) / 16).to(TYPES),
            "next_id": torch.where(torch.arange(n) < first, -1, torch.tensor(ids) + 1).int()}


class Server:
    """`send` of a server whose writer is late: pieces of at most `chunk` rows, after the reply, in any order."""

    def __init__(self, folder, chunk=16, spoil=lambda name, pieces: pieces, reply=lambda replies: replies):
        self.folder, self.chunk, self.spoil, self.reply = folder, chunk, spoil, reply
        self.lock, self.busy, self.most = threading.Lock(), 0, 0

    def send(self, names, sequences):
        with self.lock:
            self.busy += 1
            self.most = max(self.most, self.busy)
        threading.Thread(target=self.write, args=(names, sequences)).start()
        time.sleep(0.01)
        with self.lock:
            self.busy -= 1
        return self.reply([{"meta_info": {"id": name, "finish_reason": {"type": "length", "length": 0}, "prompt_tokens": len(ids),
                                          "cached_tokens": 0}} for name, ids in zip(names, sequences)])

    def write(self, names, sequences):
        for name, ids in zip(names[::-1], sequences[::-1]):
            first, _ = sglang_rows.parse(name)
            whole = rows_for(ids, int(name.split("-")[2]), first)
            cut = [(a, {key: t[a:a + self.chunk] for key, t in whole.items()}) for a in range(0, len(ids), self.chunk)]
            for start, tensors in self.spoil(name, cut)[::-1]:
                sglang_rows.write_piece(self.folder, name, start, tensors)


def sequences(lengths):
    return [[(7 * i + t) % 90 for t in range(n)] for i, n in enumerate(lengths)]


def capture(server, lengths, firsts=None, **how):
    return list(sglang_capture.capture(server.send, server.folder, sequences(lengths), firsts or [0] * len(lengths),
                                       **{"patience": 0.3, **how}))


@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=12), chunk=st.integers(1, 60), group=st.integers(1, 120),
       ahead=st.integers(1, 4))
def test_rows_come_back_whole_and_in_order(tmp_path_factory, lengths, chunk, group, ahead):
    folder = tmp_path_factory.mktemp("rows")
    server = Server(folder, chunk)
    firsts = [n // 2 for n in lengths]
    found = capture(server, lengths, firsts, group_tokens=group, ahead=ahead, patience=20)
    assert len(found) == len(lengths) and server.most <= ahead
    for i, (ids, first, (aux, last, next_id)) in enumerate(zip(sequences(lengths), firsts, found)):
        wanted = rows_for(ids, i, first)
        assert torch.equal(aux, wanted["aux"]) and torch.equal(last, wanted["last"]) and torch.equal(next_id, wanted["next_id"])
    assert not list(folder.iterdir())


def spoilt(change):
    """Only the second request's pieces are changed."""
    return lambda name, pieces: change(pieces) if name.split("-")[2] == "1" else pieces


def with_rows(pieces, **change):
    return [(start, {**tensors, **{key: make(tensors[key]) for key, make in change.items()}}) for start, tensors in pieces]


def bad_value(tensor):
    tensor = tensor.clone()
    tensor[3] = float("nan")
    return tensor


@pytest.mark.parametrize("change,message", [
    (lambda pieces: [], "0 of 40 rows arrived"),
    (lambda pieces: pieces[:-1], "32 of 40 rows arrived"),
    (lambda pieces: pieces[1:], "24 of 40 rows arrived"),
    (lambda pieces: [*pieces, (8, pieces[0][1])], "came after"),
    (lambda pieces: [(0, pieces[1][1]), (16, pieces[0][1]), pieces[2]], "expected .* rows of another request, or shifted"),
    (lambda pieces: with_rows(pieces, input_ids=lambda t: t + 1), "row 0 is of token"),
    (lambda pieces: with_rows(pieces, aux=bad_value), "aux is not finite"),
    (lambda pieces: with_rows(pieces, last=bad_value), "last is not finite"),
    (lambda pieces: with_rows(pieces, aux=lambda t: t[:-1]), "holds .* rows, expected 16"),
    (lambda pieces: with_rows(pieces, next_id=lambda t: torch.full_like(t, -1)), "next ids do not begin at row 0"),
])
def test_short_missing_swapped_and_corrupted_rows_are_refused(tmp_path, change, message):
    with pytest.raises(Refusal, match=message):
        capture(Server(tmp_path, spoil=spoilt(change)), [20, 40, 30])
    assert not list(tmp_path.iterdir())


def test_a_truncated_file_is_refused(tmp_path):
    name = sglang_rows.request_name("ab", 0, 0, 5)
    sglang_rows.write_piece(tmp_path, name, 0, rows_for([1, 2, 3, 4, 5], 0, 0))
    path, = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(Refusal, match="cannot be read"):
        sglang_capture.rows_of(tmp_path, name, [1, 2, 3, 4, 5])


@pytest.mark.parametrize("spoil,message", [
    (lambda replies: replies[::-1], "out of order"),
    (lambda replies: replies[1:], "2 replies for 3 requests"),
    (lambda replies: [{"meta_info": {**r["meta_info"], "cached_tokens": 4}} for r in replies], "4 came from a cache"),
    (lambda replies: [{"meta_info": {**r["meta_info"], "prompt_tokens": 7}} for r in replies], "7 of 20 tokens"),
    (lambda replies: [{"meta_info": {**r["meta_info"], "finish_reason": {"type": "abort", "message": "too long"}}} for r in replies],
     "too long")])
def test_replies_that_are_short_swapped_or_cached_are_refused(tmp_path, spoil, message):
    with pytest.raises(Refusal, match=message):
        capture(Server(tmp_path, reply=spoil), [20, 40, 30])


def test_a_failed_writer_ends_the_capture_with_its_reason(tmp_path):
    writer = sglang_rows.Writer(tmp_path / "gone", limit=1 << 20)
    name = sglang_rows.request_name("ab", 0, 0, 5)
    writer.put(rows_for([1, 2, 3, 4, 5], 0, 0), [(name, 0, 0, 5)])
    writer.flush()
    with pytest.raises(RuntimeError, match="cannot be written"):
        writer.put(rows_for([1, 2, 3, 4, 5], 0, 0), [(name, 0, 0, 5)])
    sglang_rows.fail(tmp_path, OSError("No space left on device"))
    with pytest.raises(Refusal, match="gave up: OSError: No space left"):
        sglang_capture.rows_of(tmp_path, name, [1, 2, 3, 4, 5])


def test_the_writer_makes_the_scheduler_wait_instead_of_holding_more_than_its_limit(tmp_path, monkeypatch):
    most, write = [], sglang_rows.write_piece
    monkeypatch.setattr(sglang_rows, "write_piece", lambda *a: (most.append(writer.pending), time.sleep(0.01), write(*a)))
    tensors = rows_for(list(range(50)), 0, 0)
    size = sum(t.nbytes for t in tensors.values())
    writer = sglang_rows.Writer(tmp_path, limit=2 * size)
    for i in range(8):
        writer.put(tensors, [(sglang_rows.request_name("ab", i, 0, 50), 0, 0, 50)])
    writer.flush()
    assert len(list(tmp_path.iterdir())) == 8 and max(most) <= 2 * size


# ---- in the server ----

def step(mode="extend", **lists):
    kind = SimpleNamespace(is_extend_or_draft_extend_or_mixed=lambda: mode == "extend")
    names = [sglang_rows.request_name("ab", i, 3, 20) if i != 2 else "someone" for i in range(4)]
    return SimpleNamespace(forward_mode=kind, **{"rids": names, "extend_prefix_lens_cpu": [16, 0, 0, 20],
                                                        "extend_seq_lens_cpu": [4, 2, 2, 1], **lists})


def test_rows_are_cut_by_what_a_step_computes_and_decoded_rows_are_left_out():
    batch = step()
    assert sglang_tap.cuts_of(batch) == [(batch.rids[0], 16, 0, 4), (batch.rids[1], 0, 4, 6)]
    assert sglang_tap.cuts_of(step(mode="decode")) == []
    assert sglang_tap.cuts_of(SimpleNamespace()) == []


SOUND = dict(disable_radix_cache=True, speculative_algorithm=None, pp_size=1, tp_size=1, enable_dp_attention=False,
             enable_two_batch_overlap=False, enforce_disable_flashinfer_allreduce_fusion=False,
             cuda_graph_config=SimpleNamespace(prefill=SimpleNamespace(backend="disabled")))


def test_a_server_that_would_give_wrong_rows_is_refused():
    check = lambda model="LlamaForCausalLM", **change: sglang_tap.check_server(SimpleNamespace(**{**SOUND, **change}), model,
                                                                               "0.5.15.post1")
    check()
    check("GptOssForCausalLM")
    check("LlamaForCausalLM", tp_size=2)
    check("GptOssForCausalLM", tp_size=2, enforce_disable_flashinfer_allreduce_fusion=True)
    for change, word in (({"disable_radix_cache": False}, "prefix cache"), ({"speculative_algorithm": "EAGLE3"}, "speculation"),
                         ({"pp_size": 2}, "pipeline"), ({"enable_dp_attention": True}, "DP attention"),
                         ({"enable_two_batch_overlap": True}, "two-batch"),
                         ({"cuda_graph_config": SimpleNamespace(prefill=SimpleNamespace(backend="tc_piecewise"))}, "CUDA graphs")):
        with pytest.raises(Refusal, match=word):
            check(**change)
    with pytest.raises(Refusal, match="summand in what GptOssForCausalLM"):
        check("GptOssForCausalLM", tp_size=2)


def test_the_plugin_does_nothing_unless_asked(monkeypatch):
    monkeypatch.delenv(sglang_plugin.CAPTURE, raising=False)
    monkeypatch.delenv(sglang_plugin.WATCH, raising=False)
    assert sglang_plugin.is_inert()
    sglang_plugin.register()  # without SGLang here, anything but nothing would raise
    assert not sglang_plugin.is_inert({sglang_plugin.CAPTURE: "{}"}) and not sglang_plugin.is_inert({sglang_plugin.WATCH: "x"})


def test_a_server_without_the_plugin_or_with_other_boundaries_is_refused(tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "notes").touch()
    (folder / "eyrie-ab-0-0of1.0-1.safetensors").touch()
    environment = sglang_capture.environment(BOUNDARIES, folder)
    assert json.loads(environment[sglang_plugin.CAPTURE])["boundaries"] == BOUNDARIES
    assert [path.name for path in folder.iterdir()] == ["notes"]
    with pytest.raises(Refusal, match="without the capture plugin"):
        sglang_capture.loaded(folder, "0.5.15.post1", BOUNDARIES)
    files.write_json(folder / sglang_rows.PLUGIN, {"sglang": "0.5.15.post1", "layers_to_capture": [5, 2]})
    sglang_capture.loaded(folder, "0.5.15.post1", BOUNDARIES)
    with pytest.raises(Refusal, match="captures"):
        sglang_capture.loaded(folder, "0.5.15.post1", [2, 4])
    with pytest.raises(Refusal, match="expected 0.5.18"):
        sglang_capture.loaded(folder, "0.5.18", BOUNDARIES)


def test_python_finds_the_entry_point_through_a_folder(tmp_path):
    environment = sglang_path.plugin_environment(tmp_path, {"PYTHONPATH": "/elsewhere"})
    first, root, rest = environment["PYTHONPATH"].split(":")
    assert (first, root, rest) == (str(tmp_path), str(sglang_path.ROOT), "/elsewhere")
    found, = [point for dist in distributions(path=[first]) for point in dist.entry_points if point.group == "sglang.srt.plugins"]
    assert found.name == "eyrie" and found.load() is sglang_plugin.register
