"""The prompts under data/prompts/: made again byte for byte, varied, and train and eval kept apart."""
import json
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from stages.lib.prompts import read
from tools.make_prompts import NAMES, SETS, Kind, draw, make, pairs

ROOT = Path(__file__).resolve().parents[1]
SET_NAMES = ["chat", "maths", "code", "rewriting"]


def rows(split, name):
    path = ROOT / "data/prompts" / split / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def text(row):
    return "\n".join(row.get("turns", [row.get("prompt")]))


def words(string):
    return re.findall(r"\w+", string.lower())


def grams(string, size):
    sequence = words(string)
    return {tuple(sequence[start:start + size]) for start in range(len(sequence) - size + 1)}


def template_text(template):
    return template[0] if isinstance(template, tuple) else template


def kinds(split):
    return [kind for name in SET_NAMES for kind in SETS[split][name]]


def templates(split):
    return [template_text(template) for kind in kinds(split) for template in kind.templates]


def subjects(split):
    return [subject for kind in kinds(split) for subject in kind.subjects]


def test_a_second_run_writes_the_committed_bytes(tmp_path):
    subprocess.run([sys.executable, "-m", "tools.make_prompts", str(tmp_path)], cwd=ROOT, check=True,
                   capture_output=True)
    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert set(made) == {Path(split, f"{name}.jsonl") for split in SETS for name in SET_NAMES} | {Path("eval/more.jsonl")}
    for path, content in made.items():
        assert content == (ROOT / "data/prompts" / path).read_bytes(), f"{path}: run python -m tools.make_prompts"


def test_there_are_enough_training_prompts_and_thirty_of_each_set_in_eval():
    assert sum(len(rows("train", name)) for name in SET_NAMES) >= 1600
    assert [len(rows("eval", name)) for name in SET_NAMES] == [30] * 4


def test_the_further_evaluation_prompts_are_other_ones_twenty_a_set():
    more, others = rows("eval", "more"), {text(row) for split in SETS for name in SET_NAMES for row in rows(split, name)}
    assert Counter(row["id"].split("-")[2] for row in more) == {name: 20 for name in SET_NAMES}
    assert len({text(row) for row in more} - others) == len(more)


def test_a_tenth_of_the_training_chats_and_five_of_eval_have_two_turns():
    assert 0.08 <= sum("turns" in row for row in rows("train", "chat")) / len(rows("train", "chat")) <= 0.12
    assert sum("turns" in row for row in rows("eval", "chat")) == 5
    assert all(len(row["turns"]) == 2 for split in SETS for row in rows(split, "chat") if "turns" in row)


@pytest.mark.parametrize("split, least_templates, least_subjects", [("train", 40, 80), ("eval", 20, 30)])
@pytest.mark.parametrize("name", SET_NAMES)
def test_each_set_uses_many_templates_and_subjects_and_none_too_often(name, split, least_templates, least_subjects):
    _, used = make(split, name)
    by_template, by_subject = Counter(pair[0] for pair in used), Counter(pair[1] for pair in used)
    assert len(by_template) >= least_templates and len(by_subject) >= least_subjects
    assert max(by_template.values()) <= 0.05 * len(used) + 1
    assert max(by_subject.values()) <= 0.02 * len(used) + 1
    assert set(by_template) == {template for kind in SETS[split][name] for template in kind.templates}
    assert set(by_subject) == {subject for kind in SETS[split][name] for subject in kind.subjects}


def test_no_id_and_no_prompt_occurs_twice():
    every = [row for split in SETS for name in SET_NAMES for row in rows(split, name)]
    assert len({row["id"] for row in every}) == len(every)
    assert len({tuple(words(text(row))) for row in every}) == len(every)


@pytest.mark.parametrize("name", SET_NAMES)
def test_prompts_are_short_and_a_passage_has_40_to_110_words(name):
    low, high = (45, 140) if name == "rewriting" else (10, 90)
    for split in SETS:
        for row in rows(split, name):
            first = row["turns"][0] if "turns" in row else row["prompt"]
            assert low <= len(first.split()) <= high, row
    if name == "rewriting":
        for split in SETS:
            for kind in SETS[split][name]:
                for passage in kind.subjects.values():
                    assert 40 <= len(passage.split()) <= 110, passage


