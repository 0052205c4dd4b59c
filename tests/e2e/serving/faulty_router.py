"""A small prefill/decode router for vLLM with NIXL that does one thing wrong on demand. A test tool: no such router is in production.

It does what vLLM's own proxy server does: the prompt to the prefill server with `do_remote_decode`, the handle of its reply to the decode
server, the decode server's stream to the client as it comes.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

ASK = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None, "remote_host": None,
       "remote_port": None}
UPSTREAM_SECONDS = 60.0
Json = dict[str, Any]


class Wrong(Enum):
    """What the router does wrong."""

    NOTHING = "nothing"
    DROPS_PARAMS = "the prefill server's handle is not passed on"
    STALE_HANDLE = "the handle of an earlier request is passed on"
    ORPHANS = "the request ends after its prefill: no decode server ever fetches the KV"
    STALLS = "the stream stops after a few events, the connection stays"


class FaultyRouter:
    """A context manager. Listens on `host`; `wrong` may be changed at any time and holds for requests that come after."""

    def __init__(self, host: str, prefill: str, decode: str) -> None:
        self.prefill, self.decode = prefill, decode
        self.wrong = Wrong.NOTHING
        self.stall_after = 5
        self.kept: Json | None = None
        self.ended = threading.Event()
        self._server = _Server((host, 0), _Handler)
        self._server.router = self
        self.url = f"http://{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> FaultyRouter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(UPSTREAM_SECONDS)

    @contextlib.contextmanager
    def doing(self, wrong: Wrong) -> Iterator[None]:
        """In this block it does `wrong`."""
        self.wrong = wrong
        try:
            yield
        finally:
            self.wrong = Wrong.NOTHING


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    router: FaultyRouter


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        router, wrong = self.server.router, self.server.router.wrong
        body: Json = json.loads(self.rfile.read(int(self.headers["content-length"])))
        first = {name: value for name, value in body.items() if name != "stream_options"}
        with _post(router.prefill, self.path, {**first, "stream": False, "max_tokens": 1, "kv_transfer_params": ASK}) as answer:
            reply = answer.read()
            if answer.status != 200:
                self._whole(answer.status, reply)
                return
        handle = json.loads(reply)["kv_transfer_params"]
        if wrong is Wrong.ORPHANS:
            self._whole(502, b'{"error": {"message": "the decode server could not be reached", "code": 502}}')
            return
        used = router.kept if wrong is Wrong.STALE_HANDLE else handle
        router.kept = router.kept if wrong is Wrong.STALE_HANDLE else handle
        second = body if wrong is Wrong.DROPS_PARAMS else {**body, "kv_transfer_params": used}
        with contextlib.suppress(OSError), _post(router.decode, self.path, second) as answer:
            self._stream(answer, router.stall_after if wrong is Wrong.STALLS else None)

    def do_GET(self) -> None:
        where = urlsplit(self.server.router.decode)
        connection = http.client.HTTPConnection(where.netloc, timeout=UPSTREAM_SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", self.path)
            answer = connection.getresponse()
            self._whole(answer.status, answer.read())

    def _stream(self, answer: http.client.HTTPResponse, stall_after: int | None) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers["content-type"])
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        events = 0
        while data := answer.read1(1 << 16):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            events += data.count(b"data:")
            if stall_after is not None and events > stall_after:
                self._wait_for_the_client()
                return
        self.wfile.write(b"0\r\n\r\n")

    def _wait_for_the_client(self) -> None:
        self.close_connection = True
        until = time.monotonic() + UPSTREAM_SECONDS
        self.connection.settimeout(0.1)
        while time.monotonic() < until and not self.server.router.ended.is_set():
            try:
                if not self.connection.recv(1):
                    return
            except TimeoutError:
                continue
            except OSError:
                return

    def _whole(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def _post(base: str, path: str, body: Json) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=UPSTREAM_SECONDS)
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        yield connection.getresponse()
