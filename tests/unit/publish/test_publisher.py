"""The events of the control loop and what each puts on the page."""

from __future__ import annotations

from typing import Any

import pytest
from publishing import canary_verdict, kv_verdict, measurement, preflight_verdict, samples, series_of, tell_of_a_fleet, text_of, value_of

from exporter.publish import families as f
from exporter.publish import legal
from exporter.publish.publisher import EVENTS, Publisher
from probes.reasons import REASONS, Outcome, Reason, outcome_of
from probes.result import Phase

NOT_OK = [reason for reason in legal.reasons("canary") if outcome_of(reason) is not Outcome.OK]
TARGET = {"target": "chat", "route": "router", "prompt": "short"}


@pytest.fixture
def publisher() -> Publisher:
    return Publisher("1.2.3")


def read(publisher: Publisher, name: str, **labels: str) -> float | None:
    return value_of(publisher.commit(), name, **labels)


def count(publisher: Publisher, name: str, **labels: str) -> float | None:
    return read(publisher, f"{name}_count", **labels)


class TestRuns:
    """Runs by outcome and reason, phases and fleet histograms."""

    @pytest.mark.parametrize(("reason", "seen"), [(Reason.OK, 1.0), (Reason.BELOW_FLOOR, 1.0), (Reason.TRANSFER_FAILED, None)])
    def test_the_first_operation_of_a_run_stands_apart_from_the_steady_ones(self, publisher: Publisher, reason: Reason,
                                                                          seen: float | None) -> None:
        rows = [measurement("write", cold=0.02), measurement("read")]
        publisher.run_finished(kv_verdict(reason=reason, measurements=rows))
        assert count(publisher, "efapulse_cold_transfer_seconds", probe="mooncake", memory="dram") == seen
        assert read(publisher, "efapulse_cold_transfer_seconds_sum", probe="mooncake", memory="dram") == (0.02 if seen else None)

    def test_a_run_is_counted_once_under_its_reason(self, publisher: Publisher) -> None:
        publisher.run_finished(kv_verdict(reason=Reason.TCP_FALLBACK))
        assert series_of(publisher.commit(), "efapulse_runs_total") == {
            frozenset({("probe", "mooncake"), ("outcome", "failed"), ("reason", "tcp_fallback")}): 1.0}

    def test_a_declared_probe_starts_at_zero_for_its_own_reasons(self, publisher: Publisher) -> None:
        publisher.declare_probe("mooncake")
        found = {dict(labels)["reason"]: value for labels, value in series_of(publisher.commit(), "efapulse_runs_total").items()}
        assert set(found.values()) == {0.0}
        assert {"ok", "tcp_fallback", "peer_lost", "engine_missing"} <= found.keys()
        assert not {"timeout_first_token", "devices_missing", "preempted"} & found.keys()

    def test_every_zero_has_the_outcome_of_its_reason(self, publisher: Publisher) -> None:
        publisher.declare_probe("canary")
        for labels in series_of(publisher.commit(), "efapulse_runs_total"):
            pair = dict(labels)
            assert outcome_of(Reason(pair["reason"])).value == pair["outcome"]

    def test_declaring_again_forgets_nothing(self, publisher: Publisher) -> None:
        publisher.declare_probe("mooncake")
        publisher.run_finished(kv_verdict())
        publisher.declare_probe("mooncake")
        assert read(publisher, "efapulse_runs_total", probe="mooncake", outcome="ok", reason="ok") == 1.0

    def test_phases_are_those_of_the_slowest_rank(self, publisher: Publisher) -> None:
        publisher.run_finished(kv_verdict(phases={Phase.RENDEZVOUS: 0.3, Phase.MEASURE: 2.0}))
        page = samples(text_of(publisher.commit().classic))
        assert value_of(page, "efapulse_run_phase_seconds_sum", probe="mooncake", phase="rendezvous") == 0.3
        assert value_of(page, "efapulse_run_phase_seconds_count", probe="mooncake", phase="measure") == 1.0
        assert value_of(page, "efapulse_run_phase_seconds_count", probe="mooncake", phase="pull") is None

    def test_the_fleet_histogram_has_every_size(self, publisher: Publisher) -> None:
        publisher.run_finished(kv_verdict())
        publisher.run_finished(kv_verdict(("c", "d")))
        found = series_of(publisher.commit(), "efapulse_bandwidth_bytes_per_second_count", operation="read")
        assert sorted(dict(labels)["bytes"] for labels in found) == ["1048576", "16777216", "65536"]
        assert set(found.values()) == {2.0}

    def test_the_fleet_latency_is_p50_and_p99(self, publisher: Publisher) -> None:
        publisher.run_finished(kv_verdict())
        found = series_of(publisher.commit(), "efapulse_transfer_seconds_count", operation="write", bytes="65536")
        assert sorted(dict(labels)["statistic"] for labels in found) == ["p50", "p99"]

    def test_a_run_without_results_is_counted(self, publisher: Publisher) -> None:
        publisher.run_finished(kv_verdict(reason=Reason.NO_RESULT, reasons=[Reason.NO_RESULT] * 2, measurements=[], transport=None))
        assert read(publisher, "efapulse_runs_total", probe="mooncake", outcome="unknown", reason="no_result") == 1.0


