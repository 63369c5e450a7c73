"""Build one of FlashInfer's modules as the server would when it first needs it, for the GPUs of FLASHINFER_CUDA_ARCH_LIST."""
from flashinfer.jit.norm import gen_norm_module

module = gen_norm_module()
module.build(verbose=False)
print(module.get_library_path(), module.get_library_path().stat().st_size)
