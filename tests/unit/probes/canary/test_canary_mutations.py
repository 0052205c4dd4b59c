"""Thousands of damaged streams: no crash, no endless work, and no damage to the protocol that passes for success."""

from __future__ import annotations

import random

import pytest
from canary_streams import DONE, cut, damage, data, read, stream, token, usage, wire

from probes.canary.status import Status

MUTANTS = 4000
LONGEST = 80
FAILED = ["nixlv2_truncated_stream", "nixlv2_error_in_stream"]
SPLINTERS = [b"\r", b"\n", b"\0", b"data:", b"\n\n", b"0\r\n\r\n", b"\xff", b"[DONE]", b"{", b"HTTP/1.1 200 OK\r\n\r\n"]
WHOLE = [token(role="assistant", text=""), token("one"), token("two"), token("three", finish="length"), usage(3), DONE]


@pytest.mark.parametrize("name", ["nixlv2_chat_stream_pd", *FAILED, "nixlv2_chunked_decode", "nixlv2_completions_stream_nousage_pd"])
def test_random_damage_always_ends_in_a_verdict(name: str) -> None:
    rng = random.Random(name)
    raw = wire(name)
    seen = set()
    for _ in range(MUTANTS):
        got = read(cut(rng, damage(rng, raw, SPLINTERS, LONGEST)))
        assert got.status is not None
        assert got.status is not Status.OK or (got.tokens and got.finish and name not in FAILED)
        assert got.message.isprintable()
        assert len(got.message) < 500
        seen.add(got.status)
    assert len(seen) >= 3


@pytest.mark.parametrize("name", FAILED)
def test_cutting_a_failed_stream_shorter_never_makes_it_ok(name: str) -> None:
    raw = wire(name)
    assert all(read([raw[:end]]).status is not Status.OK for end in range(len(raw)))


def test_every_cut_of_a_good_stream_before_its_end_is_a_failure() -> None:
    raw = stream(*WHOLE)
    # The last chunk and the blank line after [DONE] are of no consequence: the end mark has been read by then.
    end = raw.index(b"[DONE]") + len(b"[DONE]\n\n")
    assert all(read([raw[:length]]).status is not Status.OK for length in range(end))
    assert all(read([raw[:length]]).status is Status.OK for length in range(end, len(raw) + 1))


def test_every_faulty_event_anywhere_is_a_failure() -> None:
    faulty = [data({"error": {"message": "boom"}}), data({"object": "error", "message": "boom"}), "event: error\ndata: x\n\n",
              "data: {\n\n", token("", finish="abort"), token("", finish="error"), token("", finish={"type": "abort"}), "data: \x00\n\n"]
    for event in faulty:
        for place in range(len(WHOLE)):
            raw = stream(*WHOLE[:place], event, *WHOLE[place:])
            assert read([raw]).status is not Status.OK, (event, place)


def test_harmless_additions_anywhere_change_nothing() -> None:
    harmless = [": ping\n\n", ":\n\n", "\n\n", "event: sglext_ids\ndata: [1, 2]\n\n", data({"choices": []}),
                data({"choices": None, "usage": None}), "id: 1\nretry: 5\n\n", token("")]
    plain = read([stream(*WHOLE)])
    for event in harmless:
        for place in range(len(WHOLE)):
            got = read([stream(*WHOLE[:place], event, *WHOLE[place:])])
            assert (got.status, got.answer.sha256(), len(got.tokens)) == (Status.OK, plain.answer.sha256(), 3), (event, place)


def test_losing_any_event_that_matters_is_seen() -> None:
    lost = {place: read([stream(*WHOLE[:place], *WHOLE[place + 1 :])]) for place in range(len(WHOLE))}
    assert lost[3].status is Status.TRUNCATED  # the one with the finish reason
    assert [lost[place].usage is not None for place in (1, 2)] == [True, True]  # the count tells a lost token
    assert [len(lost[place].tokens) for place in (1, 2)] == [2, 2]
