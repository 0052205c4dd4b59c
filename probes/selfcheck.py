"""Which probes can run here: each engine is imported in a process of its own, because a broken one can end its process."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from typing import Any

import probes

IMPORT_SECONDS = 30.0

ENGINES: dict[str, tuple[str, tuple[str, ...]]] = {
    "mooncake": ("mooncake.engine", ("mooncake-transfer-engine", "mooncake-transfer-engine-efa", "mooncake-transfer-engine-efa-cuda13",
                                     "mooncake-transfer-engine-cuda13", "mooncake-transfer-engine-non-cuda",
                                     "mooncake-transfer-engine-efa-non-cuda")),
    "nixl": ("nixl._api", ("nixl", "nixl-cu12", "nixl-cu13")),
    "nccl": ("nccl.core", ("nccl4py", "nvidia-nccl-cu12", "nvidia-nccl-cu13")),
    "uccl-ep": ("uccl.ep", ("uccl",)),
}


def describe() -> dict[str, Any]:
    """Version of this package, and per engine: `loads` (bool), `error` (last line) and `versions` of the distributions found."""
    engines: dict[str, Any] = {}
    for name, (module, distributions) in ENGINES.items():
        error = import_error(module)
        engines[name] = {"loads": error is None, "error": error, "versions": versions(distributions)}
    return {"efa-pulse": probes.__version__, "python": sys.version.split()[0], "engines": engines}


def versions(distributions: tuple[str, ...]) -> dict[str, str]:
    """The installed versions of the named distributions."""
    found: dict[str, str] = {}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def import_error(module: str) -> str | None:
    """None when `module` can be imported in a fresh process, else why not."""
    try:
        done = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, text=True, timeout=IMPORT_SECONDS,
                              check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return f"import {module} did not end within {IMPORT_SECONDS:g} s"
    if done.returncode == 0:
        return None
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"import {module} ended the process with status {done.returncode}"
