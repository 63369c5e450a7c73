"""What a draft must beat: two drafters that need no training on hidden states, walked over the same answers.

Both return, for a place t of a token list s, up to `chain` guesses for s[t+1], s[t+2], ...
"""
from collections import Counter, defaultdict


class Trigram:
    """The most frequent follower of the last two tokens in the training answers, of the last one where the pair is unseen.

    Ties go to the lowest token id, so the table does not depend on the order of the traces.
    """

    def __init__(self, rows):
        """rows: traces. The answer's first token is counted behind the prompt's last two."""
        pairs, singles = defaultdict(Counter), defaultdict(Counter)
        for row in rows:
            tokens = row["prompt_ids"][-2:] + row["response_ids"]
            for a, b, c in zip(tokens, tokens[1:], tokens[2:]):
                pairs[a, b][c] += 1
                singles[b][c] += 1
        best = lambda counter: min(counter, key=lambda token: (-counter[token], token))
        self.pairs, self.singles = ({key: best(c) for key, c in table.items()} for table in (pairs, singles))

    def guess(self, s, t, chain):
        a, b, guesses = s[t - 1], s[t], []
        while len(guesses) < chain:
            word = self.pairs.get((a, b), self.singles.get(b))
            if word is None:
                break
            guesses.append(word)
            a, b = b, word
        return guesses


class PromptLookup:
    """What followed the last place where the same three tokens (else two) stood in prompt and answer so far."""

    def __init__(self):
        self.tokens, self.seen = None, {}

    def guess(self, s, t, chain):
        if self.tokens is not s:
            self.tokens, self.seen, self.upto = s, {3: {}, 2: {}}, 0
        for size in (3, 2):
            table = self.seen[size]
            for end in range(max(self.upto, size), t + 1):  # grams that end before token t, so that something follows
                table[tuple(s[end - size:end])] = end
        self.upto = t + 1
        for size in (3, 2):
            follows = self.seen[size].get(tuple(s[t + 1 - size:t + 1]))
            if follows is not None:
                return s[follows:min(follows + chain, t + 1)]
        return []


def matches(drafter, prompt_ids, response_ids, chain):
    """Per row t a list of `chain` booleans: is guess k the answer's s[t+2+k]? The rows of verifier.walk."""
    s, first = prompt_ids + response_ids, len(prompt_ids)
    right = [[False] * chain for _ in s]
    for t in range(first, len(s) - 1):  # the last verified token is s[t], which stands in row t-1
        guesses = drafter.guess(s, t, chain)
        right[t - 1] = [k < len(guesses) and t + 1 + k < len(s) and guesses[k] == s[t + 1 + k] for k in range(chain)]
    return right
