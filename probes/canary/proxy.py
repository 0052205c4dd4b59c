"""The proxy that the environment names, used only where a canary's `trust_env` asks for it."""

from __future__ import annotations

import base64
import urllib.request
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from probes.canary.endpoint import Endpoint


class ProxyError(ValueError):
    """The environment names a proxy that cannot be used."""


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy. `authorization` is the value of its own header, from the user and password in its URL."""

    host: str
    port: int
    authorization: str | None

    def headers(self) -> list[tuple[str, str]]:
        """Headers meant for the proxy."""
        return [("Proxy-Authorization", self.authorization)] if self.authorization else []


def proxy_for(endpoint: Endpoint) -> Proxy | None:
    """The proxy for `endpoint` by http_proxy, https_proxy, all_proxy and no_proxy. Raises ProxyError."""
    named = urllib.request.getproxies_environment()
    value = named.get(endpoint.scheme) or named.get("all")
    host = f"{endpoint.host}:{endpoint.port}"
    if not value or urllib.request.proxy_bypass_environment(host, named):  # type: ignore[attr-defined]
        return None
    try:
        parts = urlsplit(value if "://" in value else f"http://{value}")
        port = parts.port or 80
    except ValueError as error:
        raise ProxyError(f"the {endpoint.scheme} proxy of the environment is not a URL: {error}") from None
    if parts.scheme != "http" or not parts.hostname:
        raise ProxyError(f"the {endpoint.scheme} proxy of the environment is of kind {parts.scheme!r}: only http:// proxies are supported")
    secret = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        secret = "Basic " + base64.b64encode(pair.encode()).decode()
    return Proxy(parts.hostname, port, secret)
