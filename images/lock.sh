#!/usr/bin/env bash
# lock.sh: writes the locks of the images anew, the exporter's with the versions of requirements.lock.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${UV:-.venv/bin/uv}
"$uv" pip compile pyproject.toml --extra exporter --python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes --no-header -q \
    -c requirements.lock -o images/exporter/requirements.lock
"$uv" pip compile pyproject.toml --python-version 3.10 --universal --generate-hashes --no-header -q -c requirements.lock \
    -o images/probe/requirements.lock
