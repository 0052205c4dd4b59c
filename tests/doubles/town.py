"""Servers of test doubles in one event loop of its own thread, with the least of HTTP/1.1 that they need. Standard library only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
Headers = list[tuple[str, str]]
Handler = Callable[["Request", asyncio.StreamWriter], Awaitable[None]]

REASONS = {200: "OK", 302: "Found", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 429: "Too Many Requests",
           500: "Internal Server Error", 502: "Bad Gateway", 503: "Service Unavailable"}


@dataclass
class Request:
    """One request as it came. `status` is what was answered, None until a head was sent; `left_at` when the peer left before the end."""

    at: float
    method: str
    target: str
    headers: Headers
    body: bytes
    status: int | None = None
    left_at: float | None = None

    def get(self, name: str) -> str | None:
        """The first value of a header."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def all(self, name: str) -> list[str]:
        """Every value of a header."""
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def json(self) -> dict[str, Any]:
        """The body as an object."""
        found = json.loads(self.body)
        assert isinstance(found, dict)
        return found


class Town:
    """The loop. Leave it as a context manager: every server and connection ends."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True, name="doubles")

    def __enter__(self) -> Town:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self._end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop and give its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    async def _end(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@dataclass
class House:
    """A server in the town: one request a connection, every request kept in `seen`. A peer that leaves cancels the handler."""

    town: Town
    handler: Handler
    seen: list[Request] = field(default_factory=list)
    host: str = "127.0.0.1"
    port: int = 0
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def open(self) -> House:
        """Listen, on the port of before if there was one."""
        self._server = self.town.do(asyncio.start_server(self._serve, self.host, self.port))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def close(self) -> None:
        """Stop listening. What goes on goes on."""
        if self._server is not None:
            self.town.do(_close(self._server))
            self._server = None

    def kill(self) -> None:
        """Stop listening and cut every connection, without a word."""
        self.close()
        self.town.do(self._cut())

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self.host}:{self.port}"

    async def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        tasks: list[asyncio.Future[Any]] = []
        try:
            request = await read_request(reader)
            if request is None:
                return
            self.seen.append(request)
            tasks = [asyncio.ensure_future(self.handler(request, writer)), asyncio.ensure_future(reader.read(1))]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                request.left_at = time.monotonic()
        except asyncio.CancelledError:
            pass  # the town ends
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._writers.discard(writer)
            with contextlib.suppress(Exception):
                writer.close()


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request with its body, None at the end of the connection."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.split("\r\n")[:-2]
    method, target, _ = first.split(" ", 2)
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    request = Request(time.monotonic(), method, target, headers, b"")
    if "chunked" in (request.get("transfer-encoding") or ""):
        request.body = b"".join([piece async for piece in chunks(reader)])
    else:
        request.body = await reader.readexactly(int(request.get("content-length") or 0))
    return request


async def chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The pieces of a chunked body. Raises IncompleteReadError when it is cut."""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readuntil(b"\r\n")


@dataclass
class Upstream:
    """A response that is being read."""

    status: int
    headers: Headers
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def get(self, name: str) -> str | None:
        """The first value of a header."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body, piece by piece. Raises IncompleteReadError or ConnectionError when it is cut."""
        if "chunked" in (self.get("transfer-encoding") or ""):
            async for piece in chunks(self.reader):
                yield piece
        elif (length := self.get("content-length")) is not None:
            yield await self.reader.readexactly(int(length))
        else:
            while piece := await self.reader.read(65536):
                yield piece

    async def whole(self) -> bytes:
        """The body."""
        return b"".join([piece async for piece in self.pieces()])


@contextlib.asynccontextmanager
async def ask(host: str, port: int, method: str, target: str, headers: Headers, body: bytes = b"") -> AsyncIterator[Upstream]:
    """Send a request and read the head of its answer. Raises OSError when there is no connection, EOFError when it ends before a head."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
    try:
        lines = [f"{method} {target} HTTP/1.1", *[f"{name}: {value}" for name, value in headers], f"Content-Length: {len(body)}"]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body)
        await writer.drain()
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, ConnectionError):
            raise EOFError from None
        first, *rest = head.split("\r\n")[:-2]
        fields = [(name, value.strip()) for name, _, value in (line.partition(":") for line in rest)]
        yield Upstream(int(first.split(" ")[1]), fields, reader, writer)
    finally:
        writer.close()


def head(status: int, headers: Headers) -> bytes:
    """The head of a response."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}", *[f"{name}: {value}" for name, value in headers]]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def framed(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


async def respond(writer: asyncio.StreamWriter, request: Request, status: int, headers: Headers, body: bytes = b"") -> None:
    """A whole answer."""
    request.status = status
    writer.write(head(status, [*headers, ("Content-Length", str(len(body))), ("Connection", "close")]) + body)
    await writer.drain()


async def _close(server: asyncio.Server) -> None:
    server.close()
