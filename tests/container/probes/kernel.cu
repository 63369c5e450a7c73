// What a kernel that is compiled at run time takes from the toolkit: its type headers, libcu++ (nv/target), CUB.
#include <cub/block/block_reduce.cuh>
#include <cuda/std/atomic>
#include <cuda_bf16.h>

__global__ void total(const __nv_bfloat16 *values, float *sum) {
  using Reduce = cub::BlockReduce<float, 128>;
  __shared__ Reduce::TempStorage storage;
  float found = Reduce(storage).Sum(__bfloat162float(values[threadIdx.x]));
  if (threadIdx.x == 0) *sum = found;
}
