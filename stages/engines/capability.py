"""What each GPU generation needs of SGLang 0.5.15.post1 to start and to be right: flags and environment, a line each with its reason."""
import functools
import json
import subprocess
import sys
from typing import NamedTuple

from stages.lib.refusal import Refusal

HOPPER, BLACKWELL, CONSUMER = ((9, 0),), ((10, 0), (10, 3)), ((12, 0), (12, 1))


class Line(NamedTuple):
    capabilities: tuple
    name: str  # a flag without dashes, or an environment variable
    value: object
    reason: str
    source: str
    when: str = "always"  # or: "tp" (more than one GPU per server), "tree" (eagle topk over 1), "mha" and "other" (the target's attention)


# One GPU of Hopper needs nothing: fa3, its own choice, is right for chains. Nothing of sm_100 and later was run: no such card was at hand.
# A flag of the profile wins over a line: false takes one away, for cards of sm_12x with a switch that peer access works over, say.
TABLE = (
    Line(HOPPER + BLACKWELL, "enforce-disable-flashinfer-allreduce-fusion", True,
         "it turns itself on for some classes, and GptOss, Glm4Moe and Glm4MoeLite then capture one rank's part of the sum",
         "sglang#28343; glm4_moe.py, gpt_oss.py of 0.5.15.post1", "tp"),
    Line(BLACKWELL, "attention-backend", "flashinfer", "trtllm_mha, the default for chains, takes no tree of drafts",
         "server_args.py of 0.5.15.post1", "tree"),
    Line(CONSUMER, "attention-backend", "flashinfer", "fa3, trtllm_mha and trtllm_mla do not exist on sm_12x",
         "sglang#9140, #24633", "mha"),
    Line(CONSUMER, "attention-backend", "triton", "nor for latent attention; and FlashInfer takes no attention sinks",
         "sglang#9140, #24633, the default in server_args.py of 0.5.15.post1", "other"),
    Line(CONSUMER, "kv-cache-dtype", "bf16", "auto may choose an FP8 cache, which gives random output under CUDA graphs",
         "vllm#41651, sglang#39807"),
    Line(CONSUMER, "SGLANG_ENABLE_JIT_DEEPGEMM", "0", "DeepGEMM has no sm_12x kernels, and 12.1 is not excluded",
         "DeepGEMM#236, sglang#36551"),
    Line(CONSUMER, "disable-custom-all-reduce", True, "it dies or spins on PCIe cards", "sglang#4814", "tp"),
    Line(CONSUMER, "NCCL_P2P_DISABLE", "1", "peer access over PCIe hangs", "NVIDIA/nccl#1999", "tp"),
)

# in a process of its own: a CUDA context in the stage would hold half a gigabyte of the card beside the server
PROBE = "import json, torch; c = torch.cuda; print(json.dumps([c.get_device_capability(i) for i in range(c.device_count())]))"


@functools.cache
def of_devices():
    """Compute capabilities [(major, minor)] of the visible GPUs; () without one. Refusal where torch cannot say."""
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True)
    if done.returncode:
        raise Refusal(f"the GPUs cannot be read by {sys.executable}: {done.stderr.strip().splitlines()[-1:] or 'no message'}; "
                      "check the driver (nvidia-smi) and that torch is the CUDA build")
    return tuple(map(tuple, json.loads(done.stdout.splitlines()[-1])))


def attention(config):
    """"mha", or "other" for latent attention and attention sinks, of a target's config.json as a dict."""
    text = config.get("text_config") or config
    sinks = any("GptOss" in name for name in config.get("architectures") or [])
    return "other" if sinks or text.get("kv_lora_rank") else "mha"


def lines(capability, tp, topk, kind):
    """The lines that hold for a server over `tp` GPUs of this capability, for a target with this kind of `attention`."""
    holds = {"always": True, "tp": tp > 1, "tree": topk > 1, kind: True}
    return [line for line in TABLE if capability in line.capabilities and holds.get(line.when)]


def needs(capability, tp=1, topk=1, kind="mha"):
    """(flags, environment) of these lines; the profile's own are put over them."""
    chosen = lines(capability, tp, topk, kind)
    return ({line.name: line.value for line in chosen if not line.name.isupper()},
            {line.name: line.value for line in chosen if line.name.isupper()})
