"""What can be learnt of a model folder without reading a weight: its JSON files and its safetensors headers.

The files may come from anywhere, so every length is checked before it is believed: a lie costs a sentence, not memory.
"""
import json
import math
import os
import stat
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stages.lib.refusal import Refusal

HEADER_LIMIT = 100_000_000  # bytes, the bound that the safetensors library sets itself
TENSOR_LIMIT = 100_000  # in one file; the largest targets have some thousands in a shard
DIMENSION_LIMIT, RANK_LIMIT = 1 << 40, 8
JSON_LIMIT = 16_000_000  # bytes
BITS = {"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64, "F16": 16, "BF16": 16,
        "F32": 32, "F64": 64, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F8_E8M0": 8, "F4": 4}


@dataclass(frozen=True)
class Header:
    """One tensor as its file describes it."""
    file: str  # plain name
    dtype: str  # as safetensors writes it: "BF16", "F32", "I64", "BOOL", ...
    shape: tuple[int, ...]


def read_object(path, limit=JSON_LIMIT) -> dict:
    """A JSON file of at most `limit` bytes that must hold an object. Refusal otherwise."""
    with opened(path) as (file, size):
        if size > limit:
            raise Refusal(f"{path} has {size} bytes; at most {limit} are read of such a file")
        content = file.read(limit)
    try:
        value = json.loads(content.decode(), parse_constant=_no_number, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate could be neither shown nor written again
    except (ValueError, RecursionError) as error:
        raise Refusal(f"{path} is not JSON: {_first_line(error)}") from None
    if not isinstance(value, dict):
        raise Refusal(f"{path} holds a {type(value).__name__}; expected an object")
    return value


def read_header(path) -> dict[str, Header]:
    """{tensor name: Header} of a safetensors file that is whole: the tensors lie end to end and fill it.

    At least as strict as the safetensors library, so that each tensor can then be read with it. Refusal otherwise.
    """
    path = Path(path)
    with opened(path) as (file, size):
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(HEADER_LIMIT, size - 8):
            raise Refusal(f"{path} is no safetensors file: its header claims {length} bytes, the file has {size} "
                          f"(limit of a header: {HEADER_LIMIT})")
        content = file.read(length)
    # Counted before it is parsed: as Python objects, 100 MB of small ones would be gigabytes.
    if content.count(b"{") > 2 * TENSOR_LIMIT or content.count(b",") > 20 * TENSOR_LIMIT:
        raise Refusal(f"{path} describes more than {TENSOR_LIMIT} tensors; that is no part of a model")
    try:
        if not content.startswith(b"{"):
            raise ValueError("it does not begin with {")
        header = json.loads(content.decode(), object_pairs_hook=_unique, parse_constant=_no_number, parse_int=_natural)
        texts = header.pop("__metadata__", None) or {}
        if not all(isinstance(text, str) for text in dict(texts).values()):
            raise ValueError("__metadata__ holds something other than texts")
        spans = {name: _span(name, entry) for name, entry in header.items()}
    except (ValueError, TypeError, RecursionError) as error:
        raise Refusal(f"{path} is no safetensors file: its header cannot be read ({_first_line(error)})") from None
    end = 0
    for name, (start, stop) in sorted(spans.items(), key=lambda item: item[1]):
        if start != end:
            raise Refusal(f"{path} is no safetensors file: its header places {name!r} at byte {start} of the data, where "
                          f"{end} comes next; tensors must lie end to end")
        end = stop
    if 8 + length + end != size:
        raise Refusal(f"{path} has {size} bytes, its header describes {8 + length + end}; the file is not complete")
    return {name: Header(path.name, entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}


def read_index(path, limit=JSON_LIMIT) -> dict[str, str]:
    """{tensor name: file name} of an index. Refusal unless each is the plain name of a file in the same folder."""
    placed = read_object(path, limit).get("weight_map")
    if not placed or not isinstance(placed, dict):
        raise Refusal(f"{path} has no weight_map")
    for name in placed.values():
        if not isinstance(name, str) or not name.endswith(".safetensors") or "/" in name or "\\" in name:
            raise Refusal(f"{path} names {name!r}; expected the plain name of a .safetensors file in the same folder")
    return placed


@contextmanager
def opened(path):
    """(file, size) of a regular file. Refusal for anything else: opening a pipe would wait for ever."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise Refusal(f"{path} cannot be read: {error.strerror}") from None
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode):
        os.close(handle)
        raise Refusal(f"{path} is not a regular file")
    with open(handle, "rb") as file:
        yield file, about.st_size


def _span(name, entry):
    """(start, stop) of a tensor's bytes; ValueError where the entry contradicts itself."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name!r} needs dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise ValueError(f"{name!r} has the dtype {dtype!r}")
    if not _naturals(shape) or len(shape) > RANK_LIMIT or max(shape, default=0) > DIMENSION_LIMIT:
        raise ValueError(f"{name!r} has the shape {shape!r}")
    if not _naturals(offsets) or len(offsets) != 2 or math.prod(filter(None, shape)) >= 1 << 62:
        raise ValueError(f"{name!r} has the shape {shape!r} and the data_offsets {offsets!r}")
    if (offsets[1] - offsets[0]) * 8 != math.prod(shape) * BITS[dtype]:
        raise ValueError(f"{name!r} is {dtype} of shape {shape!r} and has the data_offsets {offsets!r}")
    return offsets


def _naturals(value):
    return isinstance(value, list) and all(type(n) is int for n in value)


def _unique(pairs):
    """An object of a header; ValueError for a key given twice or for text that is no Unicode."""
    for key, value in pairs:
        (key + value if isinstance(value, str) else key).encode()
    if len(pairs) != len(dict(pairs)):
        (key, count), = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"{key!r} is given {count} times")
    return dict(pairs)


def _natural(digits):
    if digits.startswith("-"):
        raise ValueError(f"{digits} is negative")
    return int(digits)


def _finite(digits):
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits} is out of range")
    return number


def _no_number(name):
    raise ValueError(f"{name} is no number of JSON")


def _first_line(error):
    return f"{type(error).__name__}: {str(error)[:200]}" if str(error) else type(error).__name__
