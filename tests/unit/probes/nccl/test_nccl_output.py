"""Every recorded and every derived output of nccl-tests: what is read from it, and what it proves."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.nccl import Expectations, parse_file, parse_text
from probes.nccl.report import without_environment

FIXTURES = Path(__file__).parents[3] / "fixtures" / "nccl"
DERIVED = FIXTURES / "derived"
GB = 1e9

VERDICTS = {
    # real output
    "all_reduce_nvlink_info.txt": ("ok", 62), "all_reduce_nvlink.json": ("ok", 62), "all_reduce_socket_info.txt": ("ok", 2),
    "alltoall_nvlink.txt": ("ok", 12), "alltoall_nvlink.json": ("ok", 12), "sendrecv_nvlink.txt": ("ok", 12),
    "sendrecv_nvlink.json": ("ok", 12),
    "usage_exit_0.txt": ("no_rows", 0), "no_driver_exit_2.txt": ("no_rows", 0),
    # launchers
    "good.txt": ("ok", 8), "tagged_open_mpi_4.txt": ("ok", 8), "tagged_open_mpi_5.txt": ("ok", 8), "srun_label.txt": ("ok", 8),
    "torchrun_tee.txt": ("ok", 8), "kubectl_timestamps.txt": ("ok", 8), "pdsh.txt": ("ok", 8), "aws_docs_rows.txt": ("ok", 2),
    # cells and layouts
    "unchecked_half.txt": ("ok", 12), "unchecked_all.txt": ("ok", 8), "wrong_1e6.txt": ("wrong_content", 8),
    "exponent_time.txt": ("ok", 10), "timestamps_S.txt": ("ok", 8), "per_iteration_I.txt": ("ok", 8), "per_iteration_I_S.txt": ("ok", 8),
    "long_tail_I.txt": ("tail_latency", 8),
    "before_2_13_all_reduce.txt": ("ok", 6), "before_2_13_alltoall.txt": ("ok", 6), "before_2_13_broadcast.txt": ("ok", 6),
    "before_2_13_sendrecv.txt": ("ok", 6), "size_0_rows.txt": ("ok", 12),
    # log lines in the table
    "info_inside_rows.txt": ("ok", 8), "warn_inside_rows.txt": ("ok", 8), "libfabric_between_rows.txt": ("ok", 8),
    "launch_mode_before_first_row.txt": ("ok", 8),
    # runs that went wrong
    "no_mpi_interleaved.txt": ("no_rows", 0), "no_mpi_tagged.txt": ("no_rows", 0), "missing_footer.txt": ("engine_error", 8),
    "cut_in_a_row.txt": ("engine_error", 6), "timeout.txt": ("deadline", 4), "nccl_failure_mpirun.txt": ("engine_error", 2),
    "nan_average_no_rows.txt": ("no_rows", 0), "nan_cells.txt": ("result_unreadable", 7), "falling_alltoall.txt": ("falls_with_size", 6),
    # several runs, several nodes
    "two_runs_in_one_log.txt": ("ok", 20), "two_nodes_16_ranks.txt": ("ok", 2), "sixteen_ranks_one_host.txt": ("ok", 2),
    "above_the_wire.txt": ("ok", 2),
    # JSON
    "json_name_0.txt": ("ok", 8), "json_skipped.txt": ("ok", 8), "v1_typing_errors.json": ("ok", 12), "v2.json": ("ok", 12),
    "v3_per_iteration.json": ("ok", 6), "unterminated.json": ("engine_error", 6), "no_rows_error.json": ("no_rows", 0),
    "nan_text.json": ("result_unreadable", 11), "inf_token.json": ("result_unreadable", 11), "wrong.json": ("wrong_content", 12),
    "with_secrets.json": ("ok", 12),
}


def place(name: str) -> Path:
    return FIXTURES / name if (FIXTURES / name).exists() else DERIVED / name


def test_every_fixture_has_a_verdict_here() -> None:
    found = {path.name for path in FIXTURES.rglob("*") if path.suffix in {".txt", ".json"}}
    assert found == set(VERDICTS)


@pytest.mark.parametrize("name", VERDICTS)
def test_verdict_and_number_of_usable_halves(name: str) -> None:
    run = parse_file(place(name))
    assert (run.reason.value, len(run.rows())) == VERDICTS[name], run.message


def test_text_and_json_of_one_run_agree() -> None:
    text, report = parse_file(FIXTURES / "alltoall_nvlink.txt").rows(), parse_file(FIXTURES / "alltoall_nvlink.json").rows()
    assert [(row["bytes"], row["placement"]) for row in text] == [(row["bytes"], row["placement"]) for row in report]
    for one, other in zip(text, report, strict=True):
        assert one["busbw"] == pytest.approx(other["busbw"], abs=0.006 * GB)
        assert one["wrong"] == other["wrong"]


def test_a_table_knows_who_ran_what() -> None:
    (table,) = parse_file(FIXTURES / "all_reduce_nvlink_info.txt").tables
    assert (table.operation, table.ranks, table.version, table.nccl_version, table.hosts) == ("all_reduce", 2, "2.19.6", "2.28.9", ["vm"])
    assert list(table.series()[-1]) == pytest.approx([8 << 30, 345.21 * GB])


def test_json_lists_a_device_per_process_and_ranks_come_from_the_configuration() -> None:
    (table,) = parse_file(FIXTURES / "alltoall_nvlink.json").tables
    assert len(table.devices) == 1
    assert table.ranks == 2


@pytest.mark.parametrize("name", ["info_inside_rows.txt", "warn_inside_rows.txt", "tagged_open_mpi_4.txt", "pdsh.txt", "timestamps_S.txt"])
def test_what_surrounds_a_row_does_not_change_its_figures(name: str) -> None:
    keys = ("bytes", "placement", "busbw", "seconds", "wrong")
    figures, wanted = ([[row[key] for key in keys] for row in parse_file(path).rows()] for path in (place(name), DERIVED / "good.txt"))
    assert figures == wanted


def test_the_error_column_before_2_13_is_no_count() -> None:
    assert all(row["wrong"] is None for row in parse_file(DERIVED / "before_2_13_all_reduce.txt").rows())


def test_wrong_elements_are_counted_in_every_form() -> None:
    assert "1000000 wrong elements" in parse_file(DERIVED / "wrong_1e6.txt").message
    assert "1234567 wrong elements" in parse_file(DERIVED / "wrong.json").message


def test_a_half_that_is_never_checked_has_no_count() -> None:
    halves = {row["placement"]: row["wrong"] for row in parse_file(FIXTURES / "alltoall_nvlink.txt").rows()}
    assert halves == {"out_of_place": 0.0, "in_place": None}


def test_statistics_per_iteration_are_read_from_both_forms() -> None:
    row = parse_file(DERIVED / "per_iteration_I.txt").rows()[0]
    assert (row["min"], row["max"], row["p99"], row["cv"]) == pytest.approx((21.19e-6, 26.77e-6, 25.66e-6, 0.042), rel=1e-3)
    assert parse_file(DERIVED / "v3_per_iteration.json").rows()[0]["p50"] is not None


def test_values_that_were_not_checked_are_said_so() -> None:
    assert "not checked" in parse_file(DERIVED / "unchecked_all.txt").message


def test_usage_with_exit_status_0_says_what_it_is() -> None:
    assert "usage" in parse_file(FIXTURES / "usage_exit_0.txt").message


def test_a_binary_without_mpi_is_named() -> None:
    for name in ("no_mpi_interleaved.txt", "no_mpi_tagged.txt"):
        assert "without MPI" in parse_file(DERIVED / name).message


def test_the_average_is_noted_and_never_judged() -> None:
    text = (DERIVED / "good.txt").read_text().replace("# Avg bus bandwidth    : 110.886 ", "# Avg bus bandwidth    : 0.001 FAILED")
    run = parse_text(text)
    assert run.reason.value == "ok"
    assert any("not judged" in note for note in run.tables[0].notes)


def test_the_name_of_the_json_file_is_told_whatever_it_is() -> None:
    assert parse_file(DERIVED / "json_name_0.txt").json_path == "/results/ar.json.0"
    assert parse_file(DERIVED / "json_skipped.txt").json_path is None


def test_all_ranks_on_one_host_is_not_a_run_over_two_nodes() -> None:
    expect = Expectations(nodes=2)
    assert parse_file(DERIVED / "sixteen_ranks_one_host.txt", expect).reason.value == "not_efa"
    assert parse_file(DERIVED / "two_nodes_16_ranks.txt", expect).reason.value == "ok"


def test_figures_above_the_wire_are_implausible_where_the_wire_is_known() -> None:
    expect = Expectations(nodes=2, node_rate=400 * GB, gpu_rate=50 * GB)
    assert parse_file(DERIVED / "above_the_wire.txt", expect).reason.value == "implausible"
    assert parse_file(DERIVED / "two_nodes_16_ranks.txt", expect).reason.value == "ok"


def test_a_busbw_that_contradicts_its_algbw_is_dropped() -> None:
    run = parse_text((DERIVED / "good.txt").read_text().replace("116.94  116.94", "116.94  916.94"))
    assert run.reason.value == "result_unreadable"
    assert max(row["busbw"] for row in run.rows()) < 300 * GB


def test_an_algbw_that_contradicts_its_time_is_dropped() -> None:
    run = parse_text((DERIVED / "good.txt").read_text().replace("116.94  116.94", "316.94  316.94"))
    assert run.reason.value == "result_unreadable"
    assert max(row["busbw"] for row in run.rows()) < 300 * GB


def test_the_environment_is_dropped_at_the_door() -> None:
    path = DERIVED / "with_secrets.json"
    assert "EXAMPLEKEY" in path.read_text()
    assert "EXAMPLEKEY" not in repr(vars(parse_file(path)))
    assert "EXAMPLEKEY" not in without_environment(path.read_text())
    assert parse_text(without_environment(path.read_text())).rows() == parse_file(path).rows()


def test_a_report_of_another_version_is_read_and_noted() -> None:
    run = parse_text((DERIVED / "v2.json").read_text().replace('"version": 2', '"version": 9'))
    assert run.reason.value == "ok"
    assert "version 9 is not known" in run.notes[0]


@pytest.mark.parametrize("text", ["", "\n\n", "{", "{}", "[]", "null", '{"results": 5}', '{"results": [1, null, {"size": true}]}',
                                  "[" * 5000, '{"a":' * 5000, "# nThread 1 nGpus 2", "1 2 float", "\x00\xff" * 100])
def test_what_is_no_output_at_all_is_no_rows(text: str) -> None:
    assert parse_text(text).reason.value == "no_rows"


BANNER = "# nThread 1 nGpus 1 minBytes 1 maxBytes 99999999999999 step: 1(bytes) warmup iters: 1 iters: 1 validation: 1\n"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["x" * 200_000 + " NCCL INFO", "1 2 float " * 60_000, BANNER * 20_000,
                                  "#  Rank  0 Group 0 Pid 1 on h device 0 [0] x\n" * 50_000], ids=["line", "cells", "banners", "ranks"])
def test_a_hostile_file_costs_little(text: str) -> None:
    assert parse_text(text).reason.value == "no_rows"


def test_a_file_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(ValueError, match="larger than 64 MiB"):
        parse_file(path)
