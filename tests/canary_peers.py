"""What the canary's tests against real sockets share."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

import trustme

from probes.canary.client import CanaryRun
from probes.canary.params import CanaryParams

QUICK = {"connect_timeout": 5.0, "tls_timeout": 5.0, "head_timeout": 10.0, "first_token_timeout": 10.0, "stall_timeout": 10.0,
         "total_timeout": 20.0}

MakeParams = Callable[..., CanaryParams]


def quick(url: str, **fields: Any) -> CanaryParams:
    """A short request to `url` with deadlines fit for a test."""
    return CanaryParams.model_validate({"url": url, "model": "simulated-pd", "max_tokens": 4, **QUICK, **fields})


def delivered(run: CanaryRun) -> bool:
    """Whether the whole answer came. On a busy machine a client may find that it could not time it, which says nothing about delivery."""
    return run.stream.status in ("ok", "disturbed")


def server_context(authority: trustme.CA, *names: str, **options: Any) -> ssl.SSLContext:
    """A server's context with a certificate for `names`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names, **options).configure_cert(context)
    return context


class OnePeer:
    """Takes one connection, reads one request with its body, then lets `answer` write whatever it likes."""

    def __init__(self, answer: Callable[[socket.socket], object]) -> None:
        self.request = b""
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> OnePeer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        self._listener.settimeout(10)
        with contextlib.suppress(OSError):
            sock, _ = self._listener.accept()
            with sock:
                sock.settimeout(10)
                while not self._complete():
                    self.request += sock.recv(65536)
                self._answer(sock)

    def _complete(self) -> bool:
        head, mark, body = self.request.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        return bool(mark) and len(body) >= (int(length[1]) if length else 0)
