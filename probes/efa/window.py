"""Asking a witness for the counters of one window of its node (`GET /window`, see `probes.witness`)."""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import h11

from probes.contract import split_endpoint

SCHEMA = "efa-pulse/witness/v1"
LARGEST_ANSWER = 4 << 20
ASK_AGAIN_SECONDS = 1.0
COUNTER_END = 1 << 64
LONGEST_REASON = 300
Get = Callable[[str, float], tuple[int, bytes]]
"""Status and body of the answer to a GET of a path with query, within so many seconds. Raises OSError."""


@dataclass(frozen=True)
class DeviceDelta:
    """One device over one window: differences by counter, counters that were reset in it, share of the window in which it was seen."""

    counters: Mapping[str, int] = field(default_factory=dict)
    resets: tuple[str, ...] = ()
    coverage: float = 1.0


@dataclass(frozen=True)
class CounterWindow:
    """Differences between two looks of the witness at the times `start` and `end`, Unix seconds of the node."""

    start: float
    end: float
    devices: Mapping[str, DeviceDelta]


@dataclass(frozen=True)
class WitnessAnswer:
    """The window of a run and equal windows before and after the whole run; None where there is no such background."""

    node: str
    window: CounterWindow
    before: CounterWindow | None = None
    after: CounterWindow | None = None


@dataclass(frozen=True)
class NoAnswer:
    """Why there is no answer."""

    reason: str


def ask(address: str, start: float, end: float, *, started: float | None = None, ended: float | None = None, deadline: float = 10.0,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
        get: Get | None = None) -> WitnessAnswer | NoAnswer:
    """The answer of the witness at `address` (host:port) for the window `start` to `end`, never later than `deadline` seconds from now.

    `started` and `ended` are the times of the whole run: backgrounds are taken outside of it. While the witness says that something is
    still to come (the background after the run), it is asked again; at the deadline what it said last is returned. `get` reaches it
    another way than by its address.
    """
    until = clock() + deadline
    query = {"from": f"{start:.6f}", "to": f"{end:.6f}"}
    query.update({name: f"{value:.6f}" for name, value in (("started", started), ("ended", ended)) if value is not None})
    try:
        host, port = split_endpoint(address)
    except ValueError as error:
        return NoAnswer(f"witness: {error}")
    last: WitnessAnswer | NoAnswer = NoAnswer(f"witness {address}: no answer within {deadline:g} s")
    while (left := until - clock()) > 0:
        try:
            target = f"/window?{urlencode(query)}"
            status, body = get(target, left) if get is not None else _get(host, port, target, clock() + left, clock)
            last, pending = _read(status, body)
        except (OSError, h11.RemoteProtocolError, ValueError) as error:
            return last if isinstance(last, WitnessAnswer) else NoAnswer(f"witness {address}: {_why(error, deadline)}")
        if not pending or until - clock() <= ASK_AGAIN_SECONDS:
            return last if isinstance(last, WitnessAnswer) else NoAnswer(f"witness {address}: {last.reason}")
        sleep(ASK_AGAIN_SECONDS)
    return last


def parse(data: Any) -> WitnessAnswer:
    """The answer in its JSON form. Raises ValueError that names what is wrong."""
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"not an answer of schema {SCHEMA}")
    node = data.get("node")
    if not isinstance(node, str):
        raise ValueError("node: a text is needed")
    window = _window(data.get("window"), "window")
    if window is None:
        raise ValueError("window: is missing")
    return WitnessAnswer(node, window, _window(data.get("before"), "before"), _window(data.get("after"), "after"))


def _window(data: Any, where: str) -> CounterWindow | None:
    if data is None:
        return None
    if not isinstance(data, dict) or not isinstance(data.get("devices"), dict):
        raise ValueError(f"{where}: from, to and devices are needed")
    start, end = _finite(data.get("from"), f"{where}.from"), _finite(data.get("to"), f"{where}.to")
    if end <= start:
        raise ValueError(f"{where}: ends before it starts")
    return CounterWindow(start, end, {str(name): _device(device, f"{where}.{name}") for name, device in data["devices"].items()})


def _device(data: Any, where: str) -> DeviceDelta:
    if not isinstance(data, dict) or not isinstance(data.get("counters"), dict) or not isinstance(data.get("resets"), list):
        raise ValueError(f"{where}: counters, resets and coverage are needed")
    for name, value in data["counters"].items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < COUNTER_END:
            raise ValueError(f"{where}.{name}: a count is needed")
    return DeviceDelta(data["counters"], tuple(str(name) for name in data["resets"]), _finite(data.get("coverage"), f"{where}.coverage"))


def _finite(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{where}: a number is needed")
    return float(value)


def _read(status: int, body: bytes) -> tuple[WitnessAnswer | NoAnswer, bool]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError(f"status {status} and an answer that is not JSON") from None
    if status == 200:
        return parse(data), bool(data.get("pending"))
    error = data.get("error") if isinstance(data, dict) else None
    said = str(error or "no reason given")[:LONGEST_REASON]
    return NoAnswer(f"{said} (status {status})"), isinstance(data, dict) and bool(data.get("pending"))


def _get(host: str, port: int, target: str, until: float, clock: Callable[[], float]) -> tuple[int, bytes]:
    """One request on a connection of its own. Every wait ends at `until`. Raises OSError, ValueError or h11.RemoteProtocolError."""
    protocol = h11.Connection(h11.CLIENT)
    request = h11.Request(method="GET", target=target, headers=[("Host", host), ("Connection", "close")])
    with socket.create_connection((host, port), timeout=max(0.001, until - clock())) as link:
        link.sendall((protocol.send(request) or b"") + (protocol.send(h11.EndOfMessage()) or b""))
        status, body = 0, bytearray()
        while True:
            event = protocol.next_event()
            if event is h11.NEED_DATA:
                left = until - clock()
                if left <= 0:
                    raise TimeoutError
                link.settimeout(left)
                protocol.receive_data(link.recv(1 << 16))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > LARGEST_ANSWER:
                    raise ValueError(f"the answer is larger than {LARGEST_ANSWER} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return status, bytes(body)
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                raise ConnectionResetError("closed before the answer was complete")


def _why(error: Exception, deadline: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {deadline:g} s"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
