"""The bytes of a canary's requests."""

from __future__ import annotations

import json
from typing import Any

from probes import __version__
from probes.canary.dial import Connection, SetupError
from probes.canary.http1 import HttpError, HttpExchange
from probes.canary.params import CanaryParams

USER_AGENT = f"efa-pulse-canary/{__version__}"


def completion_request(params: CanaryParams, exchange: HttpExchange, connection: Connection, secret: list[tuple[str, str]],
                       prompt: str) -> bytes:
    """A streamed completion of `prompt`. Raises SetupError when a header of `params` cannot be sent."""
    body = json.dumps(completion_body(params, prompt), separators=(",", ":")).encode()
    headers = [("Host", _host(params)), ("Accept", "text/event-stream"), ("Content-Type", "application/json"),
               ("Content-Length", str(len(body))), *_common(params, connection, secret)]
    return _send(exchange, "POST", _target(params, connection, params.endpoint.target(params.api)), headers, body)


def models_request(params: CanaryParams, exchange: HttpExchange, connection: Connection, secret: list[tuple[str, str]]) -> bytes:
    """A request for the list of served models. Raises SetupError as above."""
    headers = [("Host", _host(params)), ("Accept", "application/json"), *_common(params, connection, secret)]
    return _send(exchange, "GET", _target(params, connection, params.endpoint.models()), headers, b"")


def completion_body(params: CanaryParams, prompt: str) -> dict[str, Any]:
    """The fields of the request."""
    fields: dict[str, Any] = {"model": params.model}
    if params.api == "chat":
        fields["messages"] = [{"role": "user", "content": prompt}]
    else:
        fields["prompt"] = prompt
    fields |= {"stream": True, params.token_limit_field: params.max_tokens}
    if params.include_usage:
        fields["stream_options"] = {"include_usage": True} | ({"continuous_usage_stats": True} if params.continuous_usage else {})
    if params.ignore_eos:
        fields["ignore_eos"] = True
    if params.temperature is not None:
        fields["temperature"] = params.temperature
    if params.seed is not None:
        fields["seed"] = params.seed
    if params.priority is not None:
        fields["priority"] = params.priority
    return fields | params.extra_body


def _common(params: CanaryParams, connection: Connection, secret: list[tuple[str, str]]) -> list[tuple[str, str]]:
    own = [("Accept-Encoding", "identity")]
    if "user-agent" not in {name.lower() for name in params.headers}:
        own.append(("User-Agent", USER_AGENT))
    extra = [(name, value) for name, value in params.headers.items() if name.lower() != "host"]
    return own + extra + secret + (connection.proxy.headers() if connection.proxy is not None else [])


def _host(params: CanaryParams) -> str:
    given = next((value for name, value in params.headers.items() if name.lower() == "host"), None)
    return given or params.endpoint.authority


def _target(params: CanaryParams, connection: Connection, target: str) -> str:
    return f"{params.endpoint.scheme}://{params.endpoint.authority}{target}" if connection.proxy is not None else target


def _send(exchange: HttpExchange, method: str, target: str, headers: list[tuple[str, str]], body: bytes) -> bytes:
    try:
        return exchange.request(method, target, headers, body)
    except HttpError as error:
        raise SetupError(str(error)) from None
