"""Which of the target's own user turns become prompts."""
import pytest

from stages.lib import chat, self_prompts
from stages.lib.refusal import Refusal
from stages.lib.target import resolve
from tools.tiny_target import SMOLLM2

END = 2  # <|im_end|>


@pytest.fixture(scope="module")
def tok():
    return chat.tokenizer(resolve(SMOLLM2))


def draw(tok, text, finish="stop"):
    return tok(text, add_special_tokens=False).input_ids + ([END] if finish == "stop" else []), finish


def kept(tok, *draws, known=()):
    rows, reasons = self_prompts.keep(draws, tok, {0, 1, END}, known)
    return [row["turns"][0] for row in rows], reasons


def test_the_header_is_what_the_template_puts_before_the_users_words(tok):
    said = tok.apply_chat_template([{"role": "user", "content": "Name a bird."}], tokenize=False, add_generation_prompt=True)
    header = tok.decode(self_prompts.header(tok))
    assert said.startswith(header) and header.endswith("user\n")
    words = chat.render(tok, [{"role": "user", "content": "Name a bird."}])
    assert words[:len(self_prompts.header(tok))] == self_prompts.header(tok)


def test_a_template_that_changes_the_words_is_refused(tok):
    class Shouting:
        def apply_chat_template(self, messages, **_):
            return messages[0]["content"].upper()
    with pytest.raises(Refusal, match="set prompts.self to 0"):
        self_prompts.header(Shouting())


@pytest.mark.parametrize("draw_of, reason", [
    (lambda tok: draw(tok, "What is the capital of France", "length"), "cut at the limit"),
    (lambda tok: (tok("What is the capital?", add_special_tokens=False).input_ids + [1] + [END], "stop"), "a special token inside"),
    (lambda tok: draw(tok, "Hi"), "too short"), (lambda tok: draw(tok, "Why? " * 200), "too long"),
    (lambda tok: draw(tok, "what is THE capital of Spain"), "said before"), (lambda tok: draw(tok, "Is water wet?!"), "said before"),
])
def test_each_rule_leaves_out_and_counts(tok, draw_of, reason):
    good = draw(tok, "What is the capital of Spain?")
    assert kept(tok, good, draw_of(tok), known=["Is water wet"]) == (["What is the capital of Spain?"], {reason: 1})


def test_rows_are_those_of_a_prompt_file_and_keep_the_number_of_their_draw(tok):
    rows, _ = self_prompts.keep([draw(tok, "x"), draw(tok, "Tell me about owls.\nBe brief.")], tok, {END})
    assert rows == [{"id": "self-1", "source": "self", "system": None, "turns": ["Tell me about owls.\nBe brief."]}]


def test_more_draws_leave_the_earlier_seeds_as_they_are():
    assert self_prompts.seeds(9, 3)[:4] == self_prompts.seeds(4, 3) and len(set(self_prompts.seeds(100, 3))) == 100
    assert self_prompts.seeds(4, 3) != self_prompts.seeds(4, 4)
