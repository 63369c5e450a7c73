"""Prompt files in the formats people have, read into one shape, with a reason for every row that is left out.

A row is {"id", "source", "system", "turns", "file", "line"}: `turns` are the user's texts, each to be answered in order
by the target itself, so an answer that a file brings along is dropped. `source` names the set in metrics.

Accepted, by the keys of each row, as JSON lines or as one JSON list:
    messages        OpenAI           [{"role": "user", "content": ...}, ...]
    conversations   ShareGPT         [{"from": "human", "value": ...}, ...] (role/content inside is read as well)
    turns           MT-bench, EAGLE  ["first", "second"]
    prompt          ours             "..."
    instruction     Alpaca           "...", with an optional `input`
"""
import codecs
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from stages.lib.files import sha256
from stages.lib.refusal import Refusal

HOME = Path("data/prompts")
MAX_CHARS = 20_000
MAX_LINE = 1 << 20
ROLES = {"user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant", "system": "system"}


@dataclass
class Prompts:
    """What `read` found. Always: seen == len(rows) + len(quarantined) + unread."""
    rows: list = field(default_factory=list)
    quarantined: list = field(default_factory=list)
    seen: int = 0
    unread: int = 0


class _Bad(Exception):
    """Why one row is left out. `id` is the row's, once it is known."""
    id = None


def read(files, limit=None, max_bad=0.02):
    """Read prompt files into `Prompts`.

    files: path strings, or mappings {path, sha256}, which a path outside data/prompts/ has to be: DVC tracks that
    folder and nothing else, so another file is pinned by its hash or its change would go unnoticed.
    limit: rows to keep in all. One row of each file in turn, so that every set is represented and a smaller limit keeps
    a subset of a larger one. Rows come out by file, then by line, whatever the limit.
    max_bad: the share of rows read that may be quarantined.
    Refusal: a file that is missing, unpinned or has another hash; more bad rows than max_bad; nothing usable.
    """
    if limit is not None and (type(limit) is not int or limit < 1):
        raise Refusal(f"the limit of prompts is {limit!r}: give a whole number of at least 1, or null for all of them")
    paths = _checked(files)
    sources = _sources(paths)
    prompts, first_seen = Prompts(), {}
    entries = [_entries(path) for path in paths]
    kept = [[] for _ in paths]
    live = list(range(len(paths)))
    while live and (limit is None or sum(map(len, kept)) < limit):
        for number in list(live):
            if limit is not None and sum(map(len, kept)) == limit:
                break
            row = _next_good(entries[number], paths[number], sources[number], first_seen, prompts)
            if row is None:
                live.remove(number)
            else:
                kept[number].append(row)
    prompts.rows = [row for rows in kept for row in rows]
    prompts.unread = sum(1 for number in live for _ in entries[number])
    prompts.seen += prompts.unread
    order = {path: number for number, path in enumerate(paths)}
    prompts.quarantined.sort(key=lambda record: (order[record["file"]], record["line"]))
    check_share(len(prompts.rows), prompts.quarantined, max_bad)
    return prompts


def quarantine(row, reason):
    """The record of a row from `read` that a caller leaves out for a reason of its own, e.g. its length in tokens."""
    return {"file": row["file"], "line": row["line"], "id": row["id"], "reason": reason}


def check_share(kept, quarantined, max_bad):
    """Refusal when nothing is kept, or when quarantined / (kept + quarantined) is above `max_bad`."""
    total, shown = kept + len(quarantined), "; ".join(
        f"{record['file']}:{record['line']}: {record['reason']}" for record in quarantined[:3])
    if not total:
        raise Refusal("the prompt files hold no rows: name files with at least one prompt")
    if len(quarantined) > max_bad * total:
        raise Refusal(
            f"{len(quarantined)} of {total} prompt rows cannot be used ({len(quarantined) / total:.2%}, limit "
            f"{max_bad:.2%} = max_bad). First: {shown}. Repair or delete these rows, or raise max_bad if leaving them "
            "out is what you want")
    if not kept:
        raise Refusal(f"none of the {total} prompt rows can be used. First: {shown}")


