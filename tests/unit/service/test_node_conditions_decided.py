"""Who gets which node condition: flags, re-measurement, the breaker, words of others, restarts. Times are Unix seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from exporter.conditions import HEALTHY, Decider, Decision, Standing, camel
from exporter.config.conditions import Conditions
from exporter.inventory.model import Fabric

AT = 1_790_000_000.0


class Cluster:
    """Nodes as the decider sees them, with what was written on them."""

    def __init__(self, count: int = 20, **settings: Any) -> None:
        self.settings = Conditions.model_validate({"enabled": True, **settings})
        self.nodes = {f"n{number}": Standing(f"n{number}", f"i-{number}", None) for number in range(count)}
        self.decider = Decider(self.settings)
        self.now = AT

    def turn(self, seconds: float = 15.0, *, write: bool = True) -> Decision:
        self.now += seconds
        decision = self.decider.turn(self.now, list(self.nodes.values()))
        for change in decision.changes if write else ():
            self.decider.wrote(change, self.now)
            self.condition(change.name, change.status, change.reason)
        return decision

    def condition(self, name: str, status: str, reason: str) -> None:
        self.nodes[name] = replace(self.nodes[name], fabric=Fabric(status, reason, "", self.now))

    def bad(self, *names: str, probe: str = "mooncake") -> None:
        for name in names:
            self.nodes[name] = replace(self.nodes[name], bad=(probe, "named", "evidence"), suspects=frozenset({probe}))

    def over(self, name: str, *, passed: bool, probe: str = "mooncake") -> None:
        self.nodes[name] = replace(self.nodes[name], bad=None, suspects=frozenset(), passed={probe: self.now + 1} if passed else {})

    def restart(self) -> None:
        self.decider = Decider(self.settings)

    def flagged(self) -> list[str]:
        return [name for name, one in self.nodes.items() if one.fabric is not None and one.fabric.status == "False"]


def written(decision: Decision) -> list[tuple[str, str, str]]:
    return [(change.name, change.status, change.reason) for change in decision.changes]


def test_a_named_node_is_flagged_once_with_its_reason_and_evidence() -> None:
    cluster = Cluster()
    assert written(cluster.turn()) == []
    cluster.bad("n3", probe="uccl-ep")
    decision = cluster.turn()
    assert written(decision) == [("n3", "False", "NamedByUcclEp")]
    assert (decision.changes[0].message, decision.changes[0].flags) == ("evidence", True)
    assert written(cluster.turn()) == []
    assert cluster.turn().flagged == ("n3",)


def test_a_node_that_passes_and_was_never_flagged_is_said_to_be_healthy_once_without_an_event() -> None:
    cluster = Cluster(2)
    cluster.over("n0", passed=True)
    decision = cluster.turn()
    assert written(decision) == [("n0", "True", HEALTHY)]
    assert not decision.changes[0].flags
    assert written(cluster.turn()) == []


def test_a_suspect_is_neither_flagged_nor_said_to_be_healthy() -> None:
    cluster = Cluster()
    cluster.nodes["n1"] = replace(cluster.nodes["n1"], suspects=frozenset({"mooncake"}), passed={"mooncake": AT})
    assert written(cluster.turn()) == []


def test_only_a_run_of_the_probe_that_named_it_and_that_passed_since_takes_the_flag_away() -> None:
    cluster = Cluster()
    cluster.bad("n3")
    cluster.turn()
    cluster.over("n3", passed=False)
    assert written(cluster.turn()) == [], "the case is gone, as with a lost journal, and nothing was measured since"
    cluster.nodes["n3"] = replace(cluster.nodes["n3"], passed={"mooncake": AT})
    assert written(cluster.turn()) == [], "it passed before it was flagged"
    cluster.over("n3", passed=True, probe="nixl")
    assert written(cluster.turn()) == [], "another engine passed"
    cluster.over("n3", passed=True)
    decision = cluster.turn()
    assert written(decision) == [("n3", "True", HEALTHY)]
    assert decision.changes[0].flags


def test_the_same_holds_over_a_restart() -> None:
    cluster = Cluster()
    cluster.bad("n3")
    cluster.turn()
    cluster.restart()
    cluster.over("n3", passed=False)
    assert written(cluster.turn()) == []
    cluster.over("n3", passed=True)
    assert written(cluster.turn()) == [("n3", "True", HEALTHY)]


def test_the_breaker_opens_at_its_share_holds_back_the_rest_and_closes_when_the_window_has_room() -> None:
    cluster = Cluster(20, share=0.1, window="1h")
    cluster.bad("n1", "n2", "n3", "n4")
    decision = cluster.turn()
    assert [name for name, _, _ in written(decision)] == ["n1", "n2"]
    assert (decision.held, decision.open) == (("n3", "n4"), True)
    for name in ("n1", "n2"):
        cluster.over(name, passed=True)
    decision = cluster.turn(60)
    assert {(name, status) for name, status, _ in written(decision)} == {("n1", "True"), ("n2", "True")}, "recovery is never held back"
    assert cluster.turn(60).held == ("n3", "n4"), "two were flagged within the window, though they are well again"
    decision = cluster.turn(3600)
    assert [name for name, _, _ in written(decision)] == ["n3", "n4"]
    assert not decision.open
    assert cluster.flagged() == ["n3", "n4"]


def test_flagging_the_same_node_again_within_the_window_takes_no_more_room() -> None:
    cluster = Cluster(20, share=0.05)
    cluster.bad("n1")
    cluster.turn()
    cluster.over("n1", passed=True)
    cluster.turn()
    cluster.bad("n1")
    assert written(cluster.turn()) == [("n1", "False", "NamedByMooncake")]


def test_a_breaker_counts_what_an_earlier_process_flagged() -> None:
    cluster = Cluster(20, share=0.1)
    cluster.bad("n1", "n2")
    cluster.turn()
    cluster.restart()
    cluster.bad("n3")
    decision = cluster.turn()
    assert (written(decision), decision.held) == ([], ("n3",))


def test_the_smallest_fleet_may_flag_one() -> None:
    cluster = Cluster(3, share=0.1)
    cluster.bad("n0", "n1")
    assert [name for name, _, _ in written(cluster.turn())] == ["n0"]


@pytest.mark.parametrize("change", [("True", "Acknowledged"), ("Unknown", "BeingRepaired"), None])
def test_what_somebody_else_made_of_our_condition_stands_until_our_own_word_changes(change: tuple[str, str] | None) -> None:
    cluster = Cluster()
    cluster.bad("n3")
    cluster.turn()
    fabric = Fabric(*change, "", cluster.now) if change is not None else None
    cluster.nodes["n3"] = replace(cluster.nodes["n3"], fabric=fabric)
    decision = cluster.turn(3600)
    assert (written(decision), decision.flagged) == ([], ()), "still bad, and not said again"
    cluster.over("n3", passed=True)
    assert [entry for entry in written(cluster.turn()) if change is not None] == []
    cluster.bad("n3")
    assert written(cluster.turn()) == [("n3", "False", "NamedByMooncake")]


def test_a_condition_of_this_type_by_another_writer_is_not_touched_while_we_have_nothing_to_say_against_it() -> None:
    cluster = Cluster()
    cluster.condition("n3", "False", "SomebodyElse")
    cluster.over("n3", passed=True)
    assert written(cluster.turn()) == []
    cluster.bad("n3")
    assert written(cluster.turn()) == [], "it says the same already"


def test_a_write_that_failed_is_decided_again() -> None:
    cluster = Cluster()
    cluster.bad("n3")
    assert written(cluster.turn(write=False)) == written(cluster.turn(write=False)) != []


def test_an_instance_that_left_is_forgotten_and_gives_room() -> None:
    cluster = Cluster(20, share=0.05)
    cluster.bad("n1")
    cluster.turn()
    del cluster.nodes["n1"]
    cluster.bad("n2")
    assert [name for name, _, _ in written(cluster.turn())] == ["n2"]


def test_reasons_are_camel_case() -> None:
    assert [camel(name) for name in ("mooncake", "uccl-ep", "nccl", "node")] == ["Mooncake", "UcclEp", "Nccl", "Node"]
