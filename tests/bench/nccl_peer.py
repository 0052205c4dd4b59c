"""What the NCCL benchmarks share: our probe and nccl-tests on the same two GPUs, interleaved, at one size.

nccl-tests runs with one rank a thread (`-t 2 -g 1`), the nearest it comes to one rank a process without MPI, and reports the slowest rank
(`-a 3`), as ours does. Its other layout, both ranks in one thread (`-g 2`), launches twice as slowly and halves small messages.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from bench.report import Skipped
from gpu.launcher import run

from probes.gpu.driver import CudaError, Driver
from probes.nccl import parse_file
from probes.nccl.command import find_program

PEER = "nccl-tests"
ROUNDS = 5
ITERATIONS = 20
SECONDS = 120


@dataclass
class Rounds:
    """Figures of all rounds: busbw in bytes per second, wall times of whole programs in seconds."""

    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    our_walls: list[float] = field(default_factory=list)
    their_walls: list[float] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    gpus: list[str] = field(default_factory=list)
    text: str = ""


def program(operation: str) -> Path:
    """The program of nccl-tests. Raises Skipped when the machine lacks two GPUs or the program."""
    try:
        visible = Driver().count()
    except CudaError as error:
        raise Skipped(f"two GPUs are needed: {error}") from None
    if visible < 2:
        raise Skipped(f"two GPUs are needed, {visible} visible")
    found = find_program(operation, os.environ.get("NCCL_TESTS"))  # type: ignore[arg-type]
    if found is None:
        raise Skipped(f"{operation}_perf of nccl-tests is not installed: set NCCL_TESTS to its folder")
    return found


def peer(operation: str, size: int, layout: tuple[str, ...] = ("-t", "2", "-g", "1")) -> tuple[float, float, str]:
    """(busbw, wall seconds, output) of one run of nccl-tests."""
    with tempfile.TemporaryDirectory(prefix="efa-pulse-bench-") as folder:
        report = Path(folder, "report.json")
        command = [str(program(operation)), "-b", str(size), "-e", str(size), "-f", "2", *layout, "-n", str(ITERATIONS), "-w", "5", "-c",
                   "1", "-a", "3", "-J", str(report)]
        begin = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL)
        wall = time.monotonic() - begin
        if not report.exists():
            raise RuntimeError(f"nccl-tests gave no report, status {done.returncode}: {(done.stdout + done.stderr)[-400:]}")
        parsed = parse_file(report)
    if parsed.reason.value != "ok":
        raise RuntimeError(f"nccl-tests: {parsed.message}: {done.stdout[-400:]}")
    return parsed.tables[0].series()[0][1], wall, done.stdout


@lru_cache(maxsize=8)
def compare(operation: str, size: int) -> Rounds:
    """Both, turn by turn."""
    found = Rounds()
    for _ in range(ROUNDS):
        rate, wall, found.text = peer(operation, size)
        found.theirs.append(rate)
        found.their_walls.append(wall)
        outcome = run("nccl", {"operations": [operation], "sizes": [size], "iterations": ITERATIONS}, world=2)
        result = outcome.results[0]
        if result.outcome.value not in {"ok", "degraded"}:
            raise RuntimeError(f"nccl: {result.reason.value}: {result.message}")
        found.ours += [rate for rate in result.measurements[0].bandwidth if rate is not None]
        found.our_walls.append(outcome.wall)
        found.gpus = list(result.evidence.gpus) if result.evidence else []
        found.versions = {key: value for key, value in result.versions.items() if key not in {"python", "efa-pulse"}}
    return found


def busbw_row(name: str, size: int, label: str, limit: float) -> dict[str, Any]:
    """Our all_reduce busbw against theirs, medians of the rounds."""
    rounds = compare("all_reduce", size)
    value, peer_value = statistics.median(rounds.ours), statistics.median(rounds.theirs)
    ratio = value / peer_value
    return {"name": name, "what": f"all_reduce busbw at {label}, 2 GPUs over NVLink, one rank a process", "value": value, "unit": "B/s",
            "peer": PEER, "peer_value": peer_value, "ratio": ratio, "goal": f"within {limit:.0%}", "holds": abs(ratio - 1) <= limit,
            "versions": rounds.versions}
