#!/usr/bin/env bash
# Fetches SGLang wheels by their hash, those that are not there yet: bash docker/requirements/sglang-wheels.sh FOLDER VERSION|all
# Always the build for Python 3.11 on Linux x86_64, whatever runs here: only its Python source is read.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$1 wanted=$2
list=docker/requirements/sglang-wheels.txt
if [ "$wanted" = all ]; then wanted=$(sed -n 's/^sglang==\([^ ]*\).*/\1/p' "$list"); fi
mkdir -p "$folder"
for version in $wanted; do
  if compgen -G "$folder/sglang-$version-*.whl" >/dev/null; then continue; fi
  one=$(mktemp)
  grep -A1 -F "sglang==$version \\" "$list" >"$one"
  if ! .venv/bin/python -m pip download --disable-pip-version-check --quiet --no-deps --require-hashes --only-binary :all: \
      --platform manylinux_2_34_x86_64 --python-version 3.11 --implementation cp --abi cp311 --abi none -d "$folder" -r "$one"; then
    echo "make test-contract: no wheel of sglang $version with the hash in $list" >&2
    exit 1
  fi
  rm "$one"
done
