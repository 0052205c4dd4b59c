"""The simulated endpoint as a program."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from canary_peers import delivered, quick

from probes.canary.client import measure

CLIENT = """
import sys, urllib.request
body = b'{"model": "simulated-pd", "prompt": "x", "stream": true}'
print(urllib.request.urlopen(urllib.request.Request(sys.argv[1], body), timeout=20).read())
"""
COMMAND = [sys.executable, "-m", "probes.canary.simulated"]


@contextmanager
def started(*options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The program and its address."""
    with subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "no model" in line
            yield line.split()[-1], process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_once_on_a_signal_even_while_it_answers(number: signal.Signals) -> None:
    with started("--ttft", "30") as (url, process):
        client = subprocess.Popen([sys.executable, "-c", CLIENT, f"{url}/v1/completions"], stderr=subprocess.DEVNULL)
        time.sleep(0.5)
        process.send_signal(number)
        assert process.wait(5) == 0
        assert client.wait(10) != 0


def test_every_nth_request_has_the_fault() -> None:
    with started("--fault", "http_500", "--fault-every", "3", "--ttft", "0.01", "--gap", "0.02") as (url, _):
        statuses = ["delivered" if delivered(run) else run.stream.status for run in (measure(quick(url)) for _ in range(6))]
    assert statuses == ["delivered", "delivered", "http_5xx"] * 2


def test_the_scenario_can_be_changed_while_it_runs_and_requests_are_stamped() -> None:
    with started("--ttft", "0.01", "--model", "own-name") as (url, _):
        assert measure(quick(url)).stream.status == "http_4xx"
        change = urllib.request.Request(f"{url}/simulated/scenario", json.dumps({"ttft": 0.2, "fault": "cut", "at": 2}).encode())
        with urllib.request.urlopen(change, timeout=5) as response:
            assert json.load(response)["fault"] == "cut"
            assert response.headers["server"] == "efa-pulse-simulated-pd"
        run = measure(quick(url, model="own-name"))
        assert (run.stream.status, run.stream.token_events) == ("truncated", 2)
        with urllib.request.urlopen(f"{url}/simulated/requests", timeout=5) as response:
            last = json.load(response)[-1]
        assert last["id"] == run.stream.request_id
        assert [number for sent in last["sends"] for number in sent["tokens"]] == [0, 1]
        assert all(sent["before"] <= sent["after"] for sent in last["sends"])


@pytest.mark.parametrize(("options", "says"), [
    (["--listen", "127.0.0.1:99999"], "99999"),
    (["--listen", "nonsense"], "nonsense"),
    (["--listen", "192.0.2.1:0"], "192.0.2.1"),
    (["--fault", "unheard-of"], "unheard-of"),
    (["--ttft", "-1"], "ttft"),
    (["--tls-cert", "/nowhere.pem"], "No such file"),
])
def test_wrong_options_say_what_is_wrong(options: list[str], says: str) -> None:
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 64
    assert says in done.stderr
    assert "Traceback" not in done.stderr
