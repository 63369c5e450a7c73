"""A block of prompts, answered turn by turn: what generate does with training prompts and evaluate with its own."""
from stages.lib import chat, cpu, files, prompts


def of_block(block, engine, tok, stop_ids, max_tokens, max_new_tokens, temperature, top_p, seed, batch, tick):
    """Trace rows of the block's prompts in their order, and the quarantined ones with their reasons.

    A later user turn is asked behind the target's own earlier answers, so a dialogue whose turn fails ends there. Per
    turn, prompts of like length are decoded together, `batch` at a time. A row's random seed depends on its id and turn.
    """
    said, rows, bad = [[] for _ in block], [], []
    for turn in range(max(len(row["turns"]) for row in block)):
        asked = []
        for i, row in enumerate(block):
            if turn < len(row["turns"]) and len(said[i]) == turn:
                ids = chat.render(tok, chat.messages(row, said[i]))
                if len(ids) <= max_tokens:
                    asked.append((i, ids))
                else:
                    bad.append(prompts.quarantine(row, f"turn {turn}: {len(ids)} prompt tokens, over the limit of {max_tokens}"))
        asked.sort(key=lambda item: (len(item[1]), item[0]))
        for start in range(0, len(asked), batch):
            some = asked[start:start + batch]
            seeds = [int(files.digest_of(seed, block[i]["id"], turn), 16) >> 2 for i, _ in some]
            results = decode(engine, [ids for _, ids in some], max_new_tokens, temperature, top_p, seeds, stop_ids, tick)
            cpu.release()
            for (i, ids), result in zip(some, results):
                if isinstance(result, Exception):
                    bad.append(prompts.quarantine(block[i], f"turn {turn}: {type(result).__name__}: {result}"))
                    continue
                response, reason = result
                text = tok.decode(response, skip_special_tokens=True)
                said[i].append(text)
                rows.append((i, {"id": block[i]["id"], "source": block[i]["source"], "turn": turn, "prompt_ids": ids,
                                 "response_ids": response, "finish_reason": reason, "text": text}))
    rows.sort(key=lambda item: (item[0], item[1]["turn"]))
    return [row for _, row in rows], bad


def decode(engine, prompt_ids, max_new_tokens, temperature, top_p, seeds, stop_ids, tick):
    """Answers of one batch. If it fails its rows are tried one by one, so that only the guilty row is lost: its place
    holds the exception."""
    try:
        return engine.generate(prompt_ids, max_new_tokens, temperature, top_p, seeds, stop_ids, tick)
    except (RuntimeError, IndexError, FloatingPointError) as error:
        if len(prompt_ids) == 1:
            return [error]
        return [decode(engine, [ids], max_new_tokens, temperature, top_p, [s], stop_ids, tick)[0] for ids, s in zip(prompt_ids, seeds)]


def key_of(block):
    """What determines the block's answers: the rows without their places in the file."""
    return [[row["id"], row["source"], row["system"], row["turns"]] for row in block]
