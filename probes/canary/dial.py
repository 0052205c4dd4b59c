"""From an endpoint to an open connection: name, TCP, proxy, TLS, each timed and each under its own deadline."""

from __future__ import annotations

import math
import ssl
import time
from dataclasses import dataclass, field

from probes.canary.answer import ERROR_BODY_LIMIT
from probes.canary.clock import Stopwatch
from probes.canary.http1 import Head, HttpError, HttpExchange
from probes.canary.params import CanaryParams
from probes.canary.proxy import Proxy, ProxyError, proxy_for
from probes.canary.status import Status
from probes.canary.transport import DeadlinePassed, Link, TcpLink, TlsLink, TransportError, connect, resolve


class SetupError(ValueError):
    """The parameters name something that cannot be used here: a file, a proxy. Says nothing about the endpoint."""


@dataclass
class Connection:
    """An open connection. Seconds for name, TCP and TLS; `proxy` when requests must go through one in absolute form."""

    link: Link
    resolve: float
    connect: float
    tls: float | None = None
    proxy: Proxy | None = None
    tls_version: str | None = None


@dataclass
class Dialer:
    """Opens connections to the endpoint of `params`. Raises SetupError from the constructor."""

    params: CanaryParams
    context: ssl.SSLContext | None = field(init=False)
    proxy: Proxy | None = field(init=False)

    def __post_init__(self) -> None:
        self.context = tls_context(self.params) if self.params.endpoint.tls else None
        try:
            self.proxy = proxy_for(self.params.endpoint) if self.params.trust_env else None
        except ProxyError as error:
            raise SetupError(str(error)) from None

    def open(self, stopwatch: Stopwatch, ends_at: float = math.inf) -> Connection:
        """A connection ready for a request, made before `ends_at` (monotonic seconds) at the latest. Raises TransportError."""
        params, endpoint = self.params, self.params.endpoint
        host, port = (self.proxy.host, self.proxy.port) if self.proxy else (endpoint.host, endpoint.port)
        began = time.monotonic()
        until = min(began + params.connect_timeout, ends_at)
        addresses = resolve(host, port, until)
        resolved = time.monotonic()
        tcp = connect(addresses, until, stopwatch)
        connected = time.monotonic()
        made = Connection(tcp, resolve=resolved - began, connect=connected - resolved)
        if self.context is None:
            made.proxy = self.proxy
            return made
        try:
            until = min(connected + params.tls_timeout, ends_at)
            if self.proxy is not None:
                _tunnel(tcp, self.proxy, f"{endpoint.host if ':' not in endpoint.host else f'[{endpoint.host}]'}:{endpoint.port}", until)
            began = time.monotonic()
            made.link = secured = TlsLink(tcp, self.context, params.server_name or endpoint.host, until)
        except BaseException:
            tcp.close()
            raise
        made.tls = time.monotonic() - began
        made.tls_version = secured.version
        return made


def tls_context(params: CanaryParams) -> ssl.SSLContext:
    """What is trusted, by `params`. Raises SetupError when the file with the authorities cannot be used."""
    try:
        context = ssl.create_default_context(cafile=str(params.ca_file) if params.ca_file else None)
    except (OSError, ssl.SSLError) as error:
        raise SetupError(f"ca_file {params.ca_file}: {getattr(error, 'strerror', None) or 'no certificate in it'}") from None
    if params.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


def read_key(params: CanaryParams) -> list[tuple[str, str]]:
    """The header with the key of `params.key_file`, nothing without one. Raises SetupError; the text never holds the key."""
    if params.key_file is None:
        return []
    try:
        key = params.key_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"key_file {params.key_file}: {getattr(error, 'strerror', None) or 'not text'}") from None
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise SetupError(f"key_file {params.key_file}: one line of ASCII without blanks is needed")
    return [(params.key_header, f"Bearer {key}" if params.key_header.lower() == "authorization" else key)]


def _tunnel(tcp: TcpLink, proxy: Proxy, authority: str, until: float) -> None:
    """Ask the proxy for a way to `authority`. Raises TransportError."""
    exchange = HttpExchange()
    try:
        tcp.send(exchange.request("CONNECT", authority, [("Host", authority), *proxy.headers()]), until)
        taken = 0
        while True:
            arrival = tcp.receive(until)
            taken += len(arrival.data)
            parts = exchange.feed(arrival.data) if arrival.data else exchange.close()
            head = next((part for part in parts if isinstance(part, Head)), None)
            if head is not None and 200 <= head.code < 300:
                return
            if head is not None:
                raise TransportError(Status.CONNECT_FAILED, f"the proxy {proxy.host} refused the tunnel: HTTP {head.code}")
            if not arrival.data or taken > ERROR_BODY_LIMIT:
                raise TransportError(Status.CONNECT_FAILED, f"the proxy {proxy.host} gave no answer to CONNECT")
    except HttpError as error:
        raise TransportError(Status.CONNECT_FAILED, f"the proxy {proxy.host} does not answer as a proxy: {error}") from None
    except DeadlinePassed:
        raise TransportError(Status.CONNECT_FAILED, f"the proxy {proxy.host} did not answer in time") from None
