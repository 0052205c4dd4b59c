#!/usr/bin/env bash
# Set-up of a machine: `setup.sh packages NAME...` installs missing Debian packages, `setup.sh venv` makes the virtual environment.
set -euo pipefail

packages() {
    local missing=() name
    command -v dpkg-query >/dev/null || { echo "no dpkg here: install the equivalents of: $*" >&2; return 0; }
    for name in "$@"; do
        dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
    done
    ((${#missing[@]})) || return 0
    if ((EUID != 0)); then
        echo "these system packages are missing, install them as root: apt-get install --no-install-recommends ${missing[*]}" >&2
        return 1
    fi
    echo "installing system packages: ${missing[*]}"
    apt-get update -qq
    # A service started by a package would take a port that the tests or the user need.
    local policy=/usr/sbin/policy-rc.d made=0
    [[ -e $policy ]] || { printf '#!/bin/sh\nexit 101\n' >"$policy"; chmod +x "$policy"; made=1; }
    local status=0
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null || status=$?
    ((made)) && rm -f "$policy"
    return "$status"
}

venv() {
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "Python 3.11 or later is needed, $PYTHON is $("$PYTHON" --version 2>&1): set PYTHON=python3.11" >&2
        return 1
    }
    [[ -x $VENV/bin/python ]] || "$PYTHON" -m venv "$VENV"
    [[ "$("$VENV/bin/uv" --version 2>/dev/null)" == "uv $UV_VERSION"* ]] || "$VENV/bin/python" -m pip install -q "uv==$UV_VERSION"
    echo "installing the locked packages into $VENV"
    "$VENV/bin/uv" pip sync -q --python "$VENV/bin/python" requirements.lock
    # `sync` removes what the lock does not name: uv itself is not part of the product.
    [[ -x $VENV/bin/uv ]] || "$VENV/bin/python" -m pip install -q "uv==$UV_VERSION"
    "$VENV/bin/uv" pip install -q --python "$VENV/bin/python" --no-deps -e .
}

"$@"
