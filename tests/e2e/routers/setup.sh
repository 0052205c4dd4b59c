#!/usr/bin/env bash
# Makes an environment of its own for a real router: `setup.sh install NAME` fills build/NAME-venv from NAME.lock, `setup.sh lock NAME` renews
# the lock. What is installed already costs nothing.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
uv=${UV:-$root/.venv/bin/uv}

lock() {
    "$uv" pip compile "$here/$1.in" --python-version 3.11 --generate-hashes --no-header --no-annotate -q -o "$here/$1.lock"
}

install() {
    local venv=$root/build/$1-venv wanted
    wanted=$(cat "$here/$1.lock" "${BASH_SOURCE[0]}" | sha256sum)
    [[ $(cat "$venv/.installed" 2>/dev/null || true) == "$wanted" && -x $venv/bin/python ]] && return 0
    rm -rf "$venv"
    mkdir -p "$root/build"
    "$uv" venv -q --python "$root/.venv/bin/python" "$venv"
    "$uv" pip install -q --python "$venv/bin/python" --compile-bytecode --no-deps --require-hashes -r "$here/$1.lock"
    echo "$wanted" >"$venv/.installed"
}

"$@"
