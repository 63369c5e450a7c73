"""What each case found, one JSON file in the folder that EYRIE_GPU_RESULTS names: the figures outlive a failed assertion.

`python -m tests.gpu.results FOLDER` prints them as two tables.
"""
import contextlib
import json
import os
import sys
import time
from pathlib import Path

from stages.engines import sglang_log
from stages.lib import files, state

VERSION = "0.5.15.post1"


@contextlib.contextmanager
def case(name, **about):
    """A dict for the figures of one case; with an error its words and the end of each server's log are among them."""
    figures, begun = {"case": name, **about, "started": False}, time.monotonic()
    try:
        yield figures
    except BaseException as error:
        figures["error"] = f"{type(error).__name__}: {error}"
        figures["logs"] = {log.name: sglang_log.tail(log, 60) for log in sorted((state.ROOT / "sglang").glob("*.log"))}
        raise
    finally:
        figures["seconds"] = round(time.monotonic() - begun, 1)
        if folder := os.environ.get("EYRIE_GPU_RESULTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            files.write_json(Path(folder) / f"{name}.json", figures)


SERVED = {"architecture": "architecture", "started": "started", "boundaries": "boundaries", "ids": "ids",
          "layers_to_capture": "layers_to_capture", "prefill": "prefill: width x fc calls",
          "verify": "verify: width x fc calls", "seconds": "s", "error": "error"}
CAPTURED = {"architecture": "architecture", "tp": "tp", "started": "started", "rows": "rows", "p1": "p1 of the cosine per boundary",
            "neighbours": "best of a neighbour", "last": "last, p99 of the error", "next_ids": "next ids equal",
            "update_p1": "one layer's update, p1", "seconds": "s", "error": "error"}


def table(found, columns):
    """The cases as a markdown table of these {key: title}."""
    rows = [[said(one.get(key, "")) for key in columns] for one in found]
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns.values(), ["---"] * len(columns), *rows))


def said(value):
    if isinstance(value, dict):
        return ", ".join(f"{key}: {said(one)}" for key, one in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list) and value and isinstance(value[0], dict):  # forwards of a draft, from the plugin's report
        return ", ".join(f"{forward['width']} x {forward['fc_calls']}" for forward in value)
    return str(value).partition("\n")[0][:160].replace("|", "\\|")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.gpu.results FOLDER")
    found = [json.loads(path.read_text()) for path in sorted(Path(sys.argv[1]).glob("*.json"))]
    for begins, columns in (("serve", SERVED), ("capture", CAPTURED)):
        print(table([one for one in found if one["case"].startswith(begins)], columns), end="\n\n")


if __name__ == "__main__":
    main()
