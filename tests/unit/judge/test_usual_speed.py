"""What a run must reach beside floors: baselines, sanity floors, and the ceiling of its devices."""

from __future__ import annotations

import pytest
from usual import SIZE, TYPE, T, book, ended, fleet

from exporter.config.thresholds import Floor
from exporter.judge.ceiling import ceiling
from exporter.judge.judge import judge
from exporter.judge.sanity import sanity_floor, table
from exporter.judge.speed import Figure, Limit, judge_speed
from probes.efa import instances
from probes.reasons import Reason
from probes.result import Result

WRITE: Figure = ("write", SIZE, "dram", "goodput")
TYPES = {"n0": TYPE, "n1": TYPE}


def run(rate: float, **more: object) -> tuple[Result, ...]:
    return ended(("n0", "n1"), {"write": rate}, T, **more).results  # type: ignore[arg-type]


def floor(value: float) -> Floor:
    return Floor(probe="mooncake", operation="write", bytes=SIZE, min_bandwidth=value, source="ours")


def usual(value: float, basis: str = "baseline") -> dict[Figure, Limit]:
    reason = Reason.BELOW_BASELINE if basis == "baseline" else Reason.BELOW_FLOOR
    return {WRITE: Limit(value, "learned", reason, basis)}  # type: ignore[arg-type]


class TestSpeed:
    @pytest.mark.parametrize(("rate", "reason"), [(51e9, Reason.OK), (49e9, Reason.BELOW_BASELINE), (10e9, Reason.BELOW_BASELINE)])
    def test_a_baseline_is_a_limit_with_a_reason_of_its_own(self, rate: float, reason: Reason) -> None:
        assert judge_speed(run(rate), (), TYPES, usual(50e9)).reason is reason

    def test_the_limit_that_is_missed_most_speaks(self) -> None:
        assert judge_speed(run(40e9), (floor(45e9),), TYPES, usual(50e9)).reason is Reason.BELOW_BASELINE
        assert judge_speed(run(40e9), (floor(55e9),), TYPES, usual(50e9)).reason is Reason.BELOW_FLOOR

    def test_a_floor_of_the_operator_replaces_a_sanity_floor_and_not_a_baseline(self) -> None:
        assert judge_speed(run(3e9), (floor(2e9),), TYPES, usual(4e9, "sanity")).reason is Reason.OK
        assert judge_speed(run(3e9), (floor(2e9),), TYPES, usual(4e9)).reason is Reason.BELOW_BASELINE

    def test_what_is_kept_is_said(self) -> None:
        says = judge_speed(run(60e9), (floor(45e9),), TYPES, usual(50e9)).says
        assert says == "1 figures keep their floors, 1 figures keep their baselines"

    def test_another_kind_of_figure_is_not_held_against_it(self) -> None:
        limits = {("write", SIZE, "dram", "busbw"): usual(50e9)[WRITE]}
        assert judge_speed(run(1e9), (), TYPES, limits).holds is None

    def test_a_starved_worker_is_not_called_slow(self) -> None:
        results = tuple(result.model_copy(update={"measure": {"start": T - 5, "end": T}}) for result in run(10e9))
        starved = tuple(Result.model_validate({**result.model_dump(by_alias=True), "measure": {"start": T - 5, "end": T},
                                               "throttling": {"periods": 100, "throttled_periods": 90}}) for result in run(10e9))
        assert len(results) == 2
        assert judge_speed(starved, (), TYPES, usual(50e9)).reason is Reason.CPU_STARVED

    def test_a_run_that_failed_keeps_its_reason(self) -> None:
        failed = ended(("n0", "n1"), {"write": 1e9}, T, reason=Reason.TRANSFER_FAILED)
        assert judge(failed, limits=usual(50e9)).reason is Reason.TRANSFER_FAILED