class TestCanary:
    """Canary requests."""

    def hist(self, publisher: Publisher, name: str, **more: str) -> float | None:
        return count(publisher, f"efapulse_canary_{name}", **TARGET, clock="kernel", **more)

    def test_an_ok_request_is_in_every_histogram(self, publisher: Publisher) -> None:
        publisher.run_finished(canary_verdict())
        for name in ("ttft_seconds", "tpot_seconds", "max_gap_seconds", "stream_close_seconds", "e2e_seconds", "output_tokens_per_second"):
            assert self.hist(publisher, name) == 1.0
        assert self.hist(publisher, "inter_token_seconds") == 3.0
        assert read(publisher, "efapulse_canary_ttft_seconds_sum", **TARGET, clock="kernel") == 0.2
        assert read(publisher, "efapulse_canary_last_success_timestamp_seconds", **TARGET) == 2000.0
        assert read(publisher, "efapulse_canary_requests_total", **TARGET, result="ok") == 1.0

    def test_connect_and_handshake_are_one_time_apart_from_ttft(self, publisher: Publisher) -> None:
        publisher.run_finished(canary_verdict(connect=0.01, tls=0.02))
        assert read(publisher, "efapulse_canary_connect_seconds_sum", target="chat", route="router") == pytest.approx(0.03)

    @pytest.mark.parametrize("reason", NOT_OK)
    def test_a_request_that_is_not_ok_is_a_result_and_never_a_latency(self, publisher: Publisher, reason: Reason) -> None:
        publisher.run_finished(canary_verdict(reason=reason))
        assert read(publisher, "efapulse_canary_requests_total", **TARGET, result=reason.value) == 1.0
        assert self.hist(publisher, "ttft_seconds") is None
        assert self.hist(publisher, "e2e_seconds") is None
        assert read(publisher, "efapulse_canary_last_success_timestamp_seconds", **TARGET) is None

    def test_a_disturbed_first_token_is_left_out_of_ttft_only(self, publisher: Publisher) -> None:
        publisher.declare_canary("chat", "router", "short")
        publisher.run_finished(canary_verdict(disturbed=True))
        assert self.hist(publisher, "ttft_seconds") == 0.0
        assert self.hist(publisher, "tpot_seconds") == 1.0

    def test_a_time_that_is_not_known_is_left_out(self, publisher: Publisher) -> None:
        publisher.run_finished(canary_verdict(tpot=None, itl=[], connect=None))
        assert self.hist(publisher, "tpot_seconds") is None
        assert self.hist(publisher, "inter_token_seconds") is None
        assert self.hist(publisher, "ttft_seconds") == 1.0
        assert count(publisher, "efapulse_canary_connect_seconds", target="chat", route="router") is None

    def test_the_clock_is_a_label(self, publisher: Publisher) -> None:
        publisher.run_finished(canary_verdict(clock="user"))
        assert count(publisher, "efapulse_canary_ttft_seconds", **TARGET, clock="user") == 1.0

    def test_lag_and_unresolved_events_count_whatever_the_result(self, publisher: Publisher) -> None:
        publisher.run_finished(canary_verdict(reason=Reason.DISTURBED, clock_lag=0.2, unresolved_events=3))
        assert read(publisher, "efapulse_canary_clock_lag_seconds_sum", target="chat") == 0.2
        assert read(publisher, "efapulse_canary_unresolved_events_total", target="chat") == 3.0

    def test_a_request_that_left_no_stream_is_counted(self, publisher: Publisher) -> None:
        publisher.run_finished(canary_verdict(reason=Reason.LAUNCH_FAILED, stream=None))
        assert read(publisher, "efapulse_canary_requests_total", **TARGET, result="launch_failed") == 1.0

    def test_it_says_nothing_of_the_node_it_ran_on(self, publisher: Publisher) -> None:
        publisher.run_finished(canary_verdict(reason=Reason.TIMEOUT_FIRST_TOKEN))
        assert 'node="exporter"' not in text_of(publisher.commit().classic)

    def test_exemplars_name_the_run(self, publisher: Publisher) -> None:
        publisher.run_finished(canary_verdict(run_id="canary-77"))
        publisher.run_finished(canary_verdict(run_id="canary-78", ttft=0.7))
        text = text_of(publisher.commit().openmetrics)
        assert '# {run_id="canary-77"} 0.2 2000.000' in text
        assert '# {run_id="canary-78"} 0.7 2000.000' in text
        assert "run_id" not in text_of(publisher.snapshot.classic)

    def test_a_declared_canary_starts_at_zero(self, publisher: Publisher) -> None:
        publisher.declare_canary("chat", "router", "short")
        found = {dict(labels)["result"]: value for labels, value in series_of(publisher.commit(), "efapulse_canary_requests_total").items()}
        assert set(found.values()) == {0.0}
        assert {"ok", "shed", "timeout_first_token"} <= found.keys()
        assert not {"tcp_fallback", "devices_missing"} & found.keys()
        assert self.hist(publisher, "ttft_seconds") == 0.0

    def test_a_removed_target_leaves_nothing(self, publisher: Publisher) -> None:
        for target in ("chat", "other"):
            publisher.declare_canary(target, "router", "short")
            publisher.run_finished(canary_verdict(target))
        publisher.commit()
        publisher.canary_removed("chat")
        text = text_of(publisher.commit().classic)
        assert 'target="chat"' not in text
        assert 'target="other"' in text


