"""Server-sent events from bytes that are cut anywhere."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.canary.sse import LINE_LIMIT, SseDecoder, SseError, SseEvent


def decode(*pieces: bytes) -> list[SseEvent]:
    decoder = SseDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)]


@pytest.mark.parametrize(("raw", "events"), [
    (b"data: a\n\n", ["a"]),
    (b"data:a\n\n", ["a"]),
    (b"data:  a\n\n", [" a"]),
    (b"data: a\r\n\r\n", ["a"]),
    (b"data: a\r\rdata: b\r\r", ["a", "b"]),
    (b"data: a\ndata: b\n\n", ["a\nb"]),
    (b"data\n\n", [""]),
    (b"data: a\n\n\n\n\ndata: b\n\n", ["a", "b"]),
    (b": ping\n\ndata: a\n\n:\n\n", ["a"]),
    (b": inside\ndata: a\n: an event\n\n", ["a"]),
    (b"id: 7\nretry: 10\nunknown: x\ndata: a\n\n", ["a"]),
    (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
    ("data: 日本🙂\n\n".encode(), ["日本🙂"]),
    (b"data: a", []),
    (b"data: a\n", []),
    (b"", []),
    (b"event: only\n\n", []),
])
def test_the_rules_of_the_standard(raw: bytes, events: list[str]) -> None:
    assert [event.data for event in decode(raw)] == events


def test_a_name_belongs_to_its_own_event_only() -> None:
    assert decode(b"event: error\ndata: a\n\ndata: b\n\n") == [SseEvent("a", "error"), SseEvent("b")]


def test_an_event_is_given_by_the_read_that_completes_it() -> None:
    decoder = SseDecoder()
    assert list(decoder.feed(b"data: a\r")) == []
    assert list(decoder.feed(b"\n\r")) == [SseEvent("a")]
    assert list(decoder.feed(b"\ndata: b\n\n")) == [SseEvent("b")]


def test_what_is_left_at_a_proper_end_is_an_event() -> None:
    decoder = SseDecoder()
    assert list(decoder.feed(b"data: [DONE]")) == []
    assert list(decoder.finish()) == [SseEvent("[DONE]")]
    assert list(decoder.finish()) == []


def test_comments_and_bytes_that_are_not_utf8_are_counted() -> None:
    decoder = SseDecoder()
    events = list(decoder.feed(b": one\n:two\ndata: \xff\xfe\n\n"))
    assert (decoder.comments, decoder.undecodable, events) == (2, 1, [SseEvent("\ufffd\ufffd")])


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 65536, b"data: " + b"x" * 65535 + b"\n"])
def test_an_endless_line_or_event_is_refused_in_bounded_memory(piece: bytes) -> None:
    fed: list[bytes] = []

    def feed_all() -> None:
        decoder = SseDecoder()
        while len(fed) * len(piece) < 4 * LINE_LIMIT:
            fed.append(piece)
            list(decoder.feed(piece))

    with pytest.raises(SseError, match="more than 1048576 bytes"):
        feed_all()
    assert len(fed) * len(piece) <= LINE_LIMIT + 2 * len(piece)


LINES = st.lists(st.one_of(
    st.text(max_size=20).map(lambda text: b"data: " + text.encode("utf-8", "ignore")),
    st.binary(max_size=12),
    st.sampled_from([b"", b"", b"data:", b":c", b"event: e", b"data: [DONE]"]),
), max_size=20)


@given(lines=LINES, ends=st.lists(st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=20, max_size=20), cuts=st.sets(st.integers(0, 400)))
def test_where_the_reads_are_cut_changes_nothing(lines: list[bytes], ends: list[bytes], cuts: set[int]) -> None:
    raw = b"".join(line + end for line, end in zip(lines, ends, strict=False))
    places = [0, *sorted(cut for cut in cuts if cut < len(raw)), len(raw)]
    pieces = [raw[a:b] for a, b in itertools.pairwise(places)]
    assert decode(*pieces) == decode(raw)
    assert decode(*(bytes([byte]) for byte in raw)) == decode(raw)
