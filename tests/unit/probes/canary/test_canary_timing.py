"""Latencies from arrivals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.canary.clock import Moment
from probes.canary.timing import TokenEvent, evaluate


def seconds(moment: Moment) -> float:
    assert moment.kernel is not None
    return moment.kernel / 1000


def event(ms: int, *, read: int | None = None, chunk: int | None = None, tokens: int | None = None, output: bool = True) -> TokenEvent:
    """An event at `ms`; by default in a read and a chunk of its own."""
    own = ms if read is None else read
    return TokenEvent(own, own if chunk is None else chunk, Moment(ms, ms), tokens, output)


def test_one_event_a_read() -> None:
    timing = evaluate([event(100), event(120), event(150)], 3, seconds)
    assert (timing.ttft, timing.ttfo, timing.e2e) == (0.1, 0.1, 0.15)
    assert timing.tpot == pytest.approx(0.025)
    assert timing.itl == pytest.approx([0.02, 0.03])
    assert timing.max_gap == pytest.approx(0.03)
    assert (timing.unresolved, timing.disturbed) == (0, False)


def test_nothing_came() -> None:
    timing = evaluate([], 5, seconds)
    assert (timing.ttft, timing.tpot, timing.e2e, timing.itl) == (None, None, None, [])


def test_a_single_event_has_no_gap() -> None:
    timing = evaluate([event(100)], 1, seconds)
    assert (timing.ttft, timing.e2e, timing.tpot, timing.max_gap, timing.itl) == (0.1, 0.1, None, None, [])


def test_the_first_output_may_come_after_reasoning() -> None:
    timing = evaluate([event(100, output=False), event(120, output=False), event(140)], 3, seconds)
    assert (timing.ttft, timing.ttfo) == (0.1, 0.14)
    assert evaluate([event(100, output=False)], 1, seconds).ttfo is None


def test_events_that_share_a_read_keep_the_last_arrival_and_take_part_in_no_gap() -> None:
    timing = evaluate([event(100), event(160, read=2, chunk=20), event(160, read=2, chunk=21), event(180)], 4, seconds)
    assert timing.unresolved == 1
    assert timing.itl == pytest.approx([0.02])  # 160 to 180; neither 100 to the unknown one nor within the read
    assert timing.max_gap == pytest.approx(0.02)
    assert timing.tpot == pytest.approx(0.08 / 3)
    assert not timing.disturbed


def test_the_request_is_disturbed_when_the_first_token_shares_its_read_with_a_later_one() -> None:
    timing = evaluate([event(100, read=1, chunk=1), event(100, read=1, chunk=2), event(130)], 3, seconds)
    assert timing.disturbed
    assert timing.unresolved == 1


def test_events_of_one_chunk_came_together_and_are_resolved() -> None:
    batches = [event(ms, read=ms, chunk=ms) for ms in (100, 150, 200) for _ in range(5)]
    timing = evaluate(batches, 15, seconds)
    assert (timing.unresolved, timing.disturbed) == (0, False)
    assert timing.itl == pytest.approx([0.01] * 10)
    assert timing.max_gap == pytest.approx(0.05)
    assert timing.tpot == pytest.approx(0.01)  # (200 - 100) ms for the 10 tokens after the first batch


def test_without_chunks_nothing_tells_that_two_events_came_together() -> None:
    events = [TokenEvent(1, None, Moment(100, 100)), TokenEvent(1, None, Moment(100, 100))]
    assert evaluate(events, 2, seconds).disturbed


def test_a_chunk_may_end_in_a_later_read() -> None:
    timing = evaluate([event(100, read=1, chunk=7), event(130, read=2, chunk=7)], 2, seconds)
    assert timing.itl == pytest.approx([0.03])


def test_a_gap_is_divided_by_the_tokens_the_event_says_it_has() -> None:
    timing = evaluate([event(100, tokens=2), event(160, tokens=3), event(180, tokens=1)], 6, seconds)
    assert timing.itl == pytest.approx([0.02, 0.02, 0.02, 0.02])
    assert timing.tpot == pytest.approx(0.08 / 4)
    assert timing.max_gap == pytest.approx(0.06)


def test_the_time_per_token_of_a_gap_is_unknown_when_events_and_usage_disagree() -> None:
    timing = evaluate([event(100), event(120), event(140)], 12, seconds)
    assert timing.itl == []
    assert timing.tpot == pytest.approx(0.04 / 11)
    assert timing.max_gap == pytest.approx(0.02)


def test_an_end_token_without_text_is_no_disagreement() -> None:
    assert evaluate([event(100), event(120)], 3, seconds).itl == pytest.approx([0.02])


def test_without_usage_the_events_are_the_count() -> None:
    timing = evaluate([event(100), event(120), event(150)], None, seconds)
    assert timing.tpot == pytest.approx(0.025)
    assert timing.itl == pytest.approx([0.02, 0.03])


@pytest.mark.parametrize("total", [0, 1])
def test_a_usage_below_the_first_delivery_gives_no_tpot(total: int) -> None:
    assert evaluate([event(100), event(120)], total, seconds).tpot is None


def test_a_token_followed_by_the_end_of_the_stream_in_its_read_counts_for_the_longest_gap_only() -> None:
    timing = evaluate([event(100), event(120), event(920)], 3, seconds, trailed={920})
    assert timing.itl == pytest.approx([0.02])
    assert timing.max_gap == pytest.approx(0.8)
    assert timing.e2e == 0.92
    assert timing.tpot == pytest.approx(0.41)


def test_a_trailed_token_that_began_its_read_has_the_time_at_which_the_read_began() -> None:
    last = TokenEvent(9, 9, Moment(925, 925, woken=920), begins=True)
    timing = evaluate([event(100), event(120), last], 3, seconds, trailed={9})
    assert timing.e2e == 0.92
    assert timing.itl == pytest.approx([0.02])
    behind = TokenEvent(9, 9, Moment(925, 925, woken=920), begins=False)
    assert evaluate([event(100), event(120), behind], 3, seconds, trailed={9}).e2e == 0.925
    alone = TokenEvent(9, 9, Moment(925, 925, woken=920), begins=True)
    assert evaluate([event(100), event(120), alone], 3, seconds).e2e == 0.925


READS = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 4), st.booleans()), min_size=1, max_size=20)


@given(reads=READS, extra=st.integers(0, 30))
def test_no_gap_is_longer_than_the_answer_and_nothing_is_lost(reads: list[tuple[int, int, bool]], extra: int) -> None:
    events, at = [], 0
    for number, (wait, count, together) in enumerate(reads):
        at += wait
        events += [event(at, read=number, chunk=number * 10 + (0 if together else index)) for index in range(count)]
    timing = evaluate(events, len(events) + extra, seconds)
    assert timing.ttft is not None
    assert timing.e2e is not None
    assert timing.ttft <= timing.e2e
    assert all(0 < gap <= timing.e2e - timing.ttft + 1e-9 for gap in timing.itl)
    assert timing.max_gap is None or timing.max_gap <= timing.e2e - timing.ttft + 1e-9
    assert timing.unresolved == sum(count - 1 for _, count, together in reads if not together)
