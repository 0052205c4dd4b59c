"""A double of the engine simulator behind llm-d's sidecars (llm-d-inference-sim of August 2026): its answers, its times, faults on demand.

As there, no KV moves, handles are not checked and a decode engine never waits. Times are scaled down.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import dataclass, field
from typing import Any

from doubles.town import Headers, House, Request, Town, framed, head, respond

MODEL = "canary-model"
MAX_LENGTH = 1024
BLOCK = 16
HANDLE: dict[str, Any] = {"do_remote_decode": False, "do_remote_prefill": True, "remote_engine_id": "DUMMY_ID",
                          "remote_block_ids": ["DUMMY_ID"], "remote_host": "DUMMY", "remote_port": 1234, "tp_size": 1}
PATHS = ("/v1/chat/completions", "/v1/completions")


@dataclass
class Behaviour:
    """How the next requests are answered. Seconds. `canned` is a whole answer in place of the engine's own; `fault` one of hang, close,
    cut, reset, stall, error (after `at` events of a stream); `handle` what a prefill reply says in kv_transfer_params."""

    ttft: float = 0.03
    itl: float = 0.002
    kv: float = 0.005
    fault: str = ""
    at: int = 4
    canned: tuple[int, Headers, bytes] | None = None
    canned_once: bool = False
    handle: Any = field(default_factory=lambda: dict(HANDLE))
    drop_handle: bool = False
    details: bool = True
    ids_from_request: bool = False


class Engine:
    """One engine, by name prefill-0 or decode-0."""

    def __init__(self, town: Town, name: str, behaviour: Behaviour | None = None) -> None:
        self.name = name
        self.behaviour = behaviour or Behaviour()
        self.house = House(town, self._answer)
        self._cache: set[str] = set()

    @property
    def seen(self) -> list[Request]:
        """Requests for completions."""
        return [request for request in self.house.seen if request.method == "POST"]

    @property
    def statuses(self) -> list[int | None]:
        """What each was answered, None for no answer."""
        return [request.status for request in self.seen]

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        now = self.behaviour
        if now.fault == "hang":
            await asyncio.Event().wait()
        if now.fault == "close":
            return
        if now.canned is not None and request.method == "POST":
            status, headers, body = now.canned
            if now.canned_once:
                now.canned = None
            await respond(writer, request, status, [*headers, ("X-Inference-Pod", self.name)], body)
            return
        refused = self._refusal(request)
        if refused is not None:
            await respond(writer, request, refused[0], self._own(), refused[1])
        elif request.method == "GET":
            await respond(writer, request, 200, self._own(), json.dumps({"data": [{"id": MODEL, "max_model_len": MAX_LENGTH}]}).encode())
        else:
            await self._complete(request, request.json(), writer)

    def _refusal(self, request: Request) -> tuple[int, bytes] | None:
        if request.method == "GET":
            return None if request.target in ("/v1/models", "/metrics", "/health") else (404, b"Not Found")
        if request.target not in PATHS:
            return 404, b"Not Found"
        try:
            fields = json.loads(request.body)
        except ValueError:
            return 400, _error(400, "Failed to read and parse request body, invalid JSON")
        if fields.get("model") != MODEL:
            return 404, _error(404, f"The model `{fields.get('model')}` does not exist.")
        tokens = _tokens(fields)
        limit = fields.get("max_completion_tokens") or fields.get("max_tokens") or 16
        if tokens + limit > MAX_LENGTH:
            return 400, _error(400, f"This model's maximum context length is {MAX_LENGTH} tokens")
        if fields.get("stream") and (fields.get("kv_transfer_params") or {}).get("do_remote_decode"):
            return 400, _error(400, "Prefill does not support streaming")
        returned = request.get("x-return-error")
        return (int(returned), _error(int(returned), "Simulated error triggered by X-Return-Error")) if returned else None

    async def _complete(self, request: Request, fields: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        now = self.behaviour
        params = fields.get("kv_transfer_params") or {}
        tokens, text = _tokens(fields), _text(fields)
        cached = tokens // BLOCK * BLOCK if text in self._cache else 0
        missed = float(fields.get("cache_hit_threshold") or 0) > cached / tokens
        if not missed:
            self._cache.add(text)
            await asyncio.sleep(now.kv if params.get("do_remote_prefill") else now.ttft)
        count = int(fields.get("max_completion_tokens") or fields.get("max_tokens") or 16)
        sent = request.get("x-request-id") if now.ids_from_request else None
        usage: dict[str, Any] = {"prompt_tokens": tokens, "completion_tokens": count, "total_tokens": tokens + count}
        if now.details:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        common = {"id": f"chatcmpl-{sent or uuid.uuid4()}", "model": MODEL, "created": 1}
        if fields.get("stream"):
            await self._stream(request, fields, writer, common, usage, count, missed=missed)
            return
        reply: dict[str, Any] = {**common, "object": "chat.completion", "usage": usage, "choices": [
            {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "Today "}}]}
        if params.get("do_remote_decode") or "remote_decoder" in params:
            reply["choices"][0]["finish_reason"] = "remote_decode"
            if not now.drop_handle:
                reply["kv_transfer_params"] = now.handle
        await respond(writer, request, 200, self._own(), json.dumps(reply).encode())

    async def _stream(self, request: Request, fields: dict[str, Any], writer: asyncio.StreamWriter, common: dict[str, Any],
                      usage: dict[str, Any], count: int, *, missed: bool) -> None:
        now, chat = self.behaviour, request.target == PATHS[0]
        request.status = 200
        headers = [("Server", "fasthttp"), ("Content-Type", "text/event-stream"), *self._pod(), ("Transfer-Encoding", "chunked")]
        writer.write(head(200, headers))
        common = {**common, "object": "chat.completion.chunk" if chat else "text_completion", "usage": None}
        events = [_sse({**common, "choices": [{"index": 0, "finish_reason": None, "delta": {"role": "assistant"}}]})] if chat else []
        words: list[str] = [] if missed else ["Today ", "it ", "is ", "partially "] * (count // 4 + 1)
        for word in words[:count]:
            choice = {"delta": {"content": word}} if chat else {"text": word}
            events.append(_sse({**common, "choices": [{"index": 0, "finish_reason": None, **choice}]}))
        last: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        tail = [_sse({**common, "choices": [{"index": 0, "finish_reason": "cache_threshold" if missed else "length", **last}]})]
        if (fields.get("stream_options") or {}).get("include_usage"):
            tail.append(_sse({**common, "choices": [], "usage": usage}))
        for number, event in enumerate(events):
            if now.fault and number >= now.at:
                await self._strike(now.fault, writer)
                return
            writer.write(framed(event))
            await writer.drain()
            if number and number < len(events) - 1:
                await asyncio.sleep(now.itl)
        for event in (*tail, b"data: [DONE]\n\n"):
            writer.write(framed(event))
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _strike(self, fault: str, writer: asyncio.StreamWriter) -> None:
        if fault == "reset":
            writer.transport.abort()
        elif fault == "stall":
            await asyncio.Event().wait()
        elif fault == "error":
            error = {"error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}}
            writer.write(framed(_sse(error)) + framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            await writer.drain()

    def _own(self) -> Headers:
        return [("Server", "fasthttp"), ("Content-Type", "application/json"), *self._pod()]

    def _pod(self) -> Headers:
        return [("X-Inference-Pod", self.name), ("X-Inference-Namespace", "canary")]


def _tokens(fields: dict[str, Any]) -> int:
    return len(_text(fields).split()) + 7


def _text(fields: dict[str, Any]) -> str:
    return " ".join(str(message["content"]) for message in fields["messages"]) if "messages" in fields else str(fields.get("prompt"))


def _error(code: int, message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "SimulatedError", "param": None, "code": code}}).encode()


def _sse(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