def test_no_slot_is_left_open_and_no_number_is_negative():
    for split in SETS:
        for name in ("chat", "maths", "rewriting"):
            for row in rows(split, name):
                assert not re.search(r"[{}]", text(row)), row
        for row in rows(split, "maths"):
            assert not re.search(r"(?<![\w-])-\d", text(row)), row


def test_train_and_eval_share_no_subject_name_template_or_follow_up():
    follow_ups = {split: [turn for kind in kinds(split) for turn in kind.follow_ups] for split in SETS}
    every = [{split: entries(split) for split in SETS} for entries in (subjects, templates)]
    for lists in [*every, NAMES, follow_ups]:
        train, held_out = ({" ".join(words(entry)) for entry in lists[split]} for split in ("train", "eval"))
        assert not train & held_out


def test_no_word_of_a_passage_title_or_thing_counted_is_a_subject_in_both():
    """Subjects of maths and rewriting are nouns; in chat and code they are phrases, which the 8-grams look after."""
    common = {"a", "an", "the", "of", "new", "old", "small", "school", "day", "for"}
    for name in ("maths", "rewriting"):
        train, held_out = ({word for kind in SETS[split][name] for subject in kind.subjects for word in words(subject)}
                           for split in ("train", "eval"))
        assert train & held_out <= common


def test_train_and_eval_share_no_eight_words_in_a_row():
    train = set().union(*(grams(text(row), 8) for name in SET_NAMES for row in rows("train", name)))
    for name in SET_NAMES:
        for row in rows("eval", name):
            assert not grams(text(row), 8) & train, row["id"]


def test_no_eval_prompt_resembles_a_training_prompt():
    """Jaccard similarity of word pairs; two prompts of one template with other numbers have about 0.5."""
    train = [grams(text(row), 2) for name in SET_NAMES for row in rows("train", name)]
    for name in SET_NAMES:
        for row in rows("eval", name):
            pairs_of_row = grams(text(row), 2)
            for other in train:
                shared = len(pairs_of_row & other)
                assert shared < 0.2 * (len(pairs_of_row) + len(other) - shared), row["id"]


def test_templates_of_train_and_eval_differ_in_wording():
    train = [grams(template, 2) for template in templates("train")]
    for template in templates("eval"):
        own = grams(template, 2)
        assert all(len(own & other) < 0.35 * len(own | other) for other in train), template


@pytest.mark.parametrize("name", SET_NAMES)
def test_the_first_rows_of_a_file_are_a_fair_sample_of_its_kinds(name):
    kind_of = {template: number for number, kind in enumerate(SETS["train"][name]) for template in kind.templates}
    _, used = make("train", name)
    first = Counter(kind_of[pair[0]] for pair in used[:120])
    for number, kind in enumerate(SETS["train"][name]):
        share = kind.count / len(used)
        assert abs(first[number] / 120 - share) < 4 * (share * (1 - share) / 120) ** 0.5


def test_pairs_are_different_and_even():
    chosen = pairs(Kind(11, ["x", "y", "z"], ["a", "b", "c", "d"]), random.Random(0))
    assert len(set(chosen)) == 11
    assert set(Counter(pair[1] for pair in chosen).values()) <= {2, 3}


def test_numbers_follow_their_definitions():
    for seed in range(50):
        values = draw("a=3-9 b=10-60/5 c=a*b d=c+a e=d-2", random.Random(seed))
        assert 3 <= values["a"] <= 9 and values["b"] in range(10, 61, 5)
        assert values["c"] == values["a"] * values["b"]
        assert values["e"] == values["c"] + values["a"] - 2


def test_the_reader_takes_all_prompts_without_a_bad_row(monkeypatch):
    monkeypatch.chdir(ROOT)
    for split in SETS:
        prompts = read([f"data/prompts/{split}/{name}.jsonl" for name in SET_NAMES], max_bad=0)
        assert prompts.seen == len(prompts.rows) == sum(len(rows(split, name)) for name in SET_NAMES)
        assert {row["source"] for row in prompts.rows} == set(SET_NAMES)
