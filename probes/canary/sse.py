"""Server-sent events from a byte stream that may be cut anywhere.

Written to the event stream rules of the HTML standard: lines end with LF, CR or CRLF; `data:` may lack its space and may repeat; a line
that begins with a colon is a comment; a byte order mark at the start is dropped. Bytes are decoded a whole line at a time, so no
character is ever cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

LINE_LIMIT = 1 << 20
"""The longest line and the most data of one event, bytes."""

_LINE_END = re.compile(rb"[\r\n]")
_BOM = b"\xef\xbb\xbf"


class SseError(ValueError):
    """The stream is not an event stream that can be read in bounded memory."""


@dataclass(frozen=True)
class SseEvent:
    """One dispatched event; `name` is empty when the stream gives none."""

    data: str
    name: str = ""


class SseDecoder:
    """Incremental decoder. `comments` counts comment lines, `undecodable` lines that are not UTF-8 (their bad bytes become U+FFFD)."""

    def __init__(self) -> None:
        self.comments = 0
        self.undecodable = 0
        self._buffer = bytearray()
        self._scanned = 0
        self._after_cr = False
        self._first = True
        self._data: list[str] = []
        self._size = 0
        self._name = ""

    def feed(self, chunk: bytes) -> Iterator[SseEvent]:
        """Take the next bytes, give the events they complete, in order. Raises SseError."""
        self._buffer += chunk
        start = 0
        while (found := _LINE_END.search(self._buffer, max(start, self._scanned))) is not None:
            at = found.start()
            if self._after_cr and at == start and self._buffer[at] == 0x0A:
                # The second half of a CRLF, perhaps in a later read than its first.
                self._after_cr = False
            else:
                self._after_cr = self._buffer[at] == 0x0D
                yield from self._line(bytes(self._buffer[start:at]))
            start = at + 1
        del self._buffer[:start]
        self._scanned = len(self._buffer)
        if self._buffer:
            self._after_cr = False
        if len(self._buffer) > LINE_LIMIT:
            raise SseError(f"a line of more than {LINE_LIMIT} bytes")

    def finish(self) -> Iterator[SseEvent]:
        """What is left when the body ended as it should: some servers leave out the last blank line."""
        if self._buffer:
            yield from self._line(bytes(self._buffer))
            self._buffer.clear()
        yield from self._dispatch()

    def _line(self, raw: bytes) -> Iterator[SseEvent]:
        if len(raw) > LINE_LIMIT:
            raise SseError(f"a line of more than {LINE_LIMIT} bytes")
        if self._first:
            self._first = False
            raw = raw.removeprefix(_BOM)
        if not raw:
            yield from self._dispatch()
        elif raw[0] == 0x3A:
            self.comments += 1
        else:
            self._field(raw)

    def _field(self, raw: bytes) -> None:
        name, _, value = raw.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._name = self._decode(value)[:100]
        elif name == b"data":
            self._size += len(raw)
            if self._size > LINE_LIMIT:
                raise SseError(f"an event of more than {LINE_LIMIT} bytes")
            self._data.append(self._decode(value))

    def _dispatch(self) -> Iterator[SseEvent]:
        data, name = self._data, self._name
        self._data, self._size, self._name = [], 0, ""
        if data:
            yield SseEvent("\n".join(data), name)

    def _decode(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.undecodable += 1
            return raw.decode(errors="replace")