class TestService:
    """The service itself."""

    def test_a_fresh_page_has_the_version_and_says_that_nothing_is_paused(self, publisher: Publisher) -> None:
        page = publisher.snapshot
        assert dict(next(iter(series_of(page, "efapulse_build_info"))))["version"] == "1.2.3"
        assert value_of(page, "efapulse_paused") == 0.0

    def test_what_has_not_happened_is_absent(self, publisher: Publisher) -> None:
        assert "efapulse_config_last_reload_successful " not in text_of(publisher.snapshot.classic)
        assert "efapulse_scheduler_last_tick" not in text_of(publisher.snapshot.classic)

    def test_the_configuration(self, publisher: Publisher) -> None:
        publisher.config_loaded(True, 100.0)
        publisher.config_loaded(False, 200.0)
        assert read(publisher, "efapulse_config_last_reload_successful") == 0.0
        assert read(publisher, "efapulse_config_last_reload_success_timestamp_seconds") == 100.0

    def test_the_scheduler(self, publisher: Publisher) -> None:
        publisher.scheduler_tick(50.0)
        publisher.run_started(0.02)
        publisher.run_started(-0.001)
        assert read(publisher, "efapulse_scheduler_last_tick_timestamp_seconds") == 50.0
        assert read(publisher, "efapulse_scheduler_lag_seconds_bucket", le="0.05") == 2.0
        assert read(publisher, "efapulse_scheduler_lag_seconds_sum") == 0.02

    def test_runs_left_out_are_counted_by_why(self, publisher: Publisher) -> None:
        assert read(publisher, "efapulse_runs_left_out_total", why="overlap") == 0.0
        publisher.scheduler_tick(1.0, {("a", "overlap"): 2, ("b", "overlap"): 1, ("a", "paused"): 1}.items())
        publisher.scheduler_tick(2.0, {("a", "overlap"): 2, ("b", "overlap"): 2}.items())
        publisher.runs_left_out("missed", 4)
        publisher.runs_left_out("busy")
        found = {dict(labels)["why"]: value for labels, value in series_of(publisher.commit(), "efapulse_runs_left_out_total").items()}
        assert found == {"overlap": 4.0, "paused": 1.0, "missed": 4.0, "busy": 1.0, "queue_full": 0.0, "error": 0.0, "shed": 0.0}

    def test_gates_and_pause(self, publisher: Publisher) -> None:
        publisher.gate("quiet_window", True)
        publisher.gate("budget", False)
        publisher.paused(True)
        assert read(publisher, "efapulse_gate_closed", gate="quiet_window") == 1.0
        assert read(publisher, "efapulse_gate_closed", gate="budget") == 0.0
        assert read(publisher, "efapulse_paused") == 1.0

    def test_the_page_counts_its_own_series(self, publisher: Publisher) -> None:
        publisher.run_finished(kv_verdict())
        page = publisher.commit()
        assert value_of(page, "efapulse_series", state="shown") == len(samples(text_of(page.classic))) == page.series