def _checked(files):
    """Paths as given, each a file whose hash is right. The hash may be left out below data/prompts/."""
    if isinstance(files, (str, dict)) or not files:
        raise Refusal(f"the list of prompt files is {files!r}: give a list of paths, or mappings with path and sha256")
    paths = []
    for entry in files:
        if isinstance(entry, str):
            path, pin = entry, None
        elif isinstance(entry, dict) and set(entry) == {"path", "sha256"} and isinstance(entry["path"], str):
            path, pin = entry["path"], entry["sha256"]
            # An unquoted hash of digits alone is a number in YAML, and its leading zeros are gone.
            if not isinstance(pin, str):
                raise Refusal(f"the sha256 of prompt file {path} is {pin!r}: write its 64 hex digits in quotes")
        else:
            raise Refusal(f"prompt file {entry!r}: give a path, or a mapping with exactly path and sha256")
        if not Path(path).is_file():
            raise Refusal(f"prompt file {path} does not exist (or is not a file): correct the path in params.yaml")
        if pin is None and not Path(path).resolve().is_relative_to(HOME.resolve()):
            raise Refusal(f"prompt file {path} lies outside {HOME.as_posix()}/, where DVC does not see it change: move "
                          f"it there, or pin it with {{path: {path}, sha256: {sha256(path)}}}")
        if pin is not None and (actual := sha256(path)) != pin.lower():
            raise Refusal(f"prompt file {path} has sha256 {actual}, and {pin} was expected: restore the file, or write "
                          "its new hash if the change is meant")
        paths.append(path)
    resolved = [Path(path).resolve() for path in paths]
    for number, path in enumerate(resolved):
        if path in resolved[:number]:
            raise Refusal(f"prompt file {paths[number]} is listed twice: list it once")
    return paths


def _sources(paths):
    """The file's stem, or its folder's name where stems clash (mt_bench/question.jsonl, gsm8k/question.jsonl)."""
    stems = Counter(Path(path).stem for path in paths)
    names = [Path(path).stem if stems[Path(path).stem] == 1 else Path(path).resolve().parent.name for path in paths]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise Refusal(f"prompt files {paths[names.index(name)]} and {paths[number]} would both be the set {name!r} "
                          "in the metrics: rename one of them")
    return names


