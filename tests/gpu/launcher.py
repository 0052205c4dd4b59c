"""Starts the workers of one run as processes on this machine, by the same environment contract as everywhere, and reads their results.

Needs only what the probes need. Used by `run_all.py` on a machine with GPUs.
"""

from __future__ import annotations

import os
import platform
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probes.contract import WorkerEnv
from probes.processes import descendants
from probes.result import Result, decode

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Outcome:
    """What one run left behind. `left_over`: descendants still alive when all workers had ended."""

    results: list[Result]
    logs: list[str]
    wall: float
    left_over: list[int]
    errors: list[str] = field(default_factory=list)

    @property
    def first(self) -> Result:
        return self.results[0]


class Workers:
    """Running workers, for a test that hurts them. `pids` are those of the supervisors."""

    def __init__(self, processes: list[subprocess.Popen[bytes]]) -> None:
        self.processes = processes

    def below(self, rank: int, text: str) -> list[int]:
        """Processes below rank's supervisor whose command line contains `text`."""
        found = []
        for pid in descendants(self.processes[rank].pid):
            try:
                if text in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                    found.append(pid)
            except OSError:
                continue
        return found


def run(probe: str, spec: dict[str, Any], *, world: int, transport: str = "any", deadline: float = 60.0,
        environ: Mapping[str, str] | None = None, hurt: Callable[[Workers, list[Path]], None] | None = None) -> Outcome:
    """Run `world` workers to their end. `hurt` is called once they are started, with their log files."""
    with tempfile.TemporaryDirectory(prefix="efa-pulse-gpu-") as name:
        folder = Path(name)
        secret = folder / "secret"
        secret.write_text(secrets.token_hex(32))
        port = _free_port()
        run_id = f"gpu-{secrets.token_hex(4)}"
        begin = time.monotonic()
        processes, logs = [], []
        for rank in range(world):
            log = folder / f"rank{rank}.log"
            env = WorkerEnv(run_id=run_id, probe=probe, target="local", rank=rank, world_size=world, rendezvous=f"127.0.0.1:{port}",
                            secret_file=secret, node=platform.node(), transport=transport, deadline=deadline, spec=spec,
                            result_path=folder / f"rank{rank}.json", log_path=log)
            paths = [(environ or {}).get("PYTHONPATH", ""), str(ROOT), os.environ.get("PYTHONPATH", "")]
            full = {**os.environ, **(environ or {}), **env.to_environ(), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
            log.touch()
            logs.append(log)
            processes.append(subprocess.Popen([sys.executable, "-m", "probes", "run"], env=full, cwd=ROOT, stdin=subprocess.DEVNULL,
                                              stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        workers = Workers(processes)
        if hurt is not None:
            hurt(workers, logs)
        errors = []
        for process in processes:
            try:
                _, error = process.communicate(timeout=deadline + 30)
            except subprocess.TimeoutExpired:
                process.kill()
                _, error = process.communicate()
                errors.append("a supervisor did not end")
            if error.strip():
                errors.append(error.decode(errors="replace")[-500:])
        wall = time.monotonic() - begin
        left = [pid for process in processes for pid in descendants(process.pid)] + _orphans(run_id)
        results = [decode((folder / f"rank{rank}.json").read_bytes()) for rank in range(world)]
        return Outcome(results, [log.read_text(errors="replace") for log in logs], wall, left, errors)


def wait_for(logs: list[Path], text: str, seconds: float = 60.0) -> bool:
    """Wait until every log holds `text`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if all(text in log.read_text(errors="replace") for log in logs):
            return True
        time.sleep(0.05)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _orphans(run_id: str) -> list[int]:
    """Processes that still carry the run's id in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"EFA_PULSE_RUN_ID={run_id}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
