"""`efa-pulse run` as an operator meets it: a process that is started, scraped, reloaded, stopped and killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from running import SECONDS, Running

from probes.processes import descendants

QUIET: dict[str, Any] = {"probes": {name: {"enabled": False} for name in ("node", "mooncake", "nixl")}}
PROBING: dict[str, Any] = {
    "schedule": {"start_spread": 0},
    "probes": {"node": {"enabled": False}, "mooncake": {"enabled": False},
               "nixl": {"schedule": {"interval": "31s"}, "deadline": "30s", "params": {"sizes": ["1MiB"], "operations": ["write"]}}},
}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[[dict[str, Any]], Running]]:
    all_of_them: list[Running] = []

    def start(config: dict[str, Any]) -> Running:
        all_of_them.append(Running(tmp_path, config))
        return all_of_them[-1]

    yield start
    for one in all_of_them:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


Start = Callable[[dict[str, Any]], Running]


def test_a_real_probe_runs_and_its_figures_are_scraped(running: Start) -> None:
    service = running(PROBING)
    service.until(lambda: service.value("efapulse_runs_total", probe="nixl", outcome="ok") == 1)
    assert (service.value("efapulse_node_bandwidth_bytes_per_second", probe="nixl", operation="write") or 0) > 1e6
    assert service.value("efapulse_node_transport", probe="nixl", transport="tcp") == 1
    assert service.value("efapulse_node_healthy", probe="nixl") == 1
    assert time.time() - (service.value("efapulse_scheduler_last_tick_timestamp_seconds") or 0) < 10
    assert service.end() == 0
    assert "Traceback" not in service.log


def test_sigterm_in_mid_probe_ends_everything_within_the_grace(running: Start) -> None:
    long = {**PROBING, "launch": {"grace": "1s"}}
    long["probes"] = {**PROBING["probes"], "nixl": {**PROBING["probes"]["nixl"], "params": {"seconds": 20, "iterations": 1000000}}}
    service = running(long)
    service.until(lambda: len(descendants(service.process.pid)) >= 4)
    below = descendants(service.process.pid)
    start = time.monotonic()
    assert service.end() == 0
    assert time.monotonic() - start < 15
    assert [pid for pid in below if Path(f"/proc/{pid}").exists()] == []
    assert '"reason": "cancelled"' in service.log


def test_kill_9_leaves_no_process(running: Start) -> None:
    long = {**PROBING, "probes": {**PROBING["probes"], "nixl": {**PROBING["probes"]["nixl"],
                                                                "params": {"seconds": 20, "iterations": 1000000}}}}
    service = running(long)
    service.until(lambda: len(descendants(service.process.pid)) >= 4)
    below = descendants(service.process.pid)
    service.process.kill()
    service.process.wait()
    end = time.monotonic() + 6
    while time.monotonic() < end and any(Path(f"/proc/{pid}").exists() for pid in below):
        time.sleep(0.05)
    assert [pid for pid in below if Path(f"/proc/{pid}").exists()] == []


def test_sighup_takes_a_good_file_and_keeps_the_last_good_one_otherwise(running: Start) -> None:
    service = running(QUIET)
    service.until_ready()
    assert service.value("efapulse_config_last_reload_successful") == 1
    service.path.write_text("probs: {}\n")
    service.process.send_signal(signal.SIGHUP)
    service.until(lambda: service.value("efapulse_config_last_reload_successful") == 0)
    assert service.get("/-/ready")[0] == 200
    assert "probs" in service.log
    service.write(QUIET)
    service.process.send_signal(signal.SIGHUP)
    service.until(lambda: service.value("efapulse_config_last_reload_successful") == 1)
    assert service.end() == 0


def test_a_changed_file_is_seen_without_a_signal(running: Start) -> None:
    service = running(QUIET)
    service.until_ready()
    service.write({**QUIET, "canary": {"targets": [{"name": "later", "url": "http://127.0.0.1:1", "model": "m"}]}})
    service.until(lambda: service.value("efapulse_canary_requests_total", target="later") is not None)
    assert service.end() == 0


def test_an_endpoint_that_is_not_there_is_a_failed_canary_and_no_sample_of_latency(running: Start) -> None:
    service = running({**QUIET, "schedule": {"start_spread": 0},
                       "canary": {"targets": [{"name": "gone", "url": "http://127.0.0.1:1", "model": "m"}]}})
    labels = {"target": "gone", "prompt": "short", "result": "connect_failed"}
    service.until(lambda: (service.value("efapulse_canary_requests_total", **labels) or 0) >= 1)
    assert service.value("efapulse_canary_ttft_seconds_count", target="gone", prompt="short") == 0
    assert service.end() == 0


def test_an_address_in_use_is_one_line_and_status_64(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path = tmp_path / "c.yaml"
        path.write_text(f"server: {{listen: '127.0.0.1:{taken.getsockname()[1]}'}}\n")
        done = subprocess.run([sys.executable, "-m", "exporter", "run", "-c", str(path)], capture_output=True, text=True, timeout=SECONDS,
                              check=False)
    assert done.returncode == 64
    assert "in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_reload_over_http_is_off_by_default_and_reports_when_on(running: Start, tmp_path: Path) -> None:
    service = running(QUIET)
    service.until_ready()
    assert service.get("/-/reload", "POST")[0] == 403
    service.end()
    service = running({**QUIET, "server": {"listen": "127.0.0.1:PORT", "enable_reload": True}})
    service.until_ready()
    assert service.get("/-/reload", "POST")[0] == 200
    service.path.write_text("nonsense: 1\n")
    status, said = service.get("/-/reload", "POST")
    assert status == 500
    assert "nonsense" in said
    assert service.get("/-/reload")[0] == 405
    service.end()


def test_the_environment_is_not_in_what_is_published(running: Start) -> None:
    os.environ["EFA_PULSE_TEST_MARK"] = "mark-of-a-secret"
    try:
        service = running(PROBING)
        service.until(lambda: service.value("efapulse_runs_total", probe="nixl", outcome="ok") == 1)
        assert "mark-of-a-secret" not in service.get("/metrics")[1]
        assert service.end() == 0
        assert "mark-of-a-secret" not in service.log
    finally:
        del os.environ["EFA_PULSE_TEST_MARK"]
