"""How long is nobody in charge after the leader is killed, with the default times of the election, on a real API server?"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import realtools
from bench.report import Skipped
from e2e import cell
from e2e.controlplane import BINARIES, ControlPlane, eventually

import probes

NAME = "leader_handover"
TIMES = 3
GOAL_SECONDS = 20.0
READY_SECONDS = 30.0


def run() -> list[dict[str, Any]]:
    """The longest of a few hand-overs: from SIGKILL to the moment the other one says that it leads."""
    if why := cell.why_not():
        raise Skipped(why)
    try:
        realtools.find(*BINARIES)
    except (pytest.skip.Exception, pytest.fail.Exception) as error:
        raise Skipped(str(error)) from None
    with tempfile.TemporaryDirectory() as folder, ControlPlane(Path(folder)) as cluster:
        seconds = [_hand_over(cluster, Path(folder), number) for number in range(TIMES)]
    return [{"name": NAME, "what": f"longest of {TIMES} hand-overs after a kill", "value": max(seconds), "unit": "s", "peer": None,
             "peer_value": None, "ratio": None, "goal": f"<= {GOAL_SECONDS:g} s", "holds": max(seconds) <= GOAL_SECONDS,
             "versions": {"efa-pulse": probes.__version__, "python": platform.python_version()}}]


def _hand_over(cluster: ControlPlane, folder: Path, number: int) -> float:
    first, second = (_candidate(cluster, folder / f"{name}-{number}") for name in ("first", "second"))
    try:
        leader, other = (first, second) if eventually(lambda: _who(first, second), seconds=READY_SECONDS) == "first" else (second, first)
        killed = time.monotonic()
        leader[0].kill()
        eventually(lambda: _leads(other[1]), seconds=GOAL_SECONDS * 2, every=0.02)
        return time.monotonic() - killed
    finally:
        for process, _ in (first, second):
            process.kill()
            process.wait()
        cluster.delete("/apis/coordination.k8s.io/v1/namespaces/default/leases/efa-pulse")


def _candidate(cluster: ControlPlane, out: Path) -> tuple[subprocess.Popen[bytes], Path]:
    command = [sys.executable, "-m", "e2e.standing", str(cluster.kubeconfig), "default", out.name, str(out)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}), out


def _who(first: tuple[Any, Path], second: tuple[Any, Path]) -> str:
    return "first" if _leads(first[1]) else "second" if _leads(second[1]) else ""


def _leads(out: Path) -> bool:
    lines = out.read_text().splitlines() if out.exists() else []
    return bool(lines) and lines[-1].endswith(" 1")
