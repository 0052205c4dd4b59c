"""The upstream bench, started by torchrun on this node and watched through its output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from probes import processes

OUTPUT_LIMIT = 16 << 20
POLL_SECONDS = 0.05
SCRIPTS = {"low-latency": "test_low_latency.py", "intranode": "test_intranode.py", "internode": "test_internode.py"}


def command(script: Path, arguments: Sequence[str], *, nodes: int, node: int, gpus: int, address: str, port: int) -> list[str]:
    """torchrun over all nodes of the run; every node's worker starts the same with its own `node`."""
    return [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--node_rank={node}", f"--nproc_per_node={gpus}",
            f"--master_addr={address}", f"--master_port={port}", str(script), *arguments]


class Program:
    """A running bench. `states` shows its last line, so that a hang shows where it stands. End it in every case."""

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str], output: Path) -> None:
        self._output = output
        self._copied = 0
        with output.open("wb") as file:
            self._process = subprocess.Popen(arguments, env=dict(environ), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                             cwd=output.parent)
        self._last = "started"

    def listen(self, seconds: float) -> None:
        """Give it time, at most a little."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(min(seconds, POLL_SECONDS))

    def ended(self) -> bool:
        """Whether it ended, or wrote more than can be meant."""
        return self._process.poll() is not None or self._size() > OUTPUT_LIMIT

    def states(self) -> list[str]:
        """Its last line."""
        return [f"bench: {self._last}"]

    def gather(self) -> None:
        """Copy what it printed since the last call to this process's standard error, which is the worker's log."""
        with self._output.open("rb") as file:
            file.seek(self._copied)
            piece = file.read(OUTPUT_LIMIT)
        piece = piece[: piece.rfind(b"\n") + 1]
        if piece:
            self._copied += len(piece)
            text = piece.decode(errors="replace")
            sys.stderr.write(text)
            sys.stderr.flush()
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            self._last = lines[-1][:100] if lines else self._last

    def text(self) -> str:
        """Everything it printed, as far as it can be meant."""
        with self._output.open("rb") as file:
            return file.read(OUTPUT_LIMIT).decode(errors="replace")

    @property
    def status(self) -> int | None:
        """Its exit status, None while it runs."""
        return self._process.poll()

    def end(self) -> None:
        """Kill it with everything below it: torchrun starts its workers in sessions of their own."""
        below = processes.descendants(self._process.pid)
        for pid in [self._process.pid, *below]:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)

    def _size(self) -> int:
        return self._output.stat().st_size
