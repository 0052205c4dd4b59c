"""`efa-pulse simulate --serve`: after its beginning the simulation lives on, with metrics, pages and real canaries."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(400)
START_SECONDS = 90.0


@pytest.fixture
def served(tmp_path: Path, no_process_left: None) -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], str]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> tuple[subprocess.Popen[bytes], str]:
        command = [sys.executable, "-m", "exporter", "simulate", "--nodes", "8", "--hours", "0.5", "--serve", "127.0.0.1:0", *arguments]
        log = tmp_path / "log"
        process = subprocess.Popen(command, stdout=log.open("wb"), stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=dict(os.environ))
        started.append(process)
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            found = re.search(r"http://[0-9.]+:\d+", log.read_text(errors="replace"))
            if found:
                return process, found[0]
            assert process.poll() is None, log.read_text(errors="replace")
            time.sleep(0.2)
        raise AssertionError(log.read_text(errors="replace"))

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(20)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def until(holds: Callable[[], bool], seconds: float = 40.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.3)


def test_findings_metrics_and_canaries_are_served_until_it_is_ended(served: Callable[..., tuple[subprocess.Popen[bytes], str]]) -> None:
    process, url = served("--fault", "slow_node:3")
    document = json.loads(get(f"{url}/api/status"))
    assert [one["subjects"] for one in document["findings"] if one["kind"] == "node"]
    assert not document["stale"]
    assert abs(document["now"] - time.time()) < 5
    assert 'efapulse_node_healthy{node="sim-00003",probe="mooncake"} 0.0' in get(f"{url}/metrics")
    assert '<span class="badge bad">' in get(f"{url}/status")
    # However it ended: on a busy machine a canary says that it was disturbed.
    pattern = re.compile(r"efapulse_canary_requests_total\{.*\} [1-9]")
    until(lambda: bool(pattern.search(get(f"{url}/metrics"))), 80.0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) in (0, 143, 128 + signal.SIGTERM)


def test_a_fault_that_begins_later_is_found_while_one_watches(served: Callable[..., tuple[subprocess.Popen[bytes], str]],
                                                              tmp_path: Path) -> None:
    config = tmp_path / "quick.yaml"
    config.write_text("""
probes:
  node: {enabled: false}
  nixl: {enabled: false}
  mooncake: {transport: efa, deadline: 15s, schedule: {interval: 20s, jitter: 0}}
planning: {spread: 0}
""")
    process, url = served("--config", str(config), "--hours", "0.1", "--fault", "tcp_fallback:2,start=361")
    assert json.loads(get(f"{url}/api/status"))["findings"] == []
    until(lambda: any("sim-00002" in one["subjects"] for one in json.loads(get(f"{url}/api/status"))["findings"]), 100.0)
    process.terminate()
    process.wait(20)


def test_it_ends_by_itself_after_the_given_time(served: Callable[..., tuple[subprocess.Popen[bytes], str]]) -> None:
    process, _ = served("--seconds", "2")
    assert process.wait(40) == 0
