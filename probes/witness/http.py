"""A small HTTP/1.1 server in one thread: h11 for the protocol, a selector for the rest, a deadline for everything a client does.

At most `MAX_CONNECTIONS` clients at a time; when they are all taken the one that has been silent for longest goes, so a slow client can
hold a place, never the server.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

import h11

MAX_CONNECTIONS = 32
MAX_HEAD_BYTES = 8192
REQUEST_SECONDS = 5.0
ANSWER_SECONDS = 10.0
IDLE_SECONDS = 75.0
BACKLOG = 64
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


class Response(NamedTuple):
    """An answer. `headers` are added to length, type and date."""

    status: int
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


Handler = Callable[[str], Response]
"""From a request target (path and query) to its answer. Only GET and HEAD get here."""


class ListenError(OSError):
    """The address cannot be listened on. The text says which and why."""


class Server:
    """Listens at once; `step` serves for a while. Not thread-safe."""

    def __init__(self, host: str, port: int, handler: Handler, *, clock: Callable[[], float] = time.monotonic) -> None:
        """An empty `host` is every address of this machine, IPv6 too where it has it. Raises ListenError."""
        self._handler = handler
        self._clock = clock
        self._listener = _listen(host, port)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._connections: dict[socket.socket, _Connection] = {}

    @property
    def port(self) -> int:
        """The port listened on."""
        return int(self._listener.getsockname()[1])

    def watch(self, wake: socket.socket) -> None:
        """End a `step` early when `wake` becomes readable; it is read empty."""
        self._selector.register(wake, selectors.EVENT_READ, data=wake)

    def step(self, timeout: float) -> None:
        """Serve whoever is ready within `timeout` seconds, then end clients whose time is over."""
        for key, _ in self._selector.select(max(0.0, timeout)):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, _Connection):
                if key.fileobj in self._connections:
                    self._serve(key.data)
            elif isinstance(key.data, socket.socket):
                with contextlib.suppress(OSError):
                    key.data.recv(64)
        now = self._clock()
        for connection in [each for each in self._connections.values() if now >= each.deadline]:
            self._drop(connection)

    def close(self) -> None:
        """End every connection and stop listening."""
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(BACKLOG):
            try:
                link, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                # Out of file descriptors or memory: give one back, the client comes again.
                self._drop_oldest()
                return
            if len(self._connections) >= MAX_CONNECTIONS:
                self._drop_oldest()
            link.setblocking(False)
            connection = _Connection(link, self._clock() + REQUEST_SECONDS)
            self._connections[link] = connection
            self._selector.register(link, selectors.EVENT_READ, data=connection)

    def _drop_oldest(self) -> None:
        if self._connections:
            self._drop(min(self._connections.values(), key=lambda each: (not each.idle, each.deadline)))

    def _serve(self, connection: _Connection) -> None:
        try:
            if connection.pending:
                if not connection.flush():
                    return
                connection.deadline = self._clock() + IDLE_SECONDS
            while connection.open:
                if not self._read(connection):
                    break
        except (OSError, h11.LocalProtocolError):
            connection.open = False
        if not connection.open and not connection.pending:
            self._drop(connection)
            return
        events = selectors.EVENT_WRITE if connection.pending else selectors.EVENT_READ
        self._selector.modify(connection.link, events, data=connection)

    def _read(self, connection: _Connection) -> bool:
        """One event of the client. False when there is nothing to do before it sends or reads more."""
        try:
            event = connection.protocol.next_event()
        except h11.RemoteProtocolError as error:
            self._answer(connection, Response(error.error_status_hint, f"{error}\n".encode()), body=True)
            connection.open = False
            return False
        if event is h11.NEED_DATA:
            try:
                data = connection.link.recv(16384)
            except BlockingIOError:
                return False
            if data and connection.idle:
                connection.idle, connection.deadline = False, self._clock() + REQUEST_SECONDS
            connection.protocol.receive_data(data)
            return True
        if isinstance(event, h11.Request):
            connection.request = event
            return True
        if isinstance(event, h11.Data):
            self._answer(connection, Response(413, b"no body is wanted\n"), body=True)
            connection.open = False
            return False
        if isinstance(event, h11.EndOfMessage):
            return self._end_of_request(connection)
        connection.open = False  # closed by the client, or paused after an answer that closes
        return False

    def _end_of_request(self, connection: _Connection) -> bool:
        request = connection.request
        if request is None:
            return False
        method = request.method.decode("ascii")
        if method in ("GET", "HEAD"):
            response = self._handler(request.target.decode("ascii", "replace"))
        else:
            response = Response(405, b"only GET and HEAD\n", headers=(("Allow", "GET, HEAD"),))
        self._answer(connection, response, body=method != "HEAD")
        connection.request = None
        # Requests sent ahead would keep this one thread for one client: whoever does that is answered once.
        if connection.protocol.our_state is h11.MUST_CLOSE or connection.protocol.trailing_data[0]:
            connection.open = False
        else:
            connection.protocol.start_next_cycle()
            connection.idle = True
            connection.deadline = self._clock() + (ANSWER_SECONDS if connection.pending else IDLE_SECONDS)
        return False

    def _answer(self, connection: _Connection, response: Response, *, body: bool) -> None:
        protocol = connection.protocol
        if protocol.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers = [("Content-Type", response.content_type), ("Content-Length", str(len(response.body))), *response.headers]
        if protocol.their_state is h11.ERROR:
            headers.append(("Connection", "close"))
        head = protocol.send(h11.Response(status_code=response.status, headers=headers)) or b""
        content = protocol.send(h11.Data(data=response.body)) if body else b""
        rest = protocol.send(h11.EndOfMessage())
        connection.pending = memoryview(head + (content or b"") + (rest or b""))
        connection.deadline = self._clock() + ANSWER_SECONDS
        connection.flush()

    def _drop(self, connection: _Connection) -> None:
        if self._connections.pop(connection.link, None) is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(connection.link)
            connection.link.close()


class _Connection:
    """One client."""

    def __init__(self, link: socket.socket, deadline: float) -> None:
        self.link = link
        self.deadline = deadline
        self.protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self.request: h11.Request | None = None
        self.pending: memoryview | bytes = b""
        self.open = True
        self.idle = False

    def flush(self) -> bool:
        """Send what is pending. True when all of it is gone. Raises OSError."""
        while self.pending:
            try:
                sent = self.link.send(self.pending)
            except BlockingIOError:
                return False
            self.pending = self.pending[sent:]
        return True


def _listen(host: str, port: int) -> socket.socket:
    try:
        if host:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        elif socket.has_dualstack_ipv6():
            listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
        else:
            listener = socket.create_server(("", port), backlog=BACKLOG)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise ListenError(f"cannot listen on {host or '*'}:{port}: {why}") from None
    listener.setblocking(False)
    return listener
