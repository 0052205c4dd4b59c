"""What `explain` says would change a verdict is true: the figures of its sentences are put in, and the judge gives another verdict."""

from __future__ import annotations

import re
from typing import Any

import pytest
from verdicts import FLOOR, PAYLOAD, canary, counted, pair, rdma

from exporter.judge.transport import Transport
from exporter.judge.verdict import Verdict
from exporter.status import Looked, StatusBoard, UnknownSubject, explain
from probes.efa.window import NoAnswer
from probes.reasons import REASONS, Outcome, Reason

LOOKED = Looked(150.0, jobs=({"id": "nixl/a--b", "probe": "nixl", "target": "a--b", "nodes": ("a", "b"), "next": 200.0, "prompt": None},
                             {"id": "canary/chat/short", "probe": "canary", "target": "chat", "nodes": (), "next": 160.0,
                              "prompt": "short"}))
UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def explained(*verdicts: Verdict, what: str = "nixl-1") -> dict[str, Any]:
    board = StatusBoard(pace=0.0)
    for verdict in verdicts:
        board.verdict(verdict)
    board.turn(lambda: LOOKED)
    return explain(board.snapshot, what, 150.0)


def told(*verdicts: Verdict, what: str = "nixl-1") -> str:
    return "\n".join(explained(*verdicts, what=what)["sections"][0]["would_change"])


def test_a_job_as_status_names_it_is_explained_by_what_it_measures() -> None:
    assert explained(pair(), what="nixl/a--b")["what"] == "a--b"


def figure(pattern: str, text: str) -> float:
    """The first figure that `pattern` finds, in its base unit."""
    found = re.search(pattern.replace("#", r"([\d.]+) (B|kB|MB|GB)"), text)
    assert found is not None, text
    return float(found[1]) * UNITS[found[2]]


def test_tcp_below_what_the_sentence_allows_is_no_fall_back_and_above_it_is() -> None:
    fell = pair(mode="efa")
    assert fell.reason is Reason.TCP_FALLBACK
    allowed = figure("TCP would have to carry at most #", told(fell))
    assert pair(mode="efa", tcp=int(allowed * 0.99), answers=rdma()).reason is Reason.OK
    assert pair(mode="efa", tcp=int(allowed * 1.05), answers=rdma()).reason is not Reason.OK


def test_a_bandwidth_at_the_figure_it_names_passes_and_below_it_does_not() -> None:
    slow = pair(bandwidth=1.2e9, floors=(FLOOR,))
    assert slow.reason is Reason.BELOW_FLOOR
    needed = figure("must reach at least #/s", told(slow))
    assert pair(bandwidth=needed, floors=(FLOOR,)).outcome is Outcome.OK
    assert pair(bandwidth=needed * 0.99, floors=(FLOOR,)).reason is Reason.BELOW_FLOOR


def test_a_good_run_names_the_figure_below_which_the_next_one_is_degraded() -> None:
    limit = figure("falls below #/s", told(pair(floors=(FLOOR,))))
    assert pair(bandwidth=limit * 0.99, floors=(FLOOR,)).reason is Reason.BELOW_FLOOR
    assert pair(bandwidth=limit * 1.01, floors=(FLOOR,)).outcome is Outcome.OK


