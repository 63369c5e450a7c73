"""From a dialogue to token ids, through the target's own chat template."""
from transformers import AutoTokenizer


def tokenizer(folder):
    """The target's fast tokenizer, from its folder alone (no network, no code from the folder)."""
    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


def messages(row, answers):
    """OpenAI-style messages up to the next user turn of a prompt row, given the answers to the turns before it."""
    dialogue = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    for turn, answer in zip(row["turns"], answers):
        dialogue += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
    return [*dialogue, {"role": "user", "content": row["turns"][len(answers)]}]


def render(tok, dialogue):
    """Token ids (list of int) of the dialogue with the header that asks for an answer.

    Rendered as text first and tokenised in one piece without extra special tokens, which is what SGLang's chat route
    does with the same template.
    """
    text = tok.apply_chat_template(dialogue, tokenize=False, add_generation_prompt=True)
    return tok(text, add_special_tokens=False).input_ids
