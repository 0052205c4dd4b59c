#!/usr/bin/env bash
# bundle.sh LOCK FOLDER: the probes' dependencies with the compiled parts for every Python from 3.10 to 3.13. Pure packages are the same
# for all; of the compiled ones each Python takes the files that carry its own tag.
set -euo pipefail
lock=$1 folder=$2 wheels=$(mktemp -d)
for version in 3.10 3.11 3.12 3.13; do
    "${PIP:-/opt/probes/bin/pip}" download -q --no-deps --require-hashes --only-binary :all: --python-version "$version" \
        --platform "manylinux2014_$(uname -m)" --platform "manylinux_2_28_$(uname -m)" --dest "$wheels/$version" -r "$lock"
    for wheel in "$wheels/$version"/*.whl; do
        "${PYTHON:-python3}" -m zipfile -e "$wheel" "$folder"
    done
done
rm -rf "$wheels" "$folder"/*.dist-info
