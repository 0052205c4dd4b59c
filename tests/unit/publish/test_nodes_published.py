"""What is shown of a node: verdicts that last, figures that are fair, and a bounded number of series."""

from __future__ import annotations

import itertools
import json

import pytest
from publishing import KIB, MIB, OPERATIONS, kv_verdict, measurement, preflight_verdict, samples, series_of, text_of, value_of, with_devices

from exporter.publish.publisher import Publisher
from probes.reasons import Outcome, Reason, outcome_of
from probes.result import Finding

DAY = 86400.0


def publisher(**options: float) -> Publisher:
    return Publisher("1.2.3", **options)  # type: ignore[arg-type]


def healthy(made: Publisher, node: str, probe: str = "mooncake") -> float | None:
    return value_of(made.commit(), "efapulse_node_healthy", node=node, probe=probe)


def bandwidth(made: Publisher, node: str, operation: str = "write", size: int = 16 * MIB) -> float | None:
    return value_of(made.commit(), "efapulse_node_bandwidth_bytes_per_second", node=node, probe="mooncake", operation=operation,
                    bytes=str(size), memory="dram", kind="goodput")


def states(made: Publisher, name: str, label: str, node: str = "a", probe: str = "mooncake") -> dict[str, float]:
    found = series_of(made.commit(), name, node=node, probe=probe)
    return {dict(labels)[label]: value for labels, value in found.items()}


class TestVerdict:
    """Health is the last conclusive verdict."""

    @pytest.mark.parametrize("reason", list(Reason))
    def test_health_follows_the_outcome(self, reason: Reason) -> None:
        made = publisher()
        made.run_finished(kv_verdict(reason=reason, reasons=[reason, reason]))
        expected = {Outcome.OK: 1.0, Outcome.DEGRADED: 0.0, Outcome.FAILED: 0.0, Outcome.UNKNOWN: None}
        assert healthy(made, "a") == expected[outcome_of(reason)]

    @pytest.mark.parametrize(("before", "value"), [(Reason.OK, 1.0), (Reason.TCP_FALLBACK, 0.0)])
    def test_unknown_never_clears_it(self, before: Reason, value: float) -> None:
        made = publisher()
        made.run_finished(kv_verdict(reason=before, finished=1000.0))
        for i in range(5):
            made.run_finished(kv_verdict(reason=Reason.PREEMPTED, finished=2000.0 + i))
        assert healthy(made, "a") == value
        page = made.snapshot
        assert value_of(page, "efapulse_node_verdict_timestamp_seconds", node="a", probe="mooncake") == 1000.0
        assert value_of(page, "efapulse_node_last_outcome", node="a", probe="mooncake", outcome="unknown") == 1.0

    def test_a_contradiction_does(self) -> None:
        made = publisher()
        made.run_finished(kv_verdict(reason=Reason.BELOW_FLOOR, finished=1000.0))
        made.run_finished(kv_verdict(finished=2000.0))
        assert healthy(made, "a") == 1.0
        assert value_of(made.snapshot, "efapulse_node_verdict_timestamp_seconds", node="a", probe="mooncake") == 2000.0

    def test_probes_of_a_node_are_judged_apart(self) -> None:
        made = publisher()
        made.run_finished(kv_verdict(probe="mooncake"))
        made.run_finished(kv_verdict(probe="nixl", reason=Reason.TCP_FALLBACK))
        assert (healthy(made, "a", "mooncake"), healthy(made, "a", "nixl")) == (1.0, 0.0)

    @pytest.mark.parametrize("reason", [Reason.ENGINE_CRASHED, Reason.ENGINE_ERROR, Reason.TRANSPORT_UNAVAILABLE])
    def test_a_fault_of_one_rank_is_not_put_on_its_partner(self, reason: Reason) -> None:
        made = publisher()
        made.run_finished(kv_verdict(finished=1000.0))
        made.run_finished(kv_verdict(reason=reason, reasons=[Reason.PEER_LOST, reason], finished=2000.0))
        assert (healthy(made, "a"), healthy(made, "b")) == (1.0, 0.0)
        assert states(made, "efapulse_node_last_outcome", "outcome", "a") == {"unknown": 1.0, "ok": 0.0}
        assert states(made, "efapulse_node_last_outcome", "outcome", "b") == {"failed": 1.0, "ok": 0.0}

    @pytest.mark.parametrize("reason", [Reason.WRONG_CONTENT, Reason.TRANSFER_FAILED, Reason.DEADLINE])
    def test_a_fault_of_the_path_is_on_both(self, reason: Reason) -> None:
        made = publisher()
        made.run_finished(kv_verdict(reason=reason, reasons=[Reason.OK, reason]))
        assert (healthy(made, "a"), healthy(made, "b")) == (0.0, 0.0)

    def test_what_the_judge_found_is_on_both(self) -> None:
        made = publisher()
        made.run_finished(kv_verdict(reason=Reason.TRANSPORT_UNAVAILABLE, reasons=[Reason.OK, Reason.OK]))
        assert (healthy(made, "a"), healthy(made, "b")) == (0.0, 0.0)

    def test_two_ranks_on_one_node_are_one_node(self) -> None:
        made = publisher()
        made.run_finished(kv_verdict(("laptop", "laptop")))
        assert healthy(made, "laptop") == 1.0
        samples(text_of(made.snapshot.classic))

    def test_measured_is_when_figures_were_left(self) -> None:
        made = publisher()
        made.run_finished(kv_verdict(finished=1000.0))
        made.run_finished(kv_verdict(reason=Reason.DEADLINE, measurements=[], finished=2000.0))
        page = made.commit()
        assert value_of(page, "efapulse_node_last_measured_timestamp_seconds", node="a", probe="mooncake") == 1000.0
        assert value_of(page, "efapulse_node_verdict_timestamp_seconds", node="a", probe="mooncake") == 2000.0

    def test_the_findings_of_a_preflight_are_figures(self) -> None:
        made = publisher()
        found = [Finding(check="memlock", ok=True)]
        made.run_finished(kv_verdict(("a",), "node", measurements=[], transport=None, finished=1000.0, findings=found))
        assert value_of(made.commit(), "efapulse_node_last_measured_timestamp_seconds", node="a", probe="node") == 1000.0
        assert states(made, "efapulse_node_transport", "transport", "a", "node") == {}


