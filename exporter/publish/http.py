"""One HTTP/1.1 connection of the metrics server: h11 over a socket, with a deadline on everything a client can delay.

A request head has `head_seconds` to arrive, whatever the pace of its bytes; an answer has `answer_seconds` to be taken; a connection
may be idle between requests for `idle_seconds`. Bodies are read and thrown away up to `body_bytes`.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast

import h11

BLOCK = 256 * 1024
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Limits:
    """What one client may cost. Times in seconds."""

    connections: int = 64
    handshake_seconds: float = 10.0
    head_seconds: float = 10.0
    answer_seconds: float = 30.0
    idle_seconds: float = 120.0
    head_bytes: int = 16 * 1024
    body_bytes: int = 64 * 1024


@dataclass(frozen=True)
class Request:
    """A request head. Header names are lower case; a header given twice is joined by commas."""

    method: str
    path: str
    headers: dict[str, str]
    query: str = ""


@dataclass(frozen=True)
class Answer:
    """What a handler returns. `body` is a list of blocks and is left out for HEAD, its length is not."""

    status: int
    body: Sequence[bytes] = ()
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()
    close: bool = False

    @classmethod
    def text(cls, status: int, text: str, *headers: tuple[str, str], close: bool = False) -> Answer:
        """A short answer in plain text."""
        return cls(status, (text.rstrip("\n").encode() + b"\n",), TEXT, headers, close)


Handler = Callable[[Request], Answer]


class _Body:
    """Stands for a body that is written to the socket without passing through h11, which only needs its length."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


class Gone(Exception):  # noqa: N818 - the end of a connection, not an error of ours
    """The client is gone, too slow, or may not go on. The text is one word for the counter."""


@dataclass(eq=False)
class Connection:
    """One accepted connection. `idle_since` is set while it waits for a next request, so that it may be closed for a newer one."""

    sock: socket.socket
    handler: Handler
    limits: Limits
    idle_since: float | None = None
    closing: bool = False
    _http: h11.Connection = field(init=False)

    def __post_init__(self) -> None:
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=self.limits.head_bytes)

    def serve(self) -> None:
        """Answer requests until either side has had enough. Raises Gone with the reason when it ends in the middle of something."""
        first = True
        while not self.closing:
            try:
                request = self._read_head(first)
            except h11.RemoteProtocolError as error:
                self._refuse(error)
                return
            if request is None:
                return
            answer = self._read_body() or self.handler(request)
            self._send(answer, request.method)
            if self._http.our_state is h11.MUST_CLOSE or self._http.their_state is not h11.DONE:
                return
            self._http.start_next_cycle()
            first = False

    def stop(self) -> None:
        """End the connection from another thread: at once when it is idle, else after the present answer."""
        self.closing = True
        if self.idle_since is not None:
            self.abort()

    def abort(self) -> None:
        """Cut the connection from another thread."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def _read_head(self, first: bool) -> Request | None:
        waiting = self._http.trailing_data[0] == b""
        if not first and waiting:
            self.idle_since = time.monotonic()
            data = self._receive(time.monotonic() + self.limits.idle_seconds, quiet=True)
            self.idle_since = None
            if not data:
                return None
            self._http.receive_data(data)
        until = time.monotonic() + self.limits.head_seconds
        started = not first
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                data = self._receive(until, quiet=not started)
                if not data and not started:
                    return None
                started = True
                self._http.receive_data(data)
            elif isinstance(event, h11.Request):
                return _request(event)
            else:
                return None

    def _read_body(self) -> Answer | None:
        """Read and throw away the body. Returns an answer where there is too much of it."""
        until = time.monotonic() + self.limits.head_seconds
        size = 0
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError:
                return Answer.text(HTTPStatus.BAD_REQUEST, "the body of the request is broken", close=True)
            if event is h11.NEED_DATA:
                if self._http.they_are_waiting_for_100_continue:
                    return Answer.text(HTTPStatus.EXPECTATION_FAILED, "no body is needed here", close=True)
                self._http.receive_data(self._receive(until))
            elif isinstance(event, h11.Data):
                size += len(event.data)
                if size > self.limits.body_bytes:
                    return Answer.text(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "no body is needed here", close=True)
            else:
                return None

    def _receive(self, until: float, *, quiet: bool = False) -> bytes:
        """Some bytes; empty at the end of the stream. With `quiet` a client that says nothing is not an event worth counting."""
        self.sock.settimeout(max(0.001, until - time.monotonic()))
        try:
            return self.sock.recv(16384)
        except TimeoutError:
            if quiet:
                return b""
            raise Gone("slow_request") from None
        except OSError:
            if quiet:
                return b""
            raise Gone("reset") from None

    def _send(self, answer: Answer, method: str) -> None:
        length = sum(map(len, answer.body))
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(length)), *answer.headers]
        if answer.close or self.closing:
            headers.append(("Connection", "close"))
        reason = HTTPStatus(answer.status).phrase.encode()
        head = self._http.send(h11.Response(status_code=answer.status, headers=headers, reason=reason))
        if method != "HEAD" and length:
            self._http.send_with_data_passthrough(h11.Data(data=cast("Any", _Body(length))))
        self._http.send(h11.EndOfMessage())
        self._write([head, *(answer.body if method != "HEAD" else ())])

    def _write(self, parts: Iterable[bytes]) -> None:
        until = time.monotonic() + self.limits.answer_seconds
        waiting: list[bytes] = []
        size = 0
        for part in parts:
            waiting.append(part)
            size += len(part)
            if size >= BLOCK:
                self._write_all(b"".join(waiting), until)
                waiting, size = [], 0
        if waiting:
            self._write_all(b"".join(waiting), until)

    def _write_all(self, data: bytes, until: float) -> None:
        view = memoryview(data)
        while view:
            left = until - time.monotonic()
            if left <= 0:
                raise Gone("slow_reader")
            self.sock.settimeout(left)
            try:
                view = view[self.sock.send(view) :]
            except TimeoutError:
                raise Gone("slow_reader") from None
            except OSError:
                raise Gone("reset") from None

    def _refuse(self, error: h11.RemoteProtocolError) -> None:
        """Say what is wrong with a request head, then close without a reset: what still comes is read for a moment."""
        status = error.error_status_hint
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            with contextlib.suppress(h11.LocalProtocolError):
                self._send(Answer.text(status, f"bad request: {error}", close=True), "GET")
        raise Gone("bad_request")


def linger(sock: socket.socket, seconds: float = 1.0) -> None:
    """Close our side and let the client read what was sent: bytes it still sends would otherwise turn the close into a reset."""
    until = time.monotonic() + seconds
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        for _ in range(64):
            sock.settimeout(max(0.001, until - time.monotonic()))
            if not sock.recv(16384):
                break


def _request(event: h11.Request) -> Request:
    headers: dict[str, str] = {}
    for name, value in event.headers:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    target = event.target.decode("latin-1")
    if "://" in target.partition("?")[0]:
        target = "/" + target.partition("://")[2].partition("/")[2]
    path, _, query = target.partition("?")
    return Request(event.method.decode("latin-1"), path, headers, query)
