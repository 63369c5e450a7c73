"""The life of a server: started, healthy, ended, whoever dies first. tests/fake_sglang.py is the server, everything else is real."""
from stages.lib import cpu  # noqa: F401  before torch
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from stages.contract import launch as contract
from stages.engines import capability, sglang_launch as launch, sglang_log as log, sglang_server
from stages.engines.sglang_server import Running, Server, serve
from stages.lib.refusal import Refusal

ROOT = Path(__file__).parents[1]
FAKE = ROOT / "tests" / "fake_sglang.py"


def fake(mode="right", seconds=20, grace=2, **options):
    words = [word for name, value in options.items() for word in ([f"--{name}"] if value is True else [f"--{name}", str(value)])]
    return Server("test", lambda port: [sys.executable, "-S", str(FAKE), "--port", str(port), "--mode", mode, *words],
                  launch.environment({}, None), seconds, grace)


def pids(path):
    return [int(word) for word in Path(path).read_text().split()]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone(path, seconds=8, of=slice(None)):
    """Do the server's processes end within `seconds`? of: which of them."""
    deadline = time.monotonic() + seconds
    while any(map(alive, pids(path)[of])) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, pids(path)[of]))


# ---------------------------------------------------------------- start and health

def test_a_server_is_healthy_inside_the_block_and_gone_with_all_its_processes_after_it(in_tmp):
    with fake(pids="pids") as server:
        assert server.http.call("/server_info")["version"] == "0.5.15.post1"
        assert len(pids("pids")) == 3 and all(map(alive, pids("pids")))
    assert not any(map(alive, pids("pids")))
    server.stop()  # again: nothing


@pytest.mark.parametrize("mode, said", [
    ("die-at-start", "a package is missing (No module named 'tvm_ffi')"),
    ("unknown-flag", "SGLang does not know a flag as given (unrecognized arguments: --attention-backed triton)"),
    ("oom", "CUDA out of memory"),
    ("taken", "its port is taken")])
def test_a_server_that_dies_at_its_start_is_refused_at_once_with_the_cause_and_the_end_of_its_log(in_tmp, mode, said):
    start = time.monotonic()
    with pytest.raises(Refusal) as refused, fake(mode, seconds=60, pids="pids"):
        pass
    assert time.monotonic() - start < 10 and said in str(refused.value) and ".eyrie/sglang/test.log" in str(refused.value)
    assert gone("pids", 0)


def test_a_missing_program_is_a_refusal_too(in_tmp):
    with pytest.raises(Refusal, match="ended before it was healthy(.|\n)*no/such/python cannot be started"):
        Server("test", lambda port: ["no/such/python"], launch.environment({}, None)).__enter__()


def test_a_port_that_another_process_takes_in_between_is_tried_again(in_tmp):
    with fake("taken-once", pids="pids") as server:
        server.check()
    assert len(pids("pids")) == 6 and gone("pids", 0)


def test_a_server_that_is_never_healthy_is_refused_at_the_deadline_and_ended(in_tmp):
    with pytest.raises(Refusal, match="was not healthy after 1 s"), fake("never-healthy", seconds=1, pids="pids"):
        pass
    assert gone("pids", 0)


# ---------------------------------------------------------------- no server is leaked

def test_a_server_that_ignores_sigterm_is_killed_after_the_grace(in_tmp):
    with fake("ignores-term", grace=0.5, pids="pids"):
        start = time.monotonic()
    assert 0.4 < time.monotonic() - start < 4 and gone("pids", 0)


def test_an_exception_in_the_block_ends_the_server(in_tmp):
    with pytest.raises(KeyError), fake(pids="pids"):
        raise KeyError
    assert gone("pids", 0)


def test_when_the_keeper_is_killed_the_server_goes_with_it_and_stop_ends_the_rest(in_tmp):
    with fake(pids="pids") as server:
        os.kill(server.keeper.pid, signal.SIGKILL)
        while not server.ended():
            time.sleep(0.01)
        with pytest.raises(Refusal, match="ended while it was needed"):
            server.check()
    assert gone("pids", 2, of=slice(2))
    os.kill(pids("pids")[2], signal.SIGKILL)  # it had left the group: the price of killing the keeper by hand


