"""Files that appear whole or not at all, with bytes that depend on their content alone."""
import csv
import hashlib
import io
import json
import os
from pathlib import Path


def sha256(path):
    """Hex digest of a file's bytes, read in blocks of 1 MiB."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_text(path, text):
    """Write through a temporary neighbour and rename, so that a kill leaves the old file or the new one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def write_json(path, value):
    """Sorted keys and a final newline: equal values give equal bytes. NaN is refused (it is not JSON)."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def write_csv(path, header, rows):
    """Comma separated with plain newlines, for `dvc plots`."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    write_text(path, text.getvalue())


def read_json(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def digest_of(*values):
    """Hex digest (16 characters) of JSON-able values: the key of a piece of work in the state dir."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
