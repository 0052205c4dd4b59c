"""Percentiles, when a measurement ends, and figures that cannot be."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.kv.timing import Budget, Samples, bandwidth, percentile, statistics
from probes.reasons import Reason
from probes.worker import ProbeFailure

FAR = time.monotonic() + 3600


@pytest.mark.parametrize(("values", "share", "expected"), [
    ([1.0], 0.5, 1.0), ([1.0], 0.99, 1.0), ([1.0, 2.0], 0.5, 1.0), ([1.0, 2.0, 3.0], 0.5, 2.0), ([1.0, 2.0, 3.0], 0.99, 3.0),
    ([float(n) for n in range(1, 101)], 0.99, 99.0), ([float(n) for n in range(1, 201)], 0.99, 198.0),
    ([float(n) for n in range(1, 101)], 0.5, 50.0), ([float(n) for n in range(1, 101)], 1.0, 100.0),
])
def test_percentiles_are_nearest_rank(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == expected


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=500), st.floats(0.01, 1.0))
def test_at_least_that_share_of_all_values_is_not_above_a_percentile(values: list[float], share: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, share)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= share * len(ordered) - 1e-6


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=100))
def test_statistics_are_in_order(values: list[float]) -> None:
    found = statistics(values)
    assert found["min"] <= found["p50"] <= found["p99"] <= found["max"] == max(values)
    assert found["min"] - 1e-12 <= found["mean"] <= found["max"] * (1 + 1e-12)


def test_the_smallest_limit_ends_a_measurement() -> None:
    def budget(**limits: float) -> Budget:
        given = {"iterations": 100, "seconds": 1.0, "volume": 1 << 40, "bytes_each": 1 << 20, "ends_at": FAR, **limits}
        return Budget.of(**given)  # type: ignore[arg-type]

    now = time.perf_counter()
    assert budget().more(99, now)
    assert not budget().more(100, now)
    assert not budget(volume=10 << 20).more(10, now)
    assert budget(volume=10 << 20).more(9, now)
    assert not budget(seconds=0.5).more(50, now - 0.6)


def test_three_operations_are_measured_whatever_the_limits_say() -> None:
    budget = Budget.of(iterations=1, seconds=1e-9, volume=1, bytes_each=1 << 30, ends_at=FAR)
    assert [budget.more(done, time.perf_counter() - 1) for done in range(4)] == [True, True, True, False]


@pytest.mark.parametrize(("iterations", "threads"), [(200, 1), (200, 3), (200, 64), (5, 4)])
def test_threads_share_the_iterations_and_never_do_more(iterations: int, threads: int) -> None:
    budget = Budget.of(iterations=iterations, seconds=1, volume=1 << 50, bytes_each=1, ends_at=FAR, threads=threads)
    assert threads * budget.least >= 3
    assert budget.iterations * threads <= max(iterations, threads)


def test_a_run_out_of_time_ends_even_before_the_third_operation() -> None:
    with pytest.raises(ProbeFailure, match="the time ran out after 1 operations") as ended:
        Budget.of(iterations=9, seconds=9, volume=9, bytes_each=1, ends_at=time.monotonic() - 1).more(1, time.perf_counter())
    assert ended.value.reason is Reason.DEADLINE


def test_bandwidth_is_bytes_per_second() -> None:
    assert bandwidth(10 << 20, 2.0, 1e12, "write") == 5 << 20


@pytest.mark.parametrize(("total", "seconds"), [(16 << 20, 1e-6), (16 << 20, 0.0), (16 << 20, -1.0), (16 << 20, float("nan"))])
def test_what_no_hardware_reaches_is_implausible_and_never_a_figure(total: int, seconds: float) -> None:
    with pytest.raises(ProbeFailure, match="write of 16MiB") as refused:
        bandwidth(total, seconds, 1e12, "write of 16MiB")
    assert refused.value.reason is Reason.IMPLAUSIBLE


def test_the_number_of_operations_is_that_of_the_latencies() -> None:
    assert Samples([0.1, 0.2], [], 0.3).operations == 2
