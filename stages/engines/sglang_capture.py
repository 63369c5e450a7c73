"""States of sequences from an SGLang server that runs the capture plugin: requests go out, rows come back through a folder.

What the server must be started with is `flags()` and `environment(...)`; who starts it is not this module's concern. It only needs
`send`: a function of (request names, sequences) that gives the replies in the same order, safe to call from several threads.
`over_http` and `in_process` make one. Each sequence (prompt and answer) is prefilled once and nothing is generated.

Memory: at most `ahead` groups of `group_tokens` tokens lie in the hand-off folder, which belongs on tmpfs: the rows of 81,920 tokens
with three boundaries of 4,096 and `last`, in bf16, are 2.7 GB.
"""
import contextlib
import functools
import json
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors import SafetensorError, safe_open

from stages.engines import sglang_rows, sglang_server
from stages.engines.sglang_path import plugin_environment
from stages.engines.sglang_plugin import CAPTURE
from stages.lib import files
from stages.lib.refusal import Refusal


@contextlib.contextmanager
def session(name, model, engine, boundaries):
    """(function of (sequences, firsts) like `capture` below, the plugin's report) with a server of our own for the block.

    engine: the params section. The function can be sent to other processes, each a client of the same server. The hand-off folder lies
    in memory where the system has /dev/shm.
    """
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="eyrie-", dir=shm if shm.is_dir() else None) as folder:
        rows = Path(folder) / "rows"
        variables = {**plugin_environment(Path(folder) / "plugin"), **environment(boundaries, rows)}
        one = SimpleNamespace(**{**vars(engine), "servers": 1})
        with sglang_server.serve(name, model, one, flags(), variables=variables) as servers:
            report = loaded(rows, engine.version, boundaries)
            print(f"{name}: SGLang {report['sglang']} of {report['file']} captures {report['layers_to_capture']}", flush=True)
            report["file"] = "/".join(Path(report["file"]).parts[-2:])  # where it lies is this machine's affair
            yield functools.partial(capture_at, servers[0].url, rows), report


def capture_at(url, folder, sequences, firsts, **more):
    """`capture` of a server at `url`."""
    return capture(over_http(url), folder, sequences, firsts, **more)


def flags():
    """SGLang flags that capture needs, beside those of the profile."""
    return {"disable-radix-cache": True, "disable-prefill-cuda-graph": True, "disable-decode-cuda-graph": True, "skip-server-warmup": True}


