"""Import this before torch: OpenMP threads that wait must sleep.

By default they spin, and on a machine that does anything else two spinning threads were about eight times slower than
one. libgomp reads these variables once, when torch loads it, so a later setting has no effect.
"""
import ctypes
import importlib.util
import os
import sys

if importlib.util.find_spec("torch") is None:  # DVC runs the first `python` on the path, which may be another environment's
    sys.exit(f"refused: {sys.executable} has no torch; use make repro, or first: . .venv/bin/activate (make env builds it)")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def release():
    """Give freed memory back to the system (glibc only). Batches of ever other shapes leave holes that it would keep:
    half a gigabyte per process after a few batches of answers."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
