"""From the bytes of a response to its verdict."""

from __future__ import annotations

import hashlib
import itertools
import re

import pytest
from canary_streams import DONE, data, moment, read, reader, reads_of, recorded, stream, token, usage, wire
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probes.canary.answer import BODY_LIMIT, AnswerReader
from probes.canary.status import Status

GOOD = ["nixlv2_chat_stream_pd", "nixlv2_chat_stream_decode_only", "nixlv2_chunked_decode", "nixlv2_completions_stream_nousage_pd",
        "shared_storage_duplicate_headers"]
BAD = {"nixlv2_truncated_stream": Status.TRUNCATED, "nixlv2_error_in_stream": Status.ERROR_IN_STREAM}


def replay(name: str) -> AnswerReader:
    made = reader()
    for at, raw in reads_of(name):
        made.feed(raw, moment(at))
    made.close(moment(reads_of(name)[-1][0]))
    return made


@pytest.mark.parametrize("name", GOOD)
def test_recorded_streams_are_ok(name: str) -> None:
    got = replay(name)
    assert (got.status, got.message) == (Status.OK, "")
    assert got.finish == "length"
    assert got.response_id is not None


@pytest.mark.parametrize(("name", "status"), BAD.items())
def test_recorded_failures_are_failures(name: str, status: Status) -> None:
    assert replay(name).status is status


def test_the_tokens_of_a_recorded_stream_have_the_arrival_of_their_read() -> None:
    got = replay("nixlv2_chat_stream_pd")
    reads = [at for at, _ in reads_of("nixlv2_chat_stream_pd")]
    assert [event.at for event in got.tokens] == [moment(at) for at in reads]
    assert "".join(got.answer.content) == "I am fine"
    assert got.usage is not None
    assert (got.usage.prompt, got.usage.completion, got.usage.cached) == (14, 3, 0)
    assert got.trailed == {3}


def test_a_recorded_stream_without_usage_is_counted_by_its_events() -> None:
    got = replay("nixlv2_completions_stream_nousage_pd")
    assert got.usage is None
    assert len(got.tokens) == 2


def test_the_recordings_are_what_they_say() -> None:
    assert recorded("nixlv2_truncated_stream")["message_complete"] is False
    assert recorded("shared_storage_duplicate_headers")["head"].count("Content-Type") == 2


@pytest.mark.parametrize("name", [*GOOD, *BAD])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.sets(st.integers(1, 2500), max_size=40))
def test_any_split_of_a_recorded_stream_gives_the_same(name: str, cuts: set[int]) -> None:
    raw = wire(name)
    places = [0, *sorted(cut for cut in cuts if cut < len(raw)), len(raw)]
    whole, split = read([raw]), read([raw[a:b] for a, b in itertools.pairwise(places)])
    assert facts(split) == facts(whole)


@pytest.mark.parametrize("name", [*GOOD, *BAD])
def test_a_recorded_stream_byte_by_byte_gives_the_same(name: str) -> None:
    raw = wire(name)
    assert facts(read([bytes([byte]) for byte in raw])) == facts(read([raw]))


def facts(got: AnswerReader) -> tuple[object, ...]:
    """All that must not depend on where reads are cut."""
    return (got.status, got.message, got.finish, got.usage, got.response_id, got.answer.sha256(), [event.chunk for event in got.tokens],
            [event.tokens for event in got.tokens])


OK = (token(role="assistant"), token(), token(finish="length"), usage(2))


