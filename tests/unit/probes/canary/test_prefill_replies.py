"""Replies of a prefill worker: which are good, which are not, and what is kept of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from canary_streams import DONE, data, moment, stream, token, usage

from probes.canary.http1 import HttpExchange
from probes.canary.legs import REPLY_LIMIT, ReplyReader
from probes.canary.status import Status


def read(raw: bytes, *, step: int | None = None, closes: bool = True) -> ReplyReader:
    exchange = HttpExchange()
    exchange.request("POST", "/v1/chat/completions", [("Host", "test"), ("Content-Length", "2")], b"{}")
    reader = ReplyReader(exchange)
    size = step or max(1, len(raw))
    for at in range(0, len(raw), size):
        reader.feed(raw[at:at + size], moment(float(at)))
    if closes:
        reader.close(moment(1e6), "the peer closed the connection")
    return reader


def reply(code: int, body: Any, *headers: str, cut: int = 0) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {code} Status", "content-type: application/json", f"content-length: {len(raw)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + raw[: len(raw) - cut]


GOOD = {"id": "chatcmpl-1", "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "length"}],
        "kv_transfer_params": {"do_remote_prefill": True}, "usage": {"prompt_tokens": 456, "completion_tokens": 1,
                                                                     "prompt_tokens_details": {"cached_tokens": 128}}}


@pytest.mark.parametrize("step", [None, 1, 7])
def test_a_good_reply_gives_its_handle_and_its_counts(step: int | None) -> None:
    reader = read(reply(200, GOOD), step=step)
    assert (reader.status, reader.prompt_tokens, reader.cached_tokens) == (Status.OK, 456, 128)
    assert reader.reply["kv_transfer_params"] == {"do_remote_prefill": True}
    assert reader.first_byte is not None
    assert reader.ended is not None


def test_the_simulators_own_end_of_a_prefill_is_good() -> None:
    assert read(reply(200, {**GOOD, "choices": [{"index": 0, "finish_reason": "remote_decode"}]})).status is Status.OK


@pytest.mark.parametrize(("raw", "status", "says"), [
    (reply(500, {"error": {"message": "no blocks", "type": "X"}}), Status.HTTP_5XX, "HTTP 500: X: no blocks"),
    (reply(429, b"", "retry-after: 3"), Status.SHED, "HTTP 429"),
    (reply(503, {"object": "error", "message": "The request queue is full."}), Status.SHED, "queue is full"),
    (reply(503, b"upstream connect error"), Status.HTTP_5XX, "upstream connect error"),
    (reply(200, b""), Status.PROTOCOL_ERROR, "not a JSON object"),
    (reply(200, b"<html>"), Status.PROTOCOL_ERROR, "not a JSON object"),
    (reply(200, [1]), Status.PROTOCOL_ERROR, "not a JSON object"),
    (reply(200, {"error": {"message": "KV failed"}}), Status.ERROR_IN_STREAM, "KV failed"),
    (reply(200, {"choices": [{"finish_reason": {"type": "abort", "message": "Prefill bootstrap failed"}}]}), Status.FINISH_ABORT,
     "Prefill bootstrap failed"),
    (reply(200, {"choices": [{"finish_reason": "error"}]}), Status.FINISH_ERROR, "finish_reason error"),
    (reply(200, GOOD, cut=5), Status.TRUNCATED, "before the end of the reply"),
    (b"", Status.TRUNCATED, "before the end"),
    (b"SSH-2.0-x\r\n\r\n", Status.PROTOCOL_ERROR, "HTTP"),
])
def test_every_bad_reply_has_its_own_status(raw: bytes, status: Status, says: str) -> None:
    reader = read(raw)
    assert reader.status is status
    assert says in reader.message


def test_a_reply_without_end_is_cut_off() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
    assert read(head + b" " * (REPLY_LIMIT + 1), closes=False).status is Status.PROTOCOL_ERROR


def test_a_streamed_reply_is_read_to_its_end() -> None:
    reader = read(stream(token("x", finish="length"), usage(1, prompt=99), DONE))
    assert (reader.status, reader.prompt_tokens) == (Status.OK, 99)


@pytest.mark.parametrize(("event", "status"), [
    (data({"error": {"message": "Decode transfer failed", "code": 500}}), Status.ERROR_IN_STREAM),
    (token("", finish="abort"), Status.FINISH_ABORT),
    (data("{"), Status.PROTOCOL_ERROR),
])
def test_a_streamed_reply_that_fails_is_no_success(event: str, status: Status) -> None:
    assert read(stream(event, DONE)).status is status


@pytest.mark.parametrize("raw", [reply(200, {"usage": 3, "choices": "x"}), reply(200, {"choices": [1]}),
                                 reply(200, {"usage": {"prompt_tokens": -1}})])
def test_odd_fields_of_a_reply_are_passed_over(raw: bytes) -> None:
    reader = read(raw)
    assert (reader.status, reader.prompt_tokens) == (Status.OK, None)
