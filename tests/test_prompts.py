"""stages/lib/prompts.py: every format in, every bad row out with its reason, and counts that add up."""
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib import prompts as prompts_module
from stages.lib.files import sha256
from stages.lib.prompts import MAX_CHARS, MAX_LINE, check_share, quarantine, read
from stages.lib.refusal import Refusal


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """data/prompts/ of an empty project that is the working directory."""
    monkeypatch.chdir(tmp_path)
    home = Path("data/prompts")
    home.mkdir(parents=True)
    return home


def lines(*rows):
    return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)


def write(path, *rows):
    path.write_bytes(lines(*rows))
    return str(path)


def user(text):
    return {"role": "user", "content": text}


def answer(text="Yes."):
    return {"role": "assistant", "content": text}


FORMATS = {
    "prompt": ({"id": "x", "prompt": "Hi"}, None, ["Hi"]),
    "turns": ({"id": "x", "turns": ["Hi", "More"]}, None, ["Hi", "More"]),
    "messages": ({"id": "x", "messages": [user("Hi"), answer(), user("More")]}, None, ["Hi", "More"]),
    "messages with an answer at the end": ({"id": "x", "messages": [user("Hi"), answer()]}, None, ["Hi"]),
    "messages with system": ({"id": "x", "messages": [{"role": "system", "content": "Be brief."}, user("Hi")]},
                             "Be brief.", ["Hi"]),
    "conversations": ({"id": "x", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes"},
                                                    {"from": "human", "value": "More"}]}, None, ["Hi", "More"]),
    "conversations with system": ({"id": "x", "conversations": [{"from": "system", "value": "S"},
                                                                {"from": "human", "value": "Hi"}]}, "S", ["Hi"]),
    "conversations with roles": ({"id": "x", "conversations": [user("Hi"), answer()]}, None, ["Hi"]),
    "instruction": ({"id": "x", "instruction": "Add.", "input": "", "output": "3"}, None, ["Add."]),
    "instruction and input": ({"id": "x", "instruction": "Add.", "input": "1 and 2"}, None, ["Add.\n\n1 and 2"]),
    "system beside prompt": ({"id": "x", "system": "Be brief.", "prompt": "Hi"}, "Be brief.", ["Hi"]),
    "empty system": ({"id": "x", "system": "", "prompt": "Hi"}, None, ["Hi"]),
}


@pytest.mark.parametrize("as_list", [False, True], ids=["lines", "list"])
@pytest.mark.parametrize("name", FORMATS)
def test_each_format_gives_its_user_turns_and_drops_the_answers(folder, name, as_list):
    row, system, turns = FORMATS[name]
    path = folder / "set.json"
    path.write_bytes(json.dumps([row], indent=1).encode() if as_list else lines(row))
    assert read([str(path)]).rows == [
        {"id": "x", "source": "set", "system": system, "turns": turns, "file": str(path), "line": 1}]


