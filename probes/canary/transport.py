"""A TCP connection, with TLS on top where wanted, whose every read tells when the kernel got its last segment.

Sockets never block: each wait is a poll with a deadline, in CLOCK_MONOTONIC seconds. TLS runs through memory BIOs, so that the arrival
time of a record is that of the segment that completed it.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from probes.canary.clock import Moment, Stopwatch
from probes.canary.status import Status
from probes.canary.wake import WakeClock, woken_at

READ_SIZE = 64 * 1024
EARLY_LIMIT = 1 << 20

# Python names the constant only since 3.13. This is its value on every architecture that EC2 has.
_SO_TIMESTAMPNS = getattr(socket, "SO_TIMESTAMPNS", 35) if sys.platform == "linux" else None
_TIMESPEC = struct.Struct("@ll")

Address = tuple[socket.AddressFamily, Any]
"""Family and socket address, as getaddrinfo gives them."""


class TransportError(Exception):
    """No usable connection. `status` is how the request ends."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


class DeadlinePassed(Exception):  # noqa: N818 - an answer to a wait, not an error
    """The time of a wait is over."""


@dataclass(frozen=True)
class Arrival:
    """What one read brought. No data means the end of the connection, `why` says of which kind."""

    data: bytes
    at: Moment
    why: str = ""


