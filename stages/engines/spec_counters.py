"""What SGLang counts of speculative decoding, per request: read, checked against itself, and said in words.

Only counters of requests are used. The server-wide gauges mix requests, are refreshed now and then, and count from the start.

    V  verify passes       spec_verify_ct
    A  accepted drafts     spec_num_correct_drafts       the bonus token of each pass is not among them
    h  histogram           spec_correct_drafts_histogram h[j] = passes with j accepted drafts, only as long as its largest j

A request's first token comes from its prefill, so an answer has 1 + A + V tokens, less what lies behind its end in the last pass.
"""
import math
import re
from typing import NamedTuple

from packaging.version import Version

from stages.lib.metrics import positions  # noqa: F401  positions(histograms, chain) is the same for both sides
from stages.lib.refusal import Refusal

# the counters' names: A, and drafts proposed. 0.5.12 renamed them, 0.5.11 had renamed them before
NAMES = (("0.5.12", "spec_num_correct_drafts", "spec_num_proposed_drafts"), ("0.5.11", "spec_accepted_drafts", "spec_proposed_drafts"),
         ("0", "spec_accept_token_num", "spec_draft_token_num"))


class Counters(NamedTuple):
    passes: int
    accepted: int
    histogram: list  # chain + 1 entries


def counters(meta, chain):
    """Counters of one finished request from its `meta_info`, for a chain of `chain` drafts.

    An answer that ended with its prefill has none. Refusal where they are absent or contradict each other: then something else than
    this server's own verify passes was counted.
    """
    def unless(fine, what):
        if not fine:
            raise Refusal(f"the counters of request {meta.get('id')} do not hold together ({what}); no tau can be read from this server")

    passes, tokens = meta.get("spec_verify_ct", 0), meta["completion_tokens"]
    if not passes:
        unless(tokens <= 1, f"{tokens} tokens and no verify pass: is speculation on?")
        return Counters(0, 0, [0] * (chain + 1))
    accepted, histogram = meta.get("spec_num_correct_drafts"), meta.get("spec_correct_drafts_histogram")
    unless(isinstance(accepted, int) and isinstance(histogram, list), "spec_num_correct_drafts or its histogram is absent")
    unless(sum(histogram) == passes, f"the histogram holds {sum(histogram)} passes, spec_verify_ct is {passes}")
    unless(sum(j * n for j, n in enumerate(histogram)) == accepted,
           f"the histogram holds {sum(j * n for j, n in enumerate(histogram))} accepted drafts, spec_num_correct_drafts is {accepted}")
    unless(len(histogram) <= chain + 1, f"{len(histogram) - 1} drafts accepted in one pass of a chain of {chain}")
    unless(meta.get("spec_num_proposed_drafts") == passes * chain,
           f"{meta.get('spec_num_proposed_drafts')} drafts proposed in {passes} passes of {chain}")
    behind = 1 + accepted + passes - tokens  # tokens of the last pass that lie behind the end
    unless(meta.get("num_retractions") or 0 <= behind <= chain,
           f"{tokens} tokens from 1 + {accepted} accepted + {passes} passes: {behind} behind the end")
    return Counters(passes, accepted, histogram + [0] * (chain + 1 - len(histogram)))


def tau(histograms):
    """1 + accepted drafts / verify passes over all requests (micro average): the paper's acceptance length. 1 without a pass."""
    passes = sum(map(sum, histograms))
    return 1 + sum(j * n for h in histograms for j, n in enumerate(h)) / passes if passes else 1.0


def per_pass(lengths, meta, chain):
    """Accepted drafts per verify pass in their order, from the new tokens of each chunk of a stream; the last pass is left out, since
    its end is cut.

    lengths[0] is the prefill's token. RuntimeError where the chunks are not the passes (a busy server sends two passes as one chunk,
    which the sizes alone would not show): the histogram of the same request says how many passes there were, and of what sizes.
    """
    counted = counters(meta, chain)
    accepted = [length - 1 for length in lengths[1:-1]]
    rest = list(counted.histogram)
    for j in accepted:
        if not 0 <= j <= chain:
            raise RuntimeError(f"a chunk of request {meta.get('id')} holds {j + 1} tokens, more than a pass of a chain of {chain} has")
        rest[j] -= 1
    last = lengths[-1] - 1 if counted.passes else 0
    if lengths[0] != 1 or len(lengths) != counted.passes + 1 or sum(lengths) != meta["completion_tokens"] or min(rest) < 0 \
            or (counted.passes and rest.index(1) < last):
        raise RuntimeError(f"the {len(lengths)} chunks of request {meta.get('id')} are not its prefill and {counted.passes} verify passes; "
                           "stream it again with fewer requests beside it")
    return accepted


class Meaning(NamedTuple):
    tau: float
    says: str


def meaning(given, version, draft_tokens=None):
    """What one request's `meta_info` or a line of the server's log says about acceptance, for the SGLang release that wrote it.

    draft_tokens: --speculative-num-draft-tokens; a log line gives it away itself where the figures are not too small. Refusal where
    the line holds no such figure.
    """
    bonus_in_rate = Version(version) < Version("0.5.11")
    if isinstance(given, dict):
        since, drafts, _ = next(row for row in NAMES if Version(version) >= Version(row[0]))
        if not given.get("spec_verify_ct") or drafts not in given:
            raise Refusal(f"these counters hold no spec_verify_ct or no {drafts}, the names of SGLang {version}; give the meta_info of one "
                          "finished request of a server with speculation")
        passes, accepted = given["spec_verify_ct"], given[drafts]
        found = 1 + accepted / passes
        shown = given.get("spec_accept_length")
        note = "" if shown is None or math.isclose(shown, found, abs_tol=5e-3) else (
            f" (its spec_accept_length of {shown:.2f} also counts the prefill's token and drops what was cut at the end)")
        return Meaning(found, f"{accepted} drafts accepted in {passes} verify passes: tau {found:.3f}{note}{verdict(found)}")
    length, rate = (re.search(rf"accept {name}: *([0-9.]+)", given) for name in ("len", "rate"))
    length, rate = (float(match[1].rstrip(".")) if match else None for match in (length, rate))
    if length is None and rate is None:
        raise Refusal("the line holds neither `accept len:` nor `accept rate:`; give a `Decode batch` line of a server with speculation")
    if rate is not None and draft_tokens is None and length is not None and rate > 0:
        draft_tokens = round(length / rate) if bonus_in_rate else round(1 + (length - 1) / rate)
    if length is None and draft_tokens is None:
        raise Refusal("an accept rate alone means nothing without --speculative-num-draft-tokens; give that too")
    found = length if length is not None else rate * draft_tokens if bonus_in_rate else 1 + rate * (draft_tokens - 1)
    says = f"tau {found:.2f} over the requests of that interval"
    if rate is not None:
        how = "drafts and the bonus token over all draft tokens" if bonus_in_rate else "accepted over proposed drafts, without the bonus"
        says += f"; in SGLang {version} the accept rate of {rate:.2f} is {how}"
        if bonus_in_rate and draft_tokens:
            says += f", so {1 / draft_tokens:.2f} is what no accepted draft at all looks like with {draft_tokens} draft tokens"
    return Meaning(found, says + verdict(found))


def verdict(found):
    return "; not one draft is accepted" if found < 1.005 else ""