BAD = {
    "UTF-8": b'{"prompt": "caf\xe9"}',
    "invalid JSON": b'{"prompt": "Hi"',
    "nested": b"[" * 100_000,
    "many digits": b'{"id": ' + b"1" * 5000 + b', "prompt": "Hi"}',
    "not an object": b'"Hi"',
    "unknown shape": {"question": "Hi"},
    "longer than": b'{"prompt": "' + b"a" * MAX_LINE + b'"}',
    "characters, more than": {"prompt": "a" * (MAX_CHARS + 1)},
    "in all turns": {"turns": ["a" * MAX_CHARS, "b"]},
    "prompt is empty": {"prompt": " \n"},
    "prompt is a list": {"prompt": ["Hi"]},
    "prompt is null": {"prompt": None},
    "no turns": {"turns": []},
    "turns is text": {"turns": "Hi"},
    "a turn is empty": {"turns": ["Hi", ""]},
    "assistant speaks first": {"messages": [answer(), user("Hi")]},
    "two user turns in a row": {"messages": [user("Hi"), user("Hi")]},
    "two assistant turns in a row": {"messages": [user("Hi"), answer(), answer()]},
    "unknown role": {"messages": [{"role": "tool", "content": "Hi"}]},
    "role is a list": {"messages": [{"role": ["user"], "content": "Hi"}]},
    "no role": {"messages": [{"content": "Hi"}]},
    "no user turn": {"messages": [{"role": "system", "content": "Be brief."}]},
    "late system": {"messages": [user("Hi"), answer(), {"role": "system", "content": "S"}, user("Hi")]},
    "two systems": {"system": "A", "messages": [{"role": "system", "content": "B"}, user("Hi")]},
    "system is a number": {"system": 3, "prompt": "Hi"},
    "empty content": {"messages": [user("Hi"), answer(""), user("Hi")]},
    "content is parts": {"messages": [user([{"type": "text", "text": "Hi"}])]},
    "message is text": {"messages": ["Hi"]},
    "messages is empty": {"messages": []},
    "conversations is text": {"conversations": "Hi"},
    "instruction is empty": {"instruction": "", "input": "Hi"},
    "input is a number": {"instruction": "Add.", "input": 3},
    "id is a list": {"id": [1], "prompt": "Hi"},
    "id is true": {"id": True, "prompt": "Hi"},
    "id is blank": {"id": " ", "prompt": "Hi"},
    "half a surrogate pair": b'{"prompt": "\\ud83d"}',
    "half a surrogate pair in the id": b'{"id": "\\ud83d", "prompt": "Hi"}',
    "used before": {"id": "good", "prompt": "Hi"},
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_quarantined_with_its_place_and_leaves_its_neighbours_alone(folder, name):
    path = write(folder / "set.jsonl", {"id": "good", "prompt": "One"}, BAD[name], {"id": "end", "prompt": "Two"})
    prompts = read([path], max_bad=0.5)
    assert [row["id"] for row in prompts.rows] == ["good", "end"]
    [record] = prompts.quarantined
    assert set(record) == {"file", "line", "id", "reason"}
    assert (record["file"], record["line"]) == (path, 2)
    json.dumps(record, ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize("name", [
    "UTF-8", "invalid JSON", "not an object", "unknown shape", "longer than", "characters, more than",
    "assistant speaks first", "two user turns in a row", "unknown role", "no user turn", "used before"])
def test_the_reason_says_what_is_wrong(folder, name):
    path = write(folder / "set.jsonl", {"id": "good", "prompt": "One"}, BAD[name])
    assert name in read([path], max_bad=0.5).quarantined[0]["reason"]


def test_a_bad_row_names_its_id_once_it_is_known(folder):
    path = write(folder / "set.jsonl", {"prompt": "One"}, {"id": "empty", "prompt": ""}, b"{")
    assert [record["id"] for record in read([path], max_bad=0.9).quarantined] == ["empty", None]


def test_bytes_that_are_not_utf8_in_a_json_list_spoil_their_own_entry_alone(folder):
    path = folder / "set.json"
    path.write_bytes(b'[{"prompt": "One"}, {"prompt": "caf\xe9"}, {"prompt": "caf\xc3\xa9"}]')
    prompts = read([str(path)], max_bad=0.5)
    assert [row["turns"] for row in prompts.rows] == [["One"], ["café"]]
    assert prompts.quarantined[0]["line"] == 2 and "UTF-8" in prompts.quarantined[0]["reason"]


def test_a_cut_off_json_list_is_refused_as_such(folder):
    path = folder / "set.json"
    path.write_bytes(b'[{"prompt": "One"},\n {"prompt"')
    with pytest.raises(Refusal, match="begins like a JSON list"):
        read([str(path)])


def test_a_jsonl_file_that_opens_with_a_stray_list_loses_that_line_only(folder):
    prompts = read([write(folder / "set.jsonl", [1, 2], {"prompt": "One"})], max_bad=0.5)
    assert (len(prompts.rows), prompts.quarantined[0]["line"]) == (1, 1)


def test_bom_crlf_blank_lines_and_a_missing_last_newline_change_nothing(folder):
    path = folder / "set.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "One"}\r\n\r\n{"prompt": "Two"}')
    prompts = read([str(path)])
    assert [(row["id"], row["turns"]) for row in prompts.rows] == [("set-1", ["One"]), ("set-3", ["Two"])]
    assert prompts.seen == 2
    path.write_bytes(b'\xef\xbb\xbf[{"prompt": "One"},\r\n{"prompt": "Two"}]\r\n')
    assert [row["turns"] for row in read([str(path)]).rows] == [["One"], ["Two"]]


def test_a_line_separator_of_unicode_does_not_end_a_row(folder):
    path = folder / "set.jsonl"
    path.write_text('{"prompt": "One\u2028Two\x85"}\n', encoding="utf-8")
    assert read([str(path)]).rows[0]["turns"] == ["One\u2028Two\x85"]


def test_the_longest_line_and_text_that_are_allowed_are_kept(folder):
    row = b'{"prompt": "' + b"a" * MAX_CHARS + b'", "note": "'
    row += b"b" * (MAX_LINE - len(row) - 2) + b'"}'
    assert len(row) == MAX_LINE
    assert len(read([write(folder / "set.jsonl", row, {"prompt": "Hi"})]).rows) == 2


def test_numbered_questions_of_several_sets_do_not_clash(folder):
    """EAGLE's files: every one is question.jsonl, and most count question_id from 0."""
    paths = []
    for name in ("gsm8k", "mt_bench"):
        (folder / name).mkdir()
        paths.append(write(folder / name / "question.jsonl", {"question_id": 0, "category": "", "turns": ["Hi"]}))
    assert [(row["id"], row["source"]) for row in read(paths).rows] == [
        ("gsm8k-0", "gsm8k"), ("mt_bench-0", "mt_bench")]


def test_an_id_is_used_once_over_all_files(folder):
    paths = [write(folder / f"{name}.jsonl", {"id": "x", "prompt": "Hi"}) for name in "ab"]
    prompts = read(paths, max_bad=0.5)
    assert [row["file"] for row in prompts.rows] == [paths[0]]
    assert f"{paths[0]}:1" in prompts.quarantined[0]["reason"]


@given(st.lists(st.lists(st.sampled_from(["good", "blank", *BAD]), max_size=8), min_size=1, max_size=3),
       st.none() | st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_counts_add_up_for_any_mix_of_rows_files_and_limit(tmp_path_factory, kinds, limit):
    root = tmp_path_factory.mktemp("mix")
    files, total = [], 1
    for number, file_kinds in enumerate([["first"], *kinds]):
        rows = []
        for position, kind in enumerate(file_kinds):
            if kind == "first":
                rows.append({"id": "good", "prompt": "Hi"})
            elif kind == "good":
                rows.append({"id": f"{number}-{position}", "prompt": "Hi"})
            else:
                rows.append(b"" if kind == "blank" else BAD[kind])
            total += kind not in ("first", "blank")
        path = write(root / f"f{number}.jsonl", *rows)
        files.append({"path": path, "sha256": sha256(path)})
    prompts = read(files, limit=limit, max_bad=1)
    good = 1 + sum(file_kinds.count("good") for file_kinds in kinds)
    assert prompts.seen == total == len(prompts.rows) + len(prompts.quarantined) + prompts.unread
    assert len(prompts.rows) == (good if limit is None else min(good, limit))
    assert len({row["id"] for row in prompts.rows}) == len(prompts.rows)
    places = [(row["file"], row["line"]) for row in prompts.rows]
    assert places == sorted(places)
    if limit is None:
        assert prompts.unread == 0


def three_sets(folder):
    return [write(folder / f"{name}.jsonl", *({"id": f"{name}{i}", "prompt": "Hi"} for i in range(count)))
            for name, count in (("a", 10), ("b", 2), ("c", 10))]


def test_a_limit_takes_from_each_set_in_turn_and_keeps_file_order(folder):
    prompts = read(three_sets(folder), limit=8)
    assert [row["id"] for row in prompts.rows] == ["a0", "a1", "a2", "b0", "b1", "c0", "c1", "c2"]
    assert (prompts.seen, prompts.unread) == (22, 14)


def test_a_smaller_limit_keeps_a_subset_in_the_same_order(folder):
    files = three_sets(folder)
    everything = [row["id"] for row in read(files).rows]
    for limit in range(1, 25):
        ids = [row["id"] for row in read(files, limit=limit).rows]
        assert len(ids) == min(limit, 22)
        assert ids == [identity for identity in everything if identity in set(ids)]
        counts = Counter(identity[0] for identity in ids)
        assert abs(counts["a"] - counts["c"]) <= 1


def test_rows_appended_to_a_file_leave_the_earlier_rows_as_they_were(folder):
    files = three_sets(folder)
    before = read(files)
    with open(files[0], "ab") as file:
        file.write(lines({"prompt": "More"}))
    after = read(files)
    assert [row for row in after.rows if row["id"] != "a-11"] == before.rows
    assert read(files, limit=8).rows == before.rows[:3] + before.rows[10:15]


def test_too_many_bad_rows_are_refused_with_share_limit_places_and_remedy(folder):
    path = write(folder / "set.jsonl", *[{"prompt": "Hi"}] * 92, *[{"prompt": ""}] * 4, *[{"question": "Hi"}] * 4)
    with pytest.raises(Refusal) as refusal:
        read([path])
    text = str(refusal.value)
    for part in ("8 of 100", "8.00%", "2.00%", f"{path}:93: user turn is empty", f"{path}:94", f"{path}:95", "max_bad"):
        assert part in text
    assert f"{path}:96" not in text


def test_a_share_of_bad_rows_at_the_limit_passes(folder):
    path = write(folder / "set.jsonl", *[{"prompt": "Hi"}] * 98, *[{"prompt": ""}] * 2)
    assert len(read([path], max_bad=0.02).quarantined) == 2


def test_files_without_a_usable_row_are_refused(folder):
    with pytest.raises(Refusal, match="no rows"):
        read([write(folder / "empty.jsonl")])
    with pytest.raises(Refusal, match="none of the 1 prompt rows"):
        read([write(folder / "bad.jsonl", {"prompt": ""})], max_bad=1)


def test_a_caller_can_quarantine_a_row_and_check_the_share_again(folder):
    prompts = read([write(folder / "set.jsonl", {"prompt": "Hi"}, {"prompt": "Ho"})])
    record = quarantine(prompts.rows[1], "400 tokens, more than 320")
    assert record == {"file": prompts.rows[1]["file"], "line": 2, "id": "set-2", "reason": "400 tokens, more than 320"}
    check_share(1, [record], max_bad=0.5)
    with pytest.raises(Refusal, match="400 tokens"):
        check_share(1, [record], max_bad=0.4)


def test_a_file_outside_data_prompts_has_to_be_pinned(folder, tmp_path):
    path = write(tmp_path / "other.jsonl", {"prompt": "Hi"})
    with pytest.raises(Refusal, match=f"outside data/prompts.*{sha256(path)}"):
        read([path])
    with pytest.raises(Refusal, match="outside"):
        read(["data/prompts/../../other.jsonl"])
    assert len(read([{"path": path, "sha256": sha256(path).upper()}]).rows) == 1


def test_a_link_in_data_prompts_to_a_file_outside_has_to_be_pinned(folder, tmp_path):
    write(tmp_path / "other.jsonl", {"prompt": "Hi"})
    (folder / "link.jsonl").symlink_to(tmp_path / "other.jsonl")
    with pytest.raises(Refusal, match="outside"):
        read(["data/prompts/link.jsonl"])


def test_a_wrong_hash_is_refused_with_both_hashes_inside_data_prompts_too(folder):
    path = write(folder / "set.jsonl", {"prompt": "Hi"})
    with pytest.raises(Refusal) as refusal:
        read([{"path": path, "sha256": "0" * 64}])
    assert sha256(path) in str(refusal.value) and "0" * 64 in str(refusal.value)


@pytest.mark.parametrize("files, part", [
    ([], "list of prompt files"), ("data/prompts/set.jsonl", "list of prompt files"),
    (["data/prompts/none.jsonl"], "does not exist"), (["data/prompts"], "does not exist"),
    ([{"path": "data/prompts/set.jsonl"}], "exactly path and sha256"), ([None], "give a path"),
    ([{"path": "data/prompts/set.jsonl", "sha256": 12}], "in quotes"),
    (["data/prompts/set.jsonl", "data/prompts/./set.jsonl"], "listed twice"),
    (["data/prompts/set.jsonl", "data/prompts/set.json"], "would both be the set"),
])
def test_a_list_of_files_that_cannot_be_meant_is_refused(folder, files, part):
    write(folder / "set.jsonl", {"prompt": "Hi"})
    write(folder / "set.json", {"prompt": "Hi"})
    with pytest.raises(Refusal, match=part):
        read(files)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "10"])
def test_a_limit_that_is_no_count_is_refused(folder, limit):
    with pytest.raises(Refusal, match="limit"):
        read([write(folder / "set.jsonl", {"prompt": "Hi"})], limit=limit)


def test_a_hostile_line_of_many_mebibytes_is_not_held_in_memory(folder):
    path = folder / "set.jsonl"
    path.write_bytes(lines({"prompt": "Hi"}) + b"x" * (20 << 20) + b"\n" + lines({"prompt": "Ho"}))
    longest = max(len(value) for _, value in prompts_module._entries(str(path)) if isinstance(value, bytes))
    assert longest <= MAX_LINE + 1
    assert [row["line"] for row in read([str(path)], max_bad=0.5).rows] == [1, 3]
