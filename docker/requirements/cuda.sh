#!/usr/bin/env bash
# Makes a CUDA toolkit of the compiler and libraries that came as wheels: bash docker/requirements/cuda.sh /opt/venv /opt/cuda
# FlashInfer, DeepGEMM and TVM compile with $CUDA_HOME/bin/nvcc and link with -L$CUDA_HOME/lib64 -L$CUDA_HOME/lib64/stubs -lcudart -lcuda.
set -euo pipefail
venv=$1 cuda=$2
ln -s "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/cu13" "$cuda"

# 1. the folder by its usual name
ln -s lib "$cuda/lib64"
# 2. libraries by the names that a linker looks for; wheels have only those with a version
for library in cudart nvrtc cublas cublasLt curand; do
  versioned=("$cuda/lib/lib$library".so.*)
  [ -e "${versioned[0]}" ]
  ln -s "$(basename "${versioned[0]}")" "$cuda/lib/lib$library.so"
done
# 3. the driver's library, which no image has, as an empty one to link against. In stubs/ alone: at run time the container toolkit puts the
# driver's own in place, and an empty one found before it would break every kernel.
mkdir "$cuda/lib/stubs"
gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$cuda/lib/stubs/libcuda.so" -x c /dev/null
