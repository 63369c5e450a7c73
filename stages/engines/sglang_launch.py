"""The launch line of an SGLang server, and whether a server that runs is the one that this line would start."""
import json
import math
import os
import sys

from stages.lib.refusal import Refusal

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
# not for a profile to set: each has a param of its own, or a name that is read here
OURS = ("model-path", "model", "host", "port", "dtype", "base-gpu-id", "random-seed", "tp", "tensor-parallel-size", "speculative-algorithm",
        "speculative-draft-model-path", "speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens")
# Flags that change speed alone, or that a running server has already used up; an attached server may have other ones.
FREE = ("mem-fraction-static", "max-running-requests", "max-total-tokens", "max-prefill-tokens", "random-seed", "log-level",
        "enable-metrics", "decode-log-interval", "skip-server-warmup", "watchdog-timeout", "schedule-conservativeness")


def speculation(draft, steps):
    """Flags of a chain of `steps` drafts by the EAGLE-3 draft in the folder `draft`."""
    return {"speculative-algorithm": "EAGLE3", "speculative-draft-model-path": str(draft), "speculative-num-steps": steps,
            "speculative-eagle-topk": 1, "speculative-num-draft-tokens": steps + 1}


def of_profile(flags):
    """The profile's flags, {name without dashes: value}. Refusal where they hold what Eyrie sets."""
    if taken := sorted(set(flags) & set(OURS)):
        raise Refusal(f"engine.flags sets {', '.join(taken)}, which Eyrie sets from its own params (GPUs per server: tp-size); take it out")
    return dict(flags)


def words(flags):
    """The flags as words of a command line: True alone, False and None left out, a list as several words, a mapping as JSON."""
    for name, value in flags.items():
        if value is True:
            yield f"--{name}"
        elif isinstance(value, (list, tuple)):
            yield from (f"--{name}", *map(str, value))
        elif value is not None and value is not False:
            yield from (f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value))


def command(model, dtype, flags, port):
    """The launch line of a server of the model folder."""
    return [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--dtype", dtype, "--host", "127.0.0.1",
            "--port", str(port), *words(flags)]


def places(servers, tp, devices):
    """CUDA_VISIBLE_DEVICES per server: `tp` GPUs each, in turn, so that more servers than places share a GPU. None without a GPU."""
    if not devices:
        return [None] * servers
    if tp > len(devices):
        raise Refusal(f"a server needs {tp} GPUs (tp-size) and {len(devices)} can be seen; lower tp-size or look at CUDA_VISIBLE_DEVICES")
    groups = [devices[i:i + tp] for i in range(0, len(devices) - tp + 1, tp)]
    return [",".join(groups[i % len(groups)]) for i in range(servers)]


def visible(count):
    """Names of the GPUs that this process may use: CUDA_VISIBLE_DEVICES where set (numbers or UUIDs), else all `count`."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return list(map(str, range(count))) if given is None else [name for name in given.split(",") if name.strip()][:count]


def environment(chosen, gpus):
    """The server's environment: this one's, offline, with `chosen` variables. Refusal where acceptance would be simulated."""
    full = {**os.environ, **OFFLINE, **{name: str(value) for name, value in chosen.items()}}
    if fake := sorted(name for name in full if name.startswith("SGLANG_SIMULATE_ACC") and full[name] not in ("", "-1")):
        raise Refusal(f"{fake[0]} is set to {full[fake[0]]}, which makes SGLang invent its acceptance; unset it")
    return full if gpus is None else {**full, "CUDA_VISIBLE_DEVICES": gpus}


def same(server, version, model, flags):
    """Refusal where /server_info of a server disagrees with the version, the model's folder, the flags, or on speculation."""
    if wrong := differences(server.http.call("/server_info", seconds=60.0), version, model, flags):
        raise Refusal(f"the server at {server.url} is not what the params ask for: {'; '.join(wrong)}")


def differences(info, version, model, flags):
    """What disagrees, each as `key: there X, wanted Y`; none for the server that is wanted."""
    wanted = {"speculative-algorithm": None, "version": version, "speculative-accept-threshold-single": 1.0,
              "speculative-accept-threshold-acc": 1.0, **flags}
    found = []
    for name, value in sorted({**wanted, "model-path": str(model)}.items()):
        there = info.get(name.replace("-", "_"), "unknown")
        if name not in FREE and "cuda-graph" not in name and not equal(there, value):
            found.append(f"{name}: there {there!r}, wanted {value!r}")
    return found


def equal(there, wanted):
    """Equal as a launch line would have it: '1' is 1, a path is what it points at, absent is False is None."""
    if there in (None, False) or wanted in (None, False):
        return (there or None) == (wanted or None)
    try:
        return math.isclose(float(there), float(wanted))
    except (TypeError, ValueError):
        pass
    if isinstance(there, (dict, list)) or isinstance(wanted, (dict, list, tuple)):
        return json.dumps(there, sort_keys=True) in (wanted, json.dumps(wanted, sort_keys=True))
    same_place = os.path.exists(str(there)) and os.path.exists(str(wanted)) and os.path.samefile(str(there), str(wanted))
    return str(there) == str(wanted) or same_place
