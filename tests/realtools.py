"""Where tests find real Kubernetes and Prometheus binaries.

They are looked up in `KUBEBUILDER_ASSETS` (the usual variable of envtest), then in `tools` beside this repository, which its `unpack`
script unpacks once. Nothing of the product needs them.
"""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

import pytest

VARIABLE = "KUBEBUILDER_ASSETS"
UNPACK = Path(__file__).resolve().parent.parent.parent / "shared" / "tools" / "unpack"
UNPACK_SECONDS = 300.0


@functools.cache
def folder() -> Path | None:
    """The folder with the binaries, or None where there is none."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    if not UNPACK.is_file():
        return None
    done = subprocess.run([str(UNPACK)], capture_output=True, text=True, timeout=UNPACK_SECONDS, check=False)
    return Path(done.stdout.strip()) if done.returncode == 0 else None


def find(*names: str) -> dict[str, Path]:
    """The binaries of these names. Skips the test where one is missing; with CI=true that is an error."""
    where = folder()
    found = {name: where / name for name in names if where is not None and (where / name).exists()}
    missing = [name for name in names if name not in found]
    if missing:
        absent(f"not found: {', '.join(missing)}. Set {VARIABLE} to a folder that holds them: `setup-envtest use` brings etcd and "
               "kube-apiserver, the release pages of Kubernetes, kwok and Prometheus the others")
    return found


def absent(why: str) -> None:
    """Skip a test for what this machine lacks; in CI (CI=true) fail it instead."""
    if os.environ.get("CI", "").lower() in {"true", "1"}:
        pytest.fail(why, pytrace=False)
    pytest.skip(why)
