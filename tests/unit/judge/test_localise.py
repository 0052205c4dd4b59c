"""Localisation: who is named, who is not, and what it costs to find out. Pairs fail as a truth says that the test makes up."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.inventory import Inventory, Node, Room
from exporter.judge.casebook import LONELY_SECONDS, Change
from exporter.judge.hypotheses import Finding, group_score, node_score, path_score
from exporter.judge.localise import Localiser
from exporter.judge.observation import Observation, Side
from exporter.plan.rounds import Circle
from exporter.repairs import Repair
from probes.reasons import Outcome, Reason, outcome_of

Pair = tuple[str, str]
Truth = Callable[[str, str], Reason]
PROBE = "mooncake"
NOW = 1_000_000.0


def node(index: int, leaf: int | None = None) -> Node:
    layers = ("top", f"spine{(leaf or 0) // 4}", f"leaf{leaf}") if leaf is not None else ()
    return Node(instance_id=f"n{index:02d}", name=f"n{index:02d}", instance_type="p5.48xlarge", zone="a", efa=Room(32),
                network_nodes=layers)


def fleet(count: int, leaf: int = 0) -> Inventory:
    """`count` nodes, on leaves of `leaf` nodes (0: no topology)."""
    return Inventory(tuple(node(index, index // leaf if leaf else None) for index in range(count)))


class Court:
    """A localiser and the truth. Runs take ten seconds; a re-pairing gets the first good partner that it may have."""

    def __init__(self, inventory: Inventory, truth: Truth, localiser: Localiser | None = None) -> None:
        self.localiser = localiser or Localiser()
        self.inventory = inventory
        self.truth = truth
        self.now = NOW
        self.changes: list[Change] = []
        self.runs: list[tuple[Pair, Reason, bool]] = []
        self.sides: dict[Pair, tuple[Side, ...]] = {}
        self.weak: dict[str, tuple[str, ...]] = {}
        self.localiser.fleet(inventory)
        self.circle = Circle()
        self.circle.update(inventory.ids)

    def run(self, one: str, other: str, reason: Reason | None = None, *, run_id: str | None = None, repair: bool = False) -> list[Change]:
        said = reason or self.truth(one, other)
        self.runs.append(((one, other), said, repair))
        weak = {each: self.weak[each] for each in (one, other) if each in self.weak and said is not Reason.OK}
        seen = Observation(run_id or f"run-{len(self.runs)}", PROBE, (one, other), self.now, self.now + 10, outcome_of(said), said.value,
                           repair=repair, sides=self.sides.get((one, other), ()), weak=weak)
        found = self.localiser.observe(seen)
        self.changes += found
        return found

    def round(self) -> None:
        """One round of all pairs; suspects are re-paired at once."""
        for one, other in self.circle.advance():
            self.run(one, other)
            self.now += 1
        self.settle()
        self.now += 1800

    def settle(self, most: int = 100) -> None:
        """Re-pair until nothing was asked for two minutes."""
        quiet = 0
        for _ in range(most):
            self.now += 15
            repairs = self.localiser.repairs(self.now)
            placed = [(repair, partner) for repair in repairs if (partner := self.partner(repair)) is not None]
            for repair, _ in placed:
                self.localiser.started(repair, f"{repair.case}/{repair.attempt}")
            for repair, partner in placed:
                self.run(repair.suspect, partner, run_id=f"{repair.case}/{repair.attempt}", repair=True)
            for repair in repairs:
                if self.partner(repair) is None:
                    others = set(self.inventory.ids) - {repair.suspect} - repair.avoid
                    self.localiser.unplaced(repair, not others, self.now)
            quiet = 0 if repairs else quiet + 1
            if quiet > 8:
                return

    def partner(self, repair: Repair) -> str | None:
        """A good partner, on another leaf than those avoided where there is one, as the planner chooses it."""
        if repair.partner is not None:
            return repair.partner
        leaves = {one.leaf for one in self.inventory if one.instance_id in repair.avoid}
        able = [one for one in self.inventory if one.instance_id != repair.suspect and one.instance_id not in repair.avoid
                and self.localiser.good(PROBE, one.instance_id)]
        return min(able, key=lambda one: (one.leaf in leaves, one.instance_id)).instance_id if able else None

    @property
    def found(self) -> dict[tuple[str, tuple[str, ...]], Finding]:
        return {(finding.kind, finding.subjects): finding for finding in self.localiser.findings()}

    @property
    def repairs(self) -> int:
        return sum(repair for *_, repair in self.runs)

    def ever(self, what: str) -> list[str]:
        """Nodes, or the subjects of findings that are about no single node, of all changes of a kind."""
        return [change.node or "/".join(change.finding.subjects if change.finding is not None else ())
                for change in self.changes if change.what == what]


def bad_nodes(*bad: str, reason: Reason = Reason.BELOW_FLOOR) -> Truth:
    return lambda one, other: reason if one in bad or other in bad else Reason.OK


def healthy(count: int = 8, leaf: int = 0) -> Court:
    """A fleet that has passed one round."""
    court = Court(fleet(count, leaf), lambda *_: Reason.OK)
    court.round()
    return court


def test_nothing_is_found_while_everything_passes() -> None:
    court = healthy()
    assert (court.found, court.repairs, court.changes) == ({}, 0, [])
    assert all(court.localiser.view(PROBE, one).state == "good" for one in court.inventory.ids)


def test_a_bad_node_is_named_after_two_good_partners_agree_and_its_partner_is_exonerated() -> None:
    court = healthy()
    court.truth = bad_nodes("n03")
    court.round()
    assert list(court.found) == [("node", ("n03",))]
    finding = court.found["node", ("n03",)]
    assert len(finding.partners) == 2
    assert finding.score > 0.99
    assert court.repairs == 2, "one re-pairing for each of the two suspects"
    assert court.ever("found") == ["n03"]
    partner = next(iter({one for pair, *_ in court.runs[4:8] if "n03" in pair for one in pair} - {"n03"}))
    assert court.localiser.view(PROBE, partner).healthy is True
    assert court.localiser.suspicion("n03") == 1.0


def test_the_good_partner_of_a_re_pairing_does_not_become_a_suspect() -> None:
    court = healthy()
    court.truth = bad_nodes("n03")
    court.round()
    first = next(pair for pair, reason, repair in court.runs if reason is not Reason.OK and not repair)
    assert set(court.ever("suspected")) == set(first)


def test_two_bad_nodes_that_met_are_both_named_a_round_later() -> None:
    court = healthy(16)
    court.truth = bad_nodes("n01", "n02")
    court.run("n01", "n02")
    court.run("n04", "n05")
    court.settle()
    assert set(court.found) == {("node", ("n01",)), ("node", ("n02",))}
    assert court.repairs == 4


def test_a_named_node_costs_nothing_more_while_it_stays_bad() -> None:
    court = healthy()
    court.truth = bad_nodes("n03")
    court.round()
    before = court.repairs
    for _ in range(10):
        court.round()
    assert court.repairs == before
    assert court.ever("found") == ["n03"]


def test_one_run_that_passes_does_not_clear_a_named_node_and_two_with_different_partners_do() -> None:
    court = healthy()
    court.truth = bad_nodes("n03")
    court.round()
    court.truth = lambda *_: Reason.OK
    court.run("n03", "n01")
    court.run("n03", "n01")
    assert ("node", ("n03",)) in court.found
    court.run("n03", "n02")
    assert court.found == {}
    assert court.ever("over") == ["n03"]
    assert court.localiser.view(PROBE, "n03").healthy is True


@pytest.mark.parametrize("reason", [reason for reason in Reason if outcome_of(reason) is Outcome.UNKNOWN])
def test_unknown_neither_clears_nor_blames(reason: Reason) -> None:
    court = healthy()
    court.run("n00", "n01", reason)
    assert court.changes == []
    court.truth = bad_nodes("n03")
    court.run("n03", "n04")
    court.run("n03", "n05", reason)
    assert court.localiser.view(PROBE, "n03").state == "suspect"
    assert court.localiser.view(PROBE, "n05").state == "good"
    court.settle()
    court.run("n03", "n05", reason)
    assert list(court.found) == [("node", ("n03",))]


def test_a_re_pairing_that_could_not_measure_is_asked_again_with_growing_pauses() -> None:
    court = healthy()
    court.truth = bad_nodes("n03")
    court.run("n03", "n04")
    court.truth = lambda *_: Reason.PREEMPTED
    times: list[float] = []
    for _ in range(600):
        for repair in court.localiser.repairs(court.now):
            if repair.suspect == "n03":
                times.append(court.now)
                court.localiser.started(repair, f"r{len(times)}")
                court.run("n03", "n00", run_id=f"r{len(times)}", repair=True)
        court.now += 10
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert 5 <= len(times) <= 8
    assert pauses == sorted(pauses)


def test_two_nodes_that_pass_elsewhere_and_fail_together_have_a_bad_path() -> None:
    court = healthy()
    court.truth = lambda one, other: Reason.BELOW_FLOOR if {one, other} == {"n01", "n02"} else Reason.OK
    court.run("n01", "n02")
    court.settle()
    assert list(court.found) == [("path", ("n01", "n02"))]
    assert court.repairs == 3, "each once elsewhere, and once more together"
    assert court.localiser.view(PROBE, "n01").healthy is True
    court.truth = lambda *_: Reason.OK
    court.run("n01", "n02")
    court.run("n01", "n02")
    assert court.found == {}


def test_partners_on_one_other_leaf_are_not_two_since_it_may_be_the_path() -> None:
    court = healthy(16, leaf=4)
    leaf = {one.instance_id: one.leaf for one in court.inventory}
    court.truth = lambda one, other: Reason.BELOW_FLOOR if {leaf[one], leaf[other]} == {"leaf0", "leaf1"} else Reason.OK
    court.run("n00", "n04")
    court.run("n00", "n05", run_id="x")  # both on leaf1
    court.run("n04", "n08")
    court.run("n05", "n09")
    assert court.localiser.view(PROBE, "n00").state == "suspect"
    court.settle()
    assert not any(kind == "node" for kind, _ in court.found)


def test_a_node_whose_leaf_has_not_passed_since_is_named_after_one_more_run_of_its_leaf() -> None:
    court = healthy(16, leaf=4)
    court.truth = bad_nodes("n01")
    court.run("n01", "n08")
    court.run("n09", "n12")
    court.settle()
    assert list(court.found) == [("node", ("n01",))]
    assert court.repairs == 3
    assert any(repair and {"n00", "n02", "n03"} & set(pair) for pair, _, repair in court.runs)


def test_a_failure_that_does_not_come_again_is_no_finding() -> None:
    court = healthy()
    court.run("n01", "n02", Reason.BELOW_FLOOR)
    court.settle()
    assert court.found == {}
    assert sorted(court.ever("cleared")) == ["n01", "n02"]
    assert court.repairs == 3


def test_bad_paths_between_the_same_two_leaves_are_one_bad_link() -> None:
    court = healthy(16, leaf=4)
    leaf = {one.instance_id: one.leaf for one in court.inventory}
    court.truth = lambda one, other: Reason.BELOW_FLOOR if {leaf[one], leaf[other]} == {"leaf0", "leaf1"} else Reason.OK
    for one, other in (("n00", "n04"), ("n01", "n05")):
        court.run(one, other)
        court.settle()
    assert list(court.found) == [("path", ("link", "leaf0--leaf1"))]
    before = court.repairs
    court.run("n02", "n06")
    court.settle()
    assert court.repairs == before, "the link explains it"


def test_one_device_that_is_weak_each_time_makes_the_finding_a_nic() -> None:
    court = healthy()
    court.truth = bad_nodes("n03", reason=Reason.NIC_IMBALANCE)
    court.weak = {"n03": ("rdmap4s0",)}
    court.round()
    assert list(court.found) == [("nic", ("n03", "rdmap4s0"))]
    assert "rdmap4s0 carried too little" in court.found["nic", ("n03", "rdmap4s0")].says


def test_several_weak_devices_make_it_the_node() -> None:
    court = healthy()
    court.truth = bad_nodes("n03", reason=Reason.NIC_IMBALANCE)
    court.weak = {"n03": ("rdmap4s0", "rdmap5s0")}
    court.round()
    assert list(court.found) == [("node", ("n03",))]


def test_with_two_nodes_the_finding_is_the_pair_and_they_are_inseparable() -> None:
    court = healthy(2)
    court.truth = lambda *_: Reason.BELOW_FLOOR
    court.run("n00", "n01")
    court.settle()
    assert list(court.found) == [("pair", ("n00", "n01"))]
    assert "cannot be told" in court.found["pair", ("n00", "n01")].says
    assert {court.localiser.view(PROBE, one).healthy for one in ("n00", "n01")} == {False}
    before = court.repairs
    for _ in range(5):
        court.round()
    assert (court.repairs, before) == (1, 1), "asked once more, and then sure"


def test_with_two_nodes_evidence_of_one_side_tells_them_apart() -> None:
    court = healthy(2)
    court.truth = lambda *_: Reason.ENGINE_CRASHED
    court.sides = {("n00", "n01"): (Side("n01", "it says engine_crashed of itself, its partner only peer_lost"),)}
    court.run("n00", "n01")
    court.settle()
    assert court.found["pair", ("n00", "n01")].says.startswith("it is n01: it says engine_crashed of itself")
    assert [court.localiser.view(PROBE, one).healthy for one in ("n00", "n01")] == [True, False]


def test_a_pair_is_over_when_it_passes_twice() -> None:
    court = healthy(2)
    court.truth = lambda *_: Reason.BELOW_FLOOR
    court.round()
    court.truth = lambda *_: Reason.OK
    court.round()
    assert len(court.found) == 1
    court.round()
    assert court.found == {}


def test_a_third_node_settles_the_case_of_a_pair() -> None:
    court = healthy(2)
    court.truth = bad_nodes("n00")
    court.round()
    assert list(court.found) == [("pair", ("n00", "n01"))]
    court.inventory = fleet(3)
    court.localiser.fleet(court.inventory)
    court.circle.update(court.inventory.ids)
    for _ in range(6):
        court.round()
    assert ("node", ("n00",)) in court.found
    assert ("pair", ("n00", "n01")) not in court.found
    assert court.localiser.view(PROBE, "n01").healthy is True


def test_three_new_nodes_are_told_apart_without_anybody_known_to_be_good() -> None:
    court = Court(fleet(3), bad_nodes("n01"))
    for _ in range(4):
        court.round()
    assert list(court.found) == [("node", ("n01",))]


def test_a_suspect_that_nobody_can_be_paired_with_for_long_makes_a_pair_for_now() -> None:
    court = healthy(4)
    court.truth = bad_nodes("n00")
    court.run("n00", "n01")
    court.partner = lambda repair: repair.partner  # type: ignore[method-assign]
    for _ in range(int(LONELY_SECONDS / 300) + 3):
        court.settle(2)
        court.now += 300
    assert list(court.found) == [("pair", ("n00", "n01"))]


def test_most_pairs_that_fail_in_the_same_way_at_once_are_one_group_and_not_many_suspects() -> None:
    court = healthy(64)
    court.truth = lambda *_: Reason.TRANSFER_FAILED
    court.round()
    assert list(court.found) == [("group", ("fleet", "all"))]
    assert court.ever("found") == ["fleet/all"]
    assert court.repairs <= 6
    assert all(court.localiser.view(PROBE, one).state != "named" for one in court.inventory.ids)


def test_nobody_is_named_while_nothing_passes_at_all() -> None:
    court = healthy(64)
    court.truth = lambda *_: Reason.TRANSFER_FAILED
    for one, other in (("n00", "n01"), ("n02", "n03")):
        court.run(one, other)
        court.settle()
    assert court.found == {}


def test_a_lossy_leaf_is_found_as_the_leaf() -> None:
    court = healthy(64, leaf=8)
    lossy = {one.instance_id for one in court.inventory if one.leaf == "leaf2"}
    court.truth = bad_nodes(*lossy)
    court.round()
    assert list(court.found) == [("group", ("leaf", "leaf2"))]
    assert set(court.found["group", ("leaf", "leaf2")].partners) <= lossy
    outside = set(court.inventory.ids) - lossy
    assert all(court.localiser.view(PROBE, one).healthy is True for one in outside)
    assert set(court.ever("found")) <= {"leaf/leaf2"}


def test_the_group_is_over_when_most_of_its_pairs_pass_again() -> None:
    court = healthy(64)
    court.truth = lambda *_: Reason.TRANSFER_FAILED
    court.round()
    court.truth = lambda *_: Reason.OK
    court.round()
    assert court.found == {}
    assert court.ever("over") == ["fleet/all"]


def test_a_node_that_stays_bad_after_the_group_recovered_is_named() -> None:
    court = healthy(64)
    court.truth = lambda *_: Reason.TRANSFER_FAILED
    court.round()
    court.truth = bad_nodes("n05", reason=Reason.TRANSFER_FAILED)
    court.round()
    court.round()
    assert list(court.found) == [("node", ("n05",))]


def test_another_kind_of_failure_inside_a_bad_group_is_a_case_of_its_own() -> None:
    court = healthy(64, leaf=8)
    lossy = {one.instance_id for one in court.inventory if one.leaf == "leaf2"}
    court.truth = bad_nodes(*lossy)
    court.round()
    court.truth = lambda one, other: (Reason.ENGINE_CRASHED if "n40" in (one, other) else bad_nodes(*lossy)(one, other))
    court.round()
    assert set(court.found) == {("group", ("leaf", "leaf2")), ("node", ("n40",))}


def test_a_flapping_node_is_named_in_the_end_and_its_partners_are_not() -> None:
    rng = random.Random(3)
    court = healthy(12)
    court.truth = lambda one, other: Reason.BELOW_FLOOR if "n07" in (one, other) and rng.random() < 0.35 else Reason.OK
    for _ in range(40):
        court.round()
    assert "n07" in court.ever("found")
    assert set(court.ever("found")) == {"n07"}


def test_a_single_failure_in_many_runs_never_makes_a_flapping_node() -> None:
    rng = random.Random(5)
    court = healthy(12)
    court.truth = lambda *_: Reason.BELOW_FLOOR if rng.random() < 0.005 else Reason.OK
    for _ in range(150):
        court.round()
    assert [change for change in court.changes if change.what == "found" and change.node] == []


def test_a_failing_lower_layer_explains_the_one_above_it() -> None:
    court = healthy()
    preflight = Observation("p", "node", ("n03",), court.now, court.now + 1, Outcome.FAILED, "devices_missing", "31 of 32 devices")
    court.localiser.observe(preflight)
    court.truth = bad_nodes("n03")
    court.round()
    assert court.repairs == 0
    assert [(finding.probe, finding.kind) for finding in court.localiser.findings()] == [("node", "node")]
    partner = next(iter({one for pair, reason, _ in court.runs if reason is not Reason.OK for one in pair} - {"n03"}))
    assert court.localiser.view(PROBE, partner).healthy is True
    assert (court.localiser.view(PROBE, "n03").state, court.localiser.view(PROBE, "n03").healthy) == ("explained", False)
    court.localiser.observe(Observation("p2", "node", ("n03",), court.now, court.now + 1, Outcome.OK, "ok"))
    court.round()
    assert ("node", ("n03",)) in court.found


def test_what_was_found_before_the_lower_layer_says_what_explains_it() -> None:
    court = healthy()
    court.truth = bad_nodes("n03")
    court.round()
    court.localiser.observe(Observation("p", "node", ("n03",), court.now, court.now + 1, Outcome.FAILED, "devices_missing"))
    assert [(finding.probe, finding.explained_by) for finding in court.localiser.findings()] == [
        ("node", None), (PROBE, "node: node/n03")]


def test_a_node_that_left_takes_its_case_along() -> None:
    court = healthy()
    court.truth = bad_nodes("n03")
    court.run("n03", "n04")
    found = court.localiser.fleet(Inventory(tuple(one for one in court.inventory if one.instance_id != "n03")))
    assert [(change.what, change.node) for change in found] == [("cleared", "n04")]
    assert court.localiser.repairs(court.now) == []
    late = Observation("late", PROBE, ("n03", "n05"), court.now, court.now, Outcome.FAILED, "below_floor")
    assert court.localiser.observe(late) == []


def test_larger_runs_clear_those_that_pass_and_blame_nobody() -> None:
    court = healthy()
    nodes = ("n00", "n01", "n02", "n03")
    assert court.localiser.observe(Observation("g", PROBE, nodes, court.now, court.now, Outcome.FAILED, "below_floor")) == []
    court.run("n00", "n01", Reason.BELOW_FLOOR)
    court.localiser.observe(Observation("h", PROBE, nodes, court.now, court.now + 1, Outcome.OK, "ok"))
    assert court.localiser.repairs(court.now) == []


def copied(localiser: Localiser, inventory: Inventory) -> Localiser:
    """The localiser after a restart: through JSON, as the journal keeps it."""
    cases = json.loads(json.dumps(localiser.cases()))
    records = json.loads(json.dumps({one: localiser.record(one) for one in inventory.ids}))
    again = Localiser()
    again.fleet(inventory)
    assert again.load(cases, records.items()) == []
    return again


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 40))
def test_a_restart_at_any_moment_changes_nothing_of_what_is_known(seed: int, when: int) -> None:
    rng = random.Random(seed)
    court = healthy(16, leaf=4)
    bad = set(rng.sample(sorted(court.inventory.ids), 2))
    for step in range(60):
        one, other = rng.sample(sorted(court.inventory.ids), 2)
        court.run(one, other, Reason.BELOW_FLOOR if bad & {one, other} and rng.random() < 0.9 else Reason.OK)
        court.now += 20
        if step == when:
            before = court.localiser
            court.localiser = copied(before, court.inventory)
            assert {one: court.localiser.view(PROBE, one) for one in court.inventory.ids} == {
                one: before.view(PROBE, one) for one in court.inventory.ids}
            assert court.localiser.findings() == before.findings()
            assert court.localiser.repairs(court.now + 3600) == before.repairs(court.now + 3600)


def test_a_case_goes_on_after_a_restart() -> None:
    court = healthy()
    court.truth = bad_nodes("n03")
    court.run("n03", "n04")
    court.localiser = copied(court.localiser, court.inventory)
    court.settle()
    assert list(court.found) == [("node", ("n03",))]


def test_cases_that_are_not_usable_begin_anew_and_are_named() -> None:
    localiser = Localiser()
    localiser.fleet(fleet(2))
    problems = localiser.load({PROBE: {"paths": 3}}, [])
    assert len(problems) == 1
    assert PROBE in problems[0]


def test_the_explanation_names_partners_runs_and_what_would_change_it() -> None:
    court = healthy()
    court.truth = bad_nodes("n03")
    court.run("n03", "n04")
    told = "\n".join(court.localiser.explain("n03"))
    assert "suspect, probability that it is bad 0.33" in told
    assert "failed with n04 (suspect) in run run-5: below_floor" in told
    assert "one run that passes clears it" in told
    court.settle()
    assert "two different ones clear its name" in "\n".join(court.localiser.explain("n03"))


@settings(max_examples=60, deadline=None)
@given(st.integers(8, 40), st.sets(st.integers(0, 39), max_size=3), st.integers(0, 10**6), st.booleans())
def test_every_bad_node_and_nobody_else_is_named_whatever_the_order(count: int, bad: Iterable[int], seed: int, topology: bool) -> None:
    culprits = {f"n{index:02d}" for index in bad if index < count}
    if len(culprits) * 4 > count or (topology and len({int(one[1:]) // 4 for one in culprits}) < len(culprits)):
        return  # so many of so few nodes, or of one leaf, are one group by the rule
    court = healthy(count, leaf=4 if topology else 0)
    rng = random.Random(seed)
    rng.shuffle(court.circle.places)
    court.truth = bad_nodes(*culprits)
    for _ in range(3):
        court.round()
    assert {subjects for _, subjects in court.found} == {(one,) for one in culprits}
    assert set(court.ever("found")) == culprits


def scores(*values: Any) -> list[float]:
    return [round(value, 3) for value in values]


def test_scores_grow_with_agreement_and_fall_with_contradiction() -> None:
    good = 0.002
    assert scores(node_score([]), node_score([good]), node_score([good, good])) == [0.002, 0.328, 0.992]
    assert node_score([0.99]) == pytest.approx(0.002, rel=0.05), "a partner that is bad explains the failure"
    assert group_score(3, 0) > group_score(3, 1) > group_score(3, 3)
    assert path_score(2, 0) > path_score(2, 1) > path_score(1, 1)
