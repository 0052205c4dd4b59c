"""`efa-pulse run` as a process with a configuration file of its own, scraped and waited for."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

SECONDS = 30.0


class Running:
    """The service as a process, with its configuration file."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = int(one.getsockname()[1])
        self.path = folder / "config.yaml"
        self.log_path = folder / "service.log"
        self.write(config)
        self.started: list[int] = []
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "exporter", "run", "-c", str(self.path)], stderr=log,
                                            stdout=subprocess.DEVNULL)

    def write(self, config: dict[str, Any]) -> None:
        text = yaml.safe_dump({"server": {"listen": "127.0.0.1:PORT"}, "logging": {"format": "json"}, **config})
        self.path.write_text(text.replace("127.0.0.1:PORT", f"127.0.0.1:{self.port}"))

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def value(self, name: str, **labels: str) -> float | None:
        families = text_string_to_metric_families(self.get("/metrics")[1])
        return next((sample.value for family in families for sample in family.samples
                     if sample.name == name and labels.items() <= sample.labels.items()), None)

    def until(self, what: Callable[[], bool], seconds: float = SECONDS) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if what():
                    return
            except OSError:
                pass
            assert self.process.poll() is None, self.log
            time.sleep(0.1)
        pytest.fail(f"not seen within {seconds:g} s; the service says: {self.log[-2000:]}")

    def until_ready(self) -> None:
        self.until(lambda: self.get("/-/ready")[0] == 200)

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS)
