"""Compile a Triton kernel for GPUs that are not here: python triton_kernel.py 100 103 120. Prints the bytes of each machine code."""
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget


@triton.jit
def doubled(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n).to(tl.float32) * 2, at < n)


for capability in map(int, sys.argv[1:]):
    source = triton.compiler.ASTSource(doubled, {"x": "*bf16", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {(3,): 128})
    print(capability, len(triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["cubin"]))
