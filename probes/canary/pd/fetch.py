"""One bounded GET: a page, or why not. No redirect is followed, no proxy is used, the whole of it ends at a deadline."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from probes.canary.http1 import Body, End, Head, HttpError, HttpExchange
from probes.canary.transport import TransportError, resolve

PAGE_LIMIT = 8 << 20
READ = 1 << 16

Get = Callable[[str, float, bool], str]
"""Address, seconds, whether any certificate will do -> text. Raises FetchError."""


class FetchError(Exception):
    """The page could not be read. The text says why, without the page's own words."""


def get(url: str, seconds: float, insecure: bool = False, *, limit: int = PAGE_LIMIT) -> str:
    """The text of the page at `url`, read before `seconds` are over. Raises FetchError for anything but a whole 200 within `limit`."""
    until = time.monotonic() + seconds
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        address = resolve(host, port, until)[0][1]
        link: socket.socket = socket.create_connection(address[:2], timeout=_left(until))
    except (OSError, TransportError) as error:
        raise FetchError(f"no connection to {host}:{port}: {_why(error)}") from None
    with contextlib.closing(link):
        try:
            if parts.scheme == "https":
                link.settimeout(_left(until))
                link = _context(insecure).wrap_socket(link, server_hostname=host)
            return _talk(link, host if ":" not in host else f"[{host}]", port, target, until, limit)
        except (OSError, HttpError) as error:
            raise FetchError(f"{host}:{port}: {_why(error)}") from None
        finally:
            link.close()


def _talk(link: socket.socket, host: str, port: int, target: str, until: float, limit: int) -> str:
    exchange = HttpExchange()
    request = exchange.request("GET", target, [("Host", f"{host}:{port}"), ("Accept", "text/plain"), ("Accept-Encoding", "identity"),
                                               ("Connection", "close")])
    link.settimeout(_left(until))
    link.sendall(request)
    pieces: list[bytes] = []
    size = 0
    while True:
        link.settimeout(_left(until))
        data = link.recv(READ)
        for part in exchange.feed(data) if data else exchange.close():
            if isinstance(part, Head) and part.code != 200:
                raise FetchError(f"{host}:{port}: HTTP {part.code}")
            if isinstance(part, Body):
                pieces.append(part.data)
                size += len(part.data)
                if size > limit:
                    raise FetchError(f"{host}:{port}: the page is larger than {limit >> 20} MiB")
            if isinstance(part, End):
                return b"".join(pieces).decode("utf-8", errors="replace")
        if not data:
            raise FetchError(f"{host}:{port}: the answer was cut")


def _context(insecure: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no whole answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate is not trusted"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:120]
