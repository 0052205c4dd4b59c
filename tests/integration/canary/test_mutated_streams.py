"""100,000 damaged answers: every one ends in a verdict, in bounded time, and none that is no whole answer counts as success.

The judge of success is a second reader of its own kind (http.client and a few lines), which shares no code with the product's.
"""

from __future__ import annotations

import http.client
import io
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from canary_streams import chunked, cut, damage, moment, read

from probes.canary.http1 import HttpExchange
from probes.canary.legs import ReplyReader
from probes.canary.stacks.base import HandoverError
from probes.canary.stacks.vllm import handle_of
from probes.canary.status import Status

RECORDED = Path(__file__).parents[2] / "fixtures" / "canary"
STREAMS = sorted(path.stem for path in RECORDED.glob("*.json") if "reads" in json.loads(path.read_text()))
REPLIES = sorted(path.stem for path in RECORDED.glob("*.json") if "reply" in json.loads(path.read_text()))
TOTAL = 100_000
SLOWEST_SECONDS = 5.0
"""For one damaged answer of a few kilobytes, read in well under a millisecond on a free machine: what a busy one may add."""
GOOD_ENDS = {"stop", "length", "tool_calls", "function_call"}
BAD_ENDS = {"abort", "error", "repetition"}
ERROR = b'data: {"error": {"message": "x", "code": 500}}\n\n'
LONGEST = 300
SPLINTERS = [b"\r", b"\n", b"\0", b"data:", b"data: ", b"\n\n", b"\r\n\r\n", b"0\r\n\r\n", b"\xff", b"\xf0\x9f", b"[DONE]",
             b"data: [DONE]\n\n", b"{", b"}", b": ping\n\n", b"event: error\n", ERROR, b'"finish_reason":"abort"',
             b'"finish_reason":"error"', b'"usage":null', b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 503 Service Unavailable\r\n\r\n"]
EVENTS = [ERROR, b'data: {"object": "error", "message": "boom"}\n\n', b"event: error\ndata: x\n\n",
          b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]}\n\n',
          b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": {"type": "abort", "message": "KVTransferError"}}]}\n\n',
          b'data: {"choices": [{"index": 0, "text": "", "finish_reason": "error"}]}\n\n', b": ping\n\n", b"data: [DONE]\n\n",
          b"data: {}\n\n", b'data: {"choices": null}\n\n', b'data: {"choices": []}\n\n', b"data: []\n\n", b"data: null\n\n", b"data:\n\n",
          b'data: {"choices": [], "usage": {"prompt_tokens": -1, "completion_tokens": 1e300}}\n\n', b"id: 1\nretry: 5\n\n",
          b"data: " + b"[" * 3000 + b"\n\n"]

Damage = Callable[[random.Random, bytes], bytes]


def wire_of(name: str) -> bytes:
    """A recording as it was on the wire, each event in a chunk of its own."""
    case = json.loads((RECORDED / f"{name}.json").read_text())
    events = [event + "\n\n" for _, text in case["reads"] for event in text.split("\n\n") if event]
    end = b"0\r\n\r\n" if case["message_complete"] else b""
    head: str = case["head"]
    return head.encode() + b"\r\n\r\n" + b"".join(chunked(event.encode()) for event in events) + end


class Wire(io.BytesIO):
    """What http.client takes for a socket."""

    def makefile(self, *_: Any) -> Wire:
        return self


