"""The closed list of results, and what an HTTP status means."""

from __future__ import annotations

import pytest

from probes.canary.status import REASON_OF, Status, http_verdict, retry_after
from probes.reasons import Outcome, outcome_of

NOW = 1_800_000_000.0


def test_every_status_has_one_reason_of_its_own() -> None:
    assert set(REASON_OF) == set(Status)
    assert len(set(REASON_OF.values())) == len(Status)


@pytest.mark.parametrize("status", [Status.SHED, Status.DISTURBED])
def test_what_says_nothing_about_the_endpoint_is_unknown(status: Status) -> None:
    assert outcome_of(REASON_OF[status]) is Outcome.UNKNOWN


def test_nothing_but_ok_is_ok() -> None:
    assert [status for status in Status if outcome_of(REASON_OF[status]) is Outcome.OK] == [Status.OK]


@pytest.mark.parametrize(("code", "headers", "body", "status"), [
    (400, {}, "", Status.HTTP_4XX),
    (404, {}, "", Status.HTTP_4XX),
    (429, {}, "", Status.SHED),
    (429, {"x-llm-d-request-dropped-reason": "rejected-saturated"}, "", Status.SHED),
    (429, {"x-llm-d-request-dropped-reason": "rejected-no-endpoints"}, "", Status.HTTP_4XX),
    (500, {}, "", Status.HTTP_5XX),
    (502, {"retry-after": "1"}, "", Status.HTTP_5XX),
    (503, {}, "upstream connect error or disconnect/reset before headers", Status.HTTP_5XX),
    (503, {}, "decode node is not ready", Status.HTTP_5XX),
    (503, {"retry-after": "1"}, "", Status.SHED),
    (503, {"x-llm-d-request-dropped-reason": "evicted-priority"}, "", Status.SHED),
    (503, {"x-llm-d-request-dropped-reason": "rejected-no-endpoints", "retry-after": "1"}, "", Status.HTTP_5XX),
    (503, {}, '{"object":"error","message":"The request queue is full."}', Status.SHED),
    (204, {}, "", Status.PROTOCOL_ERROR),
    (206, {}, "", Status.PROTOCOL_ERROR),
    (301, {}, "", Status.PROTOCOL_ERROR),
    (999, {}, "", Status.PROTOCOL_ERROR),
])
def test_http_statuses(code: int, headers: dict[str, str], body: str, status: Status) -> None:
    assert http_verdict(code, headers, body) is status


@pytest.mark.parametrize(("value", "seconds"), [
    (None, None),
    ("120", 120.0),
    (" 0 ", 0.0),
    ("99999999999999999999", 86400.0),
    ("Fri, 15 Jan 2027 08:01:00 GMT", 60.0),
    ("Fri, 15 Jan 2027 07:00:00 GMT", 0.0),
    ("Fri, 15 Jan 2027 08:01:00", 60.0),
    ("soon", None),
    ("-5", None),
    ("", None),
    ("1.5", None),
    ("²", None),
    ("Fri, 99 Jan 99999 08:01:00 GMT", None),
])
def test_retry_after_in_both_forms(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, NOW) == seconds
