#!/usr/bin/env bash
# Builds the GPU image's two environments from the hash locks: bash docker/requirements/install-gpu.sh /opt/venv /opt/dvc
set -euo pipefail
cd "$(dirname "$0")"
venv=$1 dvc=$2

if [ "$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')" != 3.12 ]; then
  echo "install-gpu: $(python3 --version) in the base image, but gpu.txt is for 3.12; give a BASE_IMAGE with that" >&2
  exit 1
fi

# --no-compile: modules are compiled when imported, into the cache volume. --no-deps: the locks are complete.
install() {
  local environment=$1
  shift
  "$environment/bin/python" -m pip install --disable-pip-version-check --progress-bar off --quiet --no-compile --no-deps --require-hashes "$@"
}

for environment in "$dvc" "$venv"; do
  python3 -m venv "$environment"
  install "$environment" -r pip.txt
done
# antlr4-python3-runtime, DVC's, is published as source only: built with the setuptools of pip.txt, not one fetched unpinned
install "$dvc" --no-build-isolation -r dvc.txt
install "$venv" --only-binary :all: -r gpu.txt
# Two wheels have the same 99 files with other content, and both are required: the build for CUDA 13 must win, whole, for the other one's
# compiler writes code for sm_120 that ptxas refuses (NVIDIA/cutlass#3170, #3259; sglang#25958 does the same).
install "$venv" --force-reinstall --only-binary :all: -r <(sed -n '/^nvidia-cutlass-dsl-libs-cu13==/,/[^\]$/p' gpu.txt)
for environment in "$dvc" "$venv"; do "$environment/bin/python" -m pip check; done
# beside the stages' Python, where `make repro` looks for it; a stage's own command says `python`, which stays the stages'
ln -s "$dvc/bin/dvc" "$venv/bin/dvc"
