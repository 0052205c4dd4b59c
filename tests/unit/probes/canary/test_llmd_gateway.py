"""Refusals of a real llm-d gateway (Envoy and endpoint picker), as recorded: the right result, and who refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from canary_streams import moment

from probes.canary.answer import AnswerReader
from probes.canary.http1 import HttpExchange
from probes.canary.stacks import STACKS
from probes.canary.status import Status

TABLE = json.loads((Path(__file__).parents[3] / "fixtures" / "llm_d" / "gateway_envoy_epp.json").read_text())
ROWS = {row[0]: dict(zip(TABLE["columns"], row, strict=False)) for row in TABLE["rows"]}
JUDGED = {
    "short prompt, client sends x-prefiller-host-port (dead port): honoured": (Status.HTTP_5XX, "could not reach the prefill worker"),
    "prefill port closed, pod still listed": (Status.HTTP_5XX, "could not reach the prefill worker"),
    "prefill 503": (Status.HTTP_5XX, "busy"),
    "decode engine port closed": (Status.HTTP_5XX, "HTTP 503"),
    "sidecar port closed": (Status.HTTP_5XX, "could not reach the decode pod's sidecar"),
    "body is not JSON": (Status.HTTP_4XX, "the endpoint picker refused"),
    "no model field": (Status.HTTP_4XX, "the endpoint picker refused"),
    "unknown model": (Status.HTTP_4XX, "does not exist"),
    "no decode pod in the pool": (Status.SHED, "or it has no decode pod"),
    "no pod at all": (Status.HTTP_5XX, "rejected-no-endpoints"),
    "EPP port closed": (Status.HTTP_5XX, "could not ask its endpoint picker"),
}


def answer(row: dict[str, Any]) -> AnswerReader:
    body = (row["body"] or "").encode()
    own = [line for line in row.get("headers") or [] if not line.lower().startswith(("content-length", "connection"))]
    head = "\r\n".join([f"HTTP/1.1 {row['status']} Status", *own, f"content-length: {len(body)}"])
    exchange = HttpExchange()
    exchange.request("POST", "/v1/chat/completions", [("Host", "test"), ("Content-Length", "2")], b"{}")
    reader = AnswerReader(exchange, STACKS["llm-d"].refusal)
    reader.feed(head.encode() + b"\r\n\r\n" + body, moment(1.0))
    return reader


def test_every_recorded_refusal_is_judged_here() -> None:
    assert {name for name, row in ROWS.items() if row["status"] not in (200, None)} == set(JUDGED)


@pytest.mark.parametrize("case", JUDGED)
def test_a_refusal_of_the_gateway_says_who_refused(case: str) -> None:
    status, says = JUDGED[case]
    reader = answer(ROWS[case])
    assert reader.status is status, reader.message
    assert says in reader.message