def whole(raw: bytes) -> bool:
    """Whether these bytes hold a whole good answer, as far as a reader can tell who stops at the end mark."""
    response = http.client.HTTPResponse(Wire(raw), method="POST")  # type: ignore[arg-type]
    try:
        response.begin()
    except (http.client.HTTPException, ValueError, OSError):
        return False
    kind = (response.headers.get_all("content-type") or [""])[0].partition(";")[0].strip().lower()
    if response.status != 200 or kind != "text/event-stream":
        return False
    body, complete = _body(response)
    text = body.decode(errors="surrogateescape").replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    *blocks, rest = text.split("\n\n")
    tokens, finish, usage = 0, None, False
    for block in itertools.chain(blocks, [rest] if complete else []):
        lines = block.strip("\n").split("\n")
        data = "\n".join(line[5:].removeprefix(" ") for line in lines if line.startswith("data:"))
        if not any(line.startswith("data") for line in lines):
            continue
        if data.strip() == "[DONE]":
            return tokens > 0 and finish in GOOD_ENDS
        try:
            value = json.loads(data)
        except ValueError:
            if any(line.startswith("event:") for line in lines) or not data.strip():
                continue
            return False
        if not isinstance(value, dict) or value.get("error"):
            continue
        usage = usage or bool(value.get("usage"))
        for choice in value.get("choices") or []:
            delta = choice.get("delta") or {}
            said = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or delta.get("tool_calls")
            tokens += bool(said or choice.get("text") or choice.get("token_ids") or delta.get("token_ids"))
            reason = choice.get("finish_reason")
            if reason in BAD_ENDS:
                return False
            finish = reason or finish
    return complete and tokens > 0 and finish in GOOD_ENDS and usage


def _body(response: http.client.HTTPResponse) -> tuple[bytes, bool]:
    """The body as far as it goes, and whether it is whole. A chunk that never ends still brought its beginning."""
    if not response.chunked:
        data = response.fp.read(response.length if response.length is not None else -1)
        return data, response.length is None or len(data) == response.length
    out = b""
    while True:
        try:
            size = int(response.fp.readline().partition(b";")[0], 16)
        except ValueError:
            return out, False
        if size <= 0:
            return out, size == 0 and response.fp.readline() in (b"\r\n", b"\n")
        out += (piece := response.fp.read(size))
        if len(piece) < size or response.fp.readline() not in (b"\r\n", b"\n"):
            return out, False


def edited(rng: random.Random, raw: bytes) -> bytes:
    """A few edits anywhere."""
    return damage(rng, raw, SPLINTERS, LONGEST)


def splice(rng: random.Random, raw: bytes) -> bytes:
    """The beginning of one answer and the end of another, as a broken proxy mixes them."""
    other = WIRES[rng.choice(STREAMS)]
    return raw[:rng.randrange(len(raw))] + other[rng.randrange(len(other)):]


def reordered(rng: random.Random, raw: bytes) -> bytes:
    """Events lost, doubled, swapped, put in or changed by a byte, with the framing right: what a router does that rewrites events."""
    head, _, body = raw.partition(b"\r\n\r\n")
    events = [line.rstrip(b"\n") + b"\n\n" for line in body.split(b"\r\n") if line.startswith((b"data:", b":", b"event:"))]
    for _ in range(rng.randrange(1, 4)):
        at, other = rng.randrange(len(events) + 1), rng.randrange(len(events) + 1)
        kind = rng.randrange(6)
        if kind == 0 and len(events) > 1:
            del events[at % len(events)]
        elif kind == 1 and events:
            events.insert(at, events[other % len(events)])
        elif kind == 2 and events:
            events.insert(at, events.pop(other % len(events)))
        elif kind == 3:
            events.insert(at, rng.choice(EVENTS))
        elif kind == 4:
            del events[max(1, at):]
        elif events:
            one = bytearray(events[at % len(events)])
            one[rng.randrange(len(one))] = rng.randrange(32, 127)
            events[at % len(events)] = bytes(one)
    end = b"0\r\n\r\n" if rng.random() < 0.8 else b""
    return head + b"\r\n\r\n" + b"".join(chunked(event) for event in events) + end


WIRES = {name: wire_of(name) for name in STREAMS}


