#!/usr/bin/env bash
# Builds the virtual environment anew from the hash locks: bash docker/requirements/install.sh .venv
# PYTHON picks the interpreter; TORCH_INDEX is an extra package index to look for torch's CPU build in; TORCH_DEFAULT=no: no other build will do.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$1
candidates=${PYTHON:-python3.12 python3.11 python3}

# A name on PATH may be a shim of a version that is not there, and Debian's python3 may lack ensurepip: so try each.
# The base executable, since the name may also be the one in the environment that is about to be cleared.
base='import ensurepip, sys, venv
if sys.version_info[:2] in ((3, 11), (3, 12)): print(sys._base_executable)'
python=
for candidate in $candidates; do
  python=$("$candidate" -c "$base" 2>/dev/null) || true
  if [ -n "$python" ]; then break; fi
done
if [ -z "$python" ]; then
  echo "make env: no usable Python 3.12 or 3.11 (with venv and ensurepip) among: $candidates" >&2
  echo "make env: install one, or name it: make env PYTHON=/path/to/python3.12" >&2
  exit 1
fi
lock=docker/requirements/cpu-py$("$python" -c 'import sys; print("%d%d" % sys.version_info[:2])').txt

echo "make env: $("$python" --version), $lock -> $venv (under a minute with a fast index)"
"$python" -m venv --clear "$venv"
log=$venv/install.log
# --no-compile: byte-compiling 130 packages takes longer than compiling the modules that are imported, when they are.
install() { "$venv/bin/python" -m pip install --disable-pip-version-check --no-compile --require-hashes "$@"; }
# An installer says much on a good day: its words are shown when it fails.
quietly() { "$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }; }

quietly install -r docker/requirements/pip.txt
quietly install --no-build-isolation -r "$lock"
if ! install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -r docker/requirements/torch.txt >"$log" 2>&1; then
  # pip's words depend on whether the user has a constraints file; anything else is no reason to fetch several GB
  if ! grep -qi 'no matching distribution' "$log"; then cat "$log" >&2; exit 1; fi
  if [ "${TORCH_DEFAULT:-}" = no ]; then
    echo "no CPU build of torch found (docker/requirements/torch.txt); give TORCH_INDEX, the url of an index that has one" >&2
    exit 1
  fi
  echo "make env: no CPU build of torch found; installing the index's default build (on Linux: CUDA, several GB)." >&2
  echo "make env: to avoid that, stop here and run: make env TORCH_INDEX=<url of an index with CPU builds>" >&2
  quietly install -r docker/requirements/torch-default.txt
fi
# the project's list; an image, which has no use for them, does not get it
if [ -e docker/requirements/image-tools.txt ]; then quietly install -r docker/requirements/image-tools.txt; fi
rm "$log"
echo "make env: done in $SECONDS s"
