"""`efa-pulse status` and `efa-pulse explain` against a real service with real probes, as a person calls them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

SECONDS = 60.0
FLOOR = {"probe": "nixl", "operation": "write", "bytes": "1MiB", "min_bandwidth": "1MB/s", "source": "every machine is so fast"}
CONFIG: dict[str, Any] = {
    "schedule": {"start_spread": 0},
    "inventory": {"mode": "static", "nodes": [{"name": "here"}, {"name": "there"}]},
    "probes": {"node": {"enabled": False}, "mooncake": {"enabled": False},
               "nixl": {"schedule": {"interval": "2h"}, "deadline": "45s", "params": {"sizes": ["1MiB"], "operations": ["write"]}}},
    "canary": {"targets": [{"name": "gone", "url": "http://127.0.0.1:1", "model": "m"}]},
    "thresholds": {"floors": [FLOOR]},
}


def efa_pulse(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "exporter", *arguments], capture_output=True, text=True, timeout=SECONDS, check=False,
                          env={**os.environ, "COLUMNS": "160", **environment})


class Service:
    """The service as a process of its own."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = int(one.getsockname()[1])
        server = {"listen": f"127.0.0.1:{self.port}", **config.pop("server", {})}
        (folder / "config.yaml").write_text(yaml.safe_dump({**config, "server": server}))
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "exporter", "run", "-c", str(folder / "config.yaml")], stderr=log,
                                            stdout=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{self.port}"

    def until(self, *probes: str, token: str = "") -> dict[str, Any]:
        """The status document once a run of each of these probes has ended."""
        request = urllib.request.Request(f"{self.url}/api/status", headers={"Authorization": f"Bearer {token}"} if token else {})
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5) as answer:
                document = json.load(answer)
                if document["at"] > 0 and set(probes) <= {one["probe"] for one in document["recent"]}:
                    return dict(document)
            time.sleep(0.2)
        pytest.fail(f"not seen within {SECONDS:g} s")

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(SECONDS)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that has measured a pair and asked a canary target that is not there."""
    service = Service(tmp_path_factory.mktemp("service"), dict(CONFIG))
    try:
        service.until("nixl", "canary")
        yield service
    finally:
        service.end()


def run_of(service: Service, probe: str) -> str:
    return str(next(one["run_id"] for one in service.until()["recent"] if one["probe"] == probe))


def test_status_says_what_is_bad_and_ends_with_1(measured: Service) -> None:
    done = efa_pulse("status", "--url", measured.url)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("BAD")
    assert re.search(r"gone +short +bad", done.stdout)
    assert not re.search(r"here +nixl", done.stdout), "what is good is left out"
    assert "nixl/here--there" in done.stdout, "what runs next is listed"
    listed = efa_pulse("status", "--all", "--url", measured.url).stdout
    assert re.search(r"here +nixl +good +tcp", listed)


def test_explain_of_a_node_lays_out_the_real_run(measured: Service) -> None:
    done = efa_pulse("explain", "here", "--url", measured.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"right transport +holds +tcp", done.stdout)
    assert re.search(r"right speed +holds", done.stdout)
    assert re.search(r"right answer +holds", done.stdout)
    assert re.search(r"TCP sockets +rank 0 on here +payload", done.stdout)
    assert "every machine is so fast" in done.stdout, "the floor's source"
    assert "falls below 0.001 GB/s" in done.stdout
    assert "nixl/here--there in" in done.stdout


def test_explain_of_the_pair_and_of_the_run_agree(measured: Service) -> None:
    run_id = run_of(measured, "nixl")
    documents = [json.loads(efa_pulse("explain", what, "--json", "--url", measured.url).stdout)
                 for what in (run_id, "here--there", "there--here")]
    assert [document["kind"] for document in documents] == ["run", "pair", "pair"]
    assert {document["sections"][0]["run"]["run_id"] for document in documents} == {run_id}
    tcp = [one["numbers"] for one in documents[0]["sections"][0]["witnesses"] if one["witness"] == "tcp"]
    assert tcp[0]["tcp_sent"] >= tcp[0]["payload_sent"] > 1 << 20, "the kernel's own count of a real transfer"


def test_explain_of_a_canary_target(measured: Service) -> None:
    done = efa_pulse("explain", "gone", "--url", measured.url)
    assert done.returncode == 1
    assert "connect_failed" in done.stdout


def test_what_is_not_known_is_one_line_with_names_near_it(measured: Service) -> None:
    done = efa_pulse("explain", "heer", "--url", measured.url)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith("efa-pulse: nothing is known of 'heer'; there is here")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("arguments", "code", "says"), [
    (("status", "--url", "ftp://h"), 64, "http://host:port"),
    (("status", "--url", "http://user:secret@h"), 64, "credentials by --token-file"),
    (("status", "--user", "me"), 64, "go together"),
    (("status", "--token-file", "/nowhere/token"), 64, "/nowhere/token"),
    (("status", "--ca-file", "/nowhere/ca"), 64, "/nowhere/ca"),
    (("status", "--url", "http://127.0.0.1:1", "--context", "c"), 64, "one way or the other"),
    (("status", "--kubeconfig", "/nowhere/config"), 64, "/nowhere/config"),
    (("status", "--url", "http://127.0.0.1:1"), 2, "does not answer"),
    (("explain", "a", "--url", "http://127.0.0.1:1"), 2, "does not answer"),
])
def test_every_other_failure_is_one_line_and_its_status(arguments: tuple[str, ...], code: int, says: str) -> None:
    done = efa_pulse(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert "secret" not in done.stderr


def test_a_server_that_is_another_one_is_said_to_be(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path, text=True) as other:
        assert other.stdout is not None
        port = re.search(r"port (\d+)", other.stdout.readline())
        assert port is not None
        done = efa_pulse("status", "--url", f"127.0.0.1:{port[1]}")
        other.terminate()
    assert done.returncode == 2
    assert "no document of efa-pulse" in done.stderr


def test_credentials_come_from_files_and_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("open-sesame\n")
    (tmp_path / "wrong").write_text("sesame\n")
    service = Service(tmp_path, {"probes": {name: {"enabled": False} for name in ("node", "mooncake", "nixl")},
                                 "server": {"bearer_token": {"file": str(tmp_path / "token")}}})
    try:
        document = service.until(token="open-sesame")
        assert document["health"] == "unknown", "nothing is measured, and that is not ok"
        for options in ((), ("--token-file", str(tmp_path / "wrong"))):
            done = efa_pulse("status", "--url", service.url, *options)
            assert (done.returncode, done.stderr.count("\n")) == (64, 1)
            assert "give --token-file" in done.stderr
            assert "sesame" not in done.stderr
        assert efa_pulse("status", "--url", service.url, "--token-file", str(tmp_path / "token")).returncode == 2
    finally:
        service.end()
