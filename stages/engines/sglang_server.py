"""The life of an SGLang server: its start, health and end; or one that already runs.

A server that is started here cannot outlive its stage: stages/engines/keeper.py ends it however the stage ends.
"""
import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from stages.engines import capability, sglang_launch as launch
from stages.engines.http_json import Broken, Http, Refused
from stages.engines.sglang_log import PORT_TAKEN, tail, why
from stages.lib import files, params, state
from stages.lib.refusal import Refusal

KEEPER = Path(__file__).with_name("keeper.py")
PORTS = 3  # tries: between the choice of a free port and the server's bind another process may take it
PATIENCE = 60.0  # seconds without an answer after which a server counts as lost


def free_port():
    """A port that is free now. Below 50,000: the server takes port + 10,000 for gRPC (server_args.py:3003)."""
    for port in random.sample(range(20_000, 50_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise Refusal("none of 100 ports between 20,000 and 50,000 is free; is something listening on all of them?")


class Running:
    """A server that somebody else started, by its URL; it is never stopped."""

    def __init__(self, url):
        if not re.fullmatch(r"http://[^/\s]+:\d+", url):
            raise Refusal(f"EYRIE_SGLANG_URL holds {url!r}; expected http://HOST:PORT, several separated by commas")
        self.url, self.http = url, Http(url)

    def healthy(self, seconds=30.0):
        """/health makes the server generate one token: an answer means that the whole of it works."""
        try:
            self.http.call("/health", seconds=seconds)
            return True
        except (Broken, Refused):
            return False

    def check(self):
        """For callers whose request has failed: returns when the server is well, Refusal if it has ended or does not recover. A server
        that falls takes seconds to end, and the requests after it must not count as bad prompts."""
        deadline = time.monotonic() + PATIENCE
        while not self.ended():
            if self.healthy():
                return
            if time.monotonic() > deadline:
                raise self.fallen(f"has not answered for {PATIENCE:.0f} s")
            time.sleep(0.1)
        raise self.fallen("ended while it was needed")

    def ended(self):
        return False

    def fallen(self, what):
        return Refusal(f"the SGLang server at {self.url} {what}; start it again or unset EYRIE_SGLANG_URL")


class Server(Running):
    """A server of our own: `with Server(...) as server` starts it, waits until it is healthy, and ends it.

    line: port -> the command. seconds: how long the start may take. grace: between SIGTERM and SIGKILL; SGLang spends 5 s on
    diagnostics. Entering raises a Refusal with the cause and the end of the log.
    """

    def __init__(self, name, line, env, seconds=900.0, grace=10.0):
        self.name, self.line, self.env, self.seconds, self.grace = name, line, env, seconds, grace
        self.log = state.piece("sglang", f"{name}.log")
        self.keeper = None

    def launch(self):
        """Start it without waiting, so that several servers start side by side."""
        port = free_port()
        super().__init__(f"http://127.0.0.1:{port}")
        owner = [sys.executable, "-S", "-E", str(KEEPER), str(os.getpid()), str(self.grace)]
        with open(self.log, "wb") as log:
            # a session of its own: a terminal's ^C reaches the stage, which then ends the server in order
            self.keeper = subprocess.Popen([*owner, *self.line(port)], stdin=subprocess.PIPE, stdout=log, stderr=log,
                                           env=self.env, start_new_session=True)
        return self

    def wait(self):
        """Until /health says yes. Refusal when the process ends before, or after `seconds`."""
        deadline = time.monotonic() + self.seconds
        for left in reversed(range(PORTS)):
            while not self.ended():
                if self.healthy(min(30.0, max(1.0, deadline - time.monotonic()))):
                    return self
                if time.monotonic() > deadline:
                    raise self.fallen(f"was not healthy after {self.seconds:.0f} s (a first start compiles kernels)")
                time.sleep(0.1)
            if not left or not why(self.log)[0].startswith(PORT_TAKEN):
                raise self.fallen("ended before it was healthy")
            self.stop()
            self.launch()

    def fallen(self, what):
        cause, remedy = why(self.log)
        return Refusal(f"the SGLang server {self.name} {what}: {cause}; {remedy}. The end of {self.log}:\n{tail(self.log)}")

    def ended(self):
        """Has the keeper ended? It is left unreaped, so that its process group cannot become another's."""
        return os.waitid(os.P_PID, self.keeper.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def stop(self):
        """End the server and whatever it has started; returns when all of it is gone. Again: nothing."""
        if self.keeper is None:
            return
        self.keeper.stdin.close()
        deadline = time.monotonic() + self.grace + 5
        while not self.ended() and time.monotonic() < deadline:
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.keeper.pid, signal.SIGKILL)  # had the keeper itself been killed
        self.keeper.wait()
        self.keeper = None

    def __enter__(self):
        try:
            return self.launch().wait()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_):
        self.stop()


def wanted(model, engine, draft_flags, seed, capabilities):
    """(flags, environment) of a server of the folder `model` on such GPUs: what they need, under the profile's, under the draft's."""
    given = launch.of_profile(params.plain(engine.flags))
    tp, topk = int(given.get("tp-size", 1)), int(draft_flags.get("speculative-eagle-topk") or 1)
    kind = capability.attention(files.read_json(Path(model) / "config.json"))
    needed, variables = capability.needs(capabilities[0], tp, topk, kind) if capabilities else ({}, {})
    return {"random-seed": seed, **needed, **given, **draft_flags}, variables


@contextlib.contextmanager
def serve(name, model, engine, draft_flags=None, seconds=900.0, seed=0, variables=None):
    """Healthy servers of the model folder for the length of the block, each checked to be what is asked for.

    engine: the params section (version, dtype, flags, servers). draft_flags: of `speculation`, or None for none. seed: where the
    server's own generator starts. Attached ones where EYRIE_SGLANG_URL names them: a variable, since where a server runs belongs to
    the machine and not to the experiment, and what could change a result is compared below.
    """
    extra = draft_flags or {}
    if urls := os.environ.get("EYRIE_SGLANG_URL"):
        running = [Running(url.strip().rstrip("/")) for url in urls.split(",")]
        for server in running:
            server.check()
            launch.same(server, engine.version, model, {"dtype": engine.dtype, **launch.of_profile(params.plain(engine.flags)), **extra})
        yield running
        return
    if not (Path(model) / "config.json").is_file():
        raise Refusal(f"{model} holds no config.json; a server needs the model's folder")
    capabilities = capability.of_devices()
    flags, more = wanted(model, engine, extra, seed, capabilities)
    tp = int(flags.get("tp-size", 1))
    with contextlib.ExitStack() as stack:
        servers, taken = [], set()
        for i, gpus in enumerate(launch.places(engine.servers, tp, launch.visible(len(capabilities)))):
            if gpus in taken and "max-total-tokens" not in flags:
                # A server sizes its pool as a share of what is free when it starts (model_runner_kv_cache_mixin.py:115): of two that
                # start together on one GPU the second finds nothing left. With max-total-tokens the pool's size is given.
                for server in servers:
                    server.wait()
            taken.add(gpus)
            servers.append(Server(f"{name}-{i}", lambda port: launch.command(model, engine.dtype, flags, port),
                                  launch.environment({**more, **(variables or {})}, gpus), seconds))
            stack.callback(servers[-1].stop)
            servers[-1].launch()
        for server in servers:
            server.wait()
            launch.same(server, engine.version, model, extra)
        yield servers