def _entries(path):
    """(line, value) of each entry that is not blank; value is bytes still to be parsed, a parsed value, or a _Bad.

    In a JSON list the line is the entry's position, from 1.
    """
    with open(path, "rb") as file:
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            file.seek(0)
        start = file.tell()
        if _first_byte(file) == b"[":
            file.seek(start)
            try:
                # surrogateescape: bytes that are not UTF-8 then spoil the entry that holds them, and no other.
                values = json.loads(file.read().decode("utf-8", "surrogateescape"))
            except (ValueError, RecursionError) as error:
                if Path(path).suffix == ".json":
                    raise Refusal(f"prompt file {path} begins like a JSON list and is none ({error}): repair it, or "
                                  "write one JSON object a line") from None
            else:
                yield from enumerate(values, 1)
                return
        file.seek(start)
        number = 0
        while line := file.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE and not line.endswith(b"\n"):
                while (rest := file.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                    pass
                yield number, _Bad(f"the line is longer than {MAX_LINE} bytes")
            elif line.strip():
                yield number, line


def _first_byte(file):
    while (byte := file.read(1)).isspace():
        pass
    return byte


def _next_good(entries, path, source, first_seen, prompts):
    """The file's next usable row, or None at its end; the bad ones met on the way go to `prompts.quarantined`."""
    for line, value in entries:
        prompts.seen += 1
        try:
            row = _row(value, line, source)
            if row["id"] in first_seen:
                bad = _Bad("the id was used before, in {}:{}".format(*first_seen[row["id"]]))
                bad.id = row["id"]
                raise bad
        except _Bad as bad:
            prompts.quarantined.append({"file": path, "line": line, "id": bad.id, "reason": str(bad)})
            continue
        first_seen[row["id"]] = (path, line)
        return {**row, "file": path, "line": line}
    return None


def _row(value, line, source):
    """One entry as {"id", "source", "system", "turns"}; _Bad when it cannot be used."""
    if isinstance(value, _Bad):
        raise value
    if isinstance(value, bytes):
        value = _parsed(value)
    if not isinstance(value, dict):
        raise _Bad(f"the row is a JSON {type(value).__name__}, not an object")
    identity = None
    try:
        identity = _identity(value, line, source)
        system, turns = _content(value)
        _check_text(identity, system, *turns)
    except _Bad as bad:
        bad.id = identity if identity is None or _is_text(identity) else None
        raise
    return {"id": identity, "source": source, "system": system, "turns": turns}


def _parsed(line):
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _Bad(f"invalid UTF-8 at byte {error.start} of the line") from None
    # ValueError: also a number of more digits than Python reads. RecursionError: brackets nested thousands deep.
    except (ValueError, RecursionError) as error:
        raise _Bad(f"invalid JSON: {error}") from None


def _identity(value, line, source):
    """The row's own id. A number is unique in its file only (EAGLE's count from 0): the set goes before it."""
    identity = value.get("id")
    if identity is None:
        identity = value.get("question_id")
    if identity is None:
        return f"{source}-{line}"
    if type(identity) is int:
        return f"{source}-{identity}"
    if isinstance(identity, str) and identity.strip():
        return identity
    raise _Bad("the id is neither text nor a whole number")


def _content(value):
    """(system or None, user turns) of a row in any of the accepted formats."""
    system = value.get("system")
    if system is not None and not isinstance(system, str):
        raise _Bad("system is not text")
    if "messages" in value or "conversations" in value:
        key = "messages" if "messages" in value else "conversations"
        own, turns = _dialogue(value[key], key)
        if own is not None and system:
            raise _Bad(f"there is a system text beside {key} and another inside")
        system = own if own is not None else system
    elif "turns" in value:
        turns = value["turns"]
        if not isinstance(turns, list) or not turns:
            raise _Bad("turns is not a list with at least one text")
    elif "prompt" in value:
        turns = [value["prompt"]]
    elif "instruction" in value:
        turns = [_text(value["instruction"], "instruction")]
        extra = value.get("input")
        if extra is not None and not isinstance(extra, str):
            raise _Bad("input is not text")
        if extra and extra.strip():
            turns = [f"{turns[0]}\n\n{extra}"]
    else:
        raise _Bad("unknown shape: none of messages, conversations, turns, prompt, instruction is a key of the row")
    return system or None, [_text(turn, "user turn") for turn in turns]


def _dialogue(messages, key):
    """(system or None, user turns) of messages that go user, assistant, user, ... after an optional system."""
    if not isinstance(messages, list) or not messages:
        raise _Bad(f"{key} is not a list with at least one message")
    system, turns, expected = None, [], "user"
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict):
            raise _Bad(f"message {number} is not an object")
        name = message.get("role", message.get("from"))
        role = ROLES.get(name) if isinstance(name, str) else None
        if role is None:
            raise _Bad(f"message {number} has the unknown role {str(name)[:40]!r}")
        text = _text(message.get("content", message.get("value")), f"message {number}")
        if role == "system":
            if number > 1:
                raise _Bad(f"message {number} is a system message and not the first")
            system = text
            continue
        if role != expected:
            raise _Bad("the assistant speaks first" if not turns else f"message {number}: two {role} turns in a row")
        if role == "user":
            turns.append(text)
        expected = "assistant" if role == "user" else "user"
    if not turns:
        raise _Bad("there is no user turn")
    return system, turns


def _text(value, what):
    if not isinstance(value, str):
        raise _Bad(f"{what} is not text")
    if not value.strip():
        raise _Bad(f"{what} is empty")
    return value


def _is_text(text):
    """Whether it can be written as UTF-8: JSON's \\ud800 escapes and undecodable bytes of a JSON list cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _check_text(*texts):
    texts = [text for text in texts if text is not None]
    if not all(map(_is_text, texts)):
        raise _Bad("invalid UTF-8, or half of a surrogate pair")
    length = sum(map(len, texts[1:]))
    if length > MAX_CHARS:
        raise _Bad(f"{length} characters, more than {MAX_CHARS}")
