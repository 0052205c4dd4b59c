"""Real Prometheus servers for tests: started on a free loopback port, asked over their HTTP API, and ended by process id."""

from __future__ import annotations

import contextlib
import http.server
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import realtools
import yaml
from thismachine import end, free_port, serving

VERSIONS = ("system", "newest")
"""`system`: what the distribution installs (Debian 12: 2.42); `newest`: the binaries that `realtools` finds (3.16)."""
START_SECONDS = 30.0
STOP_SECONDS = 15.0


@dataclass(frozen=True)
class Binaries:
    """A Prometheus and its promtool. `version` is the major version."""

    prometheus: Path
    promtool: Path
    version: int


def binaries(which: str) -> Binaries:
    """The binaries of one of `VERSIONS`. Skips the test where they are missing; with CI=true that is an error."""
    if which == "newest":
        found = realtools.find("prometheus", "promtool")
        paths = found["prometheus"], found["promtool"]
    else:
        system = shutil.which("prometheus"), shutil.which("promtool")
        if None in system:
            realtools.absent("no prometheus on the path: apt-get install --no-install-recommends prometheus")
        paths = Path(str(system[0])), Path(str(system[1]))
    done = subprocess.run([str(paths[0]), "--version"], capture_output=True, text=True, timeout=30, check=True)
    words = (done.stdout + done.stderr).split()
    return Binaries(*paths, int(words[words.index("version") + 1].partition(".")[0]))


class Prometheus:
    """A running server. Every question has a deadline."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def api(self, path: str, **parameters: str) -> Any:
        """The `data` of one API answer. Raises AssertionError with Prometheus' own message."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as answer:
                document = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from None
        assert document["status"] == "success", document
        return document["data"]

    def query(self, promql: str) -> dict[frozenset[tuple[str, str]], float]:
        """An instant vector: labels to value."""
        data = self.api("query", query=promql)
        return {frozenset(item["metric"].items()): float(item["value"][1]) for item in data["result"]}

    def value(self, promql: str) -> float | None:
        """The one value of a query, None for an empty answer."""
        found = list(self.query(promql).values())
        assert len(found) <= 1, f"{promql} gave {len(found)} series"
        return found[0] if found else None

    def until(self, promql: str, holds: Callable[[float | None], bool], seconds: float = 30.0) -> float | None:
        """Ask again until the value holds. Fails with the last value and what the targets say."""
        until = time.monotonic() + seconds
        while True:
            value = self.value(promql)
            if holds(value):
                return value
            if time.monotonic() > until:
                errors = [(target["labels"]["job"], target["lastError"]) for target in self.api("targets")["activeTargets"]]
                raise AssertionError(f"{promql} is {value} after {seconds} s; targets: {errors}")
            time.sleep(0.2)


@contextlib.contextmanager
def running(found: Binaries, folder: Path, scrape_configs: list[dict[str, Any]], *flags: str, interval: str = "1s",
            rule_files: Sequence[Path] = (), alertmanager: str | None = None) -> Iterator[Prometheus]:
    """Start Prometheus with these scrape jobs; it is gone, with its data, when the block ends. `alertmanager` is host and port."""
    config = folder / "prometheus.yml"
    pace = {"scrape_interval": interval, "scrape_timeout": interval}
    rules: dict[str, Any] = {"rule_files": [str(path) for path in rule_files]} if rule_files else {}
    if alertmanager is not None:
        rules["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
    config.write_text(yaml.safe_dump({"global": {**pace, "evaluation_interval": interval}, **rules, "scrape_configs": scrape_configs}))
    port = free_port()
    command = [str(found.prometheus), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
               f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", *flags]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_ready(process, port, folder / "prometheus.log")
        yield Prometheus(port)
    finally:
        end(process, STOP_SECONDS)
        shutil.rmtree(folder / "data", ignore_errors=True)


def check_metrics(found: Binaries, page: bytes) -> tuple[int, str]:
    """What `promtool check metrics` says of a page: exit code and everything it printed."""
    done = subprocess.run([str(found.promtool), "check", "metrics"], input=page, capture_output=True, timeout=60, check=False)
    return done.returncode, (done.stdout + done.stderr).decode()


@contextlib.contextmanager
def text_only(upstream: str) -> Iterator[str]:
    """A relay that asks for no format, so that a Prometheus that cannot be told so (before 2.49) scrapes text. Yields host:port."""

    class Relay(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            accepted = self.headers.get("Accept-Encoding", "")
            request = urllib.request.Request(upstream.rstrip("/") + self.path, headers={"Accept-Encoding": accepted})
            with urllib.request.urlopen(request, timeout=10) as answer:
                body = answer.read()
                self.send_response(answer.status)
                for name in ("Content-Type", "Content-Encoding"):
                    if name in answer.headers:
                        self.send_header(name, answer.headers[name])
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with serving(Relay) as port:
        yield f"127.0.0.1:{port}"


def _wait_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise AssertionError(f"Prometheus did not get ready:\n{log.read_text()[-4000:]}")
