"""Traces: what the target answered, as the token ids that the engine saw and emitted. JSON lines, one row per turn.

A row: id, source (prompt file), turn, prompt_ids (history included, up to the header that asks for the answer),
response_ids (the end token included where the target stopped by itself), finish_reason ("stop" or "length"), text.
"""
import json
from pathlib import Path

from stages.lib.refusal import Refusal


def dump(rows):
    """Text of one block of rows; equal rows give equal bytes."""
    return "".join(json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n" for row in rows)


def read(directory="data/traces"):
    """All rows, in the order of the prompt files. A line that is no complete row is a Refusal naming file and line."""
    return [row for path in sorted(Path(directory).glob("traces-*.jsonl")) for row in read_file(path)]


def read_file(path):
    """The rows of one file."""
    rows = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
                rows.append({**row, "prompt_ids": row["prompt_ids"], "response_ids": row["response_ids"]})
            except (ValueError, KeyError, TypeError) as error:
                raise Refusal(f"{path}:{number} is not a trace ({error!r}); rerun generate: dvc repro -f generate") from None
    return rows
