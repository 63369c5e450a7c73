"""The server's launch line: flags that make a good draft accept nothing, or make a bad one look good."""
import json
import shlex

from stages.contract import rules
from stages.lib.refusal import Refusal

EAGLE3 = ("EAGLE3",)
# Other spellings that SGLang's parser takes for the flags that are read here (server_args.py, 0.5.8.post1 to 0.5.23); --tp is
# argparse's own short form of --tp-size.
ALIASES = {"model": "model-path", "tensor-parallel-size": "tp-size", "tp": "tp-size",
           "speculative-draft-model": "speculative-draft-model-path",
           "speculative-dflash-draft-window-size": "speculative-draft-window-size"}


def parse(line):
    """{flag without dashes: value} of a launch line (`python -m sglang.launch_server --a b --c=d --e`); environment variables in front of
    the command are kept by name. Refusal when the quotes do not close, or there is no flag."""
    try:
        words = shlex.split(line.replace("\\\n", " "))
    except ValueError as error:
        raise Refusal(f"the launch line cannot be split into words ({error}); quote it as a shell would read it") from None
    flags, i = {}, 0
    while i < len(words):
        word = words[i]
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not equals and i + 1 < len(words) and not words[i + 1].startswith("--"):
                i += 1
                value = words[i]
            flags[name.replace("_", "-")] = value if (equals or value) else True
        elif "=" in word and word.partition("=")[0].isupper():
            name, _, flags[name] = word.partition("=")
        i += 1
    if all(name.isupper() for name in flags):
        raise Refusal(f"the launch line {line!r:.80} holds no flag; expected the server's, such as python -m sglang.launch_server "
                      "--speculative-algorithm EAGLE3 --speculative-draft-model-path DRAFT ...")
    return {ALIASES.get(name, name): value for name, value in flags.items()}


def of_server(info):
    """(version, {flag: value}) of what a running server says of itself (GET /server_info). Its environment cannot be asked for."""
    flags = {name.replace("_", "-"): value for name, value in info.items() if value is not None and not isinstance(value, (dict, list))}
    return str(info.get("version")), {name: str(value) if not isinstance(value, bool) else value for name, value in flags.items()
                                      if value is not False}


def faults(folder, read, target, engine):
    """(code, evidence) of the launch flags; none when no launch line is known."""
    flags = engine.flags
    if not flags:
        return
    algorithm = flags.get("speculative-algorithm")
    if str(algorithm).upper() not in EAGLE3:
        yield "EY-FLAG-01", f"--speculative-algorithm is {algorithm or 'absent'}"
    if not flags.get("speculative-draft-model-path"):
        yield "EY-FLAG-02", "--speculative-draft-model-path is absent"
    quantized, own = flags.get("quantization"), flags.get("speculative-draft-model-quantization")
    if quantized and quantized != "unquant" and own is None and not folder.config.get("quantization_config"):
        yield "EY-FLAG-03", f"--quantization {quantized} and no --speculative-draft-model-quantization"
    if override := flags.get("json-model-override-args"):
        try:
            keys = sorted(set(json.loads(override)) & set(folder.config))
        except (ValueError, TypeError, RecursionError):
            keys = ["(not JSON)"]
        if keys:
            yield "EY-FLAG-04", f"it sets {', '.join(keys)}"
    steps, topk, tokens = (number(flags.get(f"speculative-{name}")) for name in ("num-steps", "eagle-topk", "num-draft-tokens"))
    if steps and tokens and topk == 1 and tokens != steps + 1:
        yield "EY-FLAG-05", f"{steps} steps, {tokens} draft tokens"
    window, trained = served_window(flags), trained_window(folder, folder.config)
    if window != trained:
        yield "EY-FLAG-06", f"served {windowed(window)}, trained {windowed(trained)}"
    if flags.get("SGLANG_SIMULATE_ACC_LEN") not in (None, "", "-1", "0"):
        yield "EY-FLAG-07", f"SGLANG_SIMULATE_ACC_LEN={flags['SGLANG_SIMULATE_ACC_LEN']}"
    for name in ("speculative-accept-threshold-single", "speculative-accept-threshold-acc"):
        if name in flags and str(flags[name]) not in ("1", "1.0"):
            yield "EY-FLAG-08", f"--{name} {flags[name]}"
    tp = number(flags.get("tp-size")) or 1
    if tp > 1:
        if read.num_attention_heads % tp:
            yield "EY-FLAG-10", f"{read.num_attention_heads} heads, tp {tp}"
        fused = not flags.get("enforce-disable-flashinfer-allreduce-fusion")
        if fused and rules.partial_sums(engine.version, target.architecture):
            yield "EY-FLAG-09", f"{target.architecture} in SGLang {engine.version} with tp {tp}"
    if flags.get("speculative-token-map"):
        yield "EY-FLAG-11", f"--speculative-token-map {flags['speculative-token-map']}"


def served_window(flags):
    """The draft's attention window in tokens, or None: the draft class reads the flag alone (models/llama_eagle3.py, from 0.5.12 on)."""
    return number(flags.get("speculative-draft-window-size")) or None


def trained_window(folder, config):
    """The window of the training: of the record, else of the config, whose keys the server does not read."""
    if folder.training and "sliding_window" in folder.training:
        return folder.training["sliding_window"] or None
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    return window if type(window) is int and window > 0 else None


def windowed(window):
    return f"with a sliding window of {window}" if window else "without a window"


def number(text):
    """The whole number of a flag, or None."""
    try:
        return int(text)
    except (TypeError, ValueError):
        return None
