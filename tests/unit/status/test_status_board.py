"""The board: what it keeps of verdicts, what bounds it, and that nobody can change what it published."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from verdicts import canary, pair

from exporter.inventory.model import Inventory, Node
from exporter.status import Looked, StatusBoard, status
from exporter.status.board import CHANGES, RECENT
from exporter.status.records import Details, brief_of, unpack


def job(name: str, probe: str, nodes: tuple[str, ...], at: float | None = 200.0, **more: Any) -> dict[str, Any]:
    return {"id": name, "probe": probe, "target": "--".join(nodes), "nodes": nodes, "next": at, "prompt": None, **more}


JOB = job("nixl/a--b", "nixl", ("a", "b"))
CHAT = {**job("canary/chat/short", "canary", ()), "target": "chat", "prompt": "short"}
LOOKED = Looked(100.0, "1.2.3", jobs=(JOB, CHAT), nodes=frozenset({"a", "b"}))


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def board() -> StatusBoard:
    return StatusBoard(clock=lambda: 100.0, pace=0.0)


def publish(board: StatusBoard, looked: Looked = LOOKED) -> None:
    board.turn(lambda: looked)


def row(board: StatusBoard, node: str = "a", now: float = 150.0) -> dict[str, Any]:
    return next(one for one in status(board.snapshot, now)["nodes"] if one["node"] == node)


def test_a_verdict_is_shown_for_both_nodes_of_its_pair(board: StatusBoard) -> None:
    board.verdict(pair(at=100.0))
    publish(board)
    for node in ("a", "b"):
        shown = row(board, node)
        assert (shown["state"], shown["probe"], shown["transport"], shown["age"], shown["since"]) == ("good", "nixl", "tcp", 50.0, 100.0)


def test_unknown_never_replaces_a_conclusive_verdict_and_is_shown_beside_it(board: StatusBoard) -> None:
    board.verdict(pair("one", at=100.0, mode="efa"))
    board.verdict(pair("two", at=110.0, reason="peer_lost"))
    board.verdict(pair("three", at=120.0, reason="unscheduled"))
    publish(board)
    shown = row(board)
    assert (shown["state"], shown["conclusive"]["run_id"], shown["last"]["reason"], shown["unknowns"]) == ("bad", "one", "unscheduled", 2)
    assert shown["age"] == 50.0, "the age is that of the verdict, not of the last attempt"


def test_since_is_when_it_began_to_be_as_it_is_now(board: StatusBoard) -> None:
    for number, mode in enumerate(("any", "efa", "efa", "any", "any")):
        board.verdict(pair(f"run-{number}", at=100.0 + number, mode=mode))
    publish(board)
    assert row(board)["since"] == 103.0
    assert row(board)["before"]["run_id"] == "run-3", "the last two conclusive runs are kept"


def test_before_the_first_conclusive_run_a_node_is_unknown(board: StatusBoard) -> None:
    publish(board)
    assert (row(board)["state"], row(board)["last"]) == ("unknown", None), "a node that was never measured is listed all the same"
    board.verdict(pair(reason="rendezvous_failed"))
    publish(board)
    assert (row(board)["state"], row(board)["conclusive"], row(board)["unknowns"]) == ("unknown", None, 1)
    assert status(board.snapshot, 150.0)["health"] == "unknown"


def test_canaries_are_kept_by_target_and_prompt(board: StatusBoard) -> None:
    board.verdict(canary(reason="timeout_stall"))
    publish(board)
    (shown,) = status(board.snapshot, 150.0)["canaries"]
    assert (shown["target"], shown["prompt"], shown["state"], shown["last"]["reason"]) == ("chat", "short", "bad", "timeout_stall")


def test_a_node_and_a_target_that_left_are_forgotten_and_a_late_result_does_not_bring_them_back(board: StatusBoard) -> None:
    board.verdict(pair())
    board.verdict(canary())
    publish(board, replace(LOOKED, jobs=(), nodes=frozenset({"a"})))
    assert set(board.snapshot.entries) == {("a", "nixl")}
    assert board.snapshot.canaries == {}
    board.verdict(pair("late", at=130.0))
    publish(board, replace(LOOKED, jobs=(), nodes=frozenset({"a"})))
    assert set(board.snapshot.entries) == {("a", "nixl")}


def test_a_name_that_another_instance_uses_now_starts_clean(board: StatusBoard) -> None:
    board.verdict(pair(labels={"instance-ids": "i-1,i-2"}))
    publish(board, replace(LOOKED, inventory=Inventory((Node("i-1", "a"), Node("i-9", "b")))))
    assert set(board.snapshot.entries) == {("a", "nixl")}


def test_what_the_journal_knows_holds_until_a_run_says_more(board: StatusBoard) -> None:
    board.remember("a", "nixl", "degraded", "below_floor", 40.0)
    publish(board)
    assert (row(board)["state"], row(board)["age"], row(board)["last"]["reason"]) == ("bad", 110.0, "below_floor")
    board.verdict(pair())
    board.remember("a", "nixl", "degraded", "below_floor", 40.0)
    publish(board)
    assert row(board)["state"] == "good", "what is older than a run of this process is not taken in"


def test_snapshots_are_paced_and_the_look_is_made_only_for_one() -> None:
    time = Time()
    board = StatusBoard(monotonic=time, pace=1.0)
    looks: list[float] = []

    def look() -> Looked:
        looks.append(time.now)
        return LOOKED

    for _ in range(100):
        board.verdict(pair())
        board.turn(look)
        time.now += 0.1
    assert 9 <= len(looks) <= 11
    assert board.snapshot.runs >= 90


def test_a_dear_look_makes_the_next_one_come_later() -> None:
    time = Time()
    board = StatusBoard(monotonic=time, pace=1.0)
    looks: list[float] = []

    def slow() -> Looked:
        looks.append(time.now)
        time.now += 0.5
        return LOOKED

    for _ in range(200):
        board.turn(slow)
        time.now += 0.1
    assert 1 <= len(looks) <= 3, "half a second of looking is at most a twentieth of the time"


def test_a_published_snapshot_never_changes(board: StatusBoard) -> None:
    board.verdict(pair("one"))
    publish(board)
    before = board.snapshot
    said = json.dumps(status(before, 150.0))
    board.verdict(pair("two", mode="efa"))
    assert board.snapshot is before, "a verdict alone publishes nothing"
    publish(board)
    assert board.snapshot is not before
    assert json.dumps(status(before, 150.0)) == said
    with pytest.raises(TypeError):
        before.entries["a", "nixl"] = before.entries["b", "nixl"]  # type: ignore[index]


def test_memory_is_bounded_in_entries_runs_and_bytes() -> None:
    board = StatusBoard(pace=0.0, max_entries=100, detail_bytes=20_000)
    for number in range(500):
        board.verdict(pair(f"run-{number}", (f"n{number}", f"m{number}"), at=10.0 + number))
    publish(board, Looked(510.0))
    kept = board.snapshot
    assert len(kept.entries) == 100
    assert ("n499", "nixl") in kept.entries
    assert ("n449", "nixl") not in kept.entries, "what was measured longest ago goes first"
    assert len(kept.recent) == RECENT
    assert sum(map(len, kept.details.values())) <= 20_000
    assert (kept.entries_dropped, kept.runs) == (900, 500)
    assert kept.details_dropped == 500 - len(kept.details)
    document = status(kept, 510.0)
    assert document["left_out"]["details"] == kept.details_dropped
    assert len(kept.changes) <= CHANGES


def test_details_of_good_runs_go_before_those_of_bad_ones() -> None:
    details = Details(limit=4000)
    bad = pair("bad", mode="efa")
    details.put(brief_of(bad), {"mark": "bad"})
    for number in range(2000):
        details.put(brief_of(pair(f"good-{number}")), {"mark": f"{number:0100d}"})
    kept = details.frozen()
    assert unpack(kept["bad"]) == {"mark": "bad"}
    assert details.size <= 4000
    assert details.dropped == 2001 - len(kept)


def test_the_details_of_a_run_that_is_told_twice_are_kept_once() -> None:
    details = Details()
    details.put(brief_of(pair("one")), {"mark": 1})
    details.put(brief_of(pair("one", mode="efa")), {"mark": 2})
    assert {run: unpack(packed) for run, packed in details.frozen().items()} == {"one": {"mark": 2}}
    assert details.size == len(details.frozen()["one"])


@pytest.mark.parametrize(("verdicts", "health"), [
    ((), "unknown"), ((pair(),), "unknown"), ((pair(), canary()), "ok"), ((pair(), canary(reason="truncated")), "bad"),
    ((pair(mode="efa"), canary()), "bad"), ((pair(), canary(reason="shed")), "unknown"),
])
def test_health_is_bad_before_unknown_before_ok_and_not_ok_while_anything_was_not_measured(verdicts: tuple[Any, ...], health: str) -> None:
    board = StatusBoard(pace=0.0)
    for verdict in verdicts:
        board.verdict(verdict)
    publish(board)
    assert status(board.snapshot, 120.0)["health"] == health


def test_a_snapshot_of_a_loop_that_no_longer_turns_is_not_ok(board: StatusBoard) -> None:
    board.verdict(pair())
    board.verdict(canary())
    publish(board)
    assert status(board.snapshot, 159.0)["health"] == "ok"
    assert (status(board.snapshot, 161.0)["stale"], status(board.snapshot, 161.0)["health"]) == (True, "unknown")


def test_a_node_that_a_lasting_gate_keeps_out_is_held_and_not_unknown(board: StatusBoard) -> None:
    gate = {"gate": "excluded", "why": "kernel upgrade", "lasting": True}
    board.verdict(canary())
    publish(board, replace(LOOKED, gates={node: {"nixl": [gate]} for node in ("a", "b")}))
    document = status(board.snapshot, 120.0)
    assert {one["state"] for one in document["nodes"]} == {"held"}
    assert document["health"] == "ok"
    assert document["gates"][0] == {"node": "a", "probe": "nixl", **gate}


def test_notable_leaves_out_what_is_simply_good_and_counts_it(board: StatusBoard) -> None:
    board.verdict(pair(mode="efa"))
    board.verdict(pair("two", ("c", "d")))
    publish(board, replace(LOOKED, nodes=frozenset("abcd")))
    document = status(board.snapshot, 120.0, notable=True)
    assert {one["node"] for one in document["nodes"]} == {"a", "b"}
    assert document["counts"]["states"] == {"bad": 2, "good": 2, "unknown": 1}
    assert document["counts"]["nodes"] == 4


def test_the_document_says_who_leads_what_is_paused_and_how_the_configuration_stands(board: StatusBoard) -> None:
    named = StatusBoard(pace=0.0, leader=lambda: "efa-pulse-1")
    named.turn(lambda: replace(LOOKED, leading=False, paused="upgrade", config_ok=False, config_error="line 3: no", config_at=90.0))
    document = json.loads(json.dumps(status(named.snapshot, 120.0)))
    assert (document["leading"], document["leader"], document["paused"]) == (False, "efa-pulse-1", "upgrade")
    assert document["config"] == {"ok": False, "error": "line 3: no", "at": 90.0}
    assert [one["id"] for one in document["next"]] == ["canary/chat/short", "nixl/a--b"]


def test_a_canary_by_another_route_does_not_speak_for_the_one_of_users(board: StatusBoard) -> None:
    bad = canary("two", reason="timeout_first_token")
    by_pair = replace(bad, run=replace(bad.run, spec=replace(bad.run.spec, labels={**bad.run.spec.labels, "route": "pair"})))
    for verdict in (canary("one"), by_pair):
        board.verdict(verdict)
    publish(board)
    shown = {row["prompt"]: row["state"] for row in status(board.snapshot, 150.0)["canaries"]}
    assert shown == {"short": "good", "short by pair": "bad"}
    publish(board, replace(LOOKED, jobs=(JOB,)))
    assert board.snapshot.canaries == {}
