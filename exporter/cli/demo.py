"""`efa-pulse demo`: the main job on this machine with real local probes and a canary against a simulated endpoint."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from exporter import log
from exporter.cli import render
from exporter.cli.exits import UsageError, of_outcomes
from exporter.config import Config
from exporter.config.log import Logging
from exporter.config.server import DEFAULT_PORT
from exporter.judge.verdict import Verdict
from exporter.service import Service
from probes.reasons import Outcome, Reason
from probes.supervisor import PARENT_PID

NODES = ("local-a", "local-b")
ENDPOINT = "simulated-pd"
START_SECONDS = 15.0
FIRST_ROUND_SECONDS = 180.0


def demo(
    once: Annotated[bool, typer.Option("--once", help="End after the first round; the exit status tells how it went.")] = False,
    seconds: Annotated[float | None, typer.Option(min=1, help="End after so many seconds.")] = None,
    listen: Annotated[str, typer.Option(help="Address of the metrics server.")] = f"127.0.0.1:{DEFAULT_PORT}",
) -> int:
    """Real Mooncake and NIXL probes over loopback, a canary against a simulated prefill/decode endpoint, and the metrics of both."""
    out = render.console()
    log.configure(Logging(level="error"))
    out.print("Two local ranks move KV-sized blocks with the real Mooncake and NIXL engines over loopback; a canary streams from a "
              "[bold]simulated[/] prefill/decode endpoint. Nothing leaves this machine.", markup=True)
    with simulated_endpoint() as url:
        service = Service(configuration(url, free_address(listen, out)))
        watcher = _Watcher(service, out, once=once)
        service.listen(watcher.verdict)
        out.print(f"Metrics are at {service.url}metrics; the first round runs.", markup=False)
        timer = threading.Timer(min(seconds or FIRST_ROUND_SECONDS, FIRST_ROUND_SECONDS) if once else seconds or 1e9, service.stop)
        timer.daemon = True
        if once or seconds:
            timer.start()
        service.run()
        timer.cancel()
    if not watcher.complete:
        watcher.summary()
    return of_outcomes(watcher.outcomes())


def configuration(url: str, listen: str) -> Config:
    """What the demo measures: the preflight of two pretended nodes, both engines between them, both prompts against `url`."""
    often = {"interval": "60s", "jitter": 0, "stagger": False}
    return Config.model_validate({
        "inventory": {"mode": "static", "nodes": [{"name": name} for name in NODES]},
        "schedule": {"start_spread": 0},
        "probes": {"node": {"schedule": {**often, "interval": "10m"}},
                   "mooncake": {"schedule": often, "deadline": "30s"},
                   "nixl": {"schedule": often, "deadline": "30s"}},
        "canary": {"targets": [{"name": ENDPOINT, "url": url, "model": "simulated-pd", "params": {"total_timeout": 4},
                                "prompts": {"short": {"schedule": {**often, "interval": "5s"}},
                                            "long": {"schedule": {**often, "interval": "20s"}, "params": {"total_timeout": 15}}}}]},
        "server": {"listen": listen},
        "launch": {"grace": "5s"},
        "archive": {"enabled": False},
    })


def free_address(listen: str, out: Console, option: str = "--listen") -> str:
    """`listen` if it is free, else a free port of the same host, with a word about it. Raises UsageError that names `option`."""
    host, _, port = listen.rpartition(":")
    if not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > 65535:
        raise UsageError(f"{option} {listen}: host:port is needed")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in (int(port), 0):
        with socket.socket(family) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind((host.strip("[]"), candidate))
            except OSError as error:
                if candidate == 0:
                    raise UsageError(f"{option} {listen}: {error.strerror}") from None
                continue
            if candidate != int(port):
                out.print(f"Port {port} is taken; another one is used.")
            return f"{host}:{one.getsockname()[1]}"
    raise UsageError(f"{option} {listen}: no port is free")


@contextlib.contextmanager
def simulated_endpoint() -> Iterator[str]:
    """The bundled simulated endpoint as a process of its own. Gives its base address; raises UsageError when it does not start."""
    process = subprocess.Popen([sys.executable, "-m", "probes.canary.simulated", "--listen", "127.0.0.1:0"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, text=True, env={**os.environ, PARENT_PID: str(os.getpid())}, start_new_session=True)
    try:
        line = _first_line(process)
        address = next((word for word in line.split() if word.startswith("http://")), None)
        if address is None:
            raise UsageError(f"the simulated endpoint did not start: {line.strip() or 'no word from it'}")
        yield address
    finally:
        process.terminate()
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _first_line(process: subprocess.Popen[str]) -> str:
    if process.stdout is None:
        return ""
    ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
    return process.stdout.readline() if ready else ""


class _Watcher:
    """Follows the service: the last verdict of each job, a table after the first round, then one line a verdict."""

    def __init__(self, service: Service, out: Console, *, once: bool) -> None:
        self._service = service
        self._out = out
        self._once = once
        self._last: dict[str, Verdict] = {}
        self.complete = False

    def verdict(self, verdict: Verdict) -> None:
        job = verdict.run.spec.labels["job"]
        if verdict.reason is Reason.CANCELLED and job in self._last:
            return  # cut off by the end of the demo: what was measured before stands
        if self._once and job in self._last:
            return  # a slow machine may begin a second round before the first is over
        self._last[job] = verdict
        if self.complete:
            self._out.print(_line(verdict))
            return
        expected = {job.id for job in self._service.control.jobs} if self._service.control else set()
        if expected <= self._last.keys():
            self.complete = True
            self.summary()
            if self._once:
                self._service.stop()

    def outcomes(self) -> list[Outcome]:
        """The last outcome of each job."""
        return [verdict.outcome for verdict in self._last.values()]

    def summary(self) -> None:
        """The table of the first round and where to look."""
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        for name in ("probe", "target", "outcome", "transport", "found"):
            table.add_column(name, overflow="fold")
        for job_id, verdict in sorted(self._last.items()):
            prompt = f" ({job_id.rpartition('/')[2]})" if verdict.run.spec.probe == "canary" else ""
            outcome = Text(verdict.outcome.value, render.STYLES[verdict.outcome])
            table.add_row(verdict.run.spec.probe + prompt, verdict.run.spec.target, outcome,
                          verdict.transport.value if verdict.transport else "", render.figure(verdict))
        self._out.print()
        self._out.print(table)
        self._out.print()
        self._out.print("Transport tcp is the honest verdict without EFA. The simulated endpoint's figures are made up, the engines' are "
                        "real.")
        if not self._once:
            self._out.print(f"Open {self._service.url} or {self._service.url}metrics. It goes on measuring; Ctrl-C ends it.", markup=False)


def _line(verdict: Verdict) -> Text:
    text = Text(time.strftime("%H:%M:%S "), "dim")
    text.append(f"{verdict.outcome.value:<9}", render.STYLES[verdict.outcome])
    text.append(f"{verdict.run.spec.probe} {verdict.run.spec.target}  {render.figure(verdict)}")
    return text
