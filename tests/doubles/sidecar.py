"""A double of llm-d's decode sidecar (pd-sidecar of llm-d-router, August 2026) for each of its KV connectors.

It is held against recordings of the real one (`tests/fixtures/llm_d`): order and bodies of the legs, odd header values, faults of either
leg. Not here: TLS, non-streamed answers' heads, the Kubernetes client of the SSRF protection (its list is given).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from doubles.town import Headers, House, Request, Town, Upstream, ask, framed, head, respond

HEADER = "x-prefiller-host-port"
PD_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/inference/v1/generate")
FORBIDDEN = b"Forbidden: prefill target not allowed by SSRF protection\n"
NOT_READY = "The decode node is not ready. Please check that the vLLM service is running and the port configuration is correct."
HTTPS_ONLY = b"Client sent an HTTP request to an HTTPS server.\n"
ASK = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None, "remote_host": None,
       "remote_port": None}
_HOP = frozenset({"content-length", "transfer-encoding", "connection", HEADER})
_USAGE = re.compile(rb'"usage":\s*\{')

Json = dict[str, Any]


@dataclass
class Flags:
    """Its command line, as far as it matters. Seconds."""

    connector: str = "nixlv2"
    bootstrap_port: int = 8998
    retries: int = 0
    backoff: float = 0.1
    chunk_size: int = 0
    allowed: frozenset[str] | None = None
    secure: bool = False
    bootstrap_seconds: float = 5.0
    swallow: float | None = None
    """Dials of the prefill worker are lost for so long, as with a full backlog; the real one gives up after 30 s."""


class Refused(Exception):  # noqa: N818 - an answer
    """An answer in place of a leg."""

    def __init__(self, status: int, headers: Headers, body: bytes) -> None:
        super().__init__(status)
        self.status, self.headers, self.body = status, headers, body


class Sidecar:
    """Before the decode engine at `decode` (host, port)."""

    def __init__(self, town: Town, decode: Callable[[], int], flags: Flags | None = None) -> None:
        self.flags = flags or Flags()
        self.house = House(town, self._answer)
        self._decode = decode
        self._engines: dict[str, str] = {}
        self._detached: set[asyncio.Task[None]] = set()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        if self.flags.secure:
            await respond(writer, request, 400, [], HTTPS_ONLY)
            return
        if request.method == "GET" and request.target == "/health":
            await respond(writer, request, 200, [])
            return
        named = (request.all(HEADER) or [""])[0].split(",")[0].strip()
        try:
            if not named or request.target not in PD_PATHS:
                await self._decode_leg(request, writer, request.body)
            else:
                await self._disaggregated(request, writer, named)
        except Refused as refused:
            await respond(writer, request, refused.status, refused.headers, refused.body)

    async def _disaggregated(self, request: Request, writer: asyncio.StreamWriter, named: str) -> None:
        target = self._target(named)
        try:
            fields = json.loads(request.body)
        except ValueError as error:
            raise self._said(400, f"invalid JSON: {error}", "BadRequestError") from None
        legs: dict[str, Callable[[Request, asyncio.StreamWriter, Json, Target], Awaitable[None]]] = {
            "nixlv2": self._nixl, "shared-storage": self._shared_storage, "sglang": self._sglang, "mooncake": self._mooncake,
            "offloading": self._offloading}
        await legs[self.flags.connector](request, writer, fields, target)

    def _target(self, named: str) -> Target:
        scheme, mark, rest = named.partition("://")
        if " " in (rest if mark else named):
            raise self._said(502, f'parse "http://{named}": invalid character " " in host name', "BadGateway")
        where, slash, path = (rest if mark else named).partition("/")
        host, _, port = where.rpartition("@")[2].rpartition(":")
        if not port.isdigit():
            host, port = host or port, "80"
        target = Target(host or "127.0.0.1", int(port), slash + path if path else "", scheme == "https" and bool(mark))
        if self.flags.allowed is not None and target.host not in self.flags.allowed:
            raise Refused(403, [("Content-Type", "text/plain; charset=utf-8")], FORBIDDEN)
        return target

    # the connectors

    async def _nixl(self, request: Request, writer: asyncio.StreamWriter, fields: Json, target: Target) -> None:
        identity = str(uuid.uuid1())
        body = {**fields, "stream": False, "max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 1, "kv_transfer_params": ASK}
        body.pop("stream_options", None)
        more = [("X-Request-Id", identity)]
        for left in range(self.flags.retries, -1, -1):
            try:
                status, headers, answer = await self._prefill(request, body, target, more)
            except Refused:
                if not left:
                    raise
            else:
                if status not in (502, 503, 504) or not left:
                    break
            await asyncio.sleep(self.flags.backoff)
        if status != 200:
            raise Refused(status, [pair for pair in headers if pair[0].lower() not in _HOP], answer)
        try:
            reply = json.loads(answer)
        except ValueError:
            what = f"invalid character '\\u{answer[0]:04x}' looking for beginning of value" if answer else "unexpected end of JSON input"
            raise self._said(400, what, "BadRequestError") from None
        cached = ((reply.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        fields = {**fields, "kv_transfer_params": reply.get("kv_transfer_params")}
        if self.flags.chunk_size:
            await self._chunked_decode(request, writer, fields, cached)
        else:
            await self._decode_leg(request, writer, encode(fields), more, lambda event: _with_cached(event, cached))

    async def _shared_storage(self, request: Request, writer: asyncio.StreamWriter, fields: Json, target: Target) -> None:
        doubled: Headers = []
        if fields.get("cache_hit_threshold") and fields.get("stream"):
            async with self._to_decode(request, encode(fields), []) as first:
                answer = await first.whole()
            if b'"cache_threshold"' not in answer:
                raise Refused(first.status, first.headers, answer)
            doubled = [pair for pair in first.headers if pair[0].lower() not in _HOP]
        body = {**fields, "max_tokens": 1, "max_completion_tokens": 1, "cache_hit_threshold": 0}
        status, _, answer = await self._prefill(request, body, target, [])
        if status != 200:
            raise Refused(status, [("Content-Type", "text/plain; charset=utf-8")], answer)
        await self._decode_leg(request, writer, encode({**fields, "cache_hit_threshold": 0}), doubled=doubled)

    async def _sglang(self, request: Request, writer: asyncio.StreamWriter, fields: Json, target: Target) -> None:
        both = {**fields, "bootstrap_host": target.host, "bootstrap_port": self.flags.bootstrap_port, "bootstrap_room": time.time_ns()}
        self._detach(self._prefill(request, both, target, []))
        await self._decode_leg(request, writer, encode(both))

    async def _mooncake(self, request: Request, writer: asyncio.StreamWriter, fields: Json, target: Target) -> None:
        engine = self._engines.get(target.host) or await self._engine_of(target.host)
        transfer = f"xfer-{uuid.uuid4()}"
        prefill = self._one_token(fields) | {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False,
                                                                    "transfer_id": transfer}}
        decode = {**fields, "kv_transfer_params": {
            "do_remote_decode": False, "do_remote_prefill": True, "remote_engine_id": engine, "transfer_id": transfer,
            "remote_bootstrap_addr": f"http://{target.host}:{self.flags.bootstrap_port}"}}
        self._detach(self._prefill(request, prefill, target, [("X-Data-Parallel-Rank", "0")]))
        await self._decode_leg(request, writer, encode(decode))

    async def _offloading(self, request: Request, writer: asyncio.StreamWriter, fields: Json, target: Target) -> None:
        identity = str(uuid.uuid4())
        prefill = self._one_token(fields) | {"kv_transfer_params": {"remote_decoder": {"kv_request_id": identity}}}
        decode = {**fields, "kv_transfer_params": {"remote_prefiller": {"kv_request_id": identity, "remote_host": target.host,
                                                                        "remote_port": 7777}}}
        self._detach(self._prefill(request, prefill, target, []))
        await self._decode_leg(request, writer, encode(decode))

    @staticmethod
    def _one_token(fields: Json) -> Json:
        body = {**fields, "stream": False, "max_tokens": 1}
        body.pop("stream_options", None)
        if "max_completion_tokens" in body:
            body["max_completion_tokens"] = 1
        return body

    async def _engine_of(self, host: str) -> str:
        async def query() -> tuple[int, bytes]:
            async with ask(host, self.flags.bootstrap_port, "GET", "/query", [("Host", host)]) as answer:
                return answer.status, await answer.whole()

        try:
            status, body = await asyncio.wait_for(query(), self.flags.bootstrap_seconds)
        except (OSError, EOFError, TimeoutError, asyncio.TimeoutError) as error:
            raise self._said(502, f'failed to query bootstrap endpoint: Get "http://{host}/query": {error}', "BadGateway") from None
        if status != 200:
            raise self._said(502, f"bootstrap endpoint returned status {status}", "BadGateway")
        engine = (json.loads(body).get("0") or {}).get("engine_id")
        if not engine:
            raise self._said(502, "engine_id not found in bootstrap response", "BadGateway")
        self._engines[host] = engine
        return str(engine)

    # the legs

    async def _prefill(self, request: Request, body: Json, target: Target, more: Headers) -> tuple[int, Headers, bytes]:
        if self.flags.swallow is not None:
            await asyncio.sleep(self.flags.swallow)
            raise Refused(502, [], b"")
        if target.tls or target.port > 65535:
            raise Refused(502, [], b"")
        try:
            async with ask(target.host, target.port, "POST", target.path + request.target, self._passed(request) + more,
                           encode(body)) as answer:
                return answer.status, answer.headers, await answer.whole()
        except (OSError, EOFError):
            raise Refused(502, [], b"") from None

    def _detach(self, leg: Awaitable[tuple[int, Headers, bytes]]) -> None:
        """Run a prefill leg to its end, whatever becomes of the request; its fault shows nowhere."""
        async def run() -> None:
            with contextlib.suppress(Refused, asyncio.IncompleteReadError):
                await leg

        task = asyncio.get_running_loop().create_task(run())
        self._detached.add(task)
        task.add_done_callback(self._detached.discard)

    @contextlib.asynccontextmanager
    async def _to_decode(self, request: Request, body: bytes, more: Headers) -> Any:
        try:
            async with ask("127.0.0.1", self._decode(), request.method, request.target, self._passed(request) + more, body) as answer:
                yield answer
        except OSError:
            raise self._said(503, NOT_READY, "ServiceUnavailable") from None
        except EOFError:
            raise self._said(502, "EOF", "BadGateway") from None

    async def _decode_leg(self, request: Request, writer: asyncio.StreamWriter, body: bytes, more: Headers | None = None,
                          rewrite: Callable[[bytes], bytes] = lambda event: event, doubled: Headers | None = None) -> None:
        answer: Upstream
        async with self._to_decode(request, body, more or []) as answer:
            own = [pair for pair in answer.headers if pair[0].lower() not in _HOP]
            if "chunked" not in (answer.get("transfer-encoding") or ""):
                await respond(writer, request, answer.status, own, await answer.whole())
                return
            request.status = answer.status
            writer.write(head(answer.status, [*own, *(doubled or []), ("Transfer-Encoding", "chunked")]))
            try:
                async for piece in answer.pieces():
                    writer.write(framed(rewrite(piece)))
                    await writer.drain()
            except (asyncio.IncompleteReadError, ConnectionError):
                return  # the client sees the end of the connection without the closing chunk
            writer.write(b"0\r\n\r\n")
            await writer.drain()

    async def _chunked_decode(self, request: Request, writer: asyncio.StreamWriter, fields: Json, cached: int) -> None:
        """--decode-chunk-size: one decode request and one event for so many tokens."""
        wanted, done, usage = int(fields.get("max_tokens") or 16), 0, {}
        size = self.flags.chunk_size
        body = {**fields, "stream": False}
        body.pop("stream_options", None)
        while done < wanted:
            step = {**body, "max_tokens": min(size, wanted - done), "max_completion_tokens": min(size, wanted - done)}
            async with self._to_decode(request, encode(step), []) as answer:
                reply = json.loads(await answer.whole())
            if not done:
                request.status = 200
                writer.write(head(200, [("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked")]))
            done += step["max_tokens"]
            message, usage = reply["choices"][0]["message"], reply["usage"]
            writer.write(framed(b"data: " + encode({"id": reply["id"], "object": "chat.completion", "choices": [
                {"index": 0, "finish_reason": "length", "delta": {"role": "assistant", "content": message["content"] * size}}]}) + b"\n\n"))
            await writer.drain()
            body = {**{k: v for k, v in body.items() if k != "kv_transfer_params"}, "continue_final_message": True,
                    "add_generation_prompt": False}
        usage |= {"completion_tokens": done, "prompt_tokens_details": {"cached_tokens": cached}}
        writer.write(framed(b"data: " + encode({"choices": [], "usage": usage}) + b"\n\n") + framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()

    def _passed(self, request: Request) -> Headers:
        return [pair for pair in request.headers if pair[0].lower() not in _HOP] + [("X-Forwarded-For", "127.0.0.1")]

    @staticmethod
    def _said(status: int, message: str, kind: str) -> Refused:
        said = {"object": "error", "message": message, "type": kind, "param": "", "code": status}
        return Refused(status, [("Content-Type", "text/plain; charset=utf-8")], json.dumps(said, separators=(",", ":")).encode())


@dataclass(frozen=True)
class Target:
    """Where the prefill leg goes."""

    host: str
    port: int
    path: str
    tls: bool


def encode(value: Any) -> bytes:
    """JSON as the sidecar writes it: keys sorted, numbers through a float, angle brackets escaped."""
    text = json.dumps(_through_floats(value), separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").encode()


def _through_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _through_floats(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_through_floats(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**53:
        return int(float(value))
    return value


def _with_cached(event: bytes, cached: int) -> bytes:
    """A stream event in which cached_tokens are those of the prefill engine. What needs no change stays byte for byte."""
    if not _USAGE.search(event):
        return event
    data = json.loads(event.removeprefix(b"data: "))
    details = data["usage"].get("prompt_tokens_details")
    if isinstance(details, dict) and details.get("cached_tokens") == cached:
        return event
    data["usage"]["prompt_tokens_details"] = {**(details or {}), "cached_tokens": cached}
    return b"data: " + encode(data) + b"\n\n"