class TestDevices:
    """EFA devices, as the preflight found them."""

    def preflight(self, made: Publisher, reason: Reason = Reason.OK, seen: int = 16, **shape: int) -> dict[str, float]:
        made.run_finished(preflight_verdict("a", seen, reason=reason, **shape))
        found = series_of(made.commit(), "efapulse_node_efa_devices", node="a")
        return {dict(labels)["state"]: value for labels, value in found.items()}

    def test_expected_allocatable_and_seen(self) -> None:
        assert self.preflight(publisher(), Reason.DEVICES_MISSING, 15, expected_devices=16, allocatable_devices=16) == {
            "expected": 16.0, "allocatable": 16.0, "seen": 15.0}

    def test_what_nobody_told_is_absent(self) -> None:
        assert self.preflight(publisher(), seen=0) == {"seen": 0.0}

    def test_an_unknown_run_does_not_change_it(self) -> None:
        made = publisher()
        self.preflight(made, seen=16)
        assert self.preflight(made, Reason.PREEMPTED, seen=0) == {"seen": 16.0}


class TestStates:
    """A state set shows the present state and the one before."""

    def test_one_state_at_first(self) -> None:
        made = publisher()
        made.run_finished(kv_verdict())
        assert states(made, "efapulse_node_last_outcome", "outcome") == {"ok": 1.0}
        assert states(made, "efapulse_node_transport", "transport") == {"efa_rdma": 1.0}

    def test_a_change_leaves_a_zero_behind(self) -> None:
        made = publisher()
        for transport in ("efa_rdma", "efa_rdma", "tcp"):
            made.run_finished(kv_verdict(transport=transport))
        assert states(made, "efapulse_node_transport", "transport") == {"tcp": 1.0, "efa_rdma": 0.0}

    def test_exactly_one_state_is_one_whatever_comes(self) -> None:
        made = publisher()
        for reason in (Reason.OK, Reason.BELOW_FLOOR, Reason.DEADLINE, Reason.PREEMPTED, Reason.OK):
            made.run_finished(kv_verdict(reason=reason, reasons=[reason, reason]))
            found = states(made, "efapulse_node_last_outcome", "outcome")
            assert [state for state, value in found.items() if value] == [outcome_of(reason).value]
            assert len(found) <= 2

    def test_indeterminate_does_not_clear_a_known_transport(self) -> None:
        made = publisher()
        made.run_finished(kv_verdict(transport="tcp"))
        made.run_finished(kv_verdict(transport="indeterminate", reason=Reason.TRANSPORT_INDETERMINATE))
        assert states(made, "efapulse_node_transport", "transport") == {"tcp": 1.0}

    def test_indeterminate_is_shown_until_the_transport_is_known(self) -> None:
        made = publisher()
        made.run_finished(kv_verdict(transport="indeterminate", reason=Reason.TRANSPORT_INDETERMINATE))
        assert states(made, "efapulse_node_transport", "transport") == {"indeterminate": 1.0}
        made.run_finished(kv_verdict(transport="efa_rdma"))
        assert states(made, "efapulse_node_transport", "transport") == {"efa_rdma": 1.0, "indeterminate": 0.0}


