"""TCP byte counts of every socket in this network namespace, straight from the kernel's socket diagnostics.

Spoken on a plain netlink socket: `pyroute2.DiagSocket` costs 60 us a socket and 0.3 s to import, waits for ever when the kernel answers
with an error (its marshal has errors switched off), and has no way to the kernel's notice of destroyed sockets. The tests compare every
figure with it. Layouts are those of `linux/inet_diag.h` and `linux/tcp.h`. No privilege is needed.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_DUMP = 0x01, 0x300
INET_DIAG_INFO = 2
DESTROY_GROUPS = 0b0101  # SKNLGRP_INET_TCP_DESTROY and SKNLGRP_INET6_TCP_DESTROY
TCP_LISTEN, TCP_TIME_WAIT, TCP_SYN_RECV, TCP_NEW_SYN_RECV = 10, 6, 3, 12
STATES = 0xFFF & ~(1 << TCP_LISTEN | 1 << TCP_TIME_WAIT | 1 << TCP_SYN_RECV | 1 << TCP_NEW_SYN_RECV)
ANSWER_TIMEOUT = 2.0
BUFFER = 1 << 18
EVENT_BUFFER = 1 << 20

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_COOKIE = struct.Struct("=Q")
_WORD = struct.Struct("=I")
_BYTES = struct.Struct("=QQ")
_COOKIE_AT, _QUEUED_AT, _INODE_AT, _MSG_SIZE = 44, 60, 68, 72
_BYTES_AT = 120  # tcpi_bytes_acked, tcpi_bytes_received: since Linux 4.1


class SockDiagError(OSError):
    """The kernel does not answer socket diagnostics here. The text says why."""


class SocketCount(NamedTuple):
    """One socket: its kernel-wide cookie, its inode (0 once no process holds it), bytes the process handed over, bytes that arrived.

    Handed over = acknowledged by the peer + still queued; for a destroyed socket only what was acknowledged.
    """

    cookie: int
    inode: int
    sent: int
    received: int


class SockDiag:
    """A view of the TCP sockets of the network namespace in which it was opened. Not thread-safe."""

    def __init__(self) -> None:
        """Open it. Raises SockDiagError where the kernel has no socket diagnostics."""
        try:
            self._dump = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)
        except OSError as error:
            raise SockDiagError(f"no socket diagnostics: {error.strerror}") from None
        self._dump.settimeout(ANSWER_TIMEOUT)
        self._sequence = 0
        self._events = _destroy_events()
        self.events_lost = self._events is None

    @property
    def hears_events(self) -> bool:
        """Whether the kernel tells of destroyed sockets here."""
        return self._events is not None

    def close(self) -> None:
        """Close both netlink sockets."""
        self._dump.close()
        if self._events is not None:
            self._events.close()

    def sockets(self) -> list[SocketCount]:
        """Every connected TCP socket, IPv4 and IPv6, orphans included. Raises SockDiagError."""
        return [count for family in (socket.AF_INET, socket.AF_INET6) for count in self._ask(family)]

    def destroyed(self) -> list[SocketCount]:
        """Final counts of the sockets destroyed since the last call; `events_lost` tells that some were not heard of."""
        found: list[SocketCount] = []
        while self._events is not None:
            try:
                data = self._events.recv(BUFFER)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise SockDiagError(f"socket events: {error.strerror}") from None
                self.events_lost = True
                continue
            found.extend(count for kind, body in _messages(data) if kind == SOCK_DIAG_BY_FAMILY and (count := _count(body, queued=False)))
        return found

    def _ask(self, family: int) -> Iterator[SocketCount]:
        self._sequence += 1
        request = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), 0, STATES)
        header = _HEADER.pack(_HEADER.size + len(request), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, self._sequence, 0)
        try:
            self._dump.send(header + request)
            while True:
                data = self._dump.recv(BUFFER)
                if _HEADER.unpack_from(data)[3] != self._sequence:
                    continue  # the rest of an answer that an earlier call gave up on
                for kind, body in _messages(data):
                    if kind == NLMSG_DONE:
                        return
                    if kind == NLMSG_ERROR:
                        raise SockDiagError(f"socket diagnostics refused: {os.strerror(-struct.unpack_from('=i', body)[0])}")
                    count = _count(body, queued=True)
                    if count is not None:
                        yield count
        except TimeoutError:
            raise SockDiagError(f"socket diagnostics: no answer within {ANSWER_TIMEOUT:g} s") from None
        except SockDiagError:
            raise
        except (OSError, struct.error) as error:
            raise SockDiagError(f"socket diagnostics: {error}") from None


def _destroy_events() -> socket.socket | None:
    """A socket that hears of every TCP socket destroyed in this namespace, or None where the kernel does not tell."""
    try:
        events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, NETLINK_SOCK_DIAG)
    except OSError:
        return None
    try:
        events.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, EVENT_BUFFER)
        events.bind((0, DESTROY_GROUPS))
    except OSError:
        events.close()
        return None
    return events


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The netlink messages of one datagram: type and body. A broken length ends the walk."""
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, offset)
        if not _HEADER.size <= length <= len(data) - offset:
            return
        yield kind, data[offset + _HEADER.size : offset + length]
        offset += (length + 3) & ~3


def _count(body: bytes, *, queued: bool) -> SocketCount | None:
    """The counts in an `inet_diag_msg`, or None when it carries no TCP byte counts."""
    offset = _MSG_SIZE
    while offset + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, offset)
        if length < _ATTRIBUTE.size:
            return None
        info = body[offset + _ATTRIBUTE.size : offset + length]
        if kind & 0x3FFF == INET_DIAG_INFO and len(info) >= _BYTES_AT + _BYTES.size:
            acknowledged, received = _BYTES.unpack_from(info, _BYTES_AT)
            waiting = _WORD.unpack_from(body, _QUEUED_AT)[0] if queued else 0
            cookie, inode = _COOKIE.unpack_from(body, _COOKIE_AT)[0], _WORD.unpack_from(body, _INODE_AT)[0]
            return SocketCount(cookie, inode, acknowledged + waiting, received)
        offset += (length + 3) & ~3
    return None
