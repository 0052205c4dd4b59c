"""Where a canary sends its request: a URL taken apart, with the path of the OpenAI-compatible API put on."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Literal
from urllib.parse import SplitResult, urlsplit

Api = Literal["chat", "completions"]

PATHS: dict[Api, str] = {"chat": "/chat/completions", "completions": "/completions"}
DEFAULT_PORTS = {"http": 80, "https": 443}


class EndpointError(ValueError):
    """The URL cannot be used. The text says why and what to write instead."""


@dataclass(frozen=True)
class Endpoint:
    """`scheme://host:port` and the base path up to and including the API version, e.g. `/v1`; `query` without its mark."""

    scheme: Literal["http", "https"]
    host: str
    port: int
    base: str
    query: str = ""

    @property
    def tls(self) -> bool:
        """Whether the endpoint speaks TLS."""
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """The value of the Host header: the port is left out where it is the scheme's own."""
        host = f"[{self.host.partition('%')[0]}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def target(self, api: Api) -> str:
        """The request target of `api`."""
        return self._with_query(self.base + PATHS[api])

    def models(self) -> str:
        """The request target of the list of served models."""
        return self._with_query(self.base + "/models")

    def _with_query(self, path: str) -> str:
        return f"{path}?{self.query}" if self.query else path


def parse_endpoint(url: str) -> Endpoint:
    """Take `url` apart: `http://host:8000`, `https://host/prefix/v1` and the full address of the API all work.

    Raises EndpointError.
    """
    if any(ord(char) <= 32 or ord(char) == 127 for char in url):
        raise EndpointError("the URL has a blank or a control character")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise EndpointError(f"not a URL: {error}") from None
    if parts.scheme not in DEFAULT_PORTS:
        raise EndpointError("the URL must begin with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise EndpointError("no user or password in the URL: put the key into a file and name it in key_file")
    if parts.fragment:
        raise EndpointError("the URL has a fragment (#...), which no server sees: remove it")
    if port == 0:
        raise EndpointError("port 0 cannot be connected to")
    scheme: Literal["http", "https"] = "https" if parts.scheme == "https" else "http"
    return Endpoint(scheme, _host(parts), port or DEFAULT_PORTS[scheme], _base(parts.path), parts.query)


def _host(parts: SplitResult) -> str:
    host = parts.hostname
    if not host:
        raise EndpointError("the URL names no host")
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        pass
    else:
        return host.replace("%25", "%")  # a zone is written with an escaped percent sign
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        raise EndpointError(f"{host!r} is not a host name") from None


def _base(path: str) -> str:
    if not path.isascii():
        raise EndpointError("the path of the URL has characters outside ASCII: percent-encode them")
    path = path.rstrip("/")
    for tail in PATHS.values():
        if path.endswith(tail):
            return path[: -len(tail)]
    return path if path.rpartition("/")[2] in {"v1", "v2", "v3"} else path + "/v1"


def usable_url(value: str) -> str:
    """The same text, for validators. Raises EndpointError."""
    parse_endpoint(value)
    return value
