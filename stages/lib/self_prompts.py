"""Prompts that the target writes itself: it goes on from the bare header of a user's turn in its own chat template.

What comes is what the target takes for a likely question, which is close to what a chat model was tuned on. Rules of what is kept,
each counted by its reason: the turn ended by itself, is text of a usable length without special tokens, is not a near copy
of another one, and is no evaluation prompt.
"""
import re

from stages.lib import files
from stages.lib.refusal import Refusal

SHORTEST, LONGEST = 8, 600  # characters
MAX_TOKENS, TEMPERATURE, TOP_P = 96, 1.0, 0.95
MARK = "\u2063eyrie\u2063"  # no template and no tokenizer has a reason to change it


def header(tok):
    """Token ids of everything that the template puts before a user's first words.

    Refusal when the template changes the words around them, so that no header can be told.
    """
    text = tok.apply_chat_template([{"role": "user", "content": MARK}], tokenize=False, add_generation_prompt=True)
    if text.count(MARK) != 1:
        raise Refusal("the target's chat template does not repeat a user's words as they are; prompts.self needs the header before "
                      "them: set prompts.self to 0")
    return tok(text[:text.index(MARK)], add_special_tokens=False).input_ids


def seeds(count, seed):
    """One seed per draw, by its number alone: more draws leave the earlier ones as they are."""
    return [int(files.digest_of("self", seed, i), 16) >> 2 for i in range(count)]


def keep(draws, tok, special_ids, known=()):
    """(rows as prompts.read gives them, {reason: count}) of draws: (token ids, finish reason) in their order.

    special_ids: tokens of the template; known: texts (evaluation prompts) that must not come back.
    """
    seen, rows, reasons = {plain(text) for text in known}, [], {}
    for number, (ids, finish) in enumerate(draws):
        body = ids[:-1] if finish == "stop" else ids
        text = tok.decode(body, skip_special_tokens=False).strip()
        reason = ("cut at the limit" if finish != "stop" else "a special token inside" if set(body) & set(special_ids) else
                  "too short" if len(text) < SHORTEST else "too long" if len(text) > LONGEST else
                  "not text" if "\ufffd" in text or not text.replace("\n", "").replace("\t", "").isprintable() else
                  "said before" if plain(text) in seen else None)
        if reason:
            reasons[reason] = reasons.get(reason, 0) + 1
            continue
        seen.add(plain(text))
        rows.append({"id": f"self-{number}", "source": "self", "system": None, "turns": [text]})
    return rows, reasons


def plain(text):
    """What makes two prompts the same: their words, without case, space and punctuation."""
    return re.sub(r"\W+", " ", text.casefold()).strip()
