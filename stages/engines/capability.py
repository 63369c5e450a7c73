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
    when: str = "always"  # or: "tp" (more than one GPU per server), "tree" (eagle topk over 1)


# Hopper needs nothing: fa3, its own choice, is right for chains.
TABLE = (
    Line(BLACKWELL, "attention-backend", "flashinfer", "trtllm_mha, the default for chains, takes no tree of drafts",
         "server_args.py of 0.5.15.post1", "tree"),
    Line(CONSUMER, "attention-backend", "flashinfer", "fa3, trtllm_mha and trtllm_mla do not exist on sm_12x", "sglang#9140, #24633"),
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


def lines(capability, tp, topk):
    """The lines that hold for a server over `tp` GPUs of this capability."""
    holds = {"always": True, "tp": tp > 1, "tree": topk > 1}
    return [line for line in TABLE if capability in line.capabilities and holds[line.when]]


def needs(capability, tp=1, topk=1):
    """(flags, environment) of these lines; the profile's own are put over them."""
    chosen = lines(capability, tp, topk)
    return ({line.name: line.value for line in chosen if not line.name.isupper()},
            {line.name: line.value for line in chosen if line.name.isupper()})