class TestFallback:
    """The fallback counter."""

    def count(self, made: Publisher, transport: str) -> float | None:
        return value_of(made.commit(), "efapulse_transport_fallback_total", node="a", probe="mooncake", transport=transport)

    def test_it_starts_at_zero_for_probes_that_require_efa(self) -> None:
        made = publisher()
        made.node_seen("a", 1.0, ["mooncake"])
        assert [self.count(made, transport) for transport in ("tcp", "efa_no_rdma", "efa_rdma")] == [0.0, 0.0, None]

    def test_it_counts_where_efa_was_required(self) -> None:
        made = publisher()
        made.node_seen("a", 1.0, ["mooncake"])
        for transport in ("tcp", "tcp", "efa_no_rdma", "efa_rdma", "indeterminate"):
            made.run_finished(kv_verdict(transport=transport, mode="efa"))
        assert [self.count(made, transport) for transport in ("tcp", "efa_no_rdma")] == [2.0, 1.0]

    def test_tcp_is_no_fallback_where_any_transport_will_do(self) -> None:
        made = publisher()
        made.run_finished(kv_verdict(transport="tcp", mode="any"))
        assert self.count(made, "tcp") is None


class TestFigures:
    """Best of the last pairs within the interval."""

    def pair(self, made: Publisher, partner: str, rate: float, finished: float, **more: object) -> None:
        made.run_finished(kv_verdict(("a", partner), finished=finished, measurements=[measurement(rates=(1e9, 2e9, rate))], **more))  # type: ignore[arg-type]

    def test_a_bad_partner_does_not_count_against_a_node(self) -> None:
        made = publisher(best_of=3)
        self.pair(made, "b", 9e9, 1000.0)
        self.pair(made, "bad", 1e9, 2000.0, reason=Reason.BELOW_FLOOR)
        assert bandwidth(made, "a") == 9e9
        assert bandwidth(made, "bad") == 1e9

    def test_a_pair_counts_with_its_last_run(self) -> None:
        made = publisher(best_of=3)
        self.pair(made, "b", 9e9, 1000.0)
        self.pair(made, "b", 5e9, 2000.0)
        assert bandwidth(made, "a") == 5e9

    def test_only_the_last_pairs_count(self) -> None:
        made = publisher(best_of=2)
        for i, rate in enumerate((9e9, 5e9, 6e9)):
            self.pair(made, f"partner-{i}", rate, 1000.0 + i)
        assert bandwidth(made, "a") == 6e9

    def test_only_pairs_within_the_interval_count(self) -> None:
        made = publisher(best_of=3, node_interval=DAY)
        self.pair(made, "b", 9e9, 1000.0)
        self.pair(made, "c", 5e9, 1000.0 + DAY)
        assert bandwidth(made, "a") == 5e9

    def test_the_last_value_stays_however_old(self) -> None:
        made = publisher(node_interval=DAY)
        self.pair(made, "b", 9e9, 1000.0)
        made.run_finished(kv_verdict(("a", "b"), reason=Reason.PREEMPTED, finished=1000.0 + 10 * DAY, measurements=[]))
        assert bandwidth(made, "a") == 9e9

    @pytest.mark.parametrize("reason", [Reason.WRONG_CONTENT, Reason.TCP_FALLBACK, Reason.IMPLAUSIBLE, Reason.CPU_STARVED])
    def test_figures_of_a_failed_or_unknown_run_are_not_used(self, reason: Reason) -> None:
        made = publisher()
        self.pair(made, "b", 9e9, 1000.0, reason=reason)
        assert bandwidth(made, "a") is None
        assert "efapulse_bandwidth_bytes_per_second_count" not in text_of(made.snapshot.classic)

    def test_latency_is_the_lowest_of_the_pairs_at_the_smallest_size(self) -> None:
        made = publisher()
        for partner, seconds in (("b", 2e-4), ("c", 1e-4)):
            made.run_finished(kv_verdict(("a", partner), measurements=[measurement(seconds=seconds)]))
        where = {"node": "a", "probe": "mooncake", "operation": "write", "memory": "dram"}
        page = made.commit()
        for statistic, seconds in (("p50", 1e-4), ("p99", 2e-4), ("max", 3e-4)):
            shown = value_of(page, "efapulse_node_transfer_seconds", bytes=str(64 * KIB), statistic=statistic, **where)
            assert shown == pytest.approx(seconds)
        assert value_of(page, "efapulse_node_transfer_seconds", bytes=str(MIB), statistic="p50", **where) is None

    def test_a_size_that_could_not_be_measured_is_passed_over(self) -> None:
        made = publisher()
        made.run_finished(kv_verdict(measurements=[measurement(rates=(1e9, 2e9, None))]))
        assert bandwidth(made, "a", size=MIB) == 2e9
        assert bandwidth(made, "a", size=16 * MIB) is None

    def test_a_changed_matrix_leaves_no_old_sizes_behind(self) -> None:
        made = publisher()
        made.run_finished(kv_verdict(finished=1000.0))
        made.run_finished(kv_verdict(finished=2000.0, measurements=[measurement(rates=(3e9,), sizes=(MIB,))]))
        found = series_of(made.commit(), "efapulse_node_bandwidth_bytes_per_second", node="a")
        assert [dict(labels)["bytes"] for labels in found] == [str(MIB)]

    def test_a_variant_is_an_operation_of_its_own(self) -> None:
        made = publisher()
        made.run_finished(kv_verdict(measurements=[measurement("dispatch"), measurement("dispatch", variant="fp8", rates=(1e9, 2e9, 8e9))]))
        assert (bandwidth(made, "a", "dispatch"), bandwidth(made, "a", "dispatch:fp8")) == (4e9, 8e9)

    def test_ranks_of_one_run_that_measured_the_same_show_the_better(self) -> None:
        made = publisher()
        made.run_finished(kv_verdict(measurements=[measurement(rates=(1e9, 2e9, 3e9)), measurement(rates=(1e9, 2e9, 5e9))]))
        assert bandwidth(made, "a") == 5e9