@contextlib.contextmanager
def stamping(seconds: float = 0.5) -> Iterator[None]:
    """Keep the kernel's stamping of arrivals on, and wait until it works, at most `seconds`.

    The kernel stamps while any socket of the machine asks for it, and begins some time after the first one asked. What arrives before has
    no stamp, or takes that of a later segment.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            _switch_stamps_on(held, seconds)
        yield


def _switch_stamps_on(held: contextlib.ExitStack, seconds: float) -> None:
    """Two connected sockets of our own, held by `held`, that ask for stamps; returns when one came."""
    if _SO_TIMESTAMPNS is None:
        return
    near = held.enter_context(socket.socket())
    near.settimeout(seconds)
    ask_for_stamps(near)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(seconds)
        near.connect(listener.getsockname())
        far = held.enter_context(listener.accept()[0])
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        far.send(b"?")
        if _receive_into(near, bytearray(1))[1] is not None:
            return
        time.sleep(0.0005)


def resolve(host: str, port: int, until: float) -> list[Address]:
    """The addresses of `host`. The resolver has no deadline of its own, so it works in a thread that is left behind when it hangs."""
    found: list[Address] = []
    problem: list[str] = []

    def look() -> None:
        try:
            found.extend((info[0], info[4]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            problem.append(getattr(error, "strerror", None) or str(error))

    worker = threading.Thread(target=look, daemon=True, name="resolve")
    worker.start()
    worker.join(max(0.0, until - time.monotonic()))
    if worker.is_alive():
        raise TransportError(Status.CONNECT_FAILED, f"the name {host} was not resolved in time")
    if problem or not found:
        raise TransportError(Status.CONNECT_FAILED, f"the name {host} does not resolve: {problem[0] if problem else 'no address'}")
    return list(dict.fromkeys(found))


def connect(addresses: list[Address], until: float, stopwatch: Stopwatch) -> TcpLink:
    """Connect to the first address that answers. Each gets its share of the time, so that one that swallows packets does not take all."""
    problems: list[str] = []
    for index, address in enumerate(addresses):
        now = time.monotonic()
        share = now + (until - now) / (len(addresses) - index)
        try:
            return TcpLink(_open(address, share), stopwatch)
        except DeadlinePassed:
            problems.append(f"{address[1][0]} port {address[1][1]}: no answer in time")
        except OSError as error:
            problems.append(f"{address[1][0]} port {address[1][1]}: {error.strerror or error}")
    raise TransportError(Status.CONNECT_FAILED, "no connection: " + "; ".join(problems[:4]))


class TcpLink:
    """A connected socket with kernel arrival times."""

    def __init__(self, sock: socket.socket, stopwatch: Stopwatch) -> None:
        self._sock = sock
        self._stopwatch = stopwatch
        self._buffer = bytearray(READ_SIZE)
        self._early: deque[Arrival] = deque()
        self._early_size = 0
        self._wakes = WakeClock()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def send(self, data: bytes, until: float, before_write: Callable[[], None] | None = None) -> None:
        """Write all of `data`; `before_write` is called right before the first byte goes. Raises DeadlinePassed.

        What the peer says meanwhile is kept for `receive`: a server may refuse a request before it has all of it. A connection that breaks
        is left for `receive` to tell, for the same reason.
        """
        view = memoryview(data)
        if before_write is not None:
            before_write()
        while view:
            try:
                view = view[self._sock.send(view):]
            except BlockingIOError:
                self._wait(until, select.POLLOUT | (select.POLLIN if self._early_size < EARLY_LIMIT else 0))
                if not self._hear():
                    return
            except OSError:
                return

    def receive(self, until: float) -> Arrival:
        """The next read. Raises DeadlinePassed when nothing came until then; data that is already there is given even so."""
        if self._early:
            return self._early.popleft()
        woken = None
        while (arrival := self._read(woken)) is None:
            woken = self._wait(until, select.POLLIN)
        return arrival

    def spent(self) -> bool:
        """Whether the peer has said anything, its end included, before it was asked: such a connection is of no use any more."""
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        """Close both directions at once. Nothing is ever half-closed: gateways take that for the end of the client."""
        self._wakes.close()
        with contextlib.suppress(OSError):
            self._sock.close()

    def _wait(self, until: float, events: int) -> int | None:
        """Sleep until something happens. When the sleep ended, CLOCK_REALTIME nanoseconds, or None where that is not known."""
        left = until - time.monotonic()
        if left <= 0:
            raise DeadlinePassed
        self._poll.modify(self._sock, events)
        before = self._wakes.look()
        # One more millisecond, so that rounding never turns the last moment into a spin.
        self._poll.poll(min(left, 3600.0) * 1000 + 1)
        after = self._wakes.look()
        return woken_at(before, after, time.time_ns())

    def _hear(self) -> bool:
        """Keep what came while the request is sent. False when that was the end of the connection."""
        early = self._read() if self._early_size < EARLY_LIMIT else None
        if early is None:
            return True
        self._early.append(early)
        self._early_size += len(early.data)
        return bool(early.data)

    def _read(self, woken: int | None = None) -> Arrival | None:
        try:
            size, stamp = _receive_into(self._sock, self._buffer)
        except BlockingIOError:
            return None
        except OSError as error:
            return Arrival(b"", self._stopwatch.now(), f"the connection broke ({error.strerror or error})")
        if size == 0:
            # The end of a connection carries no stamp; its time matters to nobody.
            return Arrival(b"", self._stopwatch.now(), "the peer closed the connection")
        at = self._stopwatch.stop(stamp, woken)
        return Arrival(bytes(memoryview(self._buffer)[:size]), at)


class TlsLink:
    """TLS over a TcpLink. Raises TransportError (`tls_failed`) from the constructor when the handshake fails.

    `server_name` None makes it the server's side.
    """

    def __init__(self, tcp: TcpLink, context: ssl.SSLContext, server_name: str | None, until: float) -> None:
        self._tcp = tcp
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name)
        self._over: Arrival | None = None
        # The read that ended the handshake may hold application data already.
        self._unread: Arrival | None = None
        self._handshake(until)

    @property
    def version(self) -> str:
        """Protocol version agreed on."""
        return self._tls.version() or "unknown"

    def send(self, data: bytes, until: float, before_write: Callable[[], None] | None = None) -> None:
        """As TcpLink.send; the encryption comes before the write and so before `before_write`."""
        self._tls.write(data)
        self._tcp.send(self._outgoing.read(), until, before_write)

    def receive(self, until: float) -> Arrival:
        """As TcpLink.receive. An end without the TLS close message is told apart in `why`."""
        while self._over is None:
            raw, self._unread = self._unread or self._take(until), None
            plain = self._decrypt(raw)
            if self._outgoing.pending:
                with contextlib.suppress(DeadlinePassed):
                    self._tcp.send(self._outgoing.read(), until)
            if plain:
                return Arrival(plain, raw.at)
            if not raw.data and self._over is None:
                self._over = raw
            if self._over is None and time.monotonic() > until + 1:
                raise DeadlinePassed
        return self._over

    def _take(self, until: float) -> Arrival:
        raw = self._tcp.receive(until)
        if raw.data:
            self._incoming.write(raw.data)
        else:
            self._incoming.write_eof()
        return raw

    def spent(self) -> bool:
        """As TcpLink.spent. Session tickets of TLS 1.3 are no answer, so only data that decrypts or an end counts."""
        with contextlib.suppress(DeadlinePassed):
            self.receive(time.monotonic())
            return True
        return False

    def close(self) -> None:
        """Close the connection, without waiting for the peer's close message."""
        self._tcp.close()

    def _decrypt(self, raw: Arrival) -> bytes:
        pieces = []
        try:
            while piece := self._tls.read(READ_SIZE):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._over = Arrival(b"", raw.at, "the peer closed the TLS session")
        except ssl.SSLEOFError:
            self._over = Arrival(b"", raw.at, f"{raw.why or 'the connection ended'} without closing TLS")
        except ssl.SSLError as error:
            self._over = Arrival(b"", raw.at, f"TLS broke ({_ssl_text(error)})")
        else:
            self._over = Arrival(b"", raw.at, "the peer closed the TLS session")
        return b"".join(pieces)

    def _handshake(self, until: float) -> None:
        try:
            while True:
                done = self._step()
                if self._outgoing.pending:
                    self._tcp.send(self._outgoing.read(), until)
                if done:
                    return
                self._unread = self._take(until)
                if not self._unread.data:
                    raise TransportError(Status.TLS_FAILED, f"{self._unread.why} during the TLS handshake")
        except DeadlinePassed:
            raise TransportError(Status.TLS_FAILED, "the TLS handshake did not end in time") from None

    def _step(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLCertVerificationError as error:
            raise TransportError(Status.TLS_FAILED, f"the certificate is not accepted: {error.verify_message}") from None
        except (ssl.SSLError, ssl.CertificateError) as error:
            raise TransportError(Status.TLS_FAILED, f"the TLS handshake failed: {_ssl_text(error)}") from None
        return True


Link = TcpLink | TlsLink


def _open(address: Address, until: float) -> socket.socket:
    sock = socket.socket(address[0], socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ask_for_stamps(sock)
        try:
            sock.connect(address[1])
        except BlockingIOError:
            poll = select.poll()
            poll.register(sock, select.POLLOUT)
            left = until - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000 + 1):
                raise DeadlinePassed from None
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code)) from None
    except BaseException:
        sock.close()
        raise
    return sock


def ask_for_stamps(sock: socket.socket) -> None:
    """Ask for the arrival time of what `sock` receives. What a listening socket accepts inherits it."""
    if _SO_TIMESTAMPNS is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


def _receive_into(sock: socket.socket, buffer: bytearray) -> tuple[int, int | None]:
    """Read once: how many bytes, and the kernel's arrival time of the last of them in CLOCK_REALTIME nanoseconds."""
    if _SO_TIMESTAMPNS is None:
        return sock.recv_into(buffer), None
    size, ancillary, _, _ = sock.recvmsg_into([buffer], socket.CMSG_SPACE(_TIMESPEC.size))
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            return size, seconds * 1_000_000_000 + nanoseconds
    return size, None


def _ssl_text(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else str(error)[:120]
