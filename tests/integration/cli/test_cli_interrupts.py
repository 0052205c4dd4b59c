"""A command that is told to end in the middle of a run takes everything with it that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SECONDS = 60.0
NAMESPACES = Path("/run/netns")


def below(parent: int) -> dict[int, bytes]:
    """Every process under `parent`, with its command line."""
    direct = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True, check=False).stdout.split()
    found: dict[int, bytes] = {}
    for one in map(int, direct):
        with contextlib.suppress(OSError):
            found[one] = Path(f"/proc/{one}/cmdline").read_bytes()
        found |= below(one)
    return found


def begun(process: subprocess.Popen[str]) -> list[int]:
    """The processes under `process` once both engines run."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        found = below(process.pid)
        if sum(line.endswith(b"\0child\0") for line in found.values()) == 2:
            return list(found)
        time.sleep(0.1)
    raise AssertionError(f"no engines after {SECONDS:g} s")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_probe_that_is_told_to_end_leaves_nothing(tmp_path: Path, number: signal.Signals, status: int) -> None:
    apart = ["--namespaces"] if os.geteuid() == 0 else []
    process = subprocess.Popen([sys.executable, "-m", "exporter", "probe", "mooncake", "--set", "seconds=20", *apart], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)})
    try:
        started = begun(process)
        assert list(tmp_path.glob("efa-pulse-*"))
        assert bool(apart) == bool(list(NAMESPACES.glob(f"efapulse-{process.pid}-*")))
        process.send_signal(number)
        out, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert (process.returncode, out, "Traceback" in err) == (status, "", False)
    assert not [one for one in started if Path(f"/proc/{one}").exists()]
    assert not list(tmp_path.glob("efa-pulse-*"))
    assert not list(NAMESPACES.glob(f"efapulse-{process.pid}-*"))


def test_an_ignored_hangup_stays_ignored() -> None:
    script = ("import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
              "from exporter.cli.interrupts import interruptible\n"
              "with interruptible():\n    signal.raise_signal(signal.SIGHUP)\n    print('goes on')")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert done.stdout == "goes on\n"