class TestNumberOfSeries:
    """At most 40 a node."""

    def node_series(self, made: Publisher, node: str = "a") -> list[str]:
        page = samples(text_of(made.commit().classic))
        return [name for name, labels in page if ("node", node) in labels and not name.startswith("efapulse_pair_")]  # pairs have a cap

    def full(self, *, efa: bool = True) -> Publisher:
        made = publisher()
        probes = ("mooncake", "nixl", "nccl", "uccl-ep")
        made.node_seen("a", 1.0, probes if efa else ())
        made.run_finished(kv_verdict(("a",), "node", measurements=[], transport=None))
        for probe, (reason, transport) in itertools.product(probes, [(Reason.OK, "efa_rdma"), (Reason.BELOW_FLOOR, "efa_partial"),
                                                                     (Reason.TCP_FALLBACK, "tcp"), (Reason.PREEMPTED, None)]):
            made.run_finished(kv_verdict(probe=probe, reason=reason, transport=transport))
        return made

    def test_a_node_with_every_probe_and_a_past_has_at_most_40(self) -> None:
        assert len(self.node_series(self.full())) <= 40

    def test_verdicts_are_never_what_is_left_out(self) -> None:
        made = self.full()
        for probe in ("node", "mooncake", "nixl", "nccl", "uccl-ep"):
            assert healthy(made, "a", probe) is not None

    def test_a_node_with_the_default_kv_probes_shows_every_bandwidth(self) -> None:
        made = publisher()
        made.node_seen("a", 1.0, ["mooncake", "nixl"])
        made.run_finished(kv_verdict(("a",), "node", measurements=[], transport=None))
        for probe in ("mooncake", "nixl"):
            made.run_finished(kv_verdict(probe=probe))
        names = self.node_series(made)
        assert len(names) <= 40
        assert names.count("efapulse_node_bandwidth_bytes_per_second") == 2 * len(OPERATIONS)
        assert names.count("efapulse_node_transfer_seconds") >= len(OPERATIONS)

    def test_p99_comes_before_p50_and_p50_before_the_maximum(self) -> None:
        made = publisher(node_series=20)
        made.run_finished(kv_verdict(transport="tcp", mode="any"))
        found = series_of(made.commit(), "efapulse_node_transfer_seconds", node="a")
        kinds = [dict(labels)["statistic"] for labels in found]
        assert (kinds.count("p99"), kinds.count("p50"), kinds.count("max")) == (4, 4, 0)

    def test_the_choice_does_not_depend_on_the_order_of_runs(self) -> None:
        pages = []
        for probes in itertools.permutations(("mooncake", "nixl", "nccl")):
            made = publisher()
            for probe in probes:
                made.run_finished(kv_verdict(probe=probe))
            pages.append(sorted(line for line in text_of(made.commit().classic).splitlines() if 'node="a"' in line))
        assert all(page == pages[0] for page in pages)


