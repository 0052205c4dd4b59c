"""The metrics server: a thread per connection, a limit on connections, and pages that are joined, not made.

It serves `/metrics`, `/-/healthy`, `/-/ready`, `/-/reload` and a small index. Health pages are for a kubelet: they need no authentication
and are not counted against the rate limit.
"""

from __future__ import annotations

import contextlib
import html
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from exporter import log
from exporter.config.server import Server
from exporter.publish.access import Access
from exporter.publish.deflate import GZIP_HEADER, add, gzip_trailer
from exporter.publish.http import Answer, Connection, Gone, Handler, Limits, Request, linger
from exporter.publish.live import Part, ProcessPart, ServerPart, live_segments
from exporter.publish.negotiate import choose_format, wants_gzip
from exporter.publish.store import Snapshot
from exporter.publish.webconfig import subject_names

HTML = "text/html; charset=utf-8"
PAGES = {
    "/": "this page",
    "/metrics": "the metrics, as text or OpenMetrics",
    "/-/healthy": "200 while the service works",
    "/-/ready": "200 once the first results are there, or were restored",
    "/-/reload": "POST: read the configuration again",
}
PUBLIC = frozenset({"/-/healthy", "/-/ready"})
BACKLOG = 128

Check = Callable[[], str | None]
"""Says what is wrong, or None."""
Reload = Callable[[], str | None]
"""Reads the configuration again and says what is wrong with it, or None."""


@dataclass(frozen=True)
class Page:
    """A page that another part serves here, with the same authentication as the metrics. `what` is its line in the index."""

    what: str
    handler: Handler


