"""Recorded and made streams as bytes, and a reader fed with them."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from probes.canary.answer import AnswerReader
from probes.canary.clock import Moment
from probes.canary.http1 import HttpExchange

RECORDED = Path(__file__).parent / "fixtures" / "canary"
START = 1_000_000_000


def recorded(name: str) -> dict[str, Any]:
    """One recording: `head`, `reads` as pairs of milliseconds and text, `message_complete`."""
    data: dict[str, Any] = json.loads((RECORDED / f"llmd_{name}.json").read_text())
    return data


def reads_of(name: str) -> list[tuple[float, bytes]]:
    """The reads of a recording as on the wire: milliseconds and bytes. Each event has its own chunk, the head is in the first read."""
    case = recorded(name)
    out = []
    for index, (at, text) in enumerate(case["reads"]):
        events = [event + "\n\n" for event in text.split("\n\n") if event]
        raw = b"".join(chunked(event.encode()) for event in events)
        head = case["head"].encode() + b"\r\n\r\n" if index == 0 else b""
        out.append((at, head + raw))
    if case["message_complete"]:
        out[-1] = (out[-1][0], out[-1][1] + b"0\r\n\r\n")
    return out


def wire(name: str) -> bytes:
    """All bytes of a recording."""
    return b"".join(raw for _, raw in reads_of(name))


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def reader() -> AnswerReader:
    """A reader that waits for the answer to a request that was sent."""
    exchange = HttpExchange()
    exchange.request("POST", "/v1/chat/completions", [("Host", "test"), ("Content-Length", "2")], b"{}")
    return AnswerReader(exchange)


def moment(ms: float) -> Moment:
    """`ms` after the start, by both clocks."""
    return Moment(START + int(ms * 1_000_000), START + int(ms * 1_000_000))


def read(pieces: Iterable[bytes], *, closes: bool = True) -> AnswerReader:
    """Feed pieces one read each, a millisecond apart, and close the connection after them."""
    made = reader()
    at = 0.0
    for piece in pieces:
        at += 1.0
        made.feed(piece, moment(at))
    if closes:
        made.close(moment(at + 1.0))
    return made


def stream(*events: str, head: str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
           end: bytes = b"0\r\n\r\n") -> bytes:
    """A chunked response with one chunk for each of `events`."""
    return head.encode() + b"".join(chunked(event.encode()) for event in events) + end


def data(value: Any) -> str:
    """One event."""
    return f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n"


def token(text: str = "x", *, finish: Any = None, **delta: Any) -> str:
    """One token event of a chat stream."""
    return data({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": text, **delta}, "finish_reason": finish}]})


def usage(completion: int, prompt: int = 10) -> str:
    """The usage event."""
    return data({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


DONE = data("[DONE]")


def cut(rng: random.Random, raw: bytes) -> list[bytes]:
    """The bytes in reads of any length."""
    places = sorted({0, len(raw), *(rng.randrange(len(raw) + 1) for _ in range(rng.randrange(8)))})
    return [raw[a:b] for a, b in itertools.pairwise(places)]


def damage(rng: random.Random, raw: bytes, splinters: Sequence[bytes], longest: int) -> bytes:
    """One to five edits anywhere; `longest` bounds what is said twice."""
    out = bytearray(raw)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(5)
        if kind == 0 and out:
            out[at % len(out)] = rng.randrange(256)
        elif kind == 1:
            out[at:at] = rng.randbytes(rng.randrange(1, 20))
        elif kind == 2:
            del out[at : at + rng.randrange(1, 60)]
        elif kind == 3:
            length = rng.randrange(1, longest)
            out[at:at] = out[max(0, at - length) : at]
        else:
            out[at:at] = rng.choice(splinters)
    return bytes(out)
