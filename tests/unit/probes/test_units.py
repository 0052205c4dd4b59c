"""Sizes, durations and rates are read as people write them, and anything else is refused with an example."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.units import parse_duration, parse_rate, parse_size, show_duration, show_size


@pytest.mark.parametrize(("text", "size"), [
    (65536, 65536), ("64KiB", 65536), ("64Ki", 65536), (" 64 KiB ", 65536), ("1.5KiB", 1536), ("1GB", 10**9), ("0B", 0), (4096.0, 4096),
    ("9007199254740993B", 9007199254740993),
])
def test_a_size_is_bytes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(("bad", "says"), [
    ("64", "got '64'"), ("64 kib", "unknown unit 'kib'"), (-1, "between 0 and"), (0.5, "whole number"), (float("nan"), "whole number"),
    (float("inf"), "whole number"), (True, "got true or false"), (None, "got nothing"), ([1], "got a list"), ("1.0001KiB", "whole number"),
    (2**63, "between 0 and"), ("", "such as 64KiB"), ("-1B", "such as 64KiB"),
])
def test_what_is_not_a_size_is_refused(bad: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_size(bad)


@pytest.mark.parametrize(("text", "seconds"), [
    (30, 30.0), ("30s", 30.0), ("1h30m", 5400.0), ("250ms", 0.25), ("1.5h", 5400.0), ("1w", 604800.0), (0.5, 0.5), ("10us", 1e-5),
])
def test_a_duration_is_seconds(text: object, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("bad", ["30", "five minutes", "1h 30m", "-5s", -5, float("nan"), float("inf"), True, None, "5M", "", "s"])
def test_what_is_not_a_duration_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="a duration"):
        parse_duration(bad)


@pytest.mark.parametrize(("text", "rate"), [("25GB/s", 25e9), ("200Gbit/s", 25e9), ("1GiB/s", 2.0**30), (5, 5.0)])
def test_a_rate_is_bytes_per_second(text: object, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("bad", ["25GB", "25", "25 GBps", -1, float("nan"), False, {}])
def test_what_is_not_a_rate_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match=r"rate|unknown unit"):
        parse_rate(bad)


@given(st.integers(min_value=0, max_value=2**50))
def test_a_shown_size_reads_back(size: int) -> None:
    assert parse_size(show_size(size)) == size


@given(st.integers(min_value=0, max_value=10**7))
def test_a_shown_duration_reads_back(seconds: int) -> None:
    assert parse_duration(show_duration(seconds)) == seconds
