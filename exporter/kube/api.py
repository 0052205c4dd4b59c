"""Requests to the Kubernetes API server: JSON in, JSON out, every wait bounded, no retry that the caller does not know of.

Addresses and credentials come from the official client's configuration (kubeconfig with exec plugins, rotating in-cluster tokens). The
transport below it is the standard library's: the official client's does not let another thread end a watch, retries on its own, and
changes its HTTP library with what else is installed.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import json
import logging
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import probes

if TYPE_CHECKING:
    from kubernetes import client

Json = dict[str, Any]
Query = Mapping[str, str | int | bool]

TIMEOUT_SECONDS = 15.0
CONNECT_SECONDS = 5.0
ANSWER_LIMIT = 256 << 20
PIECE = 1 << 16
MAX_IDLE = 16
IDLE_SECONDS = 60.0
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

log = logging.getLogger(__name__)


class ApiError(Exception):
    """A request that failed. `status` is the HTTP status, 0 when there was no (whole) answer: then nobody knows whether it took effect."""

    def __init__(self, status: int, message: str, reason: str = "", retry_after: float | None = None, details: Json | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.reason, self.retry_after = status, message, reason, retry_after
        self.details = details or {}

    @property
    def unknown_effect(self) -> bool:
        """Whether the request may have taken effect all the same."""
        return self.status == 0 or self.status >= 500

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in {0, 408, 429} or self.status >= 500

    @property
    def not_found(self) -> bool:
        """404: no such object or no such resource."""
        return self.status == 404

    @property
    def exists(self) -> bool:
        """409 of a create: an object of this name is there already."""
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        """409 of an update: somebody else changed the object."""
        return self.status == 409 and self.reason != "AlreadyExists"

    @property
    def gone(self) -> bool:
        """410: the resource version or continue token is too old."""
        return self.status == 410


class ClusterError(Exception):
    """There is no usable way to a cluster. The text says what was tried and what to do."""


def configuration(kubeconfig: Path | None = None, context: str | None = None) -> client.Configuration:
    """Where the cluster is and who we are: the named kubeconfig, else the pod's ServiceAccount, else the user's own kubeconfig.

    Raises ClusterError when there is none or it cannot be read.
    """
    # It takes most of a second to import, and most commands never speak to a cluster.
    from kubernetes import client, config
    from kubernetes.config.config_exception import ConfigException

    found = client.Configuration()
    try:
        if kubeconfig is not None:
            config.load_kube_config(str(kubeconfig), context=context, client_configuration=found)
            return found
        if context is None:
            with contextlib.suppress(ConfigException):
                config.load_incluster_config(client_configuration=found)
                return found
        config.load_kube_config(context=context, client_configuration=found)
    except ConfigException as error:
        where = f"kubeconfig {kubeconfig}" if kubeconfig else "neither a pod's ServiceAccount nor a kubeconfig works"
        raise ClusterError(f"{where}: {error}; set KUBECONFIG or name a file") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ClusterError(f"kubeconfig {kubeconfig or ''} cannot be used: {error}") from None
    return found


class Api:
    """An API server. Safe to use from several threads."""

    def __init__(self, where: client.Configuration, *, timeout: float = TIMEOUT_SECONDS, agent: str = "efa-pulse") -> None:
        self._where = where
        self._timeout = timeout
        self._agent = f"{agent}/{probes.__version__}"
        parts = urllib.parse.urlsplit(where.host if "//" in where.host else f"https://{where.host}")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ClusterError(f"{where.host!r} is no address of an API server")
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port or (443 if self._secure else 80)
        self._base = parts.path.rstrip("/")
        self._tls = _tls(where) if self._secure else None
        self._proxy = _proxy(where, self._host)
        self._idle: list[tuple[http.client.HTTPConnection, float]] = []
        self._lock = threading.Lock()
        self._login = threading.Lock()
        self._requests: dict[str, int] = {}
        self._skew = 0.0

    def get(self, path: str, query: Query | None = None, *, timeout: float | None = None) -> Json:
        """Read an object or a list. Raises ApiError."""
        return self.request("GET", path, query=query, timeout=timeout)

    def create(self, path: str, body: Json, *, timeout: float | None = None) -> Json:
        """Create an object in the collection `path`. Raises ApiError; see `ApiError.exists`."""
        return self.request("POST", path, body=body, timeout=timeout)

    def replace(self, path: str, body: Json, *, timeout: float | None = None) -> Json:
        """Replace an object; with a resource version in it only that version. Raises ApiError; see `ApiError.conflict`."""
        return self.request("PUT", path, body=body, timeout=timeout)

    def patch(self, path: str, body: Json, *, timeout: float | None = None) -> Json:
        """Change an object by JSON merge patch. Raises ApiError."""
        return self.request("PATCH", path, body=body, content_type=MERGE_PATCH, timeout=timeout)

    def delete(self, path: str, *, uid: str | None = None, timeout: float | None = None) -> bool:
        """Delete an object and, in the background, what it owns; with `uid` only that very object.

        Returns whether it was there. Raises ApiError.
        """
        options: Json = {"propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            self.request("DELETE", path, body=options, timeout=timeout)
        except ApiError as error:
            if error.not_found or (uid and error.conflict):
                return False
            raise
        return True

    def request(self, method: str, path: str, *, query: Query | None = None, body: Json | None = None,
                content_type: str = "application/json", timeout: float | None = None) -> Json:
        """One request and its whole JSON answer within `timeout` seconds. Raises ApiError."""
        limit = self._timeout if timeout is None else timeout
        until = time.monotonic() + limit
        with self.open(method, path, query=query, body=body, content_type=content_type, timeout=limit) as answer:
            raw = answer.read_all(until)
        try:
            value = json.loads(raw)
        except ValueError as error:
            raise ApiError(0, f"{method} {path}: the answer is no JSON: {error}") from None
        if not isinstance(value, dict):
            raise ApiError(0, f"{method} {path}: the answer is no JSON object")
        return value

    @contextlib.contextmanager
    def open(self, method: str, path: str, *, query: Query | None = None, body: Json | None = None,
             content_type: str = "application/json", timeout: float) -> Iterator[Answer]:
        """One request whose answer is read piece by piece. `timeout` bounds each wait for bytes. Raises ApiError."""
        self._count(method)
        target = self._base + path + ("?" + urllib.parse.urlencode({k: _text(v) for k, v in query.items()}) if query else "")
        payload = json.dumps(body, separators=(",", ":")).encode() if body is not None else None
        headers = {"Accept": "application/json", "User-Agent": self._agent, **self._credentials()}
        if payload is not None:
            headers["Content-Type"] = content_type
        connection, response = self._send(method, target, payload, headers, timeout)
        answer = Answer(f"{method} {path}", connection, response)
        reusable = False
        try:
            self._look_at_clock(response)
            if response.status >= 300:
                raise _refusal(answer, response, time.monotonic() + timeout)
            yield answer
            reusable = answer.whole
        finally:
            if reusable:
                self._keep(connection)
            else:
                answer.close()

    def requests_by_method(self) -> dict[str, int]:
        """How many requests were sent, by HTTP method."""
        with self._lock:
            return dict(self._requests)

    def now(self) -> float:
        """Unix seconds of the API server's clock, to a second: what creation times are compared with."""
        return time.time() + self._skew

    def close(self) -> None:
        """Close idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def _send(self, method: str, target: str, payload: bytes | None, headers: Mapping[str, str],
              timeout: float) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        while True:
            connection, used = self._connection(timeout)
            try:
                connection.request(method, target, body=payload, headers=dict(headers))
                return connection, connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # A kept connection that the server closed in the meantime: nothing was answered, so the next one is tried. What may not
                # be sent twice is not.
                if used and method == "GET" and isinstance(error, (ConnectionError, http.client.RemoteDisconnected)):
                    continue
                raise ApiError(0, f"{method} {target.partition('?')[0]}: {_why(error)}") from None

    def _connection(self, timeout: float) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            while self._idle:
                connection, since = self._idle.pop()
                if time.monotonic() - since < IDLE_SECONDS and connection.sock is not None:
                    connection.sock.settimeout(timeout)
                    return connection, True
                connection.close()
        return self._connect(timeout), False

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        host, port = self._proxy or (self._host, self._port)
        connection: http.client.HTTPConnection
        if self._tls is not None:
            connection = _Secure(host, port, min(CONNECT_SECONDS, timeout), self._tls, self._where.tls_server_name or self._host)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=min(CONNECT_SECONDS, timeout))
        if self._proxy is not None:
            connection.set_tunnel(self._host, self._port)
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ApiError(0, f"API server {self._host}:{self._port}: {_why(error)}") from None
        connection.sock.settimeout(timeout)
        return connection

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(self._idle) < MAX_IDLE and connection.sock is not None:
                self._idle.append((connection, time.monotonic()))
                return
        connection.close()

    def _credentials(self) -> dict[str, str]:
        with self._login:  # an exec plugin or a rotated token file may be read here
            settings = self._where.auth_settings()
        return {str(one["key"]): str(one["value"]) for one in settings.values() if one.get("in") == "header" and one.get("value")}

    def _count(self, method: str) -> None:
        with self._lock:
            self._requests[method] = self._requests.get(method, 0) + 1

    def _look_at_clock(self, response: http.client.HTTPResponse) -> None:
        with contextlib.suppress(TypeError, ValueError):
            said = email.utils.parsedate_to_datetime(response.headers["Date"]).timestamp()
            skew = said - time.time()
            # The header counts whole seconds: a difference below that is none.
            self._skew = skew if abs(skew) > 1.5 else 0.0


class _Secure(http.client.HTTPSConnection):
    """A TLS connection that expects a certificate for `name`, whatever address it goes to."""

    def __init__(self, host: str, port: int, timeout: float, context: ssl.SSLContext, name: str) -> None:
        super().__init__(host, port, timeout=timeout, context=context)
        self._tls, self._name = context, name

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._name)


class Answer:
    """An answer on its way: read whole, or line by line; `close` from another thread ends the reading."""

    def __init__(self, what: str, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self.what = what
        self._connection = connection
        self._socket = connection.sock
        self._response = response
        self.whole = False

    def read_all(self, until: float) -> bytes:
        """All of it before `until` (monotonic seconds). Raises ApiError."""
        parts: list[bytes] = []
        size = 0
        while True:
            piece = self._read(max(0.05, until - time.monotonic()))
            if not piece:
                return b"".join(parts)
            parts.append(piece)
            size += len(piece)
            if size > ANSWER_LIMIT:
                raise ApiError(0, f"{self.what}: the answer is larger than {ANSWER_LIMIT >> 20} MiB")
            if time.monotonic() > until:
                raise ApiError(0, f"{self.what}: the answer is not whole in time")

    def lines(self, patience: float) -> Iterator[bytes]:
        """Whole lines as they come, each awaited at most `patience` seconds, until the server ends the answer. Raises ApiError."""
        rest = b""
        while piece := self._read(patience):
            first, *more = piece.split(b"\n")
            if not more:
                rest += first
                continue
            yield rest + first
            yield from more[:-1]
            rest = more[-1]

    def close(self) -> None:
        """End it, also under a reader in another thread."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(2)
        self._connection.close()

    def _read(self, patience: float) -> bytes:
        try:
            if self._socket is not None:
                self._socket.settimeout(patience)
            # read1 hands over what came; with a known length it would wait for a next byte after the last one (Python 3.11).
            piece = self._response.read1(PIECE) if self._response.chunked else self._response.read(PIECE)
        except (OSError, ValueError, AttributeError, http.client.HTTPException) as error:
            raise ApiError(0, f"{self.what}: {_why(error)}") from None
        if not piece:
            self.whole = not self._response.will_close
        return piece


