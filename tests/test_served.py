"""What is read of real servers: recorded replies of an H200, break-even arithmetic, the live preflight's report."""
import json
from pathlib import Path

import pytest

from stages.engines import live, spec_counters
from stages.lib import served, workers
from stages.lib.params import read_yaml
from tests.pipeline.scratch import ROOT
from tools.repro import overlay

DATA = Path(__file__).parent / "data/sglang"


def recorded(name):
    return json.loads((DATA / name).read_text())


def test_the_counters_of_a_recorded_reply_hold_together():
    found = spec_counters.counters(recorded("h200-reply-chain-5.json"), 5)
    assert found == (170, 21, [153, 14, 2, 1, 0, 0])
    assert spec_counters.tau([found.histogram]) == pytest.approx(1 + 21 / 170)


def test_speculation_pays_where_a_pass_brings_what_it_costs():
    speeds = {"plain": {1: (800, 790, 810)}, "speculative": {1: (500, 490, 510), 8: (900, 890, 910)}}
    assert served.break_even(speeds, 1.5) == {1: pytest.approx(2.4)}


class Streams:
    """An engine whose answers are given beforehand."""
    def stream(self, prompts, params, seeds, chain, in_flight):
        return [RuntimeError("gone") if prompt == [9] else (Answer(prompt), [1, 0]) for prompt in prompts]


class Answer:
    def __init__(self, prompt):
        self.ids, self.reason, self.meta = prompt * 2, "stop", {}


def test_the_recorder_keeps_the_passes_of_each_answer_and_the_errors_in_their_places():
    recorder, ticks = served.Recorder(Streams(), 5), []
    found = recorder.generate([[1, 2], [9]], 8, 0, 1.0, [0, 0], [2], ticks.append)
    assert found[0] == ([1, 2, 1, 2], "stop") and isinstance(found[1], RuntimeError)
    assert recorder.passes == {(1, 2): [1, 0]} and ticks == [4] and served.histogram([1, 0, 1], 3) == [1, 2, 0, 0]


def test_a_healthy_draft_shows_one_call_of_fc_in_prefill_and_in_verify():
    assert list(live.faults(recorded("h200-watch.json"), [2, 15, 27], 576)) == []


@pytest.mark.parametrize("change, code", [
    ({"layers_to_capture": [1, 14, 26]}, "EY-RULE-03"), ({"algorithm": "EAGLE"}, "EY-FLAG-01"),
    ({"verify": [{"width": 576, "fc_calls": 0}]}, "EY-FORWARD-03"), ({"prefill": [{"width": 576, "fc_calls": 0}]}, "EY-FORWARD-03"),
    ({"prefill": []}, "EY-FORWARD-03")])
def test_a_draft_that_reads_something_else_is_named(change, code):
    assert [found for found, _ in live.faults({**recorded("h200-watch.json"), **change}, [2, 15, 27], 576)] == [code]


def test_threads_do_every_task_and_hand_the_first_error_on():
    done, said = [], []
    for task, result in workers.threads(lambda n: workers.tick(1) or n * n, range(20), 4, "squares", 20):
        done.append((task, result))
    assert sorted(done) == [(n, n * n) for n in range(20)] and said == []
    with pytest.raises(ZeroDivisionError):
        list(workers.threads(lambda n: 1 // n, range(3), 2, "inverse", 3))


@pytest.mark.parametrize("name", [path.stem for path in (ROOT / "profiles").glob("*.yaml")])
def test_a_profile_fits_params(name, tmp_path):
    params = tmp_path / "params.yaml"
    params.write_text((ROOT / "params.yaml").read_text())
    values = read_yaml(ROOT / f"profiles/{name}.yaml")
    overlay(params, values)
    found = read_yaml(params)
    assert all(found[section][key] == value for section, keys in values.items() for key, value in keys.items())


def doctor_says(healthy_run, *words):
    from tools import doctor
    return doctor.examine(doctor.parse([str(healthy_run.export), "--target", str(healthy_run.target), "--static", *words]))


def test_the_doctor_says_what_an_old_log_line_means(healthy_run):
    line = "Decode batch. #running-req: 1, #token: 300, accept len: 1.00, accept rate: 0.25, cuda graph: True"
    said = doctor_says(healthy_run, "--sglang", "0.5.8.post1", "--says", line)["figures"]["says"]
    assert "tau 1.00" in said and "not one draft is accepted" in said and "0.25 is what no accepted draft at all looks like" in said


def test_the_doctor_reads_one_requests_counters(healthy_run):
    said = doctor_says(healthy_run, "--says", f"@{DATA / 'h200-reply-chain-5.json'}")["figures"]["says"]
    assert "21 drafts accepted in 170 verify passes: tau 1.124" in said


def test_the_doctor_asks_a_running_server_for_its_flags(healthy_run):
    import http.server
    import threading
    info = {**recorded("cpu-0.5.15.post1.json")["server_info"], "speculative_algorithm": "EAGLE", "speculative_draft_model_path": "d"}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps(info).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        report = doctor_says(healthy_run, "--server", f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
    assert report["sglang"] == "0.5.15.post1" and "EY-FLAG-01" in [f["code"] for f in report["findings"]]
