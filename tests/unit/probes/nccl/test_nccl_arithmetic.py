"""Bandwidth factors, ceilings, leaving bytes, rules on shape and merging: the arithmetic everything else rests on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.nccl import rules
from probes.nccl.factors import bandwidths, bus_factor, ceiling, leaving_bytes
from probes.nccl.job import Record
from probes.nccl.merge import Merged, from_json, measurements, merge, of_record, payload, statistics, to_json
from probes.nccl.outcome import judge
from probes.nccl.params import NcclParams
from probes.reasons import Reason

GB = 1e9
MIB = 1 << 20


class TestFactors:
    @pytest.mark.parametrize(("operation", "ranks", "factor"), [
        ("all_reduce", 2, 1.0), ("all_reduce", 16, 1.875), ("all_gather", 16, 0.9375), ("reduce_scatter", 8, 0.875), ("alltoall", 2, 0.5),
        ("sendrecv", 2, 1.0), ("broadcast", 4, 1.0), ("all_reduce", 1, 0.0)])
    def test_published_factors(self, operation: str, ranks: int, factor: float) -> None:
        assert bus_factor(operation, ranks) == pytest.approx(factor)

    def test_a_row_of_aws_s_documentation(self) -> None:
        algbw, busbw = bandwidths("all_reduce", 16, 2147483648, 9197.5e-6)
        assert [algbw / GB, busbw / GB] == pytest.approx([233.49, 437.79], abs=0.01)

    def test_an_unknown_operation_has_no_factor(self) -> None:
        assert bus_factor("gossip", 4) is None
        with pytest.raises(ValueError, match="no bandwidth factor"):
            bandwidths("gossip", 4, 1, 1.0)

    def test_a_time_of_zero_is_no_bandwidth(self) -> None:
        with pytest.raises(ValueError, match="a time of 0"):
            bandwidths("all_reduce", 2, MIB, 0.0)


class TestCeilings:
    """The table of derived ceilings: 400 GB/s a node, 50 a GPU, 8 GPUs, NVLink of Hopper 450."""

    @pytest.mark.parametrize(("operation", "nodes", "wanted"), [
        ("all_reduce", 2, 750), ("all_reduce", 4, 516.7), ("all_reduce", 8, 450), ("alltoall", 2, 93.75), ("alltoall", 4, 64.6),
        ("alltoall", 8, 56.25), ("sendrecv", 2, 50), ("sendrecv", 8, 50)])
    def test_between_nodes(self, operation: str, nodes: int, wanted: float) -> None:
        found = ceiling(operation, ranks=8 * nodes, nodes=nodes, node_rate=400 * GB, gpu_rate=50 * GB, local_rate=900 * GB)
        assert found is not None
        assert found / GB == pytest.approx(wanted, rel=1e-3)

    def test_inside_a_node_the_switch_may_reduce(self) -> None:
        assert ceiling("all_reduce", ranks=8, nodes=1, node_rate=None, gpu_rate=None, local_rate=450 * GB) == pytest.approx(787.5 * GB)
        assert ceiling("alltoall", ranks=8, nodes=1, node_rate=None, gpu_rate=None, local_rate=450 * GB) == 450 * GB

    def test_one_gpu_a_node_is_bound_by_its_own_nics(self) -> None:
        found = ceiling("all_reduce", ranks=2, nodes=2, node_rate=400 * GB, gpu_rate=50 * GB, local_rate=900 * GB)
        assert found == pytest.approx(50 * GB)

    def test_without_rates_there_is_none(self) -> None:
        assert ceiling("all_reduce", ranks=16, nodes=2, node_rate=None, gpu_rate=None, local_rate=900 * GB) is None


class TestLeavingBytes:
    @pytest.mark.parametrize(("operation", "gpus", "workers", "share"), [
        ("all_reduce", 1, 2, 1.0), ("all_reduce", 8, 2, 1.0), ("all_reduce", 8, 4, 1.5), ("all_gather", 8, 2, 0.5),
        ("reduce_scatter", 8, 2, 0.5), ("alltoall", 8, 2, 4.0), ("alltoall", 1, 2, 0.5), ("sendrecv", 8, 2, 1.0),
        ("all_reduce", 8, 1, 0.0)])
    def test_least_bytes_out_of_a_worker(self, operation: str, gpus: int, workers: int, share: float) -> None:
        assert leaving_bytes(operation, size=MIB, gpus=gpus, workers=workers) == share * MIB

    def test_rails_all_leave(self) -> None:
        assert leaving_bytes("sendrecv", size=MIB, gpus=8, workers=2, railed=True) == 8 * MIB


class TestRules:
    def test_the_sick_alltoall_of_bottlerocket(self) -> None:
        text = rules.falls_with_size([(MIB, 1.02 * GB), (2 * MIB, 0.53 * GB), (4 * MIB, 0.37 * GB)])
        assert text == "0.53 GB/s at 2MiB after 1.02 GB/s at 1MiB"

    def test_a_healthy_curve_rises(self) -> None:
        assert rules.falls_with_size([(MIB, 20 * GB), (4 * MIB, 60 * GB), (16 * MIB, 55 * GB)]) is None

    def test_small_messages_may_dip(self) -> None:
        assert rules.falls_with_size([(1024, 2 * GB), (2048, 0.5 * GB)]) is None

    def test_sizes_far_apart_are_not_compared(self) -> None:
        assert rules.falls_with_size([(MIB, 100 * GB), (8 * MIB, 1 * GB)]) is None

    def test_a_slow_middle_is_seen_although_the_end_recovers(self) -> None:
        assert rules.falls_with_size([(MIB, 50 * GB), (2 * MIB, 10 * GB), (4 * MIB, 60 * GB)]) is not None

    def test_tail(self) -> None:
        assert rules.long_tail([(MIB, 20e-6, 201e-6)]) == "p99 201 us against 20 us at best, at 1MiB"
        assert rules.long_tail([(MIB, 20e-6, 199e-6), (MIB, None, None), (MIB, 0.0, 1.0)]) is None

    def test_above_the_ceiling_with_a_margin(self) -> None:
        assert rules.above_ceiling([(MIB, 420 * GB)], 400 * GB) is None
        assert rules.above_ceiling([(MIB, 421 * GB)], 400 * GB) is not None
        assert rules.above_ceiling([(MIB, 1e18)], None) is None

    def test_intra_node_only(self) -> None:
        assert rules.intra_node_only(["a"] * 16, 16, 2) is not None
        assert rules.intra_node_only(["a", "b"], 16, 2) is None
        assert rules.intra_node_only(["a"], 8, 1) is None
        assert rules.intra_node_only([], 8, 2) is None


def row(size: int, mean: float, *, operation: str = "all_reduce", variant: str = "", wrong: int | None = 0,
        times: tuple[float, ...] = (1e-3, 2e-3), launches: int = 10) -> Merged:
    return Merged(operation, variant, size, mean, times, wrong, launches, None)


class TestMerge:
    def test_the_slowest_rank_sets_the_time_and_wrong_elements_add_up(self) -> None:
        records = [Record(operation="all_reduce", bytes=MIB, variant=None, mean=mean, times=times, wrong=wrong, launches=9, cold=0.1)
                   for mean, times, wrong in ((1e-3, [1e-3, 5e-3], 0), (2e-3, [4e-3, 2e-3], 3))]
        (merged,) = merge([of_record(record, rank) for rank, record in enumerate(records)])
        assert (merged.mean, merged.times, merged.wrong, merged.ranks_wrong) == (2e-3, (4e-3, 5e-3), 3, (1,))

    def test_ranks_that_did_not_check_do_not_hide_those_that_did(self) -> None:
        assert merge([row(MIB, 1.0, wrong=None), row(MIB, 1.0, wrong=2)])[0].wrong == 2
        assert merge([row(MIB, 1.0, wrong=None)])[0].wrong is None

    def test_rows_that_do_not_match_are_an_error(self) -> None:
        with pytest.raises(ValueError, match="was timed"):
            merge([row(MIB, 1.0), row(MIB, 1.0, times=(1.0,))])

    @given(st.integers(1, 1 << 40), st.floats(1e-7, 100.0), st.lists(st.floats(1e-7, 100.0), min_size=1, max_size=20),
           st.none() | st.integers(0, 99))
    def test_a_row_travels_to_another_rank(self, size: int, mean: float, times: list[float], wrong: int | None) -> None:
        before = Merged("sendrecv", "rail3", size, mean, tuple(times), wrong, 7, 0.5, (1, 2) if wrong else ())
        after = from_json(to_json(before))
        assert (after.key, after.mean, after.wrong, after.ranks_wrong) == (before.key, before.mean, before.wrong, before.ranks_wrong)
        assert after.times == pytest.approx(before.times, abs=5.1e-9)

    @pytest.mark.parametrize("value", [None, [], {"a": 1}, ["x"] * 9, [1, 2, 3]])
    def test_anything_else_is_refused(self, value: object) -> None:
        with pytest.raises(ValueError, match="cannot be read"):
            from_json(value)

    def test_statistics_are_those_of_nccl_tests(self) -> None:
        found = statistics([float(n) for n in range(100, 0, -1)])
        assert (found["min"], found["p50"], found["p99"], found["max"], found["mean"]) == (1.0, 51.0, 99.0, 100.0, 50.5)
        assert statistics([2.0] * 5)["stdev"] == 0.0
        assert statistics([1.0, 9.0])["p99"] == 9.0

    def test_columns_over_sizes(self) -> None:
        (column,) = measurements([row(256 * MIB, 9e-4), row(MIB, 2e-5)], ranks=2)
        assert column.bytes == [MIB, 256 * MIB]
        assert column.bandwidth == pytest.approx([MIB / 2e-5, 256 * MIB / 9e-4], rel=1e-5)
        assert (column.kind, column.memory, column.wrong, column.iterations) == ("busbw", "gpu", [0, 0], [2, 2])
        assert set(column.latency) == {"min", "p50", "p99", "max", "mean", "stdev"}

    def test_variants_are_measurements_of_their_own(self) -> None:
        rows = [row(MIB, 1e-5), row(MIB, 1e-5, variant="in_place"), row(MIB, 1e-5, operation="sendrecv", variant="rail0")]
        found = measurements(rows, ranks=2)
        assert [(one.operation, one.variant) for one in found] == [("all_reduce", None), ("all_reduce", "in_place"), ("sendrecv", "rail0")]

    def test_payload_counts_every_launch(self) -> None:
        assert payload([row(MIB, 1.0, launches=10)], gpus=1, workers=2) == 10 * MIB
        assert payload([row(MIB, 1.0, operation="sendrecv", variant="rail0", launches=4)], gpus=8, workers=2) == 4 * MIB

    def test_a_worker_alone_counts_the_bytes_between_its_gpus(self) -> None:
        assert payload([row(MIB, 1.0, launches=10)], gpus=2, workers=1) == 20 * MIB
        assert payload([row(MIB, 1.0)], gpus=1, workers=1) == 0


class TestOutcome:
    def verdict(self, *rows: Merged, **params: object) -> Reason:
        return judge(rows, NcclParams.model_validate(params), ranks=2, nodes=2)[0]

    def test_nothing_measured(self) -> None:
        assert self.verdict() is Reason.NO_ROWS

    def test_good(self) -> None:
        assert self.verdict(row(MIB, 1e-4), row(256 * MIB, 6e-3)) is Reason.OK

    def test_wrong_values_come_before_everything(self) -> None:
        bad = Merged("all_reduce", "", MIB, 1e-12, (1e-3, 1.0), 5, 1, None, (0, 3))
        reason, message = judge([bad], NcclParams(node_line_rate=1e9), ranks=4, nodes=2)
        assert (reason, message) == (Reason.WRONG_CONTENT, "all_reduce: 5 wrong elements at 1MiB on rank 0, 3")

    def test_above_the_wire(self) -> None:
        assert self.verdict(row(256 * MIB, 1e-3), gpu_line_rate="50GB/s") is Reason.IMPLAUSIBLE
        assert self.verdict(row(256 * MIB, 1e-3), ceilings={"all_reduce": "100GB/s"}) is Reason.IMPLAUSIBLE

    def test_falling(self) -> None:
        assert self.verdict(row(MIB, 1e-4), row(4 * MIB, 1e-2)) is Reason.FALLS_WITH_SIZE

    def test_tail(self) -> None:
        assert self.verdict(row(MIB, 1e-4, times=(1e-4, 1.1e-3))) is Reason.TAIL_LATENCY
        assert self.verdict(row(MIB, 1e-4, times=(1e-4, 1.1e-3)), tail_ratio=20) is Reason.OK
