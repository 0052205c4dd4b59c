"""The witness's memory: windows, resets, coverage, backgrounds, clock steps, and how little of it there is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.witness.history import History, NoWindowError

T0 = 1_800_000_000.0
LIFESPAN = 0.01


def filled(values: list[dict[str, dict[str, int]]], interval: float = 1.0, seconds: float = 600.0) -> History:
    history = History(interval, seconds)
    for number, counters in enumerate(values):
        history.add(T0 + number * interval, T0 + number * interval + 0.05, 500.0 + number * interval, counters)
    return history


def ramp(values: list[int | None], name: str = "tx_bytes") -> list[dict[str, dict[str, int]]]:
    return [{} if value is None else {"rdmap1s0": {name: value}} for value in values]


def test_everything_inside_the_window_is_inside_the_difference() -> None:
    history = filled(ramp([0, 10, 20, 500, 900, 910, 920]))
    low, high = history.bounds(T0 + 2.5, T0 + 3.5, LIFESPAN)
    window = history.window(low, high)
    assert (low, high) == (2, 4)
    assert window.devices["rdmap1s0"].counters == {"tx_bytes": 880}
    assert window.devices["rdmap1s0"].coverage == 1.0
    assert (window.start, window.end, window.looks) == (T0 + 2.05, T0 + 4.0, 2)


def test_a_look_that_was_still_reading_at_the_start_does_not_bound_the_window() -> None:
    history = filled(ramp([0, 10, 20, 30]))
    assert history.bounds(T0 + 1.02, T0 + 1.5, LIFESPAN) == (0, 2)


def test_a_value_the_kernel_may_have_kept_does_not_end_the_window() -> None:
    history = filled(ramp([0, 10, 20, 30, 40]))
    assert history.bounds(T0 + 1.5, T0 + 1.995, 0.01) == (1, 3), "the look of 2.0 may show what the kernel kept at 1.99"
    assert history.bounds(T0 + 1.5, T0 + 1.985, 0.01) == (1, 2)


def test_backgrounds_are_equal_windows_on_both_sides() -> None:
    history = filled(ramp([0, 1, 2, 3, 4, 1000, 2000, 2007, 2014, 2021]))
    low, high = history.bounds(T0 + 4.5, T0 + 5.5, LIFESPAN)
    before, after = history.before(T0 + 4.5, high - low), history.after(T0 + 5.5 + LIFESPAN, high - low)
    assert before.looks == after.looks == high - low == 2
    assert before.devices["rdmap1s0"].counters == {"tx_bytes": 2}
    assert after.devices["rdmap1s0"].counters == {"tx_bytes": 14}


def test_a_background_lies_outside_the_whole_run() -> None:
    history = filled(ramp([0, 1, 2, 300, 600, 900, 1200, 1500, 1501, 1502, 1503, 1504]))
    assert history.before(T0 + 2.5, 2).devices["rdmap1s0"].counters == {"tx_bytes": 2}
    assert history.after(T0 + 7.5, 2).devices["rdmap1s0"].counters == {"tx_bytes": 2}


def test_a_reset_counts_from_zero_and_is_named() -> None:
    history = filled(ramp([100, 150, 30, 70]))
    device = history.window(0, 3).devices["rdmap1s0"]
    assert device.counters == {"tx_bytes": 50 + 30 + 40}
    assert device.resets == ["tx_bytes"]
    assert history.resets == {"rdmap1s0": 1}


def test_a_device_that_vanished_inside_the_window_has_no_figure() -> None:
    device = filled(ramp([0, 10, 20, None])).window(0, 3).devices["rdmap1s0"]
    assert device.counters == {}
    assert device.coverage == 0.75


def test_a_device_that_appeared_inside_the_window_has_no_figure() -> None:
    device = filled(ramp([None, 10, 20, 30])).window(0, 3).devices["rdmap1s0"]
    assert device.counters == {}
    assert device.coverage == 0.75


def test_a_device_that_came_back_counts_with_less_coverage() -> None:
    device = filled(ramp([0, 10, None, 30])).window(0, 3).devices["rdmap1s0"]
    assert device.counters == {"tx_bytes": 30}
    assert device.coverage == 0.75


def test_a_counter_that_is_not_there_is_not_there() -> None:
    values = [{"rdmap1s0": {"tx_bytes": 1}}, {"rdmap1s0": {"tx_bytes": 2, "rx_bytes": 9}}, {"rdmap1s0": {"tx_bytes": 3, "rx_bytes": 12}}]
    assert filled(values).window(0, 2).devices["rdmap1s0"].counters == {"tx_bytes": 2}
    assert filled(values).window(1, 2).devices["rdmap1s0"].counters == {"tx_bytes": 1, "rx_bytes": 3}


def test_a_time_before_the_history_and_one_after_it_are_told_apart() -> None:
    history = filled(ramp([0, 10, 20]))
    with pytest.raises(NoWindowError, match="history begins") as early:
        history.bounds(T0 - 5, T0 + 1, LIFESPAN)
    with pytest.raises(NoWindowError, match="newest look") as late:
        history.bounds(T0 + 1, T0 + 2.5, LIFESPAN)
    assert (early.value.pending, late.value.pending) == (False, True)
    with pytest.raises(NoWindowError) as empty:
        History(1.0, 600.0).bounds(T0, T0, LIFESPAN)
    assert empty.value.pending is True


def test_a_stepped_clock_leaves_no_window_across_the_step() -> None:
    history = History(1.0, 600.0)
    for number in range(10):
        wall = T0 + number + (30.0 if number >= 5 else 0.0)
        history.add(wall, wall + 0.01, 500.0 + number, {"rdmap1s0": {"tx_bytes": number}})
    with pytest.raises(NoWindowError, match=r"stepped by \+30"):
        history.window(3, 6)
    assert history.window(5, 9).devices["rdmap1s0"].counters == {"tx_bytes": 4}


def test_the_ring_forgets_the_oldest_and_gives_memory_of_gone_devices_back() -> None:
    history = History(1.0, 10.0)
    assert history.size == 11
    for number in range(40):
        counters = {"rdmap1s0": {"tx_bytes": number}}
        if number < 5:
            counters["rdmap2s0"] = {"tx_bytes": number}
        history.add(T0 + number, T0 + number + 0.01, float(number), counters)
    assert history.span == (T0 + 29 + 0.01, T0 + 39)
    assert list(history.latest()) == ["rdmap1s0"]
    assert "rdmap2s0" not in history._series
    assert history.window(29, 39).devices["rdmap1s0"].counters == {"tx_bytes": 10}
    with pytest.raises(NoWindowError):
        history.window(28, 39)


@given(st.lists(st.one_of(st.none(), st.integers(0, 2**64 - 2)), min_size=2, max_size=40), st.data())
def test_a_difference_is_never_negative_and_adds_up(values: list[int | None], data: st.DataObject) -> None:
    history = filled(ramp(values), seconds=10.0)
    low = data.draw(st.integers(history.first, history.count - 2))
    high = data.draw(st.integers(low + 1, history.count - 1))
    window = history.window(low, high).devices.get("rdmap1s0")
    if window is None or not window.counters:
        return
    assert window.counters["tx_bytes"] >= 0
    there = [values[low], values[high]]
    assert None not in there
    if not window.resets:
        assert there[0] is not None
        assert there[1] is not None
        assert window.counters["tx_bytes"] == there[1] - there[0]
