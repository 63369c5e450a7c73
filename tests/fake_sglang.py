"""A server with SGLang 0.5.15's answers and the faults of a bad day, for tests: `python fake_sglang.py --port N --mode MODE`.

Field names and forms are those of tests/data/sglang/, recorded from a real server. An answer is a function of the prompt: see `words`.
With --chain K it counts as a server with a draft does.
"""
import argparse
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

VOCAB, STOP = 100, 2


def words(prompt, most):
    """10 to 90, then the stop id after as many tokens as the prompt's sum says."""
    length = sum(prompt) % 17 + 1
    ids = [10 + (sum(prompt) * 7 + 13 * i) % 80 for i in range(length)] + [STOP]
    return ids[:most]


def passes(prompt, count, chain):
    """Accepted drafts of each verify pass that together make `count` tokens behind the first; the last pass may reach beyond."""
    accepted, made, turn = [], 0, sum(prompt)
    while made < count:
        accepted.append(turn % (chain + 1))
        made, turn = made + accepted[-1] + 1, turn * 5 + 3
    return accepted


def reply(rid, prompt, params, chain):
    ids = words(prompt, params["max_new_tokens"])
    stopped = ids[-1:] == [STOP]
    meta = {"id": rid, "finish_reason": {"type": "stop", "matched": STOP} if stopped else {"type": "length", "length": len(ids)},
            "prompt_tokens": len(prompt), "weight_version": "default", "num_retractions": 0, "reasoning_tokens": 0,
            "completion_tokens": len(ids), "cached_tokens": 0, "cached_tokens_details": None, "dp_rank": None, "e2e_latency": 0.02}
    if chain and len(ids) > 1:
        took = passes(prompt, len(ids) - 1, chain)
        meta |= {"spec_accept_rate": sum(took) / len(took) / chain, "spec_accept_length": len(ids) / len(took),
                 "spec_num_correct_drafts": sum(took), "spec_num_proposed_drafts": len(took) * chain, "spec_verify_ct": len(took),
                 "spec_correct_drafts_histogram": [took.count(j) for j in range(max(took) + 1)]}
    return {"text": "", "output_ids": ids, "meta_info": meta, "prompt_token_ids": prompt}


