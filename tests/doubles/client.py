"""A client that sends what it is told and keeps what comes: for holding a double against recordings."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import dataclass, field
from typing import Any

PROMPT = "nonce-7f01 alpha bravo charlie delta echo foxtrot"
_EVENT = re.compile(rb"^data: (.*)$", re.MULTILINE)


@dataclass
class Got:
    """What a client saw. `ended`: complete, eof, or left."""

    status: int | None = None
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    ended: str = "complete"

    @property
    def events(self) -> list[bytes]:
        """The data of each event, the end mark aside."""
        return [data for data in _EVENT.findall(self.body) if data != b"[DONE]"]

    @property
    def done(self) -> bool:
        """Whether the end mark came."""
        return b"data: [DONE]" in self.body


def chat(**changes: Any) -> dict[str, Any]:
    """The body of the recordings."""
    return {"model": "canary-model", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8, "temperature": 0,
            "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}, **changes}


def post(port: int, body: dict[str, Any] | bytes, headers: list[tuple[str, str]], *, leave_after: int | None = None,
         seconds: float = 5.0, path: str = "/v1/chat/completions") -> Got:
    """Send one request. `leave_after` so many events the client goes; it also goes after `seconds` of silence."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1:8000", "Content-Type: application/json",
             *[f"{name}: {value}" for name, value in headers], f"Content-Length: {len(raw)}"]
    got, data = Got(), b""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as sock:
        sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + raw)
        while True:
            try:
                piece = sock.recv(65536)
            except TimeoutError:
                got.ended = "left"
                break
            except ConnectionError:
                piece = b""
            data += piece
            complete = _take(got, data)
            if leave_after is not None and len(got.events) >= leave_after:
                got.ended = "left"
                break
            if complete or not piece:
                got.ended = "complete" if complete else "eof"
                break
    return got


def _take(got: Got, data: bytes) -> bool:
    """Parse what has come so far. Whether the message is complete."""
    head, mark, rest = data.partition(b"\r\n\r\n")
    if not mark:
        return False
    first, *lines = head.decode("latin-1").split("\r\n")
    got.status = int(first.split(" ")[1])
    got.headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    names = dict(got.headers)
    if "content-length" in names:
        got.body = rest
        return len(rest) >= int(names["content-length"])
    got.body, complete = _unchunked(rest)
    return complete


def _unchunked(data: bytes) -> tuple[bytes, bool]:
    out = b""
    while True:
        line, mark, rest = data.partition(b"\r\n")
        if not mark:
            return out, False
        size = int(line, 16)
        if size == 0:
            return out, True
        out += rest[:size]
        data = rest[size + 2:]