STAGE = """
    import signal, sys, time
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a shell's nohup hands on that it is ignored,
    signal.signal(signal.SIGINT, signal.default_int_handler)  # its & that this one is
    sys.path.insert(0, {root!r})
    from tests.test_sglang_server import fake
    from stages.lib.refusal import run
    def main():
        with fake(pids="pids") as server:
            {inside}
            print("up", flush=True)
            time.sleep(60)
    run(main)
"""
THREAD = "import threading; t = threading.Thread(target=lambda: None); t.start(); t.join()"


def stage(inside="pass"):
    """A stage in a process of its own, with a healthy server."""
    code = textwrap.dedent(STAGE).format(root=str(ROOT), inside=inside)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
    assert process.stdout.readline() == "up\n", process.stderr.read()
    assert all(map(alive, pids("pids")))
    return process


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_no_server_outlives_its_stage_however_that_is_ended(in_tmp, signum):
    process = stage()
    process.send_signal(signum)
    assert process.wait(10) != 0
    process.communicate()
    assert gone("pids")


def test_ctrl_c_in_the_terminal_reaches_the_whole_group_and_the_server_still_ends_in_order(in_tmp):
    process = stage()
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=10)
    assert gone("pids", 0)  # ended by the stage before it ended itself


def test_no_server_outlives_a_stage_whose_forked_child_holds_all_its_pipes(in_tmp):
    process = stage("import os; child = os.fork(); child or (time.sleep(30), os._exit(0))")
    process.kill()
    process.wait()
    try:
        assert gone("pids")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_server_lives_on_when_the_thread_that_started_it_ends(in_tmp):
    import threading
    server = fake(pids="pids")
    starter = threading.Thread(target=server.__enter__)
    starter.start()
    starter.join()
    time.sleep(0.5)
    assert server.healthy()
    server.stop()
    assert gone("pids", 0)


# ---------------------------------------------------------------- the launch line

def test_the_launch_line_reads_back_as_the_flags_it_was_made_of():
    flags = {"attention-backend": "triton", "disable-prefill-cuda-graph": True, "enable-metrics": False, "mem-fraction-static": 0.4,
             **launch.speculation("d", 3)}
    line = launch.command("m", "bfloat16", flags, 31000)
    assert "--enable-metrics" not in line
    assert contract.parse(" ".join(line)) == {
        "model-path": "m", "dtype": "bfloat16", "host": "127.0.0.1", "port": "31000", "attention-backend": "triton",
        "disable-prefill-cuda-graph": True, "mem-fraction-static": "0.4", "speculative-algorithm": "EAGLE3",
        "speculative-draft-model-path": "d", "speculative-num-steps": "3", "speculative-eagle-topk": "1",
        "speculative-num-draft-tokens": "4"}
    assert list(launch.words({"a": [1, 2], "b": {"x": 1}})) == ["--a", "1", "2", "--b", '{"x": 1}']


@pytest.mark.parametrize("name", ["port", "model-path", "random-seed", "tp", "speculative-num-steps"])
def test_a_profile_cannot_set_what_the_stage_sets(name):
    with pytest.raises(Refusal, match=name):
        launch.of_profile({name: 1})


def test_servers_get_their_own_gpus_and_share_them_when_there_are_more_servers_than_places():
    assert launch.places(2, 2, ["0", "1", "2", "3"]) == ["0,1", "2,3"]
    assert launch.places(3, 1, ["4", "GPU-ab"]) == ["4", "GPU-ab", "4"]
    assert launch.places(2, 1, []) == [None, None]
    with pytest.raises(Refusal, match="needs 4 GPUs"):
        launch.places(1, 4, ["0"])