def environment(boundaries, folder, pending_bytes=2 << 30):
    """The variable that wakes the plugin up (sglang_path.plugin_environment is what lets it be found). folder: the hand-off, emptied."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    sglang_rows.empty(folder)
    return {CAPTURE: json.dumps({"boundaries": list(boundaries), "out": str(folder.resolve()), "pending_bytes": pending_bytes})}


def loaded(folder, version, boundaries):
    """What the plugin reports (plugin.json), for the manifest. Refusal when this server did not load it, or captures something else."""
    path = Path(folder) / sglang_rows.PLUGIN
    _raise_error(folder)
    if not path.exists():
        raise Refusal(f"the server runs without the capture plugin ({path} was not written); install this project where SGLang runs "
                      "(pip install -e .) or start it with sglang_path.plugin_environment")
    report = files.read_json(path)
    if report["sglang"] != version or sorted(report["layers_to_capture"]) != list(boundaries):
        raise Refusal(f"the server is SGLang {report['sglang']} and captures {report['layers_to_capture']}; expected {version} and "
                      f"{list(boundaries)}")
    return report


def capture(send, folder, sequences, firsts, ahead=4, group_tokens=16384, patience=120):
    """Per sequence, in order: (aux [n, K*H], last [n, H], next_id [n] int32) in the target's dtype.

    sequences: lists of token ids. firsts: per sequence the row from which next_id is wanted (before: -1). group_tokens: one call of
    `send` holds so many, or one sequence. patience: seconds without any new rows before it gives up. The tensors are maps of files
    that are already unlinked: memory of the hand-off folder is freed with them.
    """
    run, sent, known = uuid.uuid4().hex[:8], deque(), {}
    names = [sglang_rows.request_name(run, i, first, len(ids)) for i, (first, ids) in enumerate(zip(firsts, sequences))]
    groups = deque(grouped(list(zip(names, sequences)), group_tokens))
    with ThreadPoolExecutor(ahead) as pool:
        try:
            while groups or sent:
                while groups and len(sent) < ahead:
                    group = groups.popleft()
                    sent.append((group, pool.submit(send, [name for name, _ in group], [ids for _, ids in group])))
                group, reply = sent.popleft()
                check_replies(group, reply.result())
                for name, ids in group:
                    yield rows_of(folder, name, ids, patience, known)
        except BaseException:
            for _, reply in sent:
                reply.cancel()
            pool.shutdown()
            sglang_rows.empty(folder, run)
            raise


def grouped(requests, group_tokens):
    """Consecutive requests (name, ids), at most `group_tokens` tokens together, one request at least."""
    groups, room = [], 0
    for request in requests:
        if not groups or room < len(request[1]):
            groups.append([])
            room = group_tokens
        groups[-1].append(request)
        room -= len(request[1])
    return groups


def check_replies(group, replies):
    """Refusal unless every request was prefilled whole, by itself."""
    if len(replies) != len(group):
        raise Refusal(f"{len(replies)} replies for {len(group)} requests")
    for (name, ids), reply in zip(group, replies):
        meta = reply["meta_info"]
        if meta["id"] != name:
            raise Refusal(f"the reply to {name} is {meta['id']}'s: replies are out of order")
        if meta["finish_reason"]["type"] != "length":
            raise Refusal(f"{name} ({len(ids)} tokens) was not prefilled: {meta['finish_reason']}")
        if meta["prompt_tokens"] != len(ids) or meta["cached_tokens"]:
            raise Refusal(f"{name}: {meta['prompt_tokens']} of {len(ids)} tokens arrived, {meta['cached_tokens']} came from a cache and "
                          "have no rows; is the prefix cache on?")


def rows_of(folder, name, ids, patience=120, known=None):
    """(aux, last, next_id) of one request from its pieces, checked: they tile its rows, hold its tokens, and are finite.
    known: a listing of the folder that is renewed when it lacks something, so that a call need not list it."""
    parts = _whole(folder, name, len(ids), patience, {} if known is None else known)
    tensors = {key: [] for key in ("input_ids", "aux", "last", "next_id")}
    for start, end, path in parts:
        try:
            with safe_open(path, "pt") as file:
                read = {key: file.get_tensor(key) for key in tensors}
        except (OSError, SafetensorError) as error:
            raise Refusal(f"{path} cannot be read: {error}") from None
        if {len(t) for t in read.values()} != {end - start}:
            raise Refusal(f"{path} holds {[len(t) for t in read.values()]} rows, expected {end - start}")
        for key, tensor in read.items():
            tensors[key].append(tensor)
    for _, _, path in parts:
        path.unlink()
    seen, aux, last, next_id = (torch.cat(t) if len(t) > 1 else t[0] for t in tensors.values())
    if (wrong := (seen != torch.tensor(ids, dtype=torch.int32)).nonzero()).numel():
        raise Refusal(f"{name}: row {wrong[0].item()} is of token {seen[wrong[0]].item()}, expected {ids[wrong[0]]}: rows of another "
                      "request, or shifted")
    for what, tensor in (("aux", aux), ("last", last)):
        if not all(end.isfinite() for end in tensor.aminmax()):  # isfinite of all of it takes forty times as long
            raise Refusal(f"{name}: {what} is not finite; check the target's weights and the server's dtype")
    first, _ = sglang_rows.parse(name)
    if (next_id[:first] != -1).any() or (next_id[first:] < 0).any():
        raise Refusal(f"{name}: next ids do not begin at row {first}")
    return aux, last, next_id


def _whole(folder, name, rows, patience, known):
    """The request's pieces once they tile its rows. The reply may be here before the server's writer is done."""
    arrived, deadline = 0, time.monotonic() + patience
    while True:
        parts, covered = known.get(name, []), 0
        for start, end, _ in parts:
            if start < covered or end > rows:
                raise Refusal(f"{name}: rows {start} to {end} came after {covered} of {rows} rows: a request that was prefilled twice, "
                              "or another one's rows; give the server more memory (mem-fraction-static) or fewer running requests")
            if start > covered:
                break
            covered = end
        if covered == rows:
            return parts
        if sum(end - start for start, end, _ in parts) > arrived:
            arrived, deadline = sum(end - start for start, end, _ in parts), time.monotonic() + patience
        if time.monotonic() > deadline:
            raise Refusal(f"{name}: {arrived} of {rows} rows arrived, and none in the last {patience} s; see the server's log")
        time.sleep(0.002)
        _raise_error(folder)
        known.clear()
        known.update(sglang_rows.pieces(folder))


def _raise_error(folder):
    path = Path(folder) / sglang_rows.ERROR
    if path.exists():
        raise Refusal(f"the capture plugin gave up: {path.read_text().strip()}")


PREFILL_ONLY = {"temperature": 0, "max_new_tokens": 0}


def over_http(url, timeout=600):
    """`send` for a server at `url`."""
    def send(names, sequences):
        body = json.dumps({"rid": names, "input_ids": sequences, "sampling_params": PREFILL_ONLY}).encode()
        request = urllib.request.Request(f"{url}/generate", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            raise Refusal(f"{url}/generate answered {error.code}: {error.read(500).decode(errors='replace')}") from None
        except OSError as error:
            raise Refusal(f"{url}/generate did not answer: {error}; see the server's log") from None
    return send


def in_process(engine):
    """`send` for an sglang.Engine of this process, whose event loop gets a thread of its own: several calls may be under way."""
    import asyncio
    import threading
    threading.Thread(target=engine.loop.run_forever, daemon=True).start()

    def send(names, sequences):
        call = engine.async_generate(rid=names, input_ids=sequences, sampling_params=PREFILL_ONLY)
        return asyncio.run_coroutine_threadsafe(call, engine.loop).result()
    return send
