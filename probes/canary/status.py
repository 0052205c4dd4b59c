"""The closed list of ways a canary request can end, and the reason each is in a result."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from enum import Enum

from probes.reasons import Reason


class Status(str, Enum):
    """How one request ended. Only `ok` means that every latency of the request may be counted."""

    OK = "ok"
    CONNECT_FAILED = "connect_failed"
    TLS_FAILED = "tls_failed"
    HTTP_4XX = "http_4xx"
    HTTP_5XX = "http_5xx"
    SHED = "shed"
    PROTOCOL_ERROR = "protocol_error"
    ERROR_IN_STREAM = "error_in_stream"
    TRUNCATED = "truncated"
    TIMEOUT_HEADER = "timeout_header"
    TIMEOUT_FIRST_TOKEN = "timeout_first_token"  # noqa: S105 - a status, not a secret
    TIMEOUT_STALL = "timeout_stall"
    TIMEOUT_TOTAL = "timeout_total"
    FINISH_ERROR = "finish_error"
    FINISH_ABORT = "finish_abort"
    WRONG_LENGTH = "wrong_length"
    EMPTY_ANSWER = "empty_answer"
    DISTURBED = "disturbed"


REASON_OF: dict[Status, Reason] = {
    Status.OK: Reason.OK,
    Status.CONNECT_FAILED: Reason.CONNECT_FAILED,
    Status.TLS_FAILED: Reason.TLS_FAILED,
    Status.HTTP_4XX: Reason.HTTP_CLIENT_ERROR,
    Status.HTTP_5XX: Reason.HTTP_SERVER_ERROR,
    Status.SHED: Reason.SHED,
    Status.PROTOCOL_ERROR: Reason.PROTOCOL_ERROR,
    Status.ERROR_IN_STREAM: Reason.ERROR_IN_STREAM,
    Status.TRUNCATED: Reason.TRUNCATED,
    Status.TIMEOUT_HEADER: Reason.TIMEOUT_HEADER,
    Status.TIMEOUT_FIRST_TOKEN: Reason.TIMEOUT_FIRST_TOKEN,
    Status.TIMEOUT_STALL: Reason.TIMEOUT_STALL,
    Status.TIMEOUT_TOTAL: Reason.TIMEOUT_TOTAL,
    Status.FINISH_ERROR: Reason.FINISH_ERROR,
    Status.FINISH_ABORT: Reason.FINISH_ABORT,
    Status.WRONG_LENGTH: Reason.WRONG_LENGTH,
    Status.EMPTY_ANSWER: Reason.EMPTY_ANSWER,
    Status.DISTURBED: Reason.DISTURBED,
}

DROPPED_REASON = "x-llm-d-request-dropped-reason"
NOT_SHED = ("rejected-no-endpoints",)
"""Values of `DROPPED_REASON` that mean a fault: there is nobody to serve, whatever the load."""

SHED_TEXTS = ("the request queue is full", "aborted by a higher priority request")
"""What SGLang says when it sheds; it sends 503 without Retry-After, or an error object in a 200."""

_LONGEST_WAIT = 86400.0


def http_verdict(code: int, headers: Mapping[str, str], body: str = "") -> Status:
    """What an answer other than 200 means. Header names are lower case.

    429 is shedding. 503 is shedding when the answer says so (Retry-After, the drop reason of an llm-d gateway, or an engine's own words)
    and a failure otherwise: proxies also send it when nobody is there.
    """
    dropped = headers.get(DROPPED_REASON, "").lower()
    if code in (429, 503) and dropped in NOT_SHED:
        return Status.HTTP_4XX if code == 429 else Status.HTTP_5XX
    if code == 429 or (code == 503 and (dropped or "retry-after" in headers or says_shed(body))):
        return Status.SHED
    if 400 <= code < 500:
        return Status.HTTP_4XX
    if 500 <= code < 600:
        return Status.HTTP_5XX
    return Status.PROTOCOL_ERROR


def says_shed(text: str) -> bool:
    """Whether an error text is an engine's way of shedding."""
    lowered = text.lower()
    return any(known in lowered for known in SHED_TEXTS)


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds to wait by a Retry-After header (seconds or a date), at most a day. None when absent or unreadable. `now` is Unix time."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        return min(float(value[:9]), _LONGEST_WAIT)
    try:
        until = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=datetime.timezone.utc)
    try:
        return min(max(until.timestamp() - now, 0.0), _LONGEST_WAIT)
    except (ValueError, OverflowError):
        return None