def test_gpus_that_the_stage_may_not_see_are_not_given_to_a_server(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert launch.visible(2) == ["5", "7"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert launch.visible(0) == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert launch.visible(2) == ["0", "1"]


def test_the_server_is_offline_and_never_simulates_its_acceptance(monkeypatch):
    environment = launch.environment({"NCCL_P2P_DISABLE": 1}, "3")
    assert (environment["HF_HUB_OFFLINE"], environment["NCCL_P2P_DISABLE"], environment["CUDA_VISIBLE_DEVICES"]) == ("1", "1", "3")
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "3.5")
    with pytest.raises(Refusal, match="SGLANG_SIMULATE_ACC_LEN is set to 3.5"):
        launch.environment({}, None)


def test_each_gpu_generation_gets_what_it_needs_and_one_hopper_nothing():
    unfused = {"enforce-disable-flashinfer-allreduce-fusion": True}
    assert capability.needs((9, 0), topk=4) == ({}, {}) and capability.needs((9, 0), tp=8) == (unfused, {})
    assert capability.needs((10, 3)) == ({}, {}) and capability.needs((10, 3), tp=2) == (unfused, {})
    assert capability.needs((10, 0), topk=4) == ({"attention-backend": "flashinfer"}, {})
    flags, variables = capability.needs((12, 0))
    assert flags == {"attention-backend": "flashinfer", "kv-cache-dtype": "bf16"} and variables == {"SGLANG_ENABLE_JIT_DEEPGEMM": "0"}
    flags, variables = capability.needs((12, 1), tp=2)
    assert flags["disable-custom-all-reduce"] is True and variables["NCCL_P2P_DISABLE"] == "1"
    assert all(line.reason and line.source for line in capability.TABLE)


def test_cards_of_sm_12x_get_triton_for_latent_attention_and_sinks():
    for config in ({"architectures": ["GptOssForCausalLM"]}, {"kv_lora_rank": 512}, {"text_config": {"kv_lora_rank": 512}}):
        assert capability.needs((12, 0), kind=capability.attention(config))[0]["attention-backend"] == "triton"
    for config in ({"architectures": ["LlamaForCausalLM"]}, {"kv_lora_rank": None}):
        assert capability.needs((12, 0), kind=capability.attention(config))[0]["attention-backend"] == "flashinfer"


def test_the_profile_takes_a_line_of_the_table_away(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    own = engine(**{"tp-size": 2, "enforce-disable-flashinfer-allreduce-fusion": False})
    flags, _ = sglang_server.wanted(tmp_path, own, {}, 0, ((9, 0), (9, 0)))
    assert "--enforce-disable-flashinfer-allreduce-fusion" not in launch.words(flags)


def test_the_devices_are_read_without_torch_in_the_stage():
    code = ("import sys; from stages.engines import capability; capability.of_devices(); "
            "sys.exit('torch' in sys.modules and sys.modules['torch'].cuda.is_initialized())")
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


# ---------------------------------------------------------------- serve: own or attached, and what it is

def engine(**flags):
    return SimpleNamespace(name="sglang", version="0.5.15.post1", dtype="bfloat16", threads=1, servers=2, flags=SimpleNamespace(**flags))


@pytest.fixture
def served(in_tmp, monkeypatch):
    """`serve` with the fake in the place of sglang.launch_server, on a machine of two sm_120 GPUs."""
    model = in_tmp / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    lines = []

    def command(folder, dtype, flags, port):
        lines.append(flags)
        return [sys.executable, "-S", str(FAKE), "--port", str(port), "--model", str(folder), "--pids", "pids"]
    monkeypatch.setattr(launch, "command", command)
    monkeypatch.setattr(capability, "of_devices", lambda: ((12, 0), (12, 0)))
    monkeypatch.setattr(sglang_server.launch, "environment", lambda variables, gpus: {**os.environ, "CUDA_VISIBLE_DEVICES": gpus or ""})
    return SimpleNamespace(model=model, lines=lines)


def test_serve_starts_all_servers_side_by_side_and_the_profile_wins_over_the_table(served):
    with serve("generate", served.model, engine(**{"attention-backend": "triton"}), seed=7) as servers:
        assert len({server.url for server in servers}) == 2 and all(server.healthy() for server in servers)
    assert gone("pids", 0) and len(pids("pids")) == 6
    assert served.lines[0] == {"random-seed": 7, "attention-backend": "triton", "kv-cache-dtype": "bf16"}


def test_servers_that_share_a_gpu_start_one_after_the_other_unless_their_pool_is_given(served, monkeypatch):
    monkeypatch.setattr(capability, "of_devices", lambda: ((9, 0),))
    order = []
    for name in ("launch", "wait"):
        whole = getattr(sglang_server.Server, name)
        monkeypatch.setattr(sglang_server.Server, name, lambda self, whole=whole, name=name: order.append(name) or whole(self))
    with serve("generate", served.model, engine()):
        assert order == ["launch", "wait", "launch", "wait", "wait"]
    order.clear()
    with serve("generate", served.model, engine(**{"max-total-tokens": 1000})):
        assert order == ["launch", "launch", "wait", "wait"]


def test_serve_refuses_a_server_of_another_version_and_ends_it(served):
    other = engine()
    other.version = "0.5.14"
    with pytest.raises(Refusal, match="version: there '0.5.15.post1', wanted '0.5.14'"), serve("generate", served.model, other):
        pass
    assert gone("pids", 0)


def test_serve_refuses_a_server_without_the_draft_that_was_asked_for(served):
    with pytest.raises(Refusal, match="speculative-algorithm: there None, wanted 'EAGLE3'"), \
            serve("evaluate", served.model, engine(), launch.speculation("draft", 5)):
        pass


def test_a_model_folder_that_is_none_is_refused_before_anything_starts(in_tmp):
    with pytest.raises(Refusal, match="no config.json"), serve("generate", in_tmp / "nowhere", engine()):
        pass


def test_a_server_that_already_runs_is_used_and_left_running(served, monkeypatch):
    with fake(model=served.model) as server:
        monkeypatch.setenv("EYRIE_SGLANG_URL", server.url + "/")
        with serve("generate", served.model, engine(**{"attention-backend": "triton", "mem-fraction-static": 0.4})) as servers:
            assert [s.url for s in servers] == [server.url]
        assert server.healthy()
        with pytest.raises(Refusal, match="attention-backend: there 'triton', wanted 'fa3'"), \
                serve("generate", served.model, engine(**{"attention-backend": "fa3"})):
            pass
        with pytest.raises(Refusal, match="model-path"), serve("generate", served.model.parent, engine()):
            pass


def test_an_attached_server_that_does_not_answer_is_refused(monkeypatch):
    monkeypatch.setattr(sglang_server, "PATIENCE", 0.3)
    with pytest.raises(Refusal, match="has not answered"):
        Running(f"http://127.0.0.1:{sglang_server.free_port()}").check()
    with pytest.raises(Refusal, match="expected http://HOST:PORT"):
        Running("localhost")


@pytest.mark.parametrize("there, wanted, same", [
    (None, False, True), (0.4, "0.4", True), (4, 4, True), ("triton", "fa3", False), ("unknown", True, False), (True, True, True),
    ({"a": 1}, '{"a": 1}', True), ("unknown", None, False), (1.0, 0.9, False)])
def test_flags_are_compared_as_a_launch_line_would_have_them(there, wanted, same):
    assert launch.equal(there, wanted) is same


def test_a_line_of_12000_characters_does_not_drown_the_end_of_a_log(in_tmp):
    Path("log").write_text(f"server_args={'x' * 12_000}\nRuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n")
    assert len(log.tail("log")) < 600 and log.why("log")[0].startswith("no room for the KV cache")


def test_the_page_on_gpu_generations_names_every_line_of_the_table():
    page = (ROOT / "docs/blackwell.md").read_text()
    for line in capability.TABLE:
        setting = f"{line.name}={line.value}" if line.name.isupper() else " ".join(launch.words({line.name: line.value}))
        assert f"`{setting}`" in page, f"docs/blackwell.md lacks {setting}"