class TestRestart:
    """What a restart takes back from the journal."""

    def past(self) -> Publisher:
        made = publisher()
        made.run_finished(with_devices(kv_verdict(transport="efa_rdma", finished=1000.0), ["rdmap0", "rdmap1"], gpus=["H100 0"]))
        for i, (reason, transport) in enumerate([(Reason.OK, "efa_rdma"), (Reason.TCP_FALLBACK, "tcp"), (Reason.PREEMPTED, None)]):
            made.run_finished(kv_verdict(reason=reason, transport=transport, finished=1000.0 + i))
        return made

    def lines(self, made: Publisher) -> list[str]:
        return [line for line in text_of(made.commit().classic).splitlines() if 'node="a"' in line
                and not any(word in line for word in ("fallback", "efapulse_pair_"))]  # counted and paired anew

    def restored(self, values: object, *, seen: bool = True) -> Publisher:
        made = publisher()
        if seen:
            made.node_seen("a", 1000.0)
        made.restore("a", "mooncake", json.loads(json.dumps(values)))
        return made

    def test_the_page_of_a_node_is_as_it_was_with_its_own_times(self) -> None:
        before = self.past()
        after = self.restored(before.kept("a", "mooncake"))
        assert self.lines(after) == self.lines(before)
        assert value_of(after.snapshot, "efapulse_node_verdict_timestamp_seconds", node="a", probe="mooncake") == 1001.0

    def test_runs_are_not_counted_again(self) -> None:
        assert series_of(self.restored(self.past().kept("a", "mooncake")).commit(), "efapulse_runs_total") == {}

    def test_what_was_measured_since_stays(self) -> None:
        made = publisher()
        made.run_finished(kv_verdict(finished=9000.0))
        made.restore("a", "mooncake", self.past().kept("a", "mooncake") or {})
        assert healthy(made, "a") == 1.0

    def test_a_node_that_is_not_there_any_more_is_not_brought_back(self) -> None:
        assert self.lines(self.restored(self.past().kept("a", "mooncake"), seen=False)) == []

    def test_of_what_is_not_known_nothing_is_kept(self) -> None:
        assert publisher().kept("a", "mooncake") is None

    @pytest.mark.parametrize("values", [{}, {"healthy": True}, {"healthy": True, "verdict_time": "soon"}])
    def test_a_journal_that_cannot_be_read_is_counted_and_costs_nothing_else(self, values: dict[str, object]) -> None:
        made = self.restored(values)
        made.run_finished(kv_verdict())
        assert value_of(made.commit(), "efapulse_publish_errors_total", event="restore") == 1.0
        assert healthy(made, "a") == 1.0


class TestLife:
    """Nodes come and go."""

    def test_a_node_that_left_has_no_series(self) -> None:
        made = publisher()
        for node in ("a", "b"):
            made.node_seen(node, 1.0, ["mooncake"])
        made.run_finished(kv_verdict())
        made.commit()
        made.node_removed("a")
        text = text_of(made.commit().classic)
        assert 'node="a"' not in text
        assert 'node="b"' in text

    def test_a_late_result_does_not_bring_it_back(self) -> None:
        made = publisher()
        made.node_seen("a", 1.0, ["mooncake"])
        made.node_removed("a")
        made.run_finished(kv_verdict(transport="tcp"))
        text = text_of(made.commit().classic)
        assert 'node="a"' not in text
        assert 'node="b"' in text

    def test_a_node_that_comes_back_starts_clean(self) -> None:
        made = publisher()
        made.run_finished(kv_verdict(reason=Reason.TCP_FALLBACK, transport="tcp"))
        made.node_removed("a")
        made.node_seen("a", 5000.0)
        assert healthy(made, "a") is None
        assert value_of(made.snapshot, "efapulse_node_first_seen_timestamp_seconds", node="a") == 5000.0

    def test_first_seen_does_not_move(self) -> None:
        made = publisher()
        made.node_seen("a", 10.0)
        made.node_seen("a", 20.0)
        assert value_of(made.commit(), "efapulse_node_first_seen_timestamp_seconds", node="a") == 10.0