@pytest.mark.parametrize(("raw", "status", "says"), [
    (stream(*OK, DONE), Status.OK, ""),
    (stream(*OK), Status.OK, ""),
    (stream(token(), token(finish="stop"), DONE), Status.OK, ""),
    (stream(token(), token(finish="stop")), Status.TRUNCATED, r"without \[DONE\] or token counts"),
    (stream(token(), token(), usage(2)), Status.TRUNCATED, "without a finish reason"),
    (stream(token(), token(), DONE), Status.TRUNCATED, "without a finish reason"),
    (stream(*OK, end=b""), Status.TRUNCATED, "after 3 token events"),
    (stream(token(), end=b"5\r\nda"), Status.TRUNCATED, "after 1 token events"),
    (stream(end=b""), Status.TRUNCATED, "after 0 token events"),
    (b"", Status.TRUNCATED, "without any answer"),
    (b"HTTP/1.1 200 OK\r\ncontent", Status.TRUNCATED, "inside the response head"),
    (stream(), Status.EMPTY_ANSWER, "without a single event"),
    (stream(DONE), Status.EMPTY_ANSWER, "without a single token"),
    (stream(token("", finish="stop"), usage(0), DONE), Status.EMPTY_ANSWER, "without a single token"),
    (stream(token("", finish="stop"), usage(0)), Status.EMPTY_ANSWER, "without a single token"),
    (stream(token(), data({"error": {"message": "boom"}}), DONE), Status.ERROR_IN_STREAM, "after 1 token events: boom"),
    (stream(*OK, data({"error": {"message": "late"}}), DONE), Status.ERROR_IN_STREAM, "late"),
    (stream("event: error\ndata: boom\n\n"), Status.ERROR_IN_STREAM, "boom"),
    (stream(data({"error": {"message": "The request queue is full.", "code": 503}}), DONE), Status.SHED, "queue is full"),
    (stream(token(), data({"error": {"message": "The request queue is full.", "code": 503}})), Status.ERROR_IN_STREAM, "queue"),
    (stream(data({"error": {"message": "rate", "code": 429}})), Status.SHED, "rate"),
    (stream(token(), token("", finish="abort"), DONE), Status.FINISH_ABORT, "finish_reason abort"),
    (stream(token(), token("", finish="error"), DONE), Status.FINISH_ERROR, "finish_reason error"),
    (stream(token(), token("", finish="content_filter"), DONE), Status.FINISH_ERROR, "content_filter"),
    (stream(token(), "data: {oops\n\n", DONE), Status.PROTOCOL_ERROR, "not JSON"),
    (stream(token(), "data: \x00\n\n", DONE), Status.PROTOCOL_ERROR, "not JSON"),
    (stream(token(), end=b"zz\r\n"), Status.PROTOCOL_ERROR, "not a proper HTTP"),
    (stream(*OK, DONE, end=b"garbage after the end mark\r\n"), Status.OK, ""),
    (b"HTTP/2 200\r\n\r\n", Status.PROTOCOL_ERROR, "does not speak HTTP/1"),
    (b"\x15\x03\x01\x00\x02\x02\x16", Status.PROTOCOL_ERROR, "use https"),
    (b"SSH-2.0-x\r\n", Status.PROTOCOL_ERROR, "does not speak HTTP/1"),
    (b"HTTP/1.1 101 Switching\r\n\r\n", Status.PROTOCOL_ERROR, "not a proper HTTP"),
    (b"HTTP/1.1 200 OK\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\n", Status.PROTOCOL_ERROR, "not a proper HTTP"),
    (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20000, Status.PROTOCOL_ERROR, "not a proper HTTP"),
    (b"HTTP/1.1 200 OK\r\nx: \x00\r\n\r\n", Status.PROTOCOL_ERROR, "not a proper HTTP"),
    (b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n\r\n", Status.PROTOCOL_ERROR, "encoded as gzip"),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", Status.PROTOCOL_ERROR, r"content type \(none\)"),
    (b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi", Status.PROTOCOL_ERROR, "content type text/html"),
    (b'HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{"error":"boo"}', Status.ERROR_IN_STREAM, "boo"),
    (b"HTTP/1.1 204 No Content\r\n\r\n", Status.PROTOCOL_ERROR, "HTTP 204"),
    (b"HTTP/1.1 307 T\r\nlocation: http://e\x1b[31m\r\ncontent-length: 0\r\n\r\n", Status.PROTOCOL_ERROR, r"to http://e \[31m, which"),
    (b"HTTP/1.1 307 T\r\nlocation: http://else/\r\ncontent-length: 0\r\n\r\n", Status.PROTOCOL_ERROR, "redirect to http://else/"),
    (b"HTTP/1.1 502 Bad\r\ncontent-length: 0\r\n\r\n", Status.HTTP_5XX, "^HTTP 502$"),
    (b"HTTP/1.1 400 Bad\r\ncontent-length: 100\r\n\r\nplain words", Status.HTTP_4XX, "^HTTP 400: plain words$"),
    (b"HTTP/1.1 429 No\r\nx-llm-d-request-dropped-reason: rejected-ttl-expired\r\ncontent-length: 0\r\n\r\n", Status.SHED, "ttl-expired"),
    (b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + stream(*OK, DONE), Status.OK, ""),
])
def test_the_verdict_on_a_whole_response(raw: bytes, status: Status, says: str) -> None:
    got = read([raw])
    assert got.status is status, got.message
    assert re.search(says, got.message)


def test_a_response_that_ends_with_its_connection_is_judged_by_its_content() -> None:
    head = "HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    body = "".join((token(), token(finish="stop"), usage(2), DONE)).encode()
    assert read([head.encode() + body]).status is Status.OK
    assert read([head.encode() + body[:-14]]).status is Status.OK  # finish reason and counts came
    assert read([head.encode() + body[:-30]]).status is Status.TRUNCATED
    assert read([head.encode() + token().encode()]).status is Status.TRUNCATED
    assert read([head.encode() + "".join((token(), token(finish="stop"), "data: [DONE]")).encode()]).status is Status.OK


def test_a_content_length_that_is_not_reached_is_truncated() -> None:
    raw = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 500\r\n\r\n" + token().encode()
    assert read([raw]).status is Status.TRUNCATED


def test_keep_alives_are_no_tokens_and_do_not_change_what_is_waited_for() -> None:
    got = read([stream(": ping\n\n", ":\n\n", end=b"")], closes=False)
    assert (got.waiting, got.keep_alives, got.tokens) == ("first_token", 2, [])


def test_what_is_waited_for_follows_the_answer() -> None:
    made = reader()
    seen = [made.waiting]
    for at, piece in enumerate((stream(end=b""), *(_chunk(event) for event in (token(""), token(), token(finish="stop"))))):
        made.feed(piece, moment(at))
        seen.append(made.waiting)
    assert seen == ["head", "first_token", "first_token", "token", "end"]


def _chunk(event: str) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event.encode())


