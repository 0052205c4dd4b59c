"""Real Alertmanagers for tests, and a receiver that keeps what they send."""

from __future__ import annotations

import contextlib
import http.server
import json
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import realtools
import yaml
from thismachine import end, free_port

EXAMPLE = Path(__file__).parent.parent / "dashboards" / "alertmanager.example.yaml"
START_SECONDS = 30.0
Json = dict[str, Any]


def binary(which: str, name: str = "alertmanager") -> Path:
    """`alertmanager` or `amtool` of the distribution (Debian 12: 0.25) or the newest (0.35). Skips the test where it is missing."""
    if which == "newest":
        return realtools.find(name)[name]
    found = shutil.which({"alertmanager": "prometheus-alertmanager"}.get(name, name))
    if found is None:
        realtools.absent(f"no {name} on the path: apt-get install --no-install-recommends prometheus-alertmanager")
    return Path(str(found))


@dataclass
class Inbox:
    """Notifications in the order in which they came: (receiver, body)."""

    port: int = 0
    messages: list[tuple[str, Json]] = field(default_factory=list)

    def alerts(self, status: str = "firing") -> list[tuple[str, dict[str, str]]]:
        """Receiver and labels of every alert of every message with this status."""
        return [(receiver, alert["labels"]) for receiver,
            body in list(self.messages) for alert in body["alerts"] if alert["status"] == status]

    def names(self, receiver: str | None = None, status: str = "firing", **labels: str) -> set[str]:
        """The names of alerts that came."""
        return {found["alertname"] for where, found in self.alerts(status)
                if receiver in (None, where) and labels.items() <= found.items()}

    def until(self, holds: Callable[[Inbox], bool], seconds: float, what: str) -> None:
        """Wait. Fails with what has come so far."""
        until = time.monotonic() + seconds
        while not holds(self):
            if time.monotonic() > until:
                came = sorted({(where, found["alertname"], found.get("cluster", "")) for where, found in self.alerts()})
                raise AssertionError(f"{what} is not there after {seconds:g} s; came: {came}")
            time.sleep(0.2)


@contextlib.contextmanager
def inbox() -> Iterator[Inbox]:
    """A receiver of webhooks on a free port."""
    box = Inbox()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            box.messages.append((self.path.strip("/"), body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    box.port = int(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield box
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def sample_routing(port: int, **waits: str) -> Json:
    """The shipped example with our receiver's port, and with shorter waits."""
    config: Json = yaml.safe_load(EXAMPLE.read_text().replace("127.0.0.1:9999", f"127.0.0.1:{port}"))
    config["route"].update(waits)
    return config


@contextlib.contextmanager
def running(program: Path, folder: Path, config: Json) -> Iterator[str]:
    """Start an Alertmanager; it is gone when the block ends. Yields host:port."""
    path = folder / "alertmanager.yaml"
    path.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = [str(program), f"--config.file={path}", f"--storage.path={folder / 'alertmanager'}", f"--web.listen-address={address}",
               "--cluster.listen-address=", "--log.level=warn"]
    with (folder / "alertmanager.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/-/ready", timeout=5):
                break
            if process.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"Alertmanager did not get ready:\n{(folder / 'alertmanager.log').read_text()[-4000:]}")
            time.sleep(0.1)
        yield address
    finally:
        end(process)