def mutants(seed: str, count: int, kinds: tuple[Damage, ...]) -> Iterator[tuple[str, bytes, list[bytes]]]:
    """Damaged answers in turn from every recording, as one piece and as reads."""
    rng = random.Random(seed)
    for number in range(count):
        name = STREAMS[number % len(STREAMS)]
        raw = kinds[number // len(STREAMS) % len(kinds)](rng, WIRES[name])
        yield name, raw, cut(rng, raw)


def test_the_second_reader_and_the_products_agree_on_every_recording() -> None:
    for name, raw in WIRES.items():
        assert (read([raw]).status is Status.OK) == whole(raw), name
    assert {whole(raw) for raw in WIRES.values()} == {True, False}


@pytest.mark.timeout(300)
def test_no_damaged_answer_crashes_hangs_or_passes_for_success() -> None:
    seen: Counter[str] = Counter()
    slowest = 0.0
    for name, raw, pieces in mutants("streams", TOTAL * 9 // 10, (edited, splice, reordered, reordered)):
        began = time.thread_time()
        got = read(pieces)
        slowest = max(slowest, time.thread_time() - began)
        assert got.status is not None
        assert got.message.isprintable(), (name, raw)
        assert len(got.message) < 500, (name, raw)
        if got.status is Status.OK:
            assert whole(raw), (name, raw)
        seen[got.status.value] += 1
    assert slowest < SLOWEST_SECONDS
    assert len(seen) >= 6, seen
    assert 0.02 < seen["ok"] / seen.total() < 0.6, seen


FATAL = EVENTS[:6]


def test_an_event_that_says_failure_is_one_wherever_it_stands_before_the_end() -> None:
    good = [name for name in STREAMS if read([WIRES[name]]).status is Status.OK]
    assert len(good) >= 8
    for name, fatal in itertools.product(good, FATAL):
        head, _, body = WIRES[name].partition(b"\r\n\r\n")
        events = [line.rstrip(b"\n") + b"\n\n" for line in body.split(b"\r\n") if line.startswith(b"data:")]
        for place in range(len(events)):
            if events[place - 1].startswith(b"data: [DONE]"):
                break
            spoiled = [*events[:place], fatal, *events[place:]]
            raw = head + b"\r\n\r\n" + b"".join(chunked(event) for event in spoiled) + b"0\r\n\r\n"
            assert read([raw]).status is not Status.OK, (name, place, fatal)


def reply_of(pieces: list[bytes]) -> ReplyReader:
    """A prefill worker's reply, read by the product."""
    exchange = HttpExchange()
    exchange.request("POST", "/v1/chat/completions", [("Host", "test"), ("Content-Length", "2")], b"{}")
    reader = ReplyReader(exchange)
    for number, piece in enumerate(pieces):
        reader.feed(piece, moment(number))
    reader.close(moment(len(pieces)), "the peer closed the connection")
    return reader


def mutate_json(rng: random.Random, value: Any) -> Any:
    """Another value somewhere in a JSON document, or a field less or twice."""
    strange: list[Any] = [None, True, -1, 1e300, "", "x" * 100, [], {}, [[]], {"error": {"message": "boom"}}, "\ud800", 2**70]
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(sorted(value))
        changed = {name: mutate_json(rng, part) if name == key else part for name, part in value.items()}
        if rng.random() < 0.2:
            del changed[key]
        if rng.random() < 0.1:
            changed[rng.choice(["error", "object", "code", "kv_transfer_params", "choices"])] = rng.choice(strange)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.6:
        at = rng.randrange(len(value))
        return [*value[:at], mutate_json(rng, value[at]), *value[at + 1:]]
    return rng.choice(strange)


@pytest.mark.timeout(300)
def test_no_damaged_prefill_reply_crashes_or_hands_over_what_is_no_handle() -> None:
    rng = random.Random("replies")
    seen: Counter[str] = Counter()
    originals = [json.loads((RECORDED / f"{name}.json").read_text())["reply"] for name in REPLIES]
    for number in range(TOTAL // 10):
        document = mutate_json(rng, originals[number % len(originals)])
        body = json.dumps(document).encode()
        raw = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        if rng.random() < 0.3:
            raw = edited(rng, raw)
        got = reply_of(cut(rng, raw))
        assert got.status is not None
        assert got.message.isprintable(), raw
        seen[got.status.value] += 1
        if got.status is not Status.OK:
            continue
        assert not got.reply.get("error"), raw
        assert got.reply.get("object") != "error", raw
        try:
            fields = handle_of(got.reply)
        except HandoverError as error:
            seen["no handle" if str(error).isprintable() else "unprintable"] += 1
            continue
        assert isinstance(fields["kv_transfer_params"], dict)
        assert fields["kv_transfer_params"]["do_remote_prefill"] is True
        seen["handle"] += 1
    assert {"ok", "no handle", "handle", "protocol_error", "error_in_stream", "truncated"} <= set(seen), seen
    assert "unprintable" not in seen
