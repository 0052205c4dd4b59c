"""`efa-pulse demo` from start to end, as a newcomer runs it: real engines, a canary, metrics that a real Prometheus reads."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from probes.processes import descendants

ENVIRON = {**os.environ, "COLUMNS": "140", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
DEMO = [sys.executable, "-m", "exporter", "demo", "--listen", "127.0.0.1:0"]
SECONDS = 150.0
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    path = tmp_path / "out"
    with path.open("wb") as out:
        process = subprocess.Popen(DEMO, stdout=out, stderr=subprocess.STDOUT, env=ENVIRON)
    yield process, path
    if process.poll() is None:
        process.kill()
        process.wait()


def until(path: Path, pattern: str) -> str:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        found = re.search(pattern, path.read_text())
        if found:
            return found.group(1)
        time.sleep(0.2)
    raise AssertionError(path.read_text())


def test_once_measures_everything_and_its_status_says_that_all_is_well() -> None:
    done = subprocess.run([*DEMO, "--once"], capture_output=True, text=True, timeout=SECONDS + 60, check=False, env=ENVIRON)
    assert done.returncode == 0, done.stdout + done.stderr
    for probe in ("mooncake", "nixl", "node", "canary (short)", "canary (long)"):
        assert re.search(rf"^{re.escape(probe)}\s+\S+\s+ok", done.stdout, re.MULTILINE), done.stdout
    assert len(re.findall(r"\sok\s+tcp\s", done.stdout)) == 2
    assert "simulated" in done.stdout
    assert "Traceback" not in done.stderr


def test_it_goes_on_until_ctrl_c_and_leaves_nothing(demo: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, path = demo
    address = until(path, r"Open (http://\S+?)/? or")
    page = httpx.get(f"{address}/metrics", timeout=5).text
    assert 'efapulse_node_transport{node="local-a",probe="mooncake",transport="tcp"} 1' in page
    assert re.search(r'efapulse_canary_ttft_seconds_count\{[^}]*target="simulated-pd"[^}]*\} [1-9]', page)
    until(path, r"\d\d:\d\d:\d\d (ok)\s+canary")
    below = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    time.sleep(0.5)
    assert [pid for pid in below if Path(f"/proc/{pid}").exists()] == []


def test_it_ends_after_the_seconds_it_was_given() -> None:
    start = time.monotonic()
    done = subprocess.run([*DEMO, "--seconds", "2"], capture_output=True, text=True, timeout=SECONDS, check=False, env=ENVIRON)
    assert time.monotonic() - start < 40
    assert done.returncode in (0, 2), done.stdout + done.stderr