def test_an_endless_answer_is_cut_off() -> None:
    made = reader()
    made.feed(stream(end=b""), moment(0))
    filler = _chunk(": " + "x" * 60000 + "\n\n")
    fed = 0
    while made.status is None and fed < 2 * BODY_LIMIT:
        made.feed(filler, moment(1))
        fed += len(filler)
    assert made.status is Status.PROTOCOL_ERROR
    assert fed <= BODY_LIMIT + 2 * len(filler)


def test_running_totals_give_the_tokens_of_each_event() -> None:
    def event(total: int) -> str:
        return data({"choices": [{"delta": {"content": "x"}, "finish_reason": "length" if total == 6 else None}],
                     "usage": {"completion_tokens": total}})

    got = read([stream(event(1), event(3), event(6), DONE)])
    assert [one.tokens for one in got.tokens] == [1, 2, 3]


def test_one_total_on_the_last_event_says_nothing_about_that_event() -> None:
    last = data({"choices": [{"delta": {"content": "x"}, "finish_reason": "length"}], "usage": {"completion_tokens": 3}})
    got = read([stream(token(), token(), last, DONE)])
    assert [one.tokens for one in got.tokens] == [None, None, None]


def test_the_answer_is_hashed_with_its_reasoning_apart() -> None:
    got = read([stream(token("", reasoning_content="a"), token("b", finish="stop"), DONE)])
    assert got.answer.sha256() == hashlib.sha256(b"a\0b").hexdigest()
    swapped = read([stream(token("ab", finish="stop"), DONE)])
    assert swapped.answer.sha256() != got.answer.sha256()


def test_half_a_surrogate_pair_breaks_nothing() -> None:
    assert read([stream('data: {"choices":[{"delta":{"content":"\\ud83d"},"finish_reason":"stop"}]}\n\n', DONE)]).answer.sha256()


def test_a_message_never_holds_the_answer() -> None:
    secret = "sesame"
    for raw in (stream(token(secret), f"data: {{{secret}\n\n"), stream(token(secret), end=b""), stream(token(secret), DONE)):
        assert secret not in read([raw]).message
