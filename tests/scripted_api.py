"""An HTTP server that answers as it was told, request by request: for what a real API server does not do on demand."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kubernetes import client

Json = dict[str, Any]
Asked = tuple[str, str, dict[str, str]]


class Scripted:
    """`answer` gets method, path and query of each request and returns a status and a body: a value as JSON, or an iterator of lines that
    are sent as they come; None as the last of them cuts the connection, a number waits so many seconds."""

    def __init__(self, answer: Callable[[str, str, dict[str, str]], tuple[int, Any]]) -> None:
        self.asked: list[Asked] = []
        self.headers: list[dict[str, str]] = []
        self._answer = answer
        scripted = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = urlsplit(self.path)
                asked = (self.command, parts.path, dict(parse_qsl(parts.query)))
                scripted.asked.append(asked)
                scripted.headers.append(dict(self.headers))
                status, body = scripted._answer(*asked)
                if isinstance(body, Iterator):
                    self._stream(status, body)
                    return
                raw = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                if status == 429:
                    self.send_header("Retry-After", "7")
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = handle_any  # noqa: N815 - the names of the base class

            def _stream(self, status: int, lines: Iterator[Any]) -> None:
                self.send_response(status)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for line in lines:
                    if line is None:
                        self.close_connection = True
                        self.connection.close()
                        return
                    if isinstance(line, (int, float)):
                        time.sleep(line)
                        continue
                    raw = line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(raw), raw))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """Connections that a client closed are no news."""

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def where(self) -> client.Configuration:
        """How to reach it."""
        return client.Configuration(host=f"http://127.0.0.1:{self._server.server_port}")

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
