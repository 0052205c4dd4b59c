"""Two small doubles of SGLang servers in prefill/decode mode: each holds a request until the other has one of the same bootstrap room.

Shapes of chunks, errors and aborts as in SGLang 0.5. No model, no KV. They answer what sglang-router asks of its workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from doubles.town import Headers, House, Request, Town, framed, head, respond

MODEL = "canary-model"
_JSON: Headers = [("Content-Type", "application/json")]


@dataclass
class Rooms:
    """Who is where. A room is used once."""

    arrived: dict[tuple[str, int], asyncio.Event] = field(default_factory=dict)

    def event(self, role: str, room: int) -> asyncio.Event:
        """Set when a worker of `role` has a request for `room`."""
        return self.arrived.setdefault((role, room), asyncio.Event())


class Worker:
    """A prefill or a decode worker. `refuse` answers every request so; `fault` of a decode stream: abort, error, cut, stall, after `at`
    tokens. `wait` is how long it holds a request for its partner; SGLang's own default is 300 s."""

    def __init__(self, town: Town, role: Literal["prefill", "decode"], rooms: Rooms, *, itl: float = 0.005) -> None:
        self.role, self.rooms, self.itl = role, rooms, itl
        self.refuse: tuple[int, bytes] | None = None
        self.fault, self.at, self.wait, self.prefill_seconds = "", 3, 5.0, 0.03
        self.house = House(town, self._answer)
        self.house.open()

    @property
    def seen(self) -> list[Request]:
        """Requests for completions."""
        return [request for request in self.house.seen if request.method == "POST" and "completions" in request.target]

    @property
    def url(self) -> str:
        """Its address."""
        return self.house.url

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        if "completions" not in request.target:
            known: dict[str, Any] = {
                "model_path": MODEL, "served_model_name": MODEL, "model_id": MODEL, "tokenizer_path": MODEL, "is_generation": True,
                "disaggregation_mode": self.role, "dp_size": 1, "tp_size": 1, "version": "0.5.0", "object": "list",
                "data": [{"id": MODEL, "object": "model", "max_model_len": 8192}]}
            await respond(writer, request, 200, _JSON, json.dumps(known).encode())
            return
        if self.refuse is not None:
            await respond(writer, request, self.refuse[0], _JSON, self.refuse[1])
            return
        fields = request.json()
        room = fields.get("bootstrap_room")
        if not isinstance(room, int):
            await respond(writer, request, 400, _JSON, _error(400, "Disaggregated request received without bootstrap room id"))
            return
        self.rooms.event(self.role, room).set()
        try:
            await asyncio.wait_for(self.rooms.event("decode" if self.role == "prefill" else "prefill", room).wait(), self.wait)
        except (TimeoutError, asyncio.TimeoutError):
            said = f"Decode handshake failed for bootstrap_room={room}: KVTransferError"
            await respond(writer, request, 500, _JSON, _error(500, said))
            return
        await asyncio.sleep(self.prefill_seconds)
        await self._complete(request, fields, writer)

    async def _complete(self, request: Request, fields: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        count = 1 if self.role == "prefill" else int(fields.get("max_tokens") or fields.get("max_completion_tokens") or 16)
        common = {"id": uuid.uuid4().hex, "object": "chat.completion.chunk", "created": 1, "model": MODEL}
        prompt = len(str(fields.get("messages") or fields.get("prompt")).split())
        usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
        if not fields.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": "alpha"}, "finish_reason": "length"}
            reply = {**common, "object": "chat.completion", "choices": [choice], "usage": usage}
            await respond(writer, request, 200, _JSON, json.dumps(reply).encode())
            return
        request.status = 200
        writer.write(head(200, [("Content-Type", "text/event-stream"), ("Server", "uvicorn"), ("Transfer-Encoding", "chunked")]))
        first = framed(_chunk(common, {"role": "assistant", "content": ""}))
        for number in range(count):
            if self.fault and number >= self.at:
                await self._strike(common, writer)
                return
            writer.write(first + framed(_chunk(common, {"content": f"word{number} "})))
            first = b""
            await writer.drain()
            await asyncio.sleep(self.itl)
        writer.write(framed(_chunk(common, {}, "length")))
        if (fields.get("stream_options") or {}).get("include_usage"):
            writer.write(framed(_sse({**common, "choices": [], "usage": usage})))
        writer.write(framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()

    async def _strike(self, common: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if self.fault == "stall":
            await asyncio.Event().wait()
        if self.fault == "abort":
            writer.write(framed(_chunk(common, {}, "abort")))
        elif self.fault == "error":
            said = "Decode transfer failed for request rank=0 with exception KVTransferError(bootstrap_room=1)"
            writer.write(framed(_sse({"error": {"object": "error", "message": said, "type": "INTERNAL_SERVER_ERROR", "code": 500}})))
        else:
            return
        writer.write(framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()


@dataclass
class SglangPair:
    """Both workers."""

    prefill: Worker
    decode: Worker


@contextlib.contextmanager
def sglang_pair() -> Iterator[SglangPair]:
    """A pair, running."""
    with Town() as town:
        rooms = Rooms()
        yield SglangPair(Worker(town, "prefill", rooms), Worker(town, "decode", rooms))


def _error(code: int, message: str) -> bytes:
    return json.dumps({"object": "error", "message": message, "type": "Error", "code": code}).encode()


def _chunk(common: dict[str, Any], delta: dict[str, Any], finish: str | None = None) -> bytes:
    return _sse({**common, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _sse(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
