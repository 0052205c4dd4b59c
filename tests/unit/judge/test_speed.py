"""Speed against floors, and a starved worker that is never called slow."""

from __future__ import annotations

from typing import Any

import pytest

from exporter.config.thresholds import Floor
from exporter.judge.speed import judge_speed, starvation
from probes.reasons import Reason
from probes.result import Measurement, Result, Throttling

MIB = 1 << 20
WINDOW = {"start": 10.0, "end": 12.0}


def measured(bandwidth: float, p99: float = 1e-3, node: str = "a", throttling: dict[str, Any] | None = None) -> Result:
    row = Measurement(operation="write", memory="dram", kind="goodput", bytes=[65536, MIB], bandwidth=[None, bandwidth],
                      latency={"p99": [None, p99]})
    return Result.model_validate({"run_id": "r", "probe": "nixl", "target": "a--b", "node": node, "started": 9.0, "finished": 13.0,
                                  "reason": "ok", "measurements": [row], "measure": WINDOW, "throttling": throttling})


def floor(**more: Any) -> Floor:
    return Floor.model_validate({"probe": "nixl", "operation": "write", "bytes": MIB, "source": "test bench", **more})


def test_a_figure_below_its_floor_says_by_how_much_and_where_the_floor_is_from() -> None:
    found = judge_speed([measured(2e9)], [floor(min_bandwidth=4e9)], {})
    assert found.reason is Reason.BELOW_FLOOR
    assert found.holds is False
    assert found.says == "write of 1048576 bytes in dram: 2 GB/s, 50% of the floor 4 GB/s (test bench)"


def test_a_figure_at_its_floor_keeps_it() -> None:
    found = judge_speed([measured(4e9)], [floor(min_bandwidth=4e9)], {})
    assert (found.reason, found.holds) == (Reason.OK, True)


def test_a_latency_above_its_limit_is_below_the_floor_too() -> None:
    found = judge_speed([measured(4e9, p99=0.02)], [floor(max_p99="10ms")], {})
    assert found.reason is Reason.BELOW_FLOOR
    assert "p99 2e+04 us, more than 1e+04 us" in found.says


def test_the_largest_shortfall_speaks() -> None:
    found = judge_speed([measured(3e9), measured(1e9, node="b")], [floor(min_bandwidth=4e9)], {})
    assert "1 GB/s, 25% of the floor" in found.says


@pytest.mark.parametrize(("kind", "reason"), [("p5.48xlarge", Reason.BELOW_FLOOR), ("g6.48xlarge", Reason.OK), (None, Reason.OK)])
def test_the_floor_of_the_instance_type_wins(kind: str | None, reason: Reason) -> None:
    floors = [floor(min_bandwidth=1e9), floor(min_bandwidth=40e9, instance_type="p5.48xlarge")]
    assert judge_speed([measured(4e9)], floors, {"a": kind}).reason is reason


@pytest.mark.parametrize("other", [{"bytes": 65536}, {"operation": "read"}, {"memory": "gpu"}, {"probe": "mooncake"}])
def test_a_floor_for_something_else_says_nothing(other: dict[str, Any]) -> None:
    found = judge_speed([measured(1.0)], [floor(min_bandwidth=4e9, **other)], {})
    assert (found.reason, found.holds) == (Reason.OK, None)


def test_nothing_to_compare_is_not_told_and_not_good() -> None:
    assert judge_speed([measured(1.0)], [], {}).holds is None


@pytest.mark.parametrize("throttling", [{"periods": 100, "throttled_periods": 60}, {"wait_seconds": 1.5}])
def test_a_starved_worker_is_unknown_not_slow(throttling: dict[str, Any]) -> None:
    found = judge_speed([measured(1e9, throttling=throttling)], [floor(min_bandwidth=4e9)], {})
    assert found.reason is Reason.CPU_STARVED
    assert found.holds is None


def test_a_starved_worker_that_is_fast_enough_is_ok() -> None:
    assert judge_speed([measured(5e9, throttling={"wait_seconds": 1.5})], [floor(min_bandwidth=4e9)], {}).reason is Reason.OK


@pytest.mark.parametrize(("throttling", "starved"), [
    (None, False), ({}, False), ({"periods": 0, "throttled_periods": 0}, False), ({"periods": 100, "throttled_periods": 25}, False),
    ({"periods": 100, "throttled_periods": 26}, True), ({"wait_seconds": 0.5}, False), ({"wait_seconds": 0.51}, True),
])
def test_the_limit_of_starvation(throttling: dict[str, Any] | None, starved: bool) -> None:
    given = None if throttling is None else Throttling.model_validate(throttling)
    assert (starvation(given, 2.0) is not None) is starved