def test_a_payload_of_the_size_it_names_stands_out_from_the_background() -> None:
    noisy = pair(mode="efa", tcp=0, answers=rdma(background=PAYLOAD // 4))
    assert noisy.reason is Reason.TRANSPORT_INDETERMINATE
    needed = figure("a payload of at least #", told(noisy))
    assert needed == pytest.approx(5 * PAYLOAD / 4, rel=0.01)
    assert pair(mode="efa", tcp=0, answers=rdma(background=int(PAYLOAD / needed * PAYLOAD / 4.01))).transport is Transport.EFA_RDMA


def test_a_missing_witness_is_asked_for_by_its_node_and_with_it_the_transport_is_proven() -> None:
    blind = pair(mode="efa", tcp=0, answers={"a": counted("a", PAYLOAD), "b": NoAnswer("no answer in 2 s")})
    text = told(blind)
    assert "b: EFA counters of this node over the run's window (no answer in 2 s)" in text
    assert "a: EFA counters" not in text, "what spoke is not asked for"
    assert pair(mode="efa", tcp=0, answers=rdma()).transport is Transport.EFA_RDMA


def test_tcp_bytes_that_nobody_read_are_asked_for() -> None:
    assert "rank 0 on a: the bytes of the rank's own TCP sockets" in told(pair(mode="efa", tcp=None, answers=rdma()))


def test_emulated_rdma_names_the_counters_that_have_to_rise() -> None:
    emulated = pair(mode="efa", tcp=0, answers=rdma(rdma=False))
    assert emulated.reason is Reason.EFA_NO_RDMA
    assert "RDMA counters of every node would have to rise by 80%" in told(emulated)


def test_tcp_where_any_transport_will_do_is_a_fact_and_no_fault() -> None:
    assert "with transport `efa` this run would have failed" in told(pair())
    assert pair(mode="efa").outcome is Outcome.FAILED


def test_without_a_floor_it_says_that_speed_decides_nothing() -> None:
    assert "no floor is set" in told(pair())
    assert "no floor" not in told(pair(floors=(FLOOR,)))


def test_wrong_bytes_stay_failed_whatever_the_speed() -> None:
    assert "1 wrong in 2 checks" not in told(pair())
    text = told(pair(reason="wrong_content", wrong=1, floors=(FLOOR,)))
    assert "2 wrong in 2 checks" in text
    assert "Fast and wrong stays failed" in text


@pytest.mark.parametrize("reason", [reason for reason, info in REASONS.items()
                                    if info.outcome is Outcome.UNKNOWN and reason is not Reason.TRANSPORT_INDETERMINATE])
def test_a_run_that_could_not_measure_blames_nobody_and_says_what_to_do(reason: Reason) -> None:
    text = told(pair(reason=reason.value))
    assert "blames nobody and clears nobody" in text
    assert REASONS[reason].action in text


@pytest.mark.parametrize("reason", [reason for reason, info in REASONS.items() if info.outcome in (Outcome.FAILED, Outcome.DEGRADED)])
def test_every_bad_reason_has_a_sentence(reason: Reason) -> None:
    assert told(pair(reason=reason.value)), reason


def test_a_node_keeps_its_verdict_through_unknown_runs_and_the_sentence_counts_them() -> None:
    document = explained(pair("one", mode="efa"), pair("two", at=110.0, reason="peer_lost"), pair("three", at=120.0, reason="preempted"),
                         what="a")
    (section,) = document["sections"]
    assert (document["outcome"], section["run"]["run_id"], section["held"]["last"]["run_id"]) == ("bad", "one", "three")
    assert "2 runs since could not measure, the last with preempted" in "\n".join(section["would_change"])


def test_the_three_proofs_and_every_witness_with_its_numbers_are_laid_out() -> None:
    (section,) = explained(pair(tcp=1 << 10, mode="efa", answers=rdma(), floors=(FLOOR,)))["sections"]
    assert [(proof["name"], proof["holds"]) for proof in section["proofs"]] == [("transport", True), ("speed", True), ("answer", True)]
    counters = [one for one in section["witnesses"] if one["witness"] == "counters"]
    assert [(one["where"], one["says"]) for one in counters] == [("a", "rdma"), ("b", "rdma")]
    assert counters[0]["numbers"]["payload_out"] == PAYLOAD == counters[0]["numbers"]["rdma_out"]
    assert {one["numbers"]["tcp_sent"] for one in section["witnesses"] if one["witness"] == "tcp"} == {1 << 10, 0}
    (threshold,) = section["thresholds"]
    assert (threshold["source"], threshold["limit"], threshold["value"], threshold["share"]) == ("the vendor's table", 2e9, 3e9, 1.5)


def test_a_pair_is_found_in_either_order_and_says_which_runs_it_had() -> None:
    for what in ("a--b", "b--a"):
        document = explained(pair("one", mode="efa"), pair("two", ("b", "a"), at=120.0), what=what)
        assert (document["kind"], document["outcome"]) == ("pair", "ok")
        assert [one["run_id"] for one in document["sections"][0]["partners"]] == ["two", "one"]


def test_a_canary_target_is_explained_by_prompt() -> None:
    document = explained(canary(), canary("canary-2", prompt="long", reason="truncated"), what="chat")
    assert (document["kind"], document["outcome"]) == ("target", "ok"), "a prompt that is no longer configured is forgotten"
    (section,) = document["sections"]
    assert section["ranks"][0]["stream"]["ttft"] == 0.05
    assert section["place"]["next"] == {"at": 160.0, "job": "canary/chat/short"}


@pytest.mark.parametrize(("what", "near"), [("nixl-2", "nixl-1"), ("a--c", "a--b"), ("aa", "a"), ("chatt", "chat"), ("zzz", "a")])
def test_what_is_not_known_is_answered_with_known_names_near_it(what: str, near: str) -> None:
    with pytest.raises(UnknownSubject) as caught:
        explained(pair(), canary(), what=what)
    assert near in caught.value.near
    assert len(caught.value.near) <= 5


def test_a_pair_that_never_ran_together_names_pairs_that_did() -> None:
    with pytest.raises(UnknownSubject) as caught:
        explained(pair("one", ("a", "b")), pair("two", ("b", "c")), what="a--c")
    assert set(caught.value.near) == {"a--b", "b--c"}


def test_a_run_whose_details_are_gone_says_so_and_keeps_its_verdict() -> None:
    board = StatusBoard(pace=0.0, detail_bytes=1)
    board.verdict(pair(mode="efa"))
    board.turn(lambda: LOOKED)
    (section,) = explain(board.snapshot, "nixl-1", 150.0)["sections"]
    assert (section["detail_kept"], section["run"]["reason"]) == (False, "tcp_fallback")
    assert "no longer kept" in "\n".join(section["would_change"])
