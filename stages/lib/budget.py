"""Disk and time of a long stage, before it starts."""
import configparser
import shutil
from pathlib import Path

from stages.lib.refusal import Refusal


def dvc_copies():
    """1 if DVC will hold a second copy of each output in its cache, 0 if it links.

    Decided by cache.type in .dvc/config (config.local first): DVC's own default is reflink,copy, which copies on ext4.
    """
    for name in ("config.local", "config"):
        config = configparser.ConfigParser()
        config.read(Path(".dvc") / name)
        kinds = config.get("cache", "type", fallback="").strip("\"' ")
        if kinds:
            return 0 if "link" in kinds.replace("reflink", "") else 1
    return 1


def check_disk(stage, tokens, bytes_per_token, remedy):
    """Print the plan; a Refusal when the free space (less 5 %) does not hold the states and DVC's copy of them."""
    copies = dvc_copies()
    need, free = tokens * bytes_per_token * (1 + copies), shutil.disk_usage(".").free
    print(f"{stage}: {tokens:,} tokens x {bytes_per_token:,} bytes = {tokens * bytes_per_token / 1e9:.2f} GB"
          f"{' and the same again for the copy in the DVC cache' if copies else ' (DVC links, no second copy)'}; "
          f"{free / 1e9:.1f} GB are free", flush=True)
    if need > 0.95 * free:
        raise Refusal(f"{stage} needs {need / 1e9:.1f} GB ({tokens:,} tokens x {bytes_per_token:,} bytes"
                      f"{' x 2 for the DVC copy' if copies else ''}) and {free / 1e9:.1f} GB are free: {remedy}"
                      f"{'; or set cache.type to reflink,hardlink,symlink' if copies else ''}")


def check_time(stage, tokens, tokens_per_s, max_hours):
    """Print the expected time; a Refusal when it is over exec.max_hours."""
    hours = tokens / tokens_per_s / 3600
    if hours > max_hours:
        raise Refusal(f"{stage} would take about {hours:.1f} hours for {tokens:,} tokens at {tokens_per_s:,.0f} tokens/s, over "
                      f"exec.max_hours = {max_hours}; take fewer prompts, more exec.workers, or raise the limit")
