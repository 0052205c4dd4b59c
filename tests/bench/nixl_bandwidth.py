"""Is the NIXL probe as fast as a plain NIXL loop (`nixl_loop.py`) over the same backend, block, batch and direction?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.kv_pair import ROUNDS, probe_result, rate_of, row

from probes.units import show_size

NAME = "nixl_bandwidth"
PEER = "plain NIXL loop"
SECONDS = 0.5
CASES = [(operation, size, batch) for operation in ("write", "read") for size, batch in ((64 << 10, 32), (1 << 20, 8))]


def run() -> list[dict[str, Any]]:
    """One row per operation, block and batch."""
    rows = []
    for operation, size, batch in CASES:
        ours: list[float] = []
        theirs: list[float] = []
        versions: dict[str, str] = {}
        for _ in range(ROUNDS):
            theirs.append(loop_rate(operation, size, batch))
            result = probe_result("nixl", {"sizes": [size], "operations": [f"batch_{operation}"], "batch": batch, "backend": "UCX",
                                           "seconds": SECONDS, "iterations": 1_000_000, "volume": 1 << 40})
            ours.append(rate_of(result))
            versions = result.versions
        blocks = f"{batch} x {show_size(size)}" if batch > 1 else show_size(size)
        rows.append(row(NAME, f"{operation} of {blocks}, host memory, UCX over TCP on loopback", ours, PEER, theirs, versions))
    return rows


def loop_rate(operation: str, size: int, batch: int) -> float:
    """Bytes per second of one run of the plain loop, with the same variables as the probe sets."""
    script = Path(__file__).with_name("nixl_loop.py")
    done = subprocess.run([sys.executable, str(script), operation, str(size), str(batch), str(SECONDS)], capture_output=True, text=True,
                          env={**os.environ, "UCX_TLS": "tcp,self,cuda_copy"}, stdin=subprocess.DEVNULL, timeout=120, check=False,
                          start_new_session=True)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise RuntimeError(f"the plain loop failed, status {done.returncode}: {done.stderr[-400:]}")
    return float(json.loads(lines[-1])["rate"])
