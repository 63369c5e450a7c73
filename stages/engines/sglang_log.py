"""What the log of an SGLang server says about its end."""
import os
import re

PORT_TAKEN = "its port is taken"

# what the end of a log means, most telling first: pattern, cause, remedy
CAUSES = (
    (r"address already in use|[Pp]ort \S* ?is already in use", PORT_TAKEN, "start it again, or stop what listens there"),
    (r"CUDA out of memory|OutOfMemoryError", "CUDA out of memory",
     "free the GPU (nvidia-smi shows who holds it), or lower mem-fraction-static or max-running-requests in engine.flags"),
    (r"Not enough memory", "no room for the KV cache", "raise mem-fraction-static in engine.flags, or free the GPU"),
    (r"unrecognized arguments: [^\n]*|invalid choice: [^\n]*|expected (one|at least one) argument", "SGLang does not know a flag as given",
     "correct engine.flags for the installed version (python -m sglang.launch_server --help)"),
    (r"does not appear to have a file named|is not a local folder|LocalEntryNotFoundError|No such file or directory: [^\n]*",
     "a model file is missing", "check the model folder and the draft's"),
    (r"No module named '[^']*'", "a package is missing", "install the locked GPU environment"),
    (r"No CUDA GPUs are available|Found no NVIDIA driver|no kernel image is available", "no usable GPU",
     "check nvidia-smi and CUDA_VISIBLE_DEVICES"),
)


def tail(log, lines=15):
    """The last lines, each cut at 240 characters: SGLang prints all of its arguments as one line of 12,000."""
    text = read_end(log).splitlines()[-lines:]
    return "\n".join(f"  {line[:240]}" for line in text)


def why(log):
    """(cause, remedy) from the end of a log."""
    text = read_end(log)
    for pattern, cause, remedy in CAUSES:
        if match := re.search(pattern, text):
            return f"{cause} ({match[0].strip()[:160]})", remedy
    return "for no cause that Eyrie knows", "read the log"


def read_end(log, size=1 << 17):
    with open(log, "rb") as file:
        file.seek(max(0, os.path.getsize(log) - size))
        return file.read().decode("utf-8", "replace")
