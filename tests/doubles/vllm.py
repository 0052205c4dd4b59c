"""A double of vLLM as prefill and decode server with the NIXL connector: its two legs, and a metrics page that counts what really happened.

No KV moves here. What is counted where follows the pages recorded of vLLM 0.32 (`tests/fixtures/engines`): external tokens and NIXL bytes
on decode with a hand-over, local tokens without.
"""

from __future__ import annotations

import json
import math
import threading
import time
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, TypeVar

from engine_pages import BLOCK_TOKENS, vllm

ServerT = TypeVar("ServerT", bound="Server")
KV_BYTES_PER_TOKEN = 2048
MODEL = "m"


@dataclass
class Counts:
    """What one server has counted."""

    external: int = 0
    local: int = 0
    requests: int = 0
    moved: int = 0
    seconds: float = 0.0
    started: float = field(default_factory=time.time)


class Server:
    """One server. `drops` lets a prefill answer without a hand-over; `broken` answers every completion with 500."""

    def __init__(self, *, ttft: float = 0.02) -> None:
        self.counts = Counts()
        self.ttft, self.drops, self.broken = ttft, False, False
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                body = server.page() if self.path == "/metrics" else json.dumps({"data": [{"id": MODEL, "max_model_len": 8192}]})
                self.reply(200, body.encode(), "text/plain" if self.path == "/metrics" else "application/json")

            def do_POST(self) -> None:
                fields = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if server.broken:
                    self.reply(500, b'{"error":{"message":"broken"}}', "application/json")
                    return
                time.sleep(server.ttft)
                usage, handle = server.count(fields)
                if not fields.get("stream"):
                    choice = {"index": 0, "text": "word", "token_ids": server.answer(fields), "finish_reason": "length"}
                    reply = {"id": f"cmpl-{uuid.uuid4()}", "usage": usage, "kv_transfer_params": handle, "choices": [choice]}
                    self.reply(200, json.dumps(reply).encode(), "application/json")
                    return
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.end_headers()
                for event in server.events(fields, usage):
                    self.wfile.write(f"data: {event}\n\n".encode())
                    self.wfile.flush()
                    time.sleep(0.03)
                self.close_connection = True

            def reply(self, status: int, body: bytes, kind: str) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Base address of its API."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self: ServerT) -> ServerT:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5)

    def page(self) -> str:
        """The metrics."""
        with self._lock:
            now = self.counts
            return vllm(external=now.external, local=now.local, prompt=now.external + now.local, requests=now.requests, moved=now.moved,
                        seconds=now.seconds, started=now.started)

    def restart(self) -> None:
        """Counters begin again, as those of another process."""
        with self._lock:
            self.counts = Counts(started=self.counts.started + 60)

    def count(self, fields: dict[str, Any]) -> tuple[dict[str, int], dict[str, Any] | None]:
        """Take in one request: its usage, and the hand-over where it was asked for one."""
        prompt = fields.get("prompt") or " ".join(one["content"] for one in fields["messages"])
        tokens = len(prompt) if isinstance(prompt, list) else len(str(prompt).split())
        params = fields.get("kv_transfer_params") or {}
        with self._lock:
            self.counts.requests += 1
            if params.get("do_remote_prefill"):
                self.counts.external += tokens
                self.counts.moved += math.ceil(tokens / BLOCK_TOKENS) * BLOCK_TOKENS * KV_BYTES_PER_TOKEN
                self.counts.seconds += 0.004
            else:
                self.counts.local += tokens
        usage = {"prompt_tokens": tokens, "completion_tokens": int(fields.get("max_tokens", 1))}
        if not params.get("do_remote_decode") or self.drops:
            return usage, None
        return usage, {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1]], "remote_engine_id": "e",
                       "remote_host": "127.0.0.1", "remote_port": 5600, **self.handle(fields)}

    def answer(self, fields: dict[str, Any]) -> list[int]:
        """Token ids of an answer that is not streamed."""
        return [1] * int(fields.get("max_tokens", 1))

    def handle(self, fields: dict[str, Any]) -> dict[str, Any]:
        """What of a hand-over is this request's own."""
        return {}

    @staticmethod
    def events(fields: dict[str, Any], usage: dict[str, int]) -> list[str]:
        """The events of a stream."""
        chat = "messages" in fields
        count = usage["completion_tokens"]
        out = []
        for index in range(count):
            text = f" w{index}"
            choice: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
            finish = None if index < count - 1 else "length"
            out.append(json.dumps({"id": "cmpl-1", "choices": [{"index": 0, **choice, "finish_reason": finish}]}))
        return [*out, json.dumps({"id": "cmpl-1", "choices": [], "usage": usage}), "[DONE]"]
