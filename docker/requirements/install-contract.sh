#!/usr/bin/env bash
# Builds the environment of `make test-contract`: bash docker/requirements/install-contract.sh .venv .venv-contract WHEELS VERSION
# It sees the pipeline's packages through a .pth file and adds SGLang's source with what that imports: .venv itself stays free of SGLang.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$PWD/$1/bin/python venv=$2 wheels=$3 version=$4
lock=docker/requirements/contract-py$("$python" -c 'import sys; print("%d%d" % sys.version_info[:2])').txt

echo "make test-contract: $lock and the source of sglang $version -> $venv"
"$python" -m venv --clear --without-pip "$venv"
purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
site=$("$venv/bin/python" -c "$purelib")
"$python" -c "$purelib" >"$site/pipeline.pth"
# --no-deps: the lock is complete. What .venv has already, in the same version, pip leaves there.
if ! "$python" -m pip --python "$venv/bin/python" install --disable-pip-version-check --no-compile --no-deps --require-hashes \
    -r "$lock" >"$venv/install.log" 2>&1; then
  cat "$venv/install.log" >&2
  exit 1
fi
# unpacked, not installed: its own list of dependencies would bring CUDA, and its wheel fits one platform
bash docker/requirements/sglang-wheels.sh "$wheels" "$version"
"$python" -m zipfile -e "$wheels"/sglang-"$version"-*.whl "$site"
echo "make test-contract: environment ready in $SECONDS s"