def spoil(mode, answers):
    """The faults that are visible in the answers themselves."""
    if mode == "short":
        return answers[:-1]
    if mode == "swapped":
        return answers[::-1]
    if mode == "duplicated":
        return [answers[0]] * len(answers)
    if mode == "renamed":  # names in order, contents swapped
        return [{**b, "meta_info": {**b["meta_info"], "id": a["meta_info"]["id"]}} for a, b in zip(answers, answers[::-1])]
    if mode == "outside":
        answers[0]["output_ids"][0] = VOCAB
    if mode == "float":
        answers[0]["output_ids"][0] = 3.0
    if mode == "odd-reason":
        answers[0]["meta_info"]["finish_reason"] = {"type": "bored"}
    if mode == "dropped":
        del answers[0]["output_ids"][0]
    if mode == "overlong":
        answers[0]["output_ids"] *= 30
        answers[0]["meta_info"]["completion_tokens"] *= 30
    if mode == "nan":
        answers[0]["meta_info"]["finish_reason"] = {"type": "stop", "matched": "NaN happened"}
    return answers


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def send(self, status, text, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        if self.path == "/health":
            return self.send(503 if options.mode == "never-healthy" else 200, b"", "text/plain")
        self.send(200, json.dumps({
            "version": "0.5.15.post1", "model_path": options.model, "enable_deterministic_inference": False, "stream_interval": 1,
            "incremental_streaming_output": options.incremental, "speculative_algorithm": "EAGLE3" if options.chain else None,
            "speculative_accept_threshold_single": 1.0, "speculative_accept_threshold_acc": 1.0, "dtype": "bfloat16",
            "attention_backend": "triton", "internal_states": [{"effective_max_running_requests_per_dp": options.slots}],
            "seen": state}).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/flush_cache":
            return self.send(200, b"Cache flushed.\n", "text/plain")
        if self.path == "/tokenize":
            text = "".join(f"<{m['role']}>{m['content']}" for m in body["messages"]) + "<assistant>"
            tokens = [ord(c) % VOCAB for c in text]
            return self.send(200, json.dumps({"tokens": tokens[:-1] if options.mode == "other-template" else tokens,
                                              "count": len(tokens), "max_model_len": 8192}).encode())
        with lock:
            state["posts"] += 1
            number = state["posts"]
        if body.get("stream"):
            return self.stream(body)
        prompts = body["input_ids"]
        with lock:
            state["now"] += len(prompts)
            state["most"] = max(state["most"], state["now"])
        time.sleep(options.delay)
        with lock:
            state["now"] -= len(prompts)
        if options.mode == "die-midway" and number > 1:
            print("Scheduler hit an exception: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", flush=True)
            os._exit(3)
        if options.mode == "flaky" and number % 2:
            return self.send(503, b'{"detail":"busy"}')
        if options.mode == "always-500":
            return self.send(500, b"Internal Server Error", "text/plain")
        if any(13 in prompt for prompt in prompts):
            return self.send(400, b'{"error":{"message":"The input (9000 tokens) is longer than the model\'s context length."}}')
        answers = [reply(*row, options.chain) for row in zip(body["rid"], prompts, body["sampling_params"])]
        text = json.dumps(spoil(options.mode, answers)).encode()
        if options.mode == "half" and number == 1:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text[:len(text) // 2])
            return self.connection.close()
        self.send(200, text)

    def stream(self, body):
        whole = reply(body["rid"], body["input_ids"], body["sampling_params"], options.chain)
        ids, ends = whole["output_ids"], [1]
        for accepted in passes(body["input_ids"], len(ids) - 1, options.chain):
            ends.append(min(len(ids), ends[-1] + accepted + 1))
        if options.mode == "merged" and len(ends) > 3:
            del ends[1]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        start = 0
        for end in ends:
            meta = whole["meta_info"] if end == len(ids) else {"id": body["rid"], "finish_reason": None, "completion_tokens": end}
            event = {**whole, "output_ids": ids[start if options.incremental else 0:end], "meta_info": meta}
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            start = end
        if options.mode != "half":
            self.wfile.write(b"data: [DONE]\n\n")


class Server(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--mode", default="right")
    parser.add_argument("--chain", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--model", default="model")
    parser.add_argument("--incremental", action="store_true")
    parser.add_argument("--pids", help="file that gets the ids of this server's processes")
    options = parser.parse_args()
    state, lock = {"posts": 0, "now": 0, "most": 0}, threading.Lock()
    idle = "import time; time.sleep(600)"
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    if options.pids:
        # a scheduler in the server's group, and one that has left the group and lost its parent
        near = subprocess.Popen([sys.executable, "-S", "-c", stubborn if options.mode == "ignores-term" else idle])
        far = subprocess.run([sys.executable, "-S", "-c", "import subprocess as s, sys; print(s.Popen([sys.executable, '-S', '-c', "
                              f"{idle!r}], start_new_session=True, stdout=s.DEVNULL, stderr=s.DEVNULL).pid)"],
                             capture_output=True, text=True)
        with open(options.pids, "a") as file:
            file.write(f"{os.getpid()} {near.pid} {far.stdout}")
    if options.mode == "ignores-term":
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.mode == "die-at-start":
        sys.exit("ModuleNotFoundError: No module named 'tvm_ffi'")
    if options.mode == "unknown-flag":
        sys.exit("launch_server.py: error: unrecognized arguments: --attention-backed triton")
    if options.mode == "oom":
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139.72 GiB")
    if options.mode == "taken-once" and len(open(options.pids).readlines()) == 1:
        sys.exit(f"[Errno 98] error while attempting to bind on address ('127.0.0.1', {options.port}): address already in use")
    if options.mode == "taken":
        sys.exit("[Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use")
    Server(("127.0.0.1", options.port), Handler).serve_forever()
