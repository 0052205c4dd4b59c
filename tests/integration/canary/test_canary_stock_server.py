"""Servers that are not ours: the standard library's, in the framings that it offers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from canary_peers import delivered, quick

from probes.canary.client import measure


class Handler(BaseHTTPRequestHandler):
    """Streams eight tokens in the framing its server was given."""

    server: FramedServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.protocol_version = self.server.version
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        if self.server.framing == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(body["max_tokens"]):
            last = number + 1 == body["max_tokens"]
            self._event({"id": "x", "choices": [{"index": 0, "delta": {"content": "wörd "}, "finish_reason": "length" if last else None}]})
            time.sleep(0.02)
        self._event({"id": "x", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": body["max_tokens"]}})
        self._write(b"data: [DONE]\r\n\r\n")
        if self.server.framing == "chunked":
            self.wfile.write(b"0\r\n\r\n")

    def _event(self, value: dict[str, Any]) -> None:
        self._write(f"data:{json.dumps(value, ensure_ascii=False)}\r\n\r\n".encode())

    def _write(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data) if self.server.framing == "chunked" else data)

    def log_message(self, *_: Any) -> None:
        pass


class FramedServer(ThreadingHTTPServer):
    def __init__(self, version: str, framing: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.version = version
        self.framing = framing


@pytest.fixture(params=[("HTTP/1.0", "close"), ("HTTP/1.1", "close"), ("HTTP/1.1", "chunked")], ids=str)
def server(request: pytest.FixtureRequest) -> Iterator[FramedServer]:
    made = FramedServer(*request.param)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def test_a_stock_server_is_timed(server: FramedServer) -> None:
    url = f"http://127.0.0.1:{server.server_address[1]}"
    run = measure(quick(url, model="any", max_tokens=8))
    assert delivered(run), run.message
    assert (run.stream.token_events, run.stream.output_tokens, run.stream.finish_reason) == (8, 8, "length")
    assert "".join(run.answer.content) == "wörd " * 8
    assert run.stream.tpot is not None
    assert 0.02 <= run.stream.tpot < 0.2
    assert run.versions["server"].startswith("BaseHTTP")


def test_a_stock_server_that_does_not_take_posts() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{made.server_address[1]}"
        run = measure(quick(url))
        made.shutdown()
    assert run.stream.status == "http_5xx"
    assert run.message.startswith("HTTP 501")
