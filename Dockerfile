# Two images from one file: `cpu`, the environment of `make env` and nothing else, and `gpu`, SGLang with CUDA's compiler beside the stages.
# The project itself is in neither: it is mounted, so that a change of code needs no build. See docs/container.md.
#
# Written in what BuildKit 20.10 and buildah 1.28 both build: no `# syntax=` line (a builder fetches it from a registry), no here-documents,
# no COPY --link. Package lists are never in a cache mount: apt deletes the lock file that a second stage waits for.

# A base of another name for builds without a registry: any image in the layout of this one (Python 3.12 or 3.11 in /usr/local, Debian 12).
# Not Debian 13: with glibc 2.41 two of the compilers that the GPU side calls at run time fail (sglang#39807).
ARG BASE_IMAGE=docker.io/library/python:3.12-slim-bookworm@sha256:54c85f3c47607a77f32adec749d3c81d1348bf25833671f512b26a9b6d778cb3

FROM ${BASE_IMAGE} AS base
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# git and make: the project's own commands; tini: ends what a stage leaves behind, and passes signals on
RUN apt-get update \
 && apt-get install -y --no-install-recommends git make tini \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*
# Any user may run it, usually the one whose files are mounted: every cache is in /cache, the only folder that is written to.
RUN /usr/sbin/useradd --uid 10001 --no-create-home --home-dir /cache eyrie \
 && mkdir --mode 1777 /cache
# USER, LOGNAME: a user id without a name is an error to torch. HF_HUB_OFFLINE: nothing is fetched at run time.
# PYTHONPYCACHEPREFIX: compiled modules, which the read-only image cannot keep beside their source.
ENV EYRIE_VENV=/opt/venv PATH=/opt/venv/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/cache USER=eyrie LOGNAME=eyrie LANG=C.UTF-8 \
    XDG_CACHE_HOME=/cache PYTHONPYCACHEPREFIX=/cache/pycache DVC_SITE_CACHE_DIR=/cache/dvc DVC_NO_ANALYTICS=1 \
    HF_HOME=/cache/huggingface HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 TORCHINDUCTOR_CACHE_DIR=/cache/torchinductor
VOLUME /cache
ENTRYPOINT ["/usr/bin/tini", "-g", "--"]
CMD ["bash"]


FROM base AS cpu
COPY docker/requirements/install.sh docker/requirements/pip.txt docker/requirements/cpu-py311.txt docker/requirements/cpu-py312.txt \
     docker/requirements/torch.txt /opt/eyrie/docker/requirements/
# an index with CPU builds of torch 2.13.0, which the default one may lack; the hashes are the lock's, whatever index it is
ARG TORCH_INDEX=
ARG PIP_INDEX_URL=
RUN --mount=type=secret,id=ca_bundle \
    if [ -s /run/secrets/ca_bundle ]; then export PIP_CERT=/run/secrets/ca_bundle; fi; \
    PIP_NO_CACHE_DIR=1 TORCH_DEFAULT=no bash /opt/eyrie/docker/requirements/install.sh "$EYRIE_VENV"
ARG BASE_IMAGE
ARG IDENTITY=unknown
RUN echo "cpu ${IDENTITY}" >/etc/eyrie-image
LABEL org.opencontainers.image.title="Eyrie, CPU" org.opencontainers.image.base.name="${BASE_IMAGE}" \
      eyrie.target="cpu" eyrie.identity="${IDENTITY}"
USER 10001:10001


FROM base AS gpu
# g++: kernels that are compiled when first used; libnuma: SGLang's kernels
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ libnuma1 \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*
COPY docker/requirements/install-gpu.sh docker/requirements/pip.txt docker/requirements/dvc.txt docker/requirements/gpu.txt \
     /opt/eyrie/docker/requirements/
ARG PIP_INDEX_URL=
RUN --mount=type=secret,id=ca_bundle \
    if [ -s /run/secrets/ca_bundle ]; then export PIP_CERT=/run/secrets/ca_bundle; fi; \
    PIP_NO_CACHE_DIR=1 bash /opt/eyrie/docker/requirements/install-gpu.sh "$EYRIE_VENV" /opt/dvc
COPY docker/requirements/cuda.sh /opt/eyrie/docker/requirements/
RUN bash /opt/eyrie/docker/requirements/cuda.sh "$EYRIE_VENV" /opt/cuda
# Every kernel that is compiled at run time goes to the one volume. The container toolkit reads the NVIDIA variables.
ENV CUDA_HOME=/opt/cuda PATH=/opt/venv/bin:/opt/cuda/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    TRITON_CACHE_DIR=/cache/triton FLASHINFER_WORKSPACE_BASE=/cache TVM_FFI_CACHE_DIR=/cache/tvm-ffi TILELANG_CACHE_DIR=/cache/tilelang \
    SGLANG_CACHE_DIR=/cache/sglang SGLANG_DG_CACHE_DIR=/cache/deep-gemm CUDA_CACHE_PATH=/cache/cuda \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
ARG BASE_IMAGE
ARG IDENTITY=unknown
RUN echo "gpu ${IDENTITY}" >/etc/eyrie-image
LABEL org.opencontainers.image.title="Eyrie, SGLang on NVIDIA GPUs" org.opencontainers.image.base.name="${BASE_IMAGE}" \
      eyrie.target="gpu" eyrie.identity="${IDENTITY}" eyrie.sglang="0.5.15.post1" eyrie.torch="2.11.0" eyrie.cuda="13.0.88"
USER 10001:10001
