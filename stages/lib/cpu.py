"""Import this before torch: two settings of the C library without which a CPU run is several times slower.

OpenMP threads that wait must sleep. By default they spin, and on a machine that does anything else two spinning threads
were about eight times slower than one. libgomp reads these variables once, when torch loads it.

Freed tensors stay with the process. glibc otherwise maps each large tensor anew and the kernel zeroes its pages: a
quarter of a training step.
"""
import ctypes
import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # <malloc.h>
if hasattr(ctypes.CDLL(None), "mallopt"):
    ctypes.CDLL(None).mallopt(M_MMAP_MAX, 0)
    ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
