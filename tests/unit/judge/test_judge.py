"""The verdict on a run: which finding speaks, and what each of the three proofs says."""

from __future__ import annotations

from typing import Any

import pytest

from exporter.config.thresholds import Floor
from exporter.judge.judge import FALL_BACKS, judge
from exporter.judge.transport import Transport
from exporter.judge.verdict import Verdict
from exporter.runs import Run, RunSpec
from probes.reasons import Outcome, Reason
from probes.result import Evidence, Measurement, Result, Stream

PAYLOAD = 1 << 30
SLOW = Floor.model_validate({"probe": "nixl", "operation": "write", "bytes": 1 << 20, "min_bandwidth": 40e9, "source": "test"})


def rank(number: int, *, reason: str = "ok", message: str = "", tcp: int | None = PAYLOAD, wrong: int = 0, node: str | None = None,
         payload: bool = True) -> Result:
    sent, received = (PAYLOAD, 0) if number == 0 else (0, PAYLOAD)
    row = Measurement(operation="write", memory="dram", kind="goodput", bytes=[1 << 20], bandwidth=[2e9], wrong=[wrong])
    share = None if tcp is None else ((tcp, 0) if number == 0 else (0, tcp))
    evidence = Evidence(stack="nixl", payload_bytes=(sent, received), tcp_bytes=share) if payload else None
    return Result.model_validate({"run_id": "r", "probe": "nixl", "target": "a--b", "rank": number, "world_size": 2,
                                  "node": node or "ab"[number], "started": 1.0, "finished": 2.0, "measure": {"start": 1.2, "end": 1.8},
                                  "reason": reason, "message": message, "measurements": [row] if payload else [], "evidence": evidence})


def judged(*results: Result, mode: Any = "any", floors: tuple[Floor, ...] = ()) -> Verdict:
    spec = RunSpec("r", "nixl", "a--b", tuple(result.node for result in results), mode, 60.0)
    return judge(Run(spec, results, 1.0, 2.0), floors=floors)


def proof(verdict: Verdict, name: str) -> Any:
    return next((one.holds for one in verdict.proofs if one.name == name), "absent")


def test_tcp_where_any_transport_will_do_is_ok_and_named() -> None:
    verdict = judged(rank(0), rank(1))
    assert (verdict.outcome, verdict.transport) == (Outcome.OK, Transport.TCP)
    assert proof(verdict, "transport") is True
    assert proof(verdict, "answer") is True
    assert proof(verdict, "speed") is None


def test_tcp_where_efa_is_required_is_a_failure() -> None:
    verdict = judged(rank(0), rank(1), mode="efa")
    assert verdict.reason is Reason.TCP_FALLBACK
    assert "TCP sockets" in verdict.message
    assert proof(verdict, "transport") is False


def test_a_transport_that_nobody_saw_is_unknown_where_efa_is_required_and_never_ok() -> None:
    verdict = judged(rank(0, tcp=None), rank(1, tcp=None), mode="efa")
    assert (verdict.reason, verdict.outcome) == (Reason.TRANSPORT_INDETERMINATE, Outcome.UNKNOWN)
    assert proof(verdict, "transport") is None


def test_shared_memory_where_efa_is_required_is_a_failure() -> None:
    assert judged(rank(0, tcp=0, node="a"), rank(1, tcp=0, node="a"), mode="efa").reason is Reason.NOT_EFA


def test_right_bytes_too_slow_over_tcp_are_a_fall_back_first() -> None:
    assert judged(rank(0), rank(1), mode="efa", floors=(SLOW,)).reason is Reason.TCP_FALLBACK


def test_slow_is_found_also_when_the_transport_is_not_proven() -> None:
    verdict = judged(rank(0, tcp=None), rank(1, tcp=None), mode="efa", floors=(SLOW,))
    assert verdict.reason is Reason.BELOW_FLOOR
    assert proof(verdict, "transport") is None


def test_fast_with_wrong_bytes_is_a_failure() -> None:
    verdict = judged(rank(0), rank(1, reason="wrong_content", message="12 bytes differ", wrong=12))
    assert (verdict.reason, verdict.message) == (Reason.WRONG_CONTENT, "12 bytes differ")
    assert proof(verdict, "answer") is False


def test_wrong_bytes_are_a_failure_also_when_the_worker_calls_them_ok() -> None:
    verdict = judged(rank(0), rank(1, wrong=12))
    assert (verdict.reason, verdict.message) == (Reason.WRONG_CONTENT, "12 wrong in 2 checks")


@pytest.mark.parametrize("figures", [[], [None], [0.0]])
def test_a_run_without_a_figure_is_never_ok(figures: list[float | None]) -> None:
    row = Measurement(operation="write", memory="dram", kind="goodput", bytes=[1 << 20] * len(figures), bandwidth=figures)
    verdict = judged(*(rank(number).model_copy(update={"measurements": [row]}) for number in (0, 1)))
    assert (verdict.reason, verdict.outcome) == (Reason.NO_ROWS, Outcome.FAILED)


@pytest.mark.parametrize("evidence", [None, Evidence(stack="nixl")])
def test_workers_that_keep_silent_about_their_payload_prove_no_transport(evidence: Evidence | None) -> None:
    silent = [rank(number).model_copy(update={"evidence": evidence}) for number in (0, 1)]
    verdict = judged(*silent, mode="efa")
    assert (verdict.reason, verdict.transport) == (Reason.TRANSPORT_INDETERMINATE, Transport.INDETERMINATE)
    assert judged(*silent).outcome is Outcome.OK, "where any transport will do it is not owed"


def test_a_worker_that_could_not_measure_stays_unknown_whatever_its_figures() -> None:
    verdict = judged(rank(0, reason="peer_lost", message="rank 1 was lost"), rank(1, reason="died_in_measure"), mode="efa", floors=(SLOW,))
    assert verdict.reason is Reason.DIED_IN_MEASURE
    assert verdict.outcome is Outcome.UNKNOWN
    assert proof(verdict, "speed") is None


def test_the_echo_of_a_crash_is_not_the_verdict() -> None:
    verdict = judged(rank(0, reason="peer_lost"), rank(1, reason="engine_crashed", message="SIGSEGV", payload=False))
    assert (verdict.reason, verdict.message) == (Reason.ENGINE_CRASHED, "SIGSEGV")


def test_a_run_that_moves_nothing_has_no_transport() -> None:
    verdict = judged(rank(0, payload=False))
    assert verdict.transport is None
    assert verdict.proofs == ()


@pytest.mark.parametrize(("reason", "holds"), [("ok", True), ("truncated", False), ("shed", None)])
def test_the_answer_of_a_canary(reason: str, holds: bool | None) -> None:
    result = Result.model_validate({"run_id": "r", "probe": "canary", "target": "t", "node": "n", "started": 1, "finished": 2,
                                    "reason": reason, "stream": Stream(status=reason, output_tokens=3, finish_reason="length")})
    assert proof(judged(result), "answer") is holds


def test_every_transport_has_its_meaning_and_only_rdma_is_ok() -> None:
    assert set(FALL_BACKS) == set(Transport)
    assert [transport for transport, reason in FALL_BACKS.items() if reason is Reason.OK] == [Transport.EFA_RDMA]


def test_the_document_of_a_verdict_names_its_proofs() -> None:
    document = judged(rank(0), rank(1)).to_json()
    assert document["transport"] == "tcp"
    assert [one["name"] for one in document["proofs"]] == ["transport", "speed", "answer"]
    assert len(document["results"]) == 2
