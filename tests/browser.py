"""A headless Chromium for tests, spoken to by its own debugging protocol: what a page looks like, and what it complains about."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import realtools
import websocket
from thismachine import end

START_SECONDS = 60.0
ANSWER_SECONDS = 30.0
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-port=0",
         "--remote-allow-origins=*")


@dataclass(frozen=True)
class Looked:
    """A page at one size. `width` and `height` are those of its content; `complaints` are errors of console, network and policy."""

    width: int
    height: int
    complaints: list[str]
    picture: bytes


class Browser:
    """One browser with one page."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._number = 0
        self._events: list[dict[str, Any]] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """One command; its result. Events that come meanwhile are kept."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        end = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < end:
            message = json.loads(self._socket.recv())
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self._events.append(message)
        raise AssertionError(f"{method} got no answer in {ANSWER_SECONDS} s")

    def value(self, script: str) -> Any:
        """The value of an expression in the page."""
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def look(self, url: str, width: int, height: int = 900, *, dark: bool = False, phone: bool = False,
             headers: dict[str, str] | None = None) -> Looked:
        """Open an address at a size, wait until it is there, and take a picture of all of it."""
        self._events.clear()
        self.call("Network.setExtraHTTPHeaders", headers=headers or {})
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url=url)
        end = time.monotonic() + ANSWER_SECONDS
        while self.value("location.href === 'about:blank' ? '' : document.readyState") != "complete":
            assert time.monotonic() < end, f"{url} did not load"
            time.sleep(0.05)
        size = self.value("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                         clip={"x": 0, "y": 0, "width": width, "height": min(size[1], 12000), "scale": 1})["data"]
        return Looked(size[0], size[1], list(self._complaints()), base64.b64decode(data))

    def _complaints(self) -> Iterator[str]:
        for event in self._events:
            parameters = event.get("params", {})
            match event.get("method"):
                case "Runtime.exceptionThrown":
                    yield str(parameters["exceptionDetails"]["text"])
                case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                    yield str(parameters["args"])
                case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                    yield str(parameters["entry"]["text"])
                case "Page.javascriptDialogOpening":
                    yield f"a dialog: {parameters['message']}"
                case "Network.loadingFailed":
                    yield f"not loaded: {parameters.get('errorText')}"


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a fresh profile in `folder`; it is gone when the block ends. Skips the test without Chromium; an error in CI."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        realtools.absent("no chromium on the path: apt-get install --no-install-recommends chromium fonts-dejavu-core")
    profile = folder / "profile"
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen([str(program), *FLAGS, f"--user-data-dir={profile}", "about:blank"], stdout=log, stderr=log)
    try:
        port = _port(profile, process, folder / "chromium.log")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=ANSWER_SECONDS) as answer:
            page = next(one for one in json.load(answer) if one["type"] == "page")
        socket = websocket.create_connection(page["webSocketDebuggerUrl"], timeout=ANSWER_SECONDS, max_size=None)
        try:
            yield Browser(socket)
        finally:
            socket.close()
    finally:
        end(process, 10)


def _port(profile: Path, process: subprocess.Popen[bytes], log: Path) -> int:
    file = profile / "DevToolsActivePort"
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(file.read_text().splitlines()[0])
        time.sleep(0.1)
    raise AssertionError(f"chromium did not start:\n{log.read_text(errors='replace')[-2000:]}")
