"""What the endpoint says about the model it serves."""

from __future__ import annotations

import json
import time

from probes.canary.clock import Stopwatch
from probes.canary.dial import Dialer
from probes.canary.http1 import Body, End, Head, HttpError, HttpExchange
from probes.canary.params import LOOKUP_TIMEOUT, CanaryParams
from probes.canary.request import models_request
from probes.canary.transport import DeadlinePassed, TransportError

_LOOKUP_LIMIT = 1 << 20


def served_context(params: CanaryParams, dialer: Dialer, secret: list[tuple[str, str]]) -> int | None:
    """The context length the endpoint serves for the model, by its list of models (vLLM and SGLang tell it); None when it does not say.

    Never an error: the request itself will show what is wrong with the endpoint.
    """
    until = time.monotonic() + LOOKUP_TIMEOUT
    try:
        connection = dialer.open(Stopwatch(), until)
    except TransportError:
        return None
    body = bytearray()
    exchange = HttpExchange()
    try:
        connection.link.send(models_request(params, exchange, connection, secret), until)
        while len(body) < _LOOKUP_LIMIT and time.monotonic() < until:
            arrival = connection.link.receive(until)
            for part in exchange.feed(arrival.data) if arrival.data else exchange.close():
                if isinstance(part, Head) and part.code != 200:
                    return None
                if isinstance(part, Body):
                    body += part.data
                if isinstance(part, End):
                    return _context_of(bytes(body), params.model)
            if not arrival.data:
                return None
    except (HttpError, DeadlinePassed):
        pass
    finally:
        connection.link.close()
    return None


def _context_of(body: bytes, model: str) -> int | None:
    try:
        listed = json.loads(body)["data"]
        lengths = [entry.get("max_model_len") or entry.get("context_length") for entry in listed if entry.get("id") == model]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return next((length for length in lengths if isinstance(length, int) and not isinstance(length, bool) and length > 0), None)