class TestCap:
    """The series cap, seen from outside."""

    def nodes(self, publisher: Publisher, count: int) -> None:
        for i in range(0, count, 2):
            publisher.run_finished(kv_verdict((f"node-{i}", f"node-{i + 1}"), mode="any"))

    def test_dropped_series_are_counted_once_not_at_every_event(self) -> None:
        publisher = Publisher("1.2.3", max_series=1000)
        self.nodes(publisher, 40)
        page = publisher.commit()
        gone = value_of(page, "efapulse_series_dropped_total", family="efapulse_node_transfer_seconds")
        assert gone == 480.0
        assert "\nefapulse_node_transfer_seconds{" not in text_of(page.classic)
        for _ in range(3):
            self.nodes(publisher, 40)
            publisher.commit()
        assert value_of(publisher.snapshot, "efapulse_series_dropped_total", family="efapulse_node_transfer_seconds") == gone

    def test_new_series_of_a_dropped_family_are_counted_as_they_come(self) -> None:
        publisher = Publisher("1.2.3", max_series=1000)
        self.nodes(publisher, 40)
        publisher.commit()
        self.nodes(publisher, 42)
        assert read(publisher, "efapulse_series_dropped_total", family="efapulse_node_transfer_seconds") == 480.0 + 24.0

    def test_how_many_are_out_now_is_a_gauge(self) -> None:
        publisher = Publisher("1.2.3", max_series=1000)
        self.nodes(publisher, 40)
        page = publisher.commit()
        assert (value_of(page, "efapulse_series", state="dropped") or 0) >= 480.0
        assert value_of(page, "efapulse_series", state="shown") == page.series <= 1000
        for i in range(40):
            publisher.node_removed(f"node-{i}")
        assert value_of(publisher.commit(), "efapulse_series", state="dropped") == 0.0

    def test_the_counter_starts_at_zero_for_every_family_that_can_go(self, publisher: Publisher) -> None:
        found = {dict(labels)["family"] for labels in series_of(publisher.snapshot, "efapulse_series_dropped_total")}
        assert found == {family.name for family in f.FAMILIES if family.drop}


class TestFailure:
    """An event that cannot be published."""

    def test_it_is_counted_and_the_next_one_is_published(self, publisher: Publisher) -> None:
        broken: Any = object()
        publisher.run_finished(broken)
        publisher.run_finished(kv_verdict())
        assert read(publisher, "efapulse_publish_errors_total", event="run_finished") == 1.0
        assert read(publisher, "efapulse_node_healthy", node="a", probe="mooncake") == 1.0

    def test_every_event_starts_at_zero(self, publisher: Publisher) -> None:
        found = {dict(labels)["event"] for labels in series_of(publisher.snapshot, "efapulse_publish_errors_total")}
        assert found == set(EVENTS)

    def test_the_list_of_events_is_that_of_the_methods(self) -> None:
        guarded = {name for name, value in vars(Publisher).items() if hasattr(value, "__wrapped__")}
        assert guarded == set(EVENTS)


def test_every_family_but_those_of_the_server_is_filled_by_some_event(publisher: Publisher) -> None:
    publisher.declare_probe("mooncake")
    publisher.declare_canary("chat", "router", "short")
    publisher.node_seen("a", 1.0, ["mooncake"])
    publisher.run_finished(kv_verdict(transport="tcp", reason=Reason.BELOW_FLOOR, measurements=[measurement(cold=0.01)]))
    publisher.run_finished(canary_verdict())
    publisher.run_finished(preflight_verdict())
    publisher.scheduler_tick(1.0)
    publisher.run_started(0.1)
    publisher.config_loaded(True, 1.0)
    publisher.gate("quiet_window", False)
    publisher.run_finished(object())  # type: ignore[arg-type]
    tell_of_a_fleet(publisher)
    text = text_of(publisher.commit().classic)
    assert {family.name for family in f.FAMILIES if f"# HELP {family.name} " not in text} == {family.name for family in f.LIVE}


def test_pages_are_the_same_whatever_the_order_of_events() -> None:
    verdicts = [kv_verdict(("a", "b")), kv_verdict(("c", "d"), "nixl"), canary_verdict(), canary_verdict("other")]
    pages = []
    for order in (verdicts, verdicts[::-1]):
        publisher = Publisher("1.2.3")
        for verdict in order:
            publisher.run_finished(verdict)
        pages.append(text_of(publisher.commit().classic))
    assert pages[0] == pages[1]


class TestLegal:
    """Which reasons a probe can end with."""

    def test_every_reason_belongs_to_some_probe(self) -> None:
        every = {reason for probe in ("node", "mooncake", "canary") for reason in legal.reasons(probe, cluster=True)}
        assert every == set(REASONS)

    def test_groups_do_not_overlap(self) -> None:
        groups = (legal.STREAM, legal.PREFLIGHT, legal.FABRIC, legal.CLUSTER)
        assert sum(map(len, groups)) == len(frozenset().union(*groups))

    def test_kubernetes_reasons_only_in_a_cluster(self) -> None:
        assert Reason.PREEMPTED in legal.reasons("nixl", cluster=True)
        assert Reason.PREEMPTED not in legal.reasons("nixl")
