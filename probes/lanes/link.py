"""The line between the probe and one lane (a process that owns one GPU): JSON lines over a socket pair, both ways."""

from __future__ import annotations

import json
import select
import socket
from typing import Any

LINE_LIMIT = 1 << 20


class LinkClosed(Exception):  # noqa: N818 - it is news, not a fault
    """The other side is gone."""


class Link:
    """One end. Not thread-safe."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = bytearray()
        self._closed = False

    def fileno(self) -> int:
        """For select()."""
        return self._socket.fileno()

    def send(self, **message: Any) -> None:
        """Send one message. Raises LinkClosed."""
        try:
            self._socket.sendall(json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n")
        except OSError as error:
            raise LinkClosed(str(error)) from None

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """The next message, or None when none came within `seconds`. Raises LinkClosed when none will come any more."""
        while True:
            end = self._buffer.find(b"\n")
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                message = json.loads(line)
                if not isinstance(message, dict):
                    raise LinkClosed("a message is no object")
                return message
            if self._closed or len(self._buffer) > LINE_LIMIT:
                raise LinkClosed("the other side is gone" if self._closed else "a message has no end")
            if not select.select([self._socket], [], [], max(0.0, seconds))[0]:
                return None
            try:
                piece = self._socket.recv(1 << 16)
            except OSError:
                piece = b""
            self._closed = not piece
            self._buffer += piece

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