def _refusal(answer: Answer, response: http.client.HTTPResponse, until: float) -> ApiError:
    """The error that an answer of status 300 or above stands for."""
    raw = b""
    with contextlib.suppress(ApiError):
        raw = answer.read_all(until)
    said: Json = {}
    with contextlib.suppress(ValueError):
        parsed = json.loads(raw)
        said = parsed if isinstance(parsed, dict) else {}
    message = str(said.get("message") or raw[:300].decode(errors="replace") or response.reason)
    wait: float | None = None
    with contextlib.suppress(TypeError, ValueError):
        wait = float(response.headers.get("Retry-After") or "")
    details = said.get("details") if isinstance(said.get("details"), dict) else None
    return ApiError(response.status, f"{answer.what}: {message}", str(said.get("reason") or ""), wait, details)


def _tls(where: client.Configuration) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=where.ssl_ca_cert or None, cadata=getattr(where, "ca_cert_data", None) or None)
        if not where.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if where.cert_file:
            context.load_cert_chain(where.cert_file, where.key_file)
    except (OSError, ValueError) as error:
        raise ClusterError(f"the cluster's certificates cannot be used: {error}") from None
    return context


def _proxy(where: client.Configuration, host: str) -> tuple[str, int] | None:
    """Host and port of the HTTP proxy that leads to `host`, if one does."""
    if not where.proxy or urllib.request.proxy_bypass_environment(host, {"no": where.no_proxy or ""}):  # type: ignore[attr-defined]
        return None
    parts = urllib.parse.urlsplit(where.proxy)
    return (parts.hostname, parts.port or 3128) if parts.hostname else None


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
