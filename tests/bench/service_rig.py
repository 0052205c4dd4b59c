"""What the benchmarks of the whole service share: `efa-pulse run` in cluster mode beside an API server of paper."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import probes

READY_SECONDS = 900.0
SETTLE_SECONDS = 60.0
ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Measured:
    """Resident bytes now and at most, CPU seconds, seconds until everything was read, requests that were sent."""

    resident: int
    peak: int
    cpu: float
    ready: float


def measure(nodes: int, pods: int) -> Measured:
    """Run the service over that many nodes and pods, let it settle, look at its memory."""
    with tempfile.TemporaryDirectory() as folder, _paper(nodes, pods) as port:
        config = Path(folder) / "config.yaml"
        kubeconfig = Path(folder) / "kubeconfig"
        kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}))
        config.write_text(json.dumps({"inventory": {"mode": "kubernetes"}, "kubernetes": {"kubeconfig": str(kubeconfig)},
                                      "server": {"listen": "127.0.0.1:0"}, "logging": {"level": "info"}}))
        began = time.monotonic()
        with _service(config, Path(folder)) as service:
            ready = _await_ready(Path(folder) / "log", service) - began
            time.sleep(SETTLE_SECONDS)
            status = Path(f"/proc/{service.pid}/status").read_text()
            ticks = Path(f"/proc/{service.pid}/stat").read_text().rpartition(")")[2].split()
            cpu = (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")
            return Measured(_kib(status, "VmRSS"), _kib(status, "VmHWM"), cpu, ready)


def rows(name: str, nodes: int, pods: int, goal: int) -> list[dict[str, Any]]:
    """Rows of the whole service over that many nodes and pods."""
    found = measure(nodes, pods)
    what = f"with {nodes} nodes and {pods} pods"

    def row(text: str, value: float, unit: str, holds: bool | None, wanted: str | None) -> dict[str, Any]:
        return {"name": name, "what": f"{text} {what}", "value": value, "unit": unit, "peer": None, "peer_value": None, "ratio": None,
                "goal": wanted, "holds": holds, "versions": {"efa-pulse": probes.__version__, "python": platform.python_version()}}

    limit = f"at most {goal >> 20} MiB"
    return [row("resident memory of the whole service", found.resident, "B", found.resident <= goal, limit),
            row("largest resident memory, the first lists included", found.peak, "B", found.peak <= goal, limit),
            row("time until everything was read and published", found.ready, "s", None, None),
            row(f"CPU time until then and {SETTLE_SECONDS:g} s of 100 changes a second", found.cpu, "s", None, None)]


@contextlib.contextmanager
def _paper(nodes: int, pods: int) -> Iterator[int]:
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    process = subprocess.Popen([sys.executable, "-m", "bench.paper_api", str(nodes), str(pods)], stdout=subprocess.PIPE, env=environ)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def _service(config: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "exporter", "run", "--config", str(config)], stdout=log, stderr=log,
                                   env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_ready(log: Path, service: subprocess.Popen[bytes]) -> float:
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until and service.poll() is None:
        for line in log.read_text().splitlines():
            with contextlib.suppress(ValueError, KeyError, urllib.error.URLError):
                address = str(json.loads(line)["address"]).rstrip("/")
                with urllib.request.urlopen(f"{address}/-/ready", timeout=5) as answer:
                    if answer.status == 200:
                        return time.monotonic()
        time.sleep(0.5)
    raise RuntimeError(f"the service did not become ready:\n{log.read_text()[-3000:]}")


def _kib(status: str, field: str) -> int:
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(f"{field}:"))) * 1024
