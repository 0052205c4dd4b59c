"""What canaries show of prefill and decode, on the page."""

from __future__ import annotations

import pytest
from publishing import canary_verdict, series_of, value_of

from exporter.publish.publisher import Publisher
from probes.reasons import Reason
from probes.result import Integrity, Pd, PdPod

PREFIX = "efapulse_"


@pytest.fixture
def publisher() -> Publisher:
    found = Publisher("1.2.3")
    found.declare_canary("chat", "pair", "long", pods=True)
    return found


def moved(**more: object) -> Pd:
    values = {"route": "pair", "disaggregation": "yes", "evidence": "counters", "why": "counted", "kv_bytes": 10**9, "kv_transfer": 0.05,
              "kv_bytes_per_second": 2e10, "queue": 0.01, "prefill_seconds": 0.1, "transfer": 0.05, "handover": 0.02,
              "prefill": PdPod(role="prefill", pod="p-0"), "decode": PdPod(role="decode", pod="d-0"), **more}
    return Pd.model_validate(values)


def test_every_legal_verdict_starts_at_zero_and_yes_never_comes_from_a_router(publisher: Publisher) -> None:
    found = series_of(publisher.commit(), PREFIX + "pd_disaggregation_total", target="chat")
    assert set(found.values()) == {0}
    assert frozenset({("verdict", "yes"), ("evidence", "counters")}) in found
    assert frozenset({("verdict", "yes"), ("evidence", "router_mode")}) not in found


def test_a_disaggregated_request(publisher: Publisher) -> None:
    publisher.run_finished(canary_verdict(route="pair", prompt="long", pd=moved(), transport="efa_rdma"))
    page = publisher.commit()
    assert value_of(page, PREFIX + "pd_disaggregation_total", target="chat", verdict="yes", evidence="counters") == 1
    assert value_of(page, PREFIX + "pd_transport_verdicts_total", target="chat", transport="efa_rdma") == 1
    assert value_of(page, PREFIX + "pd_kv_transfer_seconds_sum", target="chat") == 0.05
    assert value_of(page, PREFIX + "pd_kv_bytes_per_second_sum", target="chat") == 2e10
    assert {dict(labels)["stage"]: value for labels, value in
            series_of(page, PREFIX + "pd_ttft_stage_seconds_sum", target="chat").items()} == {
        "queue": 0.01, "prefill": 0.1, "transfer": 0.05, "handover": 0.02}


def test_a_first_contact_has_the_handshake_in_it_and_gives_no_times(publisher: Publisher) -> None:
    publisher.run_finished(canary_verdict(route="pair", prompt="long", pd=moved(first_contact=True)))
    page = publisher.commit()
    assert value_of(page, PREFIX + "pd_kv_transfer_seconds_count", target="chat") == 0
    assert value_of(page, PREFIX + "pd_disaggregation_total", target="chat", verdict="yes", evidence="counters") == 1


def test_a_failed_request_gives_no_times_and_its_engine_counters_count(publisher: Publisher) -> None:
    pd = moved(disaggregation="unknown", evidence="none", failed_transfers=2, expired=1, impure_tokens=[3, 40])
    publisher.run_finished(canary_verdict(route="pair", prompt="long", reason=Reason.ERROR_IN_STREAM, pd=pd))
    page = publisher.commit()
    assert value_of(page, PREFIX + "pd_failed_transfers_total", target="chat") == 2
    assert value_of(page, PREFIX + "pd_expired_transfers_total", target="chat") == 1
    assert value_of(page, PREFIX + "pd_impure_tokens_total", target="chat", role="prefill") == 3
    assert value_of(page, PREFIX + "pd_impure_tokens_total", target="chat", role="decode") == 40
    assert value_of(page, PREFIX + "pd_kv_transfer_seconds_count", target="chat") == 0


def test_what_was_not_to_be_disaggregated_is_not_counted(publisher: Publisher) -> None:
    publisher.run_finished(canary_verdict(route="baseline", pd=moved(route="baseline", disaggregation=None, impure_tokens=[0, 99])))
    publisher.run_finished(canary_verdict(pd=moved(route="router", disaggregation=None)))
    page = publisher.commit()
    assert set(series_of(page, PREFIX + "pd_disaggregation_total", target="chat").values()) == {0}
    assert value_of(page, PREFIX + "pd_impure_tokens_total", target="chat", role="decode") == 0


def test_integrity_and_crosstalk(publisher: Publisher) -> None:
    for verdict in ("ok", "mismatch", "crosstalk"):
        publisher.run_finished(canary_verdict(pd=Pd(route="router", integrity=Integrity(verdict=verdict))))
    page = publisher.commit()
    assert value_of(page, PREFIX + "canary_integrity_total", target="chat", verdict="mismatch") == 1
    assert value_of(page, PREFIX + "canary_integrity_total", target="chat", verdict="degenerate") == 0
    assert value_of(page, PREFIX + "canary_crosstalk_total", target="chat") == 1


def test_a_warming_pod_fails_without_a_failed_canary(publisher: Publisher) -> None:
    publisher.run_finished(canary_verdict(route="pair", prompt="long", reason=Reason.TIMEOUT_FIRST_TOKEN, labels={"warmup": "true"}))
    page = publisher.commit()
    assert value_of(page, PREFIX + "pd_warmup_requests_total", target="chat", result="timeout_first_token") == 1
    assert value_of(page, PREFIX + "canary_requests_total", target="chat", route="pair", prompt="long", result="timeout_first_token") == 0


def test_the_start_of_a_pod(publisher: Publisher) -> None:
    publisher.pod_started("chat", "decode", "cold", 420.0)
    assert value_of(publisher.commit(), PREFIX + "pd_startup_seconds_sum", target="chat", role="decode", start="cold") == 420


def test_a_target_that_goes_takes_its_counters_with_it(publisher: Publisher) -> None:
    publisher.run_finished(canary_verdict(route="pair", prompt="long", pd=moved()))
    publisher.canary_removed("chat")
    page = publisher.commit()
    assert series_of(page, PREFIX + "pd_disaggregation_total", target="chat") == {}
    assert series_of(page, PREFIX + "pd_kv_transfer_seconds_count", target="chat") == {}