class TestSanity:
    def test_every_row_has_a_source_and_known_instance_types(self) -> None:
        for row in table():
            assert len(row.source) > 20
            assert all(instances.lookup(name) is not None for name in row.instance_types)

    @pytest.mark.parametrize(("probe", "kind", "published"), [
        ("mooncake", "p5.48xlarge", 19.31e9), ("mooncake", "p5en.48xlarge", 27.7e9), ("mooncake", "p6-b200.48xlarge", 222e9),
        ("mooncake", "p6-b300.48xlarge", 283e9), ("nixl", "p5.48xlarge", 13e9), ("nixl", "p5en.48xlarge", 32.3e9)])
    def test_no_published_healthy_run_is_below_a_quarter_more_than_its_floor(self, probe: str, kind: str, published: float) -> None:
        found = sanity_floor(probe, 1 << 20, "dram", kind, None)
        assert found is not None
        assert 0 < found[0] <= published / 4

    @pytest.mark.parametrize(("probe", "busbw", "ranks"), [("nccl", 90.43e9, 16)])
    def test_shares_stay_below_published_figures_too(self, probe: str, busbw: float, ranks: int) -> None:
        found = sanity_floor(probe, 16 << 20, "gpu", TYPE, 750e9)
        assert found is not None
        assert found[0] <= busbw / 4

    def test_a_type_without_a_row_has_a_share_of_its_line_rate(self) -> None:
        found = sanity_floor("mooncake", 1 << 20, "dram", "g6e.48xlarge", 50e9)
        assert found is not None
        assert found[0] == pytest.approx(0.4e9)
        assert "of the 50 GB/s of its devices" in found[1]

    def test_small_blocks_and_unknown_types_have_none(self) -> None:
        assert sanity_floor("mooncake", 64 << 10, "dram", TYPE, 400e9) is None
        assert sanity_floor("mooncake", 1 << 20, "dram", "m7i.large", None) is None

    @pytest.mark.parametrize(("transport", "rate", "reason"), [
        ("efa", 1e9, Reason.BELOW_FLOOR), ("efa", 10e9, Reason.TRANSPORT_INDETERMINATE), ("any", 1e9, Reason.OK)])
    def test_they_hold_only_where_efa_is_required(self, transport: str, rate: float, reason: Reason) -> None:
        nodes = fleet()
        slow = ended(("n0", "n1"), {"write": rate}, T, transport=transport)
        verdict = judge(slow, limits=book().limits(slow, nodes))
        assert verdict.reason is reason

    def test_they_can_be_turned_off_and_end_when_a_baseline_is_learned(self) -> None:
        nodes = fleet()
        slow = ended(("n0", "n1"), {"write": 1e9}, T, transport="efa")
        assert book(sanity=False).limits(slow, nodes) == {}
        assert [limit.basis for limit in book().limits(slow, nodes).values()] == ["sanity"]


def shaped(ranks: int, nodes: int, had: int = 32) -> list[Result]:
    return [Result.model_validate({**run(1e9)[0].model_dump(by_alias=True), "rank": index, "world_size": nodes, "node": f"n{index}",
                                   "shape": {"ranks": ranks}, "evidence": {"stack": "nccl", "nics_allocated": had}})
            for index in range(nodes)]


class TestCeiling:
    @pytest.mark.parametrize(("operation", "ranks", "nodes", "expected"), [
        ("write", 2, 2, 400e9), ("sendrecv", 2, 2, 400e9), ("all_reduce", 16, 2, 750e9), ("all_reduce", 2, 2, 400e9),
        ("all_gather", 16, 2, 750e9), ("alltoall", 16, 2, 93.75e9), ("dispatch", 16, 2, 100e9), ("dispatch:fp8", 16, 2, 100e9),
        ("all_reduce", 64, 8, 450e9)])
    def test_what_the_devices_of_p5_allow(self, operation: str, ranks: int, nodes: int, expected: float) -> None:
        types = dict.fromkeys((f"n{index}" for index in range(nodes)), TYPE)
        assert ceiling(operation, shaped(ranks, nodes), types) == pytest.approx(expected, rel=0.001)

    def test_published_figures_are_below_it(self) -> None:
        """NCCL all-reduce of 8 GB on two p5 reaches 479 GB/s, Mooncake between GPUs 389, alltoall over four nodes 54."""
        for operation, ranks, nodes, published in (("all_reduce", 16, 2, 479e9), ("write", 2, 2, 389e9), ("alltoall", 32, 4, 54e9)):
            top = ceiling(operation, shaped(ranks, nodes), dict.fromkeys((f"n{index}" for index in range(nodes)), TYPE))
            assert top is not None
            assert published < top

    def test_only_the_devices_that_the_worker_had_count(self) -> None:
        assert ceiling("write", shaped(2, 2, had=4), TYPES) == pytest.approx(50e9)

    def test_a_type_that_is_not_listed_or_a_single_node_has_none(self) -> None:
        assert ceiling("write", shaped(2, 2), {"n0": TYPE, "n1": "m7i.large"}) is None
        assert ceiling("write", shaped(2, 1), TYPES) is None
