"""Answers by a server: the right ones in order, or a refusal; and the arithmetic of its counters."""
from stages.lib import cpu  # noqa: F401  before torch
import json
import math
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings, strategies as st

from stages.engines import sglang_engine, sglang_server, spec_counters
from stages.engines.http_json import Broken, Http, Refused
from stages.engines.sglang_engine import Answer, Engine, checked, sampling
from stages.engines.throughput import tokens_per_s
from stages.lib import chat, metrics
from stages.lib.refusal import Refusal
from tests import fake_sglang
from tests.fake_sglang import STOP, VOCAB, passes, reply, words
from tests.test_sglang_server import fake

RECORDED = json.loads((Path(__file__).parent / "data/sglang/cpu-0.5.15.post1.json").read_text())
PROMPTS = [[3 + i % 9, 20, 30 + i % 40] for i in range(50)]


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """One well-behaved server for the tests that do not break it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("right"))
        with fake(delay=0.01) as server:
            yield server


def generate(engine, prompts=PROMPTS, most=12, tick=lambda n: None):
    return engine.generate(prompts, most, 0.0, 1.0, list(range(len(prompts))), (STOP,), tick)


def expected(prompts=PROMPTS, most=12):
    return [(words(p, most), "stop" if words(p, most)[-1] == STOP else "length") for p in prompts]


# ---------------------------------------------------------------- answers

@pytest.mark.parametrize("per_post", [1, 4, 64])
def test_answers_are_the_servers_ids_in_the_order_of_the_prompts(right, per_post):
    ticks = []
    assert generate(Engine([right], VOCAB, per_post), tick=ticks.append) == expected()
    assert sum(ticks) == sum(len(ids) for ids, _ in expected())


def test_the_servers_queue_is_kept_full_but_not_flooded(in_tmp):
    with fake(delay=0.03, slots=8) as server:
        engine = Engine([server], VOCAB, per_post=4)
        generate(engine, PROMPTS * 4)
        assert 8 <= server.http.call("/server_info")["seen"]["most"] <= 2 * 8 + 4


def test_work_spreads_over_servers_by_what_they_have_done(in_tmp):
    with fake(delay=0.02, slots=4) as quick, fake(delay=0.2, slots=4) as slow:
        assert generate(Engine([quick, slow], VOCAB, per_post=2), PROMPTS * 2) == expected(PROMPTS * 2)
        done = [server.http.call("/server_info")["seen"]["posts"] for server in (quick, slow)]
        assert sum(done) == 50 and done[0] > 2 * done[1] > 0


def test_every_parameter_that_shapes_the_distribution_is_sent(right, monkeypatch):
    bodies, call = [], right.http.call
    monkeypatch.setattr(right.http, "call", lambda path, body=None, seconds=30.0: bodies.append(body) or call(path, body, seconds))
    Engine([right], VOCAB).generate([[5, 6]], 4, 0.7, 0.9, [1 << 61], (2, 3))
    assert bodies[-1]["sampling_params"] == [{
        "max_new_tokens": 4, "min_new_tokens": 0, "temperature": 0.7, "top_p": 0.9, "top_k": -1, "min_p": 0.0, "frequency_penalty": 0.0,
        "presence_penalty": 0.0, "repetition_penalty": 1.0, "stop_token_ids": [2, 3], "ignore_eos": False, "n": 1,
        "sampling_seed": 1 << 61}]
    assert Engine([right], VOCAB).seeded == "server"


def test_a_prompt_that_the_server_refuses_has_its_error_in_its_place_and_costs_no_other(right):
    prompts = [*PROMPTS[:7], [13, 13], *PROMPTS[7:]]
    found = generate(Engine([right], VOCAB, per_post=8), prompts)
    assert isinstance(found[7], RuntimeError) and "longer than the model's context" in str(found[7])
    assert found[:7] + found[8:] == expected()


@pytest.mark.parametrize("prompt", [[], [5, VOCAB], [-1]])
def test_ids_that_would_kill_the_server_are_not_sent(right, prompt):
    with pytest.raises(Refusal, match="prompt 1 is empty or holds an id outside"):
        generate(Engine([right], VOCAB), [[5], prompt])


@pytest.mark.parametrize("mode, said", [
    ("short", "gave 9 answers to 10 prompts"), ("swapped", "it is named"), ("duplicated", "it is named"), ("renamed", "another prompt"),
    ("outside", "not all in the vocabulary"), ("float", "not all in the vocabulary"), ("odd-reason", "its finish reason is"),
    ("dropped", "completion_tokens says"), ("overlong", "over the limit of 12")])
def test_a_reply_that_is_not_the_one_asked_for_ends_the_call(in_tmp, mode, said):
    with fake(mode) as server, pytest.raises(Refusal, match=said):
        generate(Engine([server], VOCAB, per_post=10), PROMPTS[:10])


def test_logits_that_are_not_finite_are_an_error_of_that_row(in_tmp):
    with fake("nan") as server:
        found = generate(Engine([server], VOCAB, per_post=10), PROMPTS[:10])
    assert isinstance(found[0], FloatingPointError) and "NaN happened" in str(found[0]) and found[1:] == expected()[1:10]


@pytest.mark.parametrize("mode", ["flaky", "half"])
def test_what_goes_wrong_for_a_moment_is_asked_again(in_tmp, mode):
    with fake(mode) as server:
        assert generate(Engine([server], VOCAB, per_post=10), PROMPTS[:30]) == expected()[:30]


def test_a_row_that_fails_at_each_try_has_its_error_in_its_place(in_tmp):
    with fake("always-500") as server:
        found = generate(Engine([server], VOCAB, per_post=2), PROMPTS[:2])
        assert all(isinstance(row, RuntimeError) and "Internal Server Error" in str(row) for row in found)
        assert server.http.call("/server_info")["seen"]["posts"] == 3 + 2 * 3


def test_a_server_that_dies_midway_is_a_refusal_with_its_log_and_no_row_is_blamed(in_tmp):
    with fake("die-midway", delay=0.05) as server, pytest.raises(Refusal, match="ended while it was needed: CUDA out of memory"):
        generate(Engine([server], VOCAB, per_post=10))


def test_a_refusal_does_not_wait_for_the_answers_still_to_come(in_tmp):
    with fake("renamed") as bad, fake(delay=30) as slow:
        start = time.monotonic()
        with pytest.raises(Refusal):
            generate(Engine([slow, bad], VOCAB, per_post=2), PROMPTS[:12])
        assert time.monotonic() - start < 5


def test_ctrl_c_does_not_wait_for_the_answers_still_to_come(in_tmp, monkeypatch):
    def wait(*_, **__):
        time.sleep(0.3)
        raise KeyboardInterrupt
    with fake(delay=30) as slow:
        engine, start = Engine([slow], VOCAB), time.monotonic()
        monkeypatch.setattr(sglang_engine, "wait", wait)
        with pytest.raises(KeyboardInterrupt):
            generate(engine)
        assert time.monotonic() - start < 3 and slow.healthy()


def test_two_threads_may_ask_one_engine_at_once(right):
    engine, found = Engine([right], VOCAB), {}
    threads = [threading.Thread(target=lambda i=i: found.update({i: generate(engine, PROMPTS[i:])})) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: expected()[i:] for i in range(3)}


# ---------------------------------------------------------------- one reply

def test_the_fake_answers_in_the_form_of_the_real_server():
    real = RECORDED["batch"][0]
    ours = reply("b-0", [1, 20, 30], {"max_new_tokens": 4}, 0)
    assert set(ours) == set(real) and set(real["meta_info"]) - set(ours["meta_info"]) == {"response_sent_to_client_ts"}
    assert set(ours["meta_info"]) < set(real["meta_info"])


def test_recorded_replies_of_a_real_server_are_taken_as_they_are():
    params = sampling(5, 0.0, 1.0, (2,))
    for i, (name, prompt) in enumerate([("b-0", [1, 4093, 198]), ("b-1", [1, 2683, 198, 5])]):
        answer = checked(RECORDED["batch"][i], name, prompt, params, 49152)
        assert answer.reason == "length" and len(answer.ids) == 5
    stopped = {**RECORDED["stop"], "prompt_token_ids": [1, 4093, 198]}
    assert checked(stopped, "d", [1, 4093, 198], sampling(5, 0.0, 1.0, (43848,)), 49152)[:2] == ([38791, 43848], "stop")
    with pytest.raises(Refusal, match="none of the target's end ids"):
        checked(stopped, "d", [1, 4093, 198], params, 49152)


def one(ids, reason, most=6, meta=(), stops=(STOP,)):
    meta = {"id": "r", "completion_tokens": len(ids), "finish_reason": reason, **dict(meta)}
    return checked({"output_ids": ids, "prompt_token_ids": [7], "meta_info": meta}, "r", [7], sampling(most, 0.0, 1.0, stops), VOCAB)


def test_an_end_id_in_the_last_place_is_a_stop_although_the_server_calls_it_length():
    assert one([5, STOP], {"type": "length", "length": 2}, most=2)[:2] == ([5, STOP], "stop")


def test_an_end_id_inside_the_last_verify_pass_ends_the_answer_there():
    reason = {"type": "length", "length": 4}
    assert one([5, STOP, 9, 9], reason, most=4, meta={"spec_verify_ct": 1})[:2] == ([5, STOP], "stop")
    with pytest.raises(Refusal, match="goes on behind a stop id"):
        one([5, STOP, 9, 9], reason, most=4)


def test_an_answer_that_the_server_cut_short_of_the_limit_is_that_rows_error():
    assert "KV pool is too small" in str(one([5, 5], {"type": "length", "length": 2}))


def test_an_aborted_row_is_worth_another_try():
    assert isinstance(one([], {"type": "abort", "message": "out of pages", "status_code": None}), Broken)


def test_errors_of_the_real_server_are_read_in_both_forms(right):
    assert http_message("toolong_batch") == "The input (9000 tokens) is longer than the model's context length (8192 tokens)."
    assert http_message("tokenize_bad") == "Messages cannot be empty."
    assert http_message("badparam") == "Internal Server Error"
    with pytest.raises(Refused, match="400: The input"):
        right.http.call("/generate", {"rid": ["a"], "input_ids": [[13]], "sampling_params": [{}]})


def http_message(name):
    from stages.engines.http_json import message
    return message(RECORDED[name]["body"].encode())


def test_nothing_listens_there_is_broken_and_not_refused():
    with pytest.raises(Broken, match="cannot be reached"):
        Http(f"http://127.0.0.1:{sglang_server.free_port()}").call("/health")


# ---------------------------------------------------------------- the server's template

TOK = SimpleNamespace(decode=lambda ids: "".join(chr(i + 32) for i in ids))


def test_prompts_are_the_servers_own_ids_and_equal_to_eyries(right, monkeypatch, in_tmp):
    dialogues = [[{"role": "user", "content": f"q{i}"}] for i in range(20)]
    text = lambda dialogue: "".join(f"<{m['role']}>{m['content']}" for m in dialogue) + "<assistant>"
    monkeypatch.setattr(chat, "render", lambda tok, dialogue: [ord(c) % VOCAB for c in text(dialogue)])
    assert Engine([right], VOCAB).render(TOK, dialogues) == [chat.render(TOK, d) for d in dialogues]
    with fake("other-template") as server, pytest.raises(Refusal, match="renders dialogue 0 otherwise than Eyrie: at token 18"):
        Engine([server], VOCAB).render(TOK, dialogues)


# ---------------------------------------------------------------- counters

CHAIN = 3
ACCEPTED = st.lists(st.integers(0, CHAIN), min_size=1, max_size=40)


def meta_of(accepted, behind=0, chain=CHAIN):
    """meta_info of a request whose verify passes accept `accepted` drafts, `behind` tokens of the last one behind the end."""
    tokens = 1 + sum(accepted) + len(accepted) - behind
    return {"id": "r", "completion_tokens": tokens, "num_retractions": 0, "spec_verify_ct": len(accepted),
            "spec_num_correct_drafts": sum(accepted), "spec_num_proposed_drafts": len(accepted) * chain,
            "spec_accept_length": tokens / len(accepted), "spec_accept_rate": sum(accepted) / len(accepted) / chain,
            "spec_correct_drafts_histogram": [accepted.count(j) for j in range(max(accepted) + 1)]}


@given(st.lists(ACCEPTED, min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_tau_and_positions_are_those_of_the_offline_side(requests):
    histograms = [spec_counters.counters(meta_of(accepted), CHAIN).histogram for accepted in requests]
    found = spec_counters.tau(histograms)
    assert found == pytest.approx(metrics.tau_with_interval(histograms, 10, 0)["tau"], abs=1e-4)
    assert found == pytest.approx(1 + sum(map(sum, requests)) / sum(map(len, requests)))
    places = spec_counters.positions(histograms, CHAIN)
    assert sum(places[f"pos_{i}"] for i in range(1, CHAIN + 1)) == pytest.approx(found - 1, abs=2e-4)


@given(ACCEPTED, st.integers(0, CHAIN))
@settings(max_examples=100, deadline=None)
def test_chunks_of_a_stream_give_back_the_accepted_drafts_of_each_pass_but_the_last(accepted, behind):
    behind = min(behind, accepted[-1])
    lengths = [1, *(a + 1 for a in accepted)]
    lengths[-1] -= behind
    assert spec_counters.per_pass(lengths, meta_of(accepted, behind), CHAIN) == accepted[:-1]


@given(st.lists(st.integers(0, 6), min_size=3, max_size=30), st.data())
@settings(max_examples=100, deadline=None)
def test_two_passes_that_came_as_one_chunk_are_never_taken_for_one(accepted, data):
    lengths = [1, *(a + 1 for a in accepted)]
    at = data.draw(st.integers(0, len(lengths) - 2))
    merged = [*lengths[:at], lengths[at] + lengths[at + 1], *lengths[at + 2:]]
    with pytest.raises(RuntimeError):
        spec_counters.per_pass(merged, meta_of(accepted, chain=6), 6)


@pytest.mark.parametrize("change, said", [
    ({"spec_verify_ct": 4}, "the histogram holds 3 passes"), ({"spec_num_correct_drafts": 4}, "the histogram holds 5 accepted drafts"),
    ({"spec_num_proposed_drafts": 12}, "12 drafts proposed"), ({"completion_tokens": 12}, "behind the end"),
    ({"completion_tokens": 3}, "behind the end"), ({"spec_correct_drafts_histogram": None}, "absent"),
    ({"spec_verify_ct": 0}, "no verify pass"), ({"spec_correct_drafts_histogram": [2, 0, 0, 0, 0, 1]}, "5 drafts accepted in one pass")])
def test_counters_that_contradict_each_other_are_refused(change, said):
    meta = meta_of([0, 2, 3])
    assert spec_counters.counters(meta, CHAIN) == (3, 5, [1, 0, 1, 1])
    with pytest.raises(Refusal, match=said):
        spec_counters.counters({**meta, **change}, CHAIN)


def test_an_answer_that_ended_with_its_prefill_has_no_pass():
    meta = RECORDED["max0"]["meta_info"]
    assert spec_counters.counters(meta, CHAIN) == (0, 0, [0] * 4)
    assert spec_counters.per_pass([1], {"id": "r", "completion_tokens": 1}, CHAIN) == []


@pytest.mark.parametrize("incremental", [{}, {"incremental": True}])
def test_a_stream_gives_the_answer_and_its_passes_in_both_forms(in_tmp, incremental):
    with fake(chain=CHAIN, **incremental) as server:
        found = Engine([server], VOCAB).stream(PROMPTS[:6], sampling(12, 0.0, 1.0, (STOP,)), range(6), CHAIN, in_flight=2)
    for prompt, (answer, accepted) in zip(PROMPTS, found):
        assert isinstance(answer, Answer) and answer.ids == words(prompt, 12)
        assert accepted == passes(prompt, len(answer.ids) - 1, CHAIN)[:-1]


def test_a_stream_with_merged_chunks_is_an_error_in_its_place_and_a_broken_one_too(in_tmp):
    with fake("merged", chain=CHAIN) as server:
        found = Engine([server], VOCAB).stream([[3, 20, 40]], sampling(12, 0.0, 1.0, (STOP,)), [0], CHAIN)
        assert isinstance(found[0], RuntimeError) and "chunk" in str(found[0])
    with fake("half", chain=CHAIN) as server:
        found = Engine([server], VOCAB).stream([[3, 20, 40]], sampling(12, 0.0, 1.0, (STOP,)), [0], CHAIN)
        assert isinstance(found[0], Broken) and "without [DONE]" in str(found[0])


def test_the_recorded_stream_of_a_real_server_is_cumulative_and_begins_with_the_prefills_token():
    assert [len(event["output_ids"]) for event in RECORDED["stream"]] == [1, 2, 3, 4, 5]
    assert all(a["output_ids"] == b["output_ids"][:len(a["output_ids"])] for a, b in zip(RECORDED["stream"], RECORDED["stream"][1:]))


# ---------------------------------------------------------------- what a figure means

OLD = "[2025-12-01 12:00:00] Decode batch, #running-req: 8, token usage: 0.01, accept len: 1.00, accept rate: 0.25, cuda graph: True"


def test_before_0_5_11_a_rate_of_25_percent_with_4_draft_tokens_is_nothing_accepted():
    for version in ("0.5.8.post1", "0.5.10.post1"):
        found = spec_counters.meaning(OLD, version)
        assert found.tau == 1.0 and "not one draft is accepted" in found.says and "0.25 is what no accepted draft" in found.says
        assert spec_counters.meaning("accept rate: 0.25", version, draft_tokens=4).tau == 1.0
    assert spec_counters.meaning("accept rate: 0.25", "0.5.11", draft_tokens=4).tau == 1.75
    assert "without the bonus" in spec_counters.meaning(OLD.replace("1.00", "1.75"), "0.5.15.post1").says


@given(st.floats(1, 4), st.integers(2, 8), st.sampled_from(["0.5.9", "0.5.11", "0.5.15.post1", "0.5.23"]))
@settings(max_examples=60, deadline=None)
def test_rate_and_length_mean_the_same_tau_in_every_version(tau, draft_tokens, version):
    rate = tau / draft_tokens if version == "0.5.9" else (tau - 1) / (draft_tokens - 1)
    by_rate = spec_counters.meaning(f"accept rate: {rate:.6f},", version, draft_tokens).tau
    assert math.isclose(by_rate, tau, abs_tol=1e-4)
    assert math.isclose(spec_counters.meaning(f"accept len: {tau:.6f}, accept rate: {rate:.6f},", version).tau, tau, abs_tol=1e-5)


def test_counters_are_read_by_the_names_of_their_version():
    names = {"0.5.10.post1": "spec_accept_token_num", "0.5.11": "spec_accepted_drafts", "0.5.15.post1": "spec_num_correct_drafts"}
    for version, name in names.items():
        assert spec_counters.meaning({"spec_verify_ct": 40, name: 10}, version).tau == 1.25
    found = spec_counters.meaning(meta_of([0, 0, 1]), "0.5.15.post1")
    assert found.tau == pytest.approx(4 / 3) and "also counts the prefill's token" in found.says


@pytest.mark.parametrize("given_, version", [("Prefill batch, #new-seq: 1", "0.5.15.post1"), ("accept rate: 0.25", "0.5.9"),
                                            ({"spec_verify_ct": 3}, "0.5.15.post1")])
def test_a_line_or_counters_without_the_figure_are_refused(given_, version):
    with pytest.raises(Refusal):
        spec_counters.meaning(given_, version)


# ---------------------------------------------------------------- tokens per second

def test_throughput_holds_the_batch_and_counts_emitted_tokens(in_tmp):
    with fake(delay=0.05, slots=4) as server:
        engine = Engine([server], VOCAB)
        params, prompts = sampling(12, 0.0, 1.0, (STOP,)), PROMPTS[:8]
        median, low, high = tokens_per_s(engine, prompts, params, range(8), batch=4, repeats=2)
        assert server.http.call("/server_info")["seen"]["most"] == 4
        assert low <= median <= high and 0.5 < median / (sum(len(ids) for ids, _ in expected()[:8]) / 0.1) <= 1
        with pytest.raises(Refusal, match="raise max-running-requests"):
            tokens_per_s(engine, prompts, params, range(8), batch=5)
        with pytest.raises(Refusal, match="do not fill a batch"):
            tokens_per_s(engine, prompts[:2], params, range(8), batch=4)


def test_the_fakes_passes_end_where_the_answer_does():
    assert fake_sglang.passes([3], 5, CHAIN) and sum(a + 1 for a in passes([3], 5, CHAIN)) >= 5
