"""The bytes of a canary's requests."""

from __future__ import annotations

import json
from typing import Any

from probes import __version__
from probes.canary.dial import Connection, SetupError
from probes.canary.http1 import HttpError, HttpExchange
from probes.canary.params import CanaryParams
from probes.canary.stacks.base import Leg

USER_AGENT = f"efa-pulse-canary/{__version__}"


def leg_request(params: CanaryParams, exchange: HttpExchange, connection: Connection, secret: list[tuple[str, str]], leg: Leg) -> bytes:
    """The bytes of one leg, to the endpoint of `params`. Raises SetupError when a header of `params` cannot be sent."""
    body = json.dumps(leg.body, separators=(",", ":")).encode()
    accept = "text/event-stream" if leg.body.get("stream") else "application/json"
    headers = [("Host", _host(params)), ("Accept", accept), ("Content-Type", "application/json"),
               ("Content-Length", str(len(body))), *_common(params, connection, secret), *leg.headers.items()]
    return _send(exchange, "POST", _target(params, connection, params.endpoint.target(params.api)), headers, body)


def plain_get(params: CanaryParams, exchange: HttpExchange, connection: Connection, secret: list[tuple[str, str]], path: str) -> bytes:
    """A request for the JSON at `path`, which is taken as it is. Raises SetupError as above."""
    headers = [("Host", _host(params)), ("Accept", "application/json"), *_common(params, connection, secret)]
    return _send(exchange, "GET", _target(params, connection, path), headers, b"")


def models_request(params: CanaryParams, exchange: HttpExchange, connection: Connection, secret: list[tuple[str, str]]) -> bytes:
    """A request for the list of served models. Raises SetupError as above."""
    return plain_get(params, exchange, connection, secret, params.endpoint.models())


def completion_body(params: CanaryParams, prompt: str | list[int], salt: str = "") -> dict[str, Any]:
    """The fields of the request, before a stack adds its own. A prompt of token ids is for the API `completions` only; `salt` goes in
    where `params` ask for one. Raises SetupError."""
    fields: dict[str, Any] = {"model": params.model}
    if params.api == "chat":
        if not isinstance(prompt, str):
            raise SetupError("a prompt of token ids needs api completions")
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
    if params.cache_salt and salt:
        fields["cache_salt"] = salt
    if params.logprobs:
        fields |= {"logprobs": True} if params.api == "chat" else {"logprobs": 1}
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
