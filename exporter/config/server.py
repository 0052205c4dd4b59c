"""The metrics server."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from exporter.config.base import FilePath, Model, Secret

_BRACKETED = re.compile(r"\[[0-9A-Fa-f:.%a-z]+\]")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
DEFAULT_PORT = 9877


def _listen(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"an address to listen on is host:port, :port or [IPv6]:port with a port up to 65535; got {value!r}")
    if host and not _BRACKETED.fullmatch(host) and not _HOST.fullmatch(host):
        raise ValueError(f"{host!r} is no host name or address; an IPv6 address stands in brackets, as in [::]:{port}")
    return value


Listen = Annotated[str, Field(min_length=2, max_length=300), AfterValidator(_listen), Field(examples=["127.0.0.1:9877"])]
"""host:port, :port for all addresses, port 0 for any free one."""


class Server(Model):
    """Where metrics are served."""

    listen: Listen = f":{DEFAULT_PORT}"
    """Address and port; `:9877` listens on all addresses."""
    web_config: FilePath | None = None
    """Web configuration file of the Prometheus exporter toolkit: TLS and basic authentication."""
    bearer_token: Secret | None = None
    """Token that a scrape must send as `Authorization: Bearer`."""
    enable_reload: bool = False
    """Serve POST /-/reload."""

    @property
    def address(self) -> tuple[str, int]:
        """Host (empty: all addresses) and port."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)
