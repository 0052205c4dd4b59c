"""Every recorded and derived output of UCCL-EP's benches, and what it proves."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probes.uccl_ep.merge import least_moved, measurements, of_bench, of_tuning
from probes.uccl_ep.parse import parse_file, parse_text

FIXTURES = Path(__file__).parents[3] / "fixtures" / "uccl_ep"
DERIVED = FIXTURES / "derived"
GB = 1e9

VERDICTS = {
    "intranode_2xh200.txt": "ok", "low_latency_hang_no_rdma.txt": "no_rows",
    "low_latency_4_ranks.txt": "ok", "two_ranks_on_one_line.txt": "ok", "marks_glued.txt": "ok", "older_without_first_line.txt": "ok",
    "sick_cx7.txt": "ok", "internode.txt": "ok", "internode_newer_form.txt": "ok",
    "missing_rank.txt": "engine_error", "missing_mark.txt": "engine_error", "profiler_table_dump.txt": "engine_error",
    "placeholder_zero.txt": "engine_error", "timeout.txt": "transfer_failed", "rdma_error.txt": "transfer_failed",
    "no_nic.txt": "devices_missing", "non_determinism.txt": "wrong_content", "wrong_values.txt": "wrong_content",
    "intranode_test_failed.txt": "wrong_content",
}


def place(name: str) -> Path:
    return FIXTURES / name if (FIXTURES / name).exists() else DERIVED / name


def test_every_fixture_has_a_verdict_here() -> None:
    assert {path.name for path in FIXTURES.rglob("*.txt")} == set(VERDICTS)


@pytest.mark.parametrize("name", VERDICTS)
def test_verdict(name: str) -> None:
    run = parse_file(place(name))
    assert run.reason.value == VERDICTS[name], run.message


def test_per_rank_lines_in_base_units() -> None:
    run = parse_file(DERIVED / "low_latency_4_ranks.txt", range(4))
    assert run.reason.value == "ok"
    first = run.ranks[0]
    assert [first.dispatch_rate, first.dispatch_mean, first.combine_rate, first.combine_mean] == pytest.approx(
        [28.92 * GB, 259.77e-6, 54.70 * GB, 265.75e-6])
    assert [first.dispatch_send, first.combine_receive, first.both_max] == pytest.approx([85.10e-6, 58.20e-6, 702.31e-6])


def test_ranks_glued_on_one_line_are_all_read() -> None:
    assert parse_file(DERIVED / "two_ranks_on_one_line.txt").rows() == parse_file(DERIVED / "low_latency_4_ranks.txt").rows()


def test_a_rank_that_should_have_reported_is_missed_even_at_the_end() -> None:
    assert "rank 4, 5 reported no usable" in parse_file(DERIVED / "low_latency_4_ranks.txt", range(6)).message


def test_a_rank_of_another_node_is_no_witness_for_this_one() -> None:
    assert parse_file(DERIVED / "low_latency_4_ranks.txt", [8, 9]).reason.value == "engine_error"


def test_two_runs_in_one_output_are_not_one() -> None:
    text = (DERIVED / "low_latency_4_ranks.txt").read_text()
    assert parse_text(text + text).reason.value == "result_unreadable"


def test_lines_of_a_sweep_get_the_name_of_its_summary() -> None:
    run = parse_file(FIXTURES / "intranode_2xh200.txt")
    default = {(line.operation, line.dtype): line.nvl_rate for line in run.tuning if line.default}
    assert default == {("dispatch", "FP8"): pytest.approx(239.44 * GB), ("dispatch", "BF16"): pytest.approx(343.19 * GB),
                       ("combine", None): pytest.approx(266.24 * GB)}
    assert (run.passed, run.unfinished) == (25, 0)


def test_measurements_of_a_throughput_bench() -> None:
    found = {(m.operation, m.variant): m for m in of_tuning(parse_file(FIXTURES / "intranode_2xh200.txt"), 4096 * 7168 * 2)}
    assert found["dispatch", None].bandwidth == pytest.approx([343.19 * GB], rel=1e-4)
    assert found["combine", "best_config"].bandwidth == pytest.approx([283.16 * GB], rel=1e-4)
    assert {tuple(m.bytes) for m in found.values()} == {(58720256,)}


def test_between_nodes_the_rdma_leg_counts() -> None:
    found = {(m.operation, m.variant): m for m in of_tuning(parse_file(DERIVED / "internode.txt"), 1)}
    assert found["dispatch", "best_config"].bandwidth == pytest.approx([64.70 * GB], rel=1e-4)
    assert found["combine", "best_config"].bandwidth == pytest.approx([17.19 * GB], rel=1e-4)


def test_the_slowest_rank_counts_and_the_fastest_shows_the_spread() -> None:
    rows = measurements(of_bench(parse_file(DERIVED / "low_latency_4_ranks.txt")), 1835008)
    found = {(m.operation, m.variant): m.bandwidth[0] for m in rows}
    assert found["dispatch", None] == pytest.approx(28.92 * GB, rel=1e-4)
    assert found["dispatch", "fastest_rank"] == pytest.approx(38.30 * GB, rel=1e-4)
    assert found["combine", None] == pytest.approx(40.31 * GB, rel=1e-4)


class TestLeastMoved:
    def test_four_ranks_on_two_nodes(self) -> None:
        """Each rank moves 7.5 MB in a dispatch and 14.5 MB in a combine here; half of it leaves a node, a hundred times over."""
        moved = least_moved(parse_file(DERIVED / "low_latency_4_ranks.txt"), gpus=2, nodes=2)
        assert moved == pytest.approx(100 * 0.5 * 4 * (28.92 * GB * 259.77e-6 + 54.70 * GB * 265.75e-6), rel=0.01)

    def test_one_node_counts_what_passes_between_its_gpus(self) -> None:
        moved = least_moved(parse_file(FIXTURES / "intranode_2xh200.txt"), gpus=2, nodes=1)
        assert moved == pytest.approx(100 * 2 * 0.5 * 2 * 117.0e6, rel=0.01)

    def test_between_nodes_the_rdma_leg_is_what_leaves(self) -> None:
        moved = least_moved(parse_file(DERIVED / "internode.txt"), gpus=8, nodes=2)
        assert moved == pytest.approx(100 * 8 * (64.70 * GB * 1819e-6 + 17.19 * GB * 6379e-6), rel=0.01)

    def test_a_run_without_figures_says_nothing(self) -> None:
        assert least_moved(parse_file(FIXTURES / "low_latency_hang_no_rdma.txt"), gpus=2, nodes=1) == 0


RELAXED = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


@RELAXED
@given(st.data())
def test_a_run_that_lost_a_figure_or_a_mark_is_no_pass(data: st.DataObject) -> None:
    lines = (DERIVED / "low_latency_4_ranks.txt").read_text().split("\n")
    whole = parse_text("\n".join(lines), range(4))
    lost = data.draw(st.sets(st.sampled_from([n for n, line in enumerate(lines) if "Dispatch bandwidth" in line or "correctness" in line])))
    part = parse_text("\n".join(line for n, line in enumerate(lines) if n not in lost), range(4))
    assert (part.reason.value == "ok") is (not lost)
    assert lost or part.rows() == whole.rows()


WORDS = (DERIVED / "low_latency_4_ranks.txt").read_text().split()


@RELAXED
@given(st.text(st.characters(codec="utf-8")) | st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join))
def test_any_text_is_read_without_a_crash(text: str) -> None:
    parse_text(text)
    parse_text(text, range(3))


def test_a_hostile_file_costs_little() -> None:
    assert parse_text("[rank 0] Dispatch" * 50_000).reason.value == "no_rows"
    assert parse_text("\n".join(f"[rank {n}] Dispatch bandwidth: 1.0 GB/s, avg_t=1 us | Combine bandwidth: 1 GB/s, avg_t=1 us"
                                for n in range(30_000))).reason.value == "engine_error"