class MetricsServer:
    """Serves snapshots at the configured address. It listens from its creation on, and answers from `start` on.

    `healthy` says what is wrong with the service, or None. `reload` serves POST /-/reload where the configuration turns that on. `parts`
    are rendered at each scrape beside those of the process itself; one that raises is left out and counted. `pages` are served for GET
    at their paths, behind the same authentication. Raises OSError naming the address when it cannot listen, WebConfigError when the web
    configuration or the bearer token cannot be used.
    """

    def __init__(self, config: Server, snapshot: Callable[[], Snapshot], *, healthy: Check = lambda: None, reload: Reload | None = None,
                 parts: Mapping[str, Part] | None = None, limits: Limits | None = None, pages: Mapping[str, Page] | None = None) -> None:
        self._snapshot = snapshot
        self._access = Access(config.web_config, config.bearer_token)
        self._healthy = healthy
        self._reload = reload if config.enable_reload else None
        self._more = dict(pages or {})
        self._known = {**PAGES, **{path: page.what for path, page in self._more.items()}}
        self._unready: str | None = "starting"
        self._parts: dict[str, Part] = {"process": ProcessPart(), **(parts or {})}
        self._counts = ServerPart(self._parts)
        self._limits = limits or Limits()
        self._connections: set[Connection] = set()
        self._lock = threading.Lock()
        self._wake, self._woken = socket.socketpair()
        self._listeners = [_bound(*config.address)]
        self._address = self._listeners[0].getsockname()[:2]
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port it listens on."""
        host, port = self._address
        return str(host), int(port)

    @property
    def url(self) -> str:
        """An address of the server as a person would open it on this machine."""
        host, port = self.address
        host = {"0.0.0.0": "127.0.0.1", "::": "localhost"}.get(host, host)  # noqa: S104 - shown, not bound
        return f"http{'s' if self._access.tls else ''}://{f'[{host}]' if ':' in host else host}:{port}/"

    def ready(self, ready: bool, why: str = "not now") -> None:
        """Say whether /-/ready answers 200; before the first call it does not. `why` is shown while it does not."""
        self._unready = None if ready else why

    def start(self) -> None:
        """Begin to accept."""
        self._thread = threading.Thread(target=self._accept_all, name="metrics-accept", daemon=True)
        self._thread.start()

    def close(self, grace: float = 5.0) -> None:
        """Stop accepting, let answers under way finish within `grace` seconds, then cut what is left."""
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        if self._thread is not None:
            self._thread.join(grace)
        for sock in (*self._listeners, self._wake, self._woken):
            sock.close()
        until = time.monotonic() + grace
        with self._lock:
            left = list(self._connections)
        for connection in left:
            connection.stop()
        while time.monotonic() < until and self._open():
            time.sleep(0.01)
        for connection in self._open():
            connection.abort()

    # connections

    def _open(self) -> list[Connection]:
        with self._lock:
            return list(self._connections)

    def _accept_all(self) -> None:
        with selectors.DefaultSelector() as selector:
            for sock in (*self._listeners, self._woken):
                selector.register(sock, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._woken:
                        return
                    try:
                        self._accept(key.fileobj)  # type: ignore[arg-type]
                    except Exception as error:  # noqa: BLE001 - the server must outlive whatever one connection does
                        log.get().exception("a connection could not be taken", error=str(error))

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # out of file descriptors: give those in use a moment to end
            log.get().warning("a connection could not be accepted", error=str(error))
            time.sleep(0.1)
            return
        sock.setblocking(True)
        connection = Connection(sock, self._answer, self._limits)
        if not self._admit(connection):
            self._counts.refused("full")
            sock.close()
            return
        threading.Thread(target=self._serve, args=(connection,), name="metrics-connection", daemon=True).start()

    def _admit(self, connection: Connection) -> bool:
        """Make room: the connection that has been idle longest goes before a new one is refused."""
        with self._lock:
            if len(self._connections) >= self._limits.connections:
                idle = [other for other in self._connections if other.idle_since is not None and not other.closing]
                if not idle:
                    return False
                min(idle, key=lambda other: other.idle_since or 0.0).stop()
            self._connections.add(connection)
            return True

    def _serve(self, connection: Connection) -> None:
        self._access.refresh()
        self._counts.web_config(self._access.ok)
        sock = connection.sock
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = self._access.context
            if context is not None:
                connection.sock = sock = self._handshake(sock, context)
            connection.serve()
            linger(sock)
        except Gone as gone:
            self._counts.refused(str(gone))
            if str(gone) == "bad_request":
                linger(sock)
        except OSError:
            self._counts.refused("reset")
        finally:
            sock.close()
            with self._lock:
                self._connections.discard(connection)

    def _handshake(self, sock: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
        sock.settimeout(self._limits.handshake_seconds)
        wrapped: ssl.SSLSocket | None = None
        try:
            wrapped = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True)
            wrapped.do_handshake()
        except ssl.SSLError as error:
            if wrapped is not None and error.reason == "HTTP_REQUEST":
                _answer_in_plain(wrapped)
            raise Gone("handshake") from None
        except OSError:
            raise Gone("handshake") from None
        allowed = self._access.allowed_names
        if allowed and not allowed & subject_names(wrapped.getpeercert()):
            raise Gone("handshake")
        return wrapped

    # requests

    def _answer(self, request: Request) -> Answer:
        try:
            answer = self._route(request)
        except Exception as error:  # noqa: BLE001 - one request that fails must not take its connection with it
            log.get().exception("a request could not be answered", path=request.path, error=str(error))
            answer = Answer.text(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed, its log says why")
        self._counts.answered(request.path if request.path in self._known else "other", answer.status)
        extra = self._access.headers
        return answer if not extra else Answer(answer.status, answer.body, answer.content_type, answer.headers + extra, answer.close)

    def _route(self, request: Request) -> Answer:
        self._access.refresh()
        if request.path not in PUBLIC:
            if self._access.limited():
                return Answer.text(HTTPStatus.TOO_MANY_REQUESTS, "too many requests")
            denied = self._access.check(request.headers.get("authorization", ""))
            if denied is not None:
                challenge = (("WWW-Authenticate", denied.challenge),) if denied.challenge else ()
                return Answer.text(denied.status, denied.text, *challenge)
        if request.path not in self._known:
            return Answer.text(HTTPStatus.NOT_FOUND, f"nothing here; there is {', '.join(path for path in self._known if path != '/')}")
        allowed = ("POST",) if request.path == "/-/reload" else ("GET", "HEAD")
        if request.method not in allowed:
            return Answer.text(HTTPStatus.METHOD_NOT_ALLOWED, f"use {' or '.join(allowed)}", ("Allow", ", ".join(allowed)))
        return self._pages()[request.path](request)

    def _pages(self) -> dict[str, Callable[[Request], Answer]]:
        return {
            "/": self._index,
            "/metrics": self._metrics,
            "/-/healthy": lambda _: _state(self._healthy(), "healthy"),
            "/-/ready": lambda _: _state(self._unready, "ready"),
            "/-/reload": self._reload_page,
            **{path: page.handler for path, page in self._more.items()},
        }

    def _metrics(self, request: Request) -> Answer:
        wanted = choose_format(request.headers.get("accept", ""))
        snapshot = self._snapshot()
        page = snapshot.openmetrics if wanted.openmetrics else snapshot.classic
        live = tuple(live_segments(self._parts, self._counts, openmetrics=wanted.openmetrics))
        segments = (*page.segments, *live)
        headers: tuple[tuple[str, str], ...] = (("Vary", "Accept, Accept-Encoding"), ("Cache-Control", "no-store"))
        if not wants_gzip(request.headers.get("accept-encoding", "")):
            return Answer(HTTPStatus.OK, [segment.text for segment in segments], wanted.content_type, headers)
        trailer = gzip_trailer(add(page.sums, live))
        body = [GZIP_HEADER, *(segment.deflated for segment in segments), trailer]
        return Answer(HTTPStatus.OK, body, wanted.content_type, (("Content-Encoding", "gzip"), *headers))

    def _reload_page(self, _: Request) -> Answer:
        if self._reload is None:
            return Answer.text(HTTPStatus.FORBIDDEN, "reload by HTTP is off: set server.enable_reload, or send SIGHUP")
        problem = self._reload()
        if problem is not None:
            return Answer.text(HTTPStatus.INTERNAL_SERVER_ERROR, f"not loaded, the configuration before stays in use: {problem}")
        return Answer.text(HTTPStatus.OK, "loaded")

    def _index(self, _: Request) -> Answer:
        rows = "".join(f"<li><a href='{path}'>{path}</a>: {html.escape(what)}</li>\n" for path, what in self._known.items() if path != "/")
        page = (f"<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>efa-pulse</title></head>\n"
                f"<body><h1>efa-pulse</h1>\n<p>{self._snapshot().series} series.</p>\n<ul>\n{rows}</ul></body></html>\n")
        safe = ("Content-Security-Policy", "default-src 'none'")
        headers = () if any(name.lower() == "content-security-policy" for name, _ in self._access.headers) else (safe,)
        return Answer(HTTPStatus.OK, (page.encode(),), HTML, headers)


def _state(problem: str | None, word: str) -> Answer:
    if problem is None:
        return Answer.text(HTTPStatus.OK, f"efa-pulse is {word}")
    return Answer.text(HTTPStatus.SERVICE_UNAVAILABLE, f"efa-pulse is not {word}: {problem}")


def _answer_in_plain(wrapped: ssl.SSLSocket) -> None:
    """Tell a client that spoke HTTP to a TLS port what is wrong, in the language it understands."""
    plain = socket.socket(fileno=wrapped.detach())
    text = b"this is a TLS port: use https://\n"
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(text)
    with contextlib.suppress(OSError), plain:
        plain.settimeout(1.0)
        plain.sendall(head + text)
        linger(plain)


def _bound(host: str, port: int) -> socket.socket:
    try:
        if not host:
            both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both else socket.AF_INET
            sock = socket.create_server(("", port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
        else:
            family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            sock = socket.create_server(where[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise OSError(error.errno, f"cannot listen on {shown}: {error.strerror or error}") from None
    sock.setblocking(False)
    return sock
