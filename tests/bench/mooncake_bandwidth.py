"""Is the Mooncake probe as fast as Mooncake's own `transfer_engine_bench` at the same block, batch, threads and direction?

Every process of either side has a session of its own, as workers have: Linux schedules by session (autogroup), and two processes of one
session get five times the bandwidth of two sessions when other work shares the CPUs (tried with the peer alone).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.kv_pair import ROUNDS, probe_result, rate_of, row

from probes.units import show_size

NAME = "mooncake_bandwidth"
PEER = "transfer_engine_bench"
SECONDS = 1
CASES = [(operation, size, batch, threads) for operation in ("write", "read") for size, batch, threads in
         ((64 << 10, 32, 1), (1 << 20, 8, 2))]
BUFFER = 256 << 20
START_SECONDS = 20.0

_LISTENING = re.compile(r"listening on (\S+:\d+)")
_DONE = re.compile(r"Test completed: duration ([\d.]+), batch count (\d+)")


def run() -> list[dict[str, Any]]:
    """One row per operation, block, batch and number of threads."""
    rows = []
    with bench_target() as segment:
        for operation, size, batch, threads in CASES:
            ours: list[float] = []
            theirs: list[float] = []
            versions: dict[str, str] = {}
            for _ in range(ROUNDS):
                theirs.append(bench_rate(segment, operation, size, batch, threads))
                result = probe_result("mooncake", {"sizes": [size], "operations": [f"batch_{operation}"], "batch": batch,
                                                   "threads": threads, "seconds": SECONDS, "iterations": 1_000_000, "volume": 1 << 40})
                ours.append(rate_of(result))
                versions = result.versions
            what = f"{operation} of {batch} x {show_size(size)}, {threads} thread{'s' if threads > 1 else ''}, host memory, TCP on loopback"
            rows.append(row(NAME, what, ours, PEER, theirs, versions))
    return rows


def command(*arguments: str) -> list[str]:
    """The benchmark of the installed wheel."""
    beside = Path(sys.executable).parent / PEER
    path = str(beside) if beside.exists() else shutil.which(PEER)
    if path is None:
        raise RuntimeError(f"{PEER} is not installed: it comes with the mooncake-transfer-engine wheels")
    return [path, "--protocol=tcp", "--metadata_server=P2PHANDSHAKE", "--local_server_name=127.0.0.1", f"--buffer_size={BUFFER}",
            *arguments]


@contextlib.contextmanager
def bench_target() -> Iterator[str]:
    """A running target; the value is its segment."""
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        process = subprocess.Popen(command("--mode=target"), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            until = time.monotonic() + START_SECONDS
            while (found := _LISTENING.search(Path(log.name).read_text(errors="replace"))) is None:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"{PEER} does not start as target: {Path(log.name).read_text(errors='replace')[-400:]}")
                time.sleep(0.05)
            yield found[1]
        finally:
            # The command is a script that starts the program beside itself.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def bench_rate(segment: str, operation: str, size: int, batch: int, threads: int) -> float:
    """Bytes per second of one run of the initiator."""
    done = subprocess.run(command("--mode=initiator", f"--segment_id={segment}", f"--operation={operation}", f"--block_size={size}",
                                  f"--batch_size={batch}", f"--threads={threads}", f"--duration={SECONDS}"),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60 + SECONDS, check=False,
                          start_new_session=True)
    found = _DONE.search(done.stderr + done.stdout)
    if found is None:
        raise RuntimeError(f"{PEER} gave no result, status {done.returncode}: {done.stderr[-400:]}")
    return int(found[2]) * batch * size / float(found[1])
