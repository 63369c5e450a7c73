"""How captured rows travel from the server's process to ours: one small safetensors file per request and prefill step.

A request is named by what the server's side has to know of it (`request_name`). Its rows start to end come as
`<request>.<start>-<end>.safetensors` in the hand-off folder:
  input_ids [n] int32    the tokens of these rows, as the server saw them
  aux [n, K*H]           boundaries ascending, in the target's dtype
  last [n, H]            post-norm, what the head reads
  next_id [n] int32      the head's argmax from row `first` on, else -1
A file appears whole (rename). `plugin.json` beside them says what was loaded; `error.txt` that nothing will come any more.
"""
import json
import os
import re
import struct
import threading
from collections import deque
from pathlib import Path

import torch

REQUEST = re.compile(r"eyrie-[0-9a-f]+-\d+-(\d+)of(\d+)")
PIECE = re.compile(rf"({REQUEST.pattern})\.(\d+)-(\d+)\.safetensors")
TYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.int32: "I32"}
PLUGIN, ERROR = "plugin.json", "error.txt"


def request_name(run, index, first, rows):
    """run: hex digits that no other run has. rows: the sequence's tokens. first: the row from which next ids are wanted."""
    return f"eyrie-{run}-{index}-{first}of{rows}"


def parse(request):
    """(first, rows); None for a request that is not ours (health checks, other users)."""
    match = REQUEST.fullmatch(request or "")
    return match and (int(match[1]), int(match[2]))


def write_piece(folder, request, start, tensors):
    """The rows of one prefill step. The file is put together here, since safetensors' own writer copies every tensor once more
    while it holds the interpreter, and this thread shares that with the scheduler: header and buffers go out in one call."""
    buffers = [memoryview(t.contiguous().flatten().view(torch.uint8).numpy()) for t in tensors.values()]
    header, offset = {}, 0
    for (name, tensor), buffer in zip(tensors.items(), buffers):
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + len(buffer)]}
        offset += len(buffer)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    end = start + len(tensors["input_ids"])
    path = Path(folder) / f"{request}.{start}-{end}.safetensors"
    temporary = path.with_suffix(".tmp")
    with open(temporary, "wb", buffering=0) as file:
        for buffer in (struct.pack("<Q", len(text)) + text, *buffers):
            while len(buffer):  # the system may take less than it is given
                buffer = buffer[file.write(buffer):]
    temporary.replace(path)


def pieces(folder):
    """{request: [(start, end, path), ...] by start} of what lies in the hand-off folder now."""
    found = {}
    for entry in os.scandir(folder):
        if match := PIECE.fullmatch(entry.name):
            found.setdefault(match[1], []).append((int(match[4]), int(match[5]), Path(entry.path)))
    return {request: sorted(parts) for request, parts in found.items()}


def empty(folder, run=""):
    """Remove what a run (all runs) left in the hand-off folder; other people's files stay."""
    for path in Path(folder).iterdir():
        if path.name.startswith(f"eyrie-{run}") or not run and path.name in (PLUGIN, ERROR):
            path.unlink(missing_ok=True)


class Writer:
    """Takes the rows of whole batches off the device and writes them from a thread of its own, with at most `limit` bytes pending.

    `put` waits for room: the scheduler then stands still, which is what bounds the host's memory. A batch larger than the limit
    goes through alone. Whatever goes wrong in the thread is left in error.txt and raised by the next `put`.
    """

    def __init__(self, folder, limit):
        self.folder, self.limit = Path(folder), limit
        self.pending, self.queue, self.error = 0, deque(), None
        self.change = threading.Condition()
        self.copies = None  # the stream for copies, beside the one that computes
        threading.Thread(target=self._work, name="eyrie-capture", daemon=True).start()

    def put(self, tensors, cuts):
        """tensors: {name: [N, ...]} of a batch, owned by the writer from now on. cuts: (request, start, first row, last row + 1)."""
        size = sum(t.nbytes for t in tensors.values())
        with self.change:
            self.change.wait_for(lambda: self.error or not self.pending or self.pending + size <= self.limit)
            if self.error:
                raise RuntimeError(f"the captured rows cannot be written: {self.error!r}") from self.error
            self.pending += size
        job = (*self._to_host(tensors), cuts, size)
        with self.change:
            self.queue.append(job)
            self.change.notify_all()

    def flush(self):
        """Until all that was put is on disk, or failed."""
        with self.change:
            self.change.wait_for(lambda: self.error or not self.pending)

    def _to_host(self, tensors):
        """(host tensors, event or None). On a GPU the copies go into pinned memory beside the next batch's computation."""
        device = next(iter(tensors.values())).device
        if device.type != "cuda":
            return tensors, None
        if self.copies is None:
            self.copies = torch.cuda.Stream(device)
        stream = self.copies
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            host = {name: torch.empty(t.shape, dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True) for name, t in tensors.items()}
            done = torch.cuda.Event()
            done.record(stream)
        for tensor in tensors.values():
            tensor.record_stream(stream)  # else the allocator hands the memory on while it is being read
        return host, done

    def _work(self):
        while True:
            with self.change:
                self.change.wait_for(lambda: self.queue)
                tensors, done, cuts, size = self.queue.popleft()
            try:
                if done is not None:
                    done.synchronize()
                for request, start, a, b in cuts:
                    write_piece(self.folder, request, start, {name: t[a:b] for name, t in tensors.items()})
            except Exception as error:  # noqa: BLE001  whatever it is, the waiting side must hear of it
                fail(self.folder, error)
                with self.change:
                    self.error = error
                    self.change.notify_all()
                return
            del tensors
            with self.change:
                self.pending -= size
                self.change.notify_all()


def fail(folder, error):
    """Tell the other side that no rows will come."""
    try:
        (Path(folder) / ERROR).write_text(f"{type(error).__name__}: {error}\n")
    except OSError:
        pass  # the disk is what failed: the other side's deadline tells
