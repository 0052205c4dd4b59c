"""HTTP/1.1 without I/O: requests to bytes, bytes to heads and pieces of body, every part bounded. The protocol itself is h11's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import h11

HEAD_LIMIT = 64 * 1024
"""The largest response head, chunk header or trailer, bytes."""


class HttpError(ValueError):
    """The peer does not speak HTTP/1.x as it should."""


@dataclass(frozen=True)
class Head:
    """Status and headers of the final response. Names are lower case; of repeated headers `get` gives the first."""

    code: int
    headers: tuple[tuple[str, str], ...]
    version: str

    def get(self, name: str) -> str | None:
        """The first value of header `name`."""
        return next((value for key, value in self.headers if key == name), None)

    def as_dict(self) -> dict[str, str]:
        """Every header once, with its first value."""
        return {name: self.get(name) or "" for name, _ in self.headers}


@dataclass(frozen=True)
class Body:
    """A piece of the body. `chunk` numbers the HTTP chunk it came in; None when the body is not chunked."""

    data: bytes
    chunk: int | None


@dataclass(frozen=True)
class End:
    """The message is complete. `framed` is False when only the close of the connection marked its end."""

    framed: bool


class HttpExchange:
    """One request and its response on one connection."""

    def __init__(self) -> None:
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_LIMIT)
        self._chunked = False
        self._framed = True
        self._chunk = 0
        self._ended = False

    def request(self, method: str, target: str, headers: list[tuple[str, str]], body: bytes = b"") -> bytes:
        """The bytes of the whole request. Raises HttpError for headers that cannot be sent."""
        try:
            message = h11.Request(method=method, target=target, headers=headers)
            out = self._h11.send(message) or b""
            if body:
                out += self._h11.send(h11.Data(data=body)) or b""
            return out + (self._h11.send(h11.EndOfMessage()) or b"")
        except h11.LocalProtocolError as error:
            raise HttpError(f"the request cannot be sent: {error}") from None

    def feed(self, data: bytes) -> Iterator[Head | Body | End]:
        """Take bytes from the peer, give what they complete, in order. Raises HttpError where the peer breaks the protocol."""
        if data and not self._ended:
            yield from self._take(data)

    def close(self) -> Iterator[Head | Body | End]:
        """The peer closed the connection. Raises HttpError when that cuts the response."""
        if not self._ended:
            yield from self._take(b"")

    def _take(self, data: bytes) -> Iterator[Head | Body | End]:
        self._h11.receive_data(data)
        while not self._ended:
            try:
                event = self._h11.next_event()
            except (h11.ProtocolError, ValueError) as error:
                raise HttpError(_plain(error)) from None
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return
            made = self._made_of(event)
            if made is not None:
                yield made

    def _made_of(self, event: object) -> Head | Body | End | None:
        if isinstance(event, h11.InformationalResponse):
            if event.status_code == 101:
                raise HttpError("the peer switched protocols without being asked")
            return None
        if isinstance(event, h11.Response):
            return self._head(event)
        if isinstance(event, h11.Data):
            body = Body(bytes(event.data), self._chunk if self._chunked else None)
            # Counted at its end: h11 forgets the start of a chunk whose header and data come in different reads.
            self._chunk += bool(event.chunk_end)
            return body
        if isinstance(event, h11.EndOfMessage):
            self._ended = True
            return End(self._framed)
        raise HttpError("the connection was closed before the response")

    def _head(self, response: h11.Response) -> Head:
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers)
        names = dict(headers)
        self._chunked = "chunked" in names.get("transfer-encoding", "").lower()
        self._framed = self._chunked or "content-length" in names or response.status_code in (204, 304)
        return Head(response.status_code, headers, response.http_version.decode())


def _plain(error: Exception) -> str:
    """h11's message without the peer's bytes, which it may quote."""
    return str(error).partition(":")[0].strip()[:120] or "not HTTP"
