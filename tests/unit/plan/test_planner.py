"""The planner: whom it starts when, whom it leaves out, and what survives joins, leaves, failures and restarts."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.config import Config
from exporter.inventory import Inventory, Node, Room, Stratum, Taint
from exporter.plan.coverage import coverage, left_out
from exporter.plan.forecast import forecast
from exporter.plan.journal import Journal, flush
from exporter.plan.planned import Decision, PlannedRun, World, run_name
from exporter.plan.planner import LEFT_SECONDS, Ended, Planner
from exporter.plan.probes import ProbePlan, probe_plans
from exporter.plan.store import MemoryStore
from exporter.repairs import Repair
from probes.reasons import Outcome, Reason

NOW = 1_800_000_000.0
INTERVAL = 1800.0


def node(index: int, **more: Any) -> Node:
    fields: dict[str, Any] = {"instance_type": "p5.48xlarge", "zone": "a", "efa": Room(32), "gpu": Room(8), "created": NOW - 86400.0,
                              "network_nodes": ("top", f"s{index // 8}", f"l{index // 4}")}
    return Node(instance_id=f"i-{index:04d}", name=f"n{index}", **{**fields, **more})


def fleet(count: int, **more: Any) -> Inventory:
    return Inventory(tuple(node(index, **more) for index in range(count)), NOW)


def config(*, only: Sequence[str] = ("mooncake",), **planning: Any) -> Config:
    names = ("node", "mooncake", "nixl", "nccl", "uccl-ep")
    return Config.model_validate({"probes": {name: {"enabled": name in only} for name in names}, "planning": planning})


class World_:  # noqa: N801 - the world of these tests, turned by hand
    """A planner over a fleet; every run ends after `seconds` with what `outcome` says of it."""

    def __init__(self, inventory: Inventory, settings: Config, journal: Journal | None = None, now: float = NOW) -> None:
        self.now = now
        self.inventory = inventory
        self.config = settings
        self.journal = journal or Journal()
        self.planner = Planner(probe_plans(settings), settings.planning, self.journal, inventory, self.now)
        self.outcome: Callable[[PlannedRun], Reason] = lambda _: Reason.OK
        self.good: Callable[[str, str], bool] = lambda *_: True
        self.repairs: list[Repair] = []
        self.seconds = 10.0
        self.runs: list[tuple[float, PlannedRun]] = []
        self.last: Decision = Decision((), (), now)
        self._ends: list[tuple[float, str]] = []

    def world(self, **more: Any) -> World:
        return World(self.now, self.inventory, **{"running": len(self.planner.flying), "repairs": tuple(self.repairs), "good": self.good,
                                                  **more})

    def decide(self, **more: Any) -> list[PlannedRun]:
        self.last = self.planner.due(self.world(**more))
        flying = [one for run in self.planner.flying.values() for one in run.ids]
        assert len(flying) == len(set(flying)), "a node has two runs"
        for run in self.last.runs:
            self.runs.append((self.now, run))
            heapq.heappush(self._ends, (self.now + self.seconds, run.run_id))
        return list(self.last.runs)

    def end(self, run_id: str, reason: Reason | None = None) -> None:
        run = self.planner.flying[run_id]
        said = reason or self.outcome(run)
        outcome = Outcome.OK if said is Reason.OK else Outcome.UNKNOWN if said is Reason.PREEMPTED else Outcome.FAILED
        self.planner.finished(Ended(run_id, self.now, outcome, said))

    def pass_time(self, seconds: float, **more: Any) -> list[PlannedRun]:
        """Let time go by. Returns the runs that were started."""
        end, before = self.now + seconds, len(self.runs)
        while True:
            self.decide(**more)
            following = min(self.last.wake_at, self._ends[0][0] if self._ends else end, end)
            self.now = max(self.now, following)
            while self._ends and self._ends[0][0] <= self.now:
                _, run_id = heapq.heappop(self._ends)
                if run_id in self.planner.flying:
                    self.end(run_id)
            if self.now >= end:
                return [run for _, run in self.runs[before:]]

    def restarted(self) -> World_:
        """Another leader, from what the store has."""
        store = MemoryStore()
        self.planner.sync()
        flush(self.journal, store, 0.0, everything=True)
        again = World_(self.inventory, self.config, Journal.loaded(store.load()), self.now)
        again.outcome, again.good = self.outcome, self.good
        return again


def names(runs: Iterable[PlannedRun]) -> list[frozenset[str]]:
    return [frozenset(run.ids) for run in runs]


def members(runs: Iterable[PlannedRun]) -> Counter[str]:
    return Counter(one for run in runs for one in run.ids)


@pytest.mark.parametrize("count", [2, 3, 6, 7])
def test_a_cycle_of_rounds_measures_every_pair_once(count: int) -> None:
    world = World_(fleet(count, network_nodes=()), config())
    rounds = count - 1 + count % 2
    runs = world.pass_time(INTERVAL * rounds - 60)
    assert Counter(names(runs)) == Counter(map(frozenset, itertools.combinations((f"i-{i:04d}" for i in range(count)), 2)))


def test_one_node_is_not_paired_and_is_told_why() -> None:
    world = World_(fleet(1), config(only=("node", "mooncake")))
    runs = world.pass_time(INTERVAL)
    assert {run.probe for run in runs} == {"node"}
    whys = [one.why for one in left_out(world.planner, world.world()) if one.probe == "mooncake"]
    assert whys == ["there is no other node like it (p5.48xlarge/a/efa): type, zone and EFA must be the same"]


def test_an_empty_fleet_plans_nothing() -> None:
    assert World_(Inventory(), config(only=("node", "mooncake"))).pass_time(INTERVAL) == []


def test_only_nodes_of_one_kind_are_paired() -> None:
    nodes = [*fleet(4), *(node(index, instance_type="p5en.48xlarge") for index in range(4, 7)), node(7, zone="b")]
    runs = World_(Inventory(tuple(nodes)), config()).pass_time(4 * INTERVAL)
    assert all(len({(one.instance_type, one.zone) for one in run.nodes}) == 1 for run in runs)
    assert "i-0007" not in members(runs)


def test_all_probes_together_never_put_two_runs_on_a_node() -> None:
    world = World_(fleet(9), config(only=("node", "mooncake", "nixl"), budget={"concurrency": 16}))
    runs = world.pass_time(2 * INTERVAL)  # `decide` checks it at every step
    assert {run.probe for run in runs} == {"node", "mooncake", "nixl"}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 12), st.lists(st.tuples(st.integers(20, 900), st.sets(st.integers(0, 15), max_size=6)), max_size=6),
       st.integers(1, 9))
def test_joins_and_leaves_in_mid_round_keep_runs_apart_and_every_node_measured(
        count: int, changes: list[tuple[int, set[int]]], concurrency: int) -> None:
    world = World_(fleet(count), config(only=("node", "mooncake", "nixl"), budget={"concurrency": concurrency}))
    for seconds, present in changes:
        world.pass_time(float(seconds))
        world.inventory = Inventory(tuple(node(index) for index in sorted(present)), world.now)
    # A node may join late in a round and sit out the next one, and a round is spread over its interval.
    world.pass_time(3.5 * INTERVAL)
    seen = {one for at, run in world.runs if at > world.now - 3.5 * INTERVAL and run.probe == "mooncake" for one in run.ids}
    assert seen == (set(world.inventory.ids) if len(world.inventory) > 1 else set())


def test_no_more_runs_than_the_concurrency_and_foreign_ones_count() -> None:
    world = World_(fleet(20), config(spread=0, budget={"concurrency": 4}))
    world.pass_time(INTERVAL - 100.0)
    world.now += 200.0
    assert len(world.decide(running=1)) == 3
    assert world.decide(running=4) == []
    assert len(world.decide(running=3)) == 1


def test_concurrency_follows_the_fleet_where_it_is_not_set() -> None:
    assert World_(fleet(2), config()).planner.concurrency() == 1
    assert World_(fleet(10), config()).planner.concurrency() == 2
    assert 4 <= World_(fleet(400), config(only=("mooncake", "nixl"))).planner.concurrency() <= 12
    assert World_(fleet(10), config(budget={"concurrency": 7})).planner.concurrency() == 7


def test_a_round_is_spread_over_its_interval() -> None:
    world = World_(fleet(40), config(spread=0.8, budget={"concurrency": 20}))
    world.pass_time(INTERVAL)
    before = len(world.runs)
    world.pass_time(INTERVAL)
    starts = [at - world.runs[before][0] for at, _ in world.runs[before:]]
    assert len(starts) == 20
    assert 0.7 * INTERVAL < starts[-1] <= 0.8 * INTERVAL
    assert max(later - earlier for earlier, later in itertools.pairwise(starts)) < 0.8 * INTERVAL / 20 + 2


def test_a_new_node_is_measured_at_once_with_a_good_one_and_not_in_the_next_round_only() -> None:
    world = World_(fleet(8), config())
    world.pass_time(1000.0)
    world.inventory = Inventory((*fleet(8), node(8)), world.now)
    world.good = lambda _, one: one == "i-0003"
    runs = world.pass_time(120.0)
    assert [(run.why, set(run.ids)) for run in runs if run.why == "new"] == [("new", {"i-0003", "i-0008"})]


def test_new_nodes_without_a_good_partner_are_paired_with_each_other() -> None:
    world = World_(fleet(4), config())
    world.pass_time(1000.0)
    world.inventory = Inventory((*fleet(4), node(8), node(9)), world.now)
    world.good = lambda *_: False
    assert [set(run.ids) for run in world.pass_time(120.0) if run.why == "new"] == [{"i-0008", "i-0009"}]


def test_a_new_node_waits_until_it_has_settled() -> None:
    world = World_(fleet(4), config())
    world.pass_time(600.0)
    world.inventory = Inventory((*fleet(4), node(8, created=world.now)), world.now)
    joined = world.now
    world.pass_time(600.0)
    assert [at >= joined + 300 for at, run in world.runs if run.why == "new"] == [True]


def test_the_same_name_under_a_new_id_starts_clean() -> None:
    world = World_(fleet(4), config())
    world.pass_time(INTERVAL)
    reborn = replace(node(2), instance_id="i-new")
    world.inventory = Inventory((*(one for one in fleet(4) if one.name != "n2"), reborn), world.now)
    world.pass_time(1.0)
    assert world.planner.books["i-new"].entry("mooncake").measured is None or world.planner.books["i-new"].first_seen == world.now - 1.0
    assert world.planner.books["i-0002"].left is not None


def test_a_node_that_is_gone_for_a_moment_is_the_same_node() -> None:
    world = World_(fleet(4), config())
    world.pass_time(INTERVAL)
    measured = world.planner.books["i-0002"].entry("mooncake").measured
    world.inventory = Inventory(fleet(4).nodes[:2], world.now)
    world.pass_time(30.0)
    world.inventory = Inventory(fleet(4).nodes, world.now + 1)
    world.pass_time(1.0)
    assert world.planner.books["i-0002"].left is None
    assert (world.planner.books["i-0002"].entry("mooncake").measured or 0) >= (measured or 0)


def test_a_node_that_left_is_forgotten_after_an_hour() -> None:
    world = World_(fleet(4), config())
    world.pass_time(60.0)
    for _ in range(2):
        world.inventory = Inventory(fleet(4).nodes[:3], world.now)
        world.pass_time(LEFT_SECONDS + 60)
        world.inventory = Inventory((*fleet(4).nodes[:3], node(9)), world.now)  # something changes
        world.pass_time(1.0)
    assert "i-0003" not in world.planner.books
    world.planner.sync()
    assert world.journal.get("node/i-0003") is None


def test_a_closed_node_is_left_out_and_its_partner_is_not() -> None:
    nodes = list(fleet(6))
    nodes[1] = replace(nodes[1], taints=(Taint("team", "NoSchedule"),))
    nodes[2] = replace(nodes[2], ready=False)
    world = World_(Inventory(tuple(nodes)), config())
    runs = world.pass_time(3 * INTERVAL)
    assert members(runs) == {f"i-{index:04d}": 3 for index in (0, 3, 4, 5)}
    told = {(one.node.name, one.gate, one.lasting) for one in left_out(world.planner, world.world())}
    assert told == {("n1", "taint", True), ("n2", "ready", False)}


def test_a_node_that_opens_in_mid_round_is_measured_in_it() -> None:
    nodes = [replace(one, ready=one.name not in ("n1", "n2")) for one in fleet(6)]
    world = World_(Inventory(tuple(nodes)), config(spread=0))
    world.pass_time(600.0)
    assert members(run for _, run in world.runs).keys() == {"i-0000", "i-0003", "i-0004", "i-0005"}
    world.inventory = fleet(6)
    assert [set(run.ids) for run in world.pass_time(300.0)] == [{"i-0001", "i-0002"}]


def test_gates_that_close_in_mid_round_cost_the_pair_and_not_the_round() -> None:
    world = World_(fleet(6), config(budget={"concurrency": 1}))
    world.decide()
    world.inventory = Inventory(tuple(replace(one, ready=one.name != "n5") for one in fleet(6)))
    world.pass_time(INTERVAL - 60)
    measured = set(members(run for _, run in world.runs))
    assert len(measured) == 4
    alone = {one.node.instance_id: one.why for one in left_out(world.planner, world.world())}
    assert alone.keys() == world.inventory.ids - measured
    assert sorted(alone.values()) == ["its partner's gate closed", "the node is not Ready"]


def test_nothing_starts_while_paused_or_quiet_and_the_round_goes_on_afterwards() -> None:
    world = World_(fleet(4), config(only=("mooncake", "nixl")))
    assert world.pass_time(300.0, paused="by ann") == []
    assert {run.probe for run in world.pass_time(INTERVAL, quiet={"nixl": "night"})} == {"mooncake"}
    assert "nixl" in {run.probe for run in world.pass_time(INTERVAL)}


def test_foreign_runs_keep_their_nodes_to_themselves() -> None:
    world = World_(fleet(4), config(spread=0))
    busy = {"i-0000": "cli-run", "i-0001": "cli-run"}
    runs = world.pass_time(600.0, busy=busy)
    assert not {"i-0000", "i-0001"} & set(members(runs))
    assert {"i-0000", "i-0001"} <= set(members(world.pass_time(INTERVAL)))


def test_runs_that_could_not_measure_are_repeated_once_in_the_round() -> None:
    world = World_(fleet(6), config(spread=0))
    world.outcome = lambda run: Reason.PREEMPTED if "i-0000" in run.ids else Reason.OK
    runs = world.pass_time(INTERVAL - 60)
    assert [run.why for run in runs if "i-0000" in run.ids] == ["round", "leftover"]
    assert world.planner.books["i-0000"].entry("mooncake").unknowns == 2
    assert world.planner.books["i-0000"].entry("mooncake").unknown_reason == "preempted"
    assert world.planner.books["i-0000"].entry("mooncake").measured is None


def test_the_repetition_is_with_another_partner_where_there_is_one() -> None:
    world = World_(fleet(8), config(spread=0))
    world.outcome = lambda run: Reason.PREEMPTED if run.why == "round" else Reason.OK
    runs = world.pass_time(INTERVAL - 60)
    assert len(names(runs)) == len(set(names(runs))) == 8


def test_the_budget_holds_back_rounds_and_lets_a_suspect_pass() -> None:
    world = World_(fleet(2), config(budget={"node_bytes_per_day": "5GiB"}))
    runs = world.pass_time(INTERVAL * 4)
    assert len(runs) == 1
    assert {one.gate for one in left_out(world.planner, world.world())} == {"budget_bytes"}
    world.repairs = [Repair("mooncake", "i-0000", "case", 0, "why")]
    assert [run.why for run in world.decide()] == ["suspect"]


def test_preflights_come_soon_once_and_then_at_each_nodes_own_time() -> None:
    world = World_(fleet(30), config(only=("node",), budget={"concurrency": 30}))
    first = world.pass_time(15.0)
    assert members(first) == {f"i-{index:04d}": 1 for index in range(30)}
    world.pass_time(3 * 3600.0)
    starts = sorted(at for at, run in world.runs if at > NOW + 3600)
    assert members(run for at, run in world.runs if at > NOW + 3600) <= Counter({f"i-{index:04d}": 3 for index in range(30)})
    assert max(later - earlier for earlier, later in itertools.pairwise(starts)) < 1200  # not in step


def test_a_preflight_that_could_not_run_comes_again_in_a_minute_and_not_for_ever() -> None:
    world = World_(fleet(1), config(only=("node",)))
    world.outcome = lambda _: Reason.PREEMPTED
    assert 3 <= len(world.pass_time(1500.0)) <= 5


def test_every_stratum_is_measured_within_its_interval() -> None:
    world = World_(fleet(32), config(stratum_interval=4 * INTERVAL, budget={"concurrency": 16}))
    world.pass_time(12 * INTERVAL)
    for stratum in (Stratum.LEAF, Stratum.SPINE, Stratum.CROSS):
        ages = [world.now - book.entry("mooncake").strata.get(stratum.value, 0.0) for book in world.planner.books.values()]
        assert max(ages) < 6 * INTERVAL, stratum
    found = {(one.stratum): one.ratio for one in coverage(world.planner, world.world(), 86400.0)}
    assert found.keys() == {"all", "same_leaf", "same_spine", "cross"}
    assert all(ratio is not None and ratio > 0.9 for ratio in found.values())


def test_strata_do_not_break_the_cycle_of_pairs() -> None:
    world = World_(fleet(16), config(stratum_interval=3 * INTERVAL, budget={"concurrency": 16}))
    runs = world.pass_time(32 * INTERVAL)
    pairs = {frozenset(run.ids) for run in runs}
    assert len(pairs) == 16 * 15 // 2


@pytest.fixture
def suspect() -> Repair:
    return Repair("mooncake", "i-0000", "i-0000@5", 0, "failed with i-0001", avoid=frozenset({"i-0001"}))


def quiet_world(count: int = 8, **planning: Any) -> World_:
    """A fleet whose round is done."""
    world = World_(fleet(count), config(spread=0, **planning))
    world.pass_time(600.0)
    return world


def test_a_suspect_is_paired_at_once_with_a_known_good_node_on_another_leaf(suspect: Repair) -> None:
    world = quiet_world()
    world.repairs = [suspect]
    world.good = lambda _, one: one in {"i-0001", "i-0002", "i-0003", "i-0006"}
    runs = world.decide()
    assert [(run.why, set(run.ids), run.repair) for run in runs] == [("suspect", {"i-0000", "i-0006"}, suspect)]


def test_a_suspect_without_a_good_partner_waits_and_without_any_other_node_is_told_so(suspect: Repair) -> None:
    world = quiet_world()
    world.repairs, world.good = [suspect], lambda *_: False
    assert world.decide() == []
    assert [(one.why, one.lasting) for one in world.last.unplaced] == [("no known-good partner is free and open now", False)]
    pair = quiet_world(2)
    pair.repairs = [suspect]
    assert pair.decide() == []
    assert [(one.why, one.lasting) for one in pair.last.unplaced] == [("there is no other node to compare with", True)]


def test_a_named_partner_is_taken_and_nobody_else(suspect: Repair) -> None:
    world = quiet_world()
    world.repairs = [replace(suspect, partner="i-0001", avoid=frozenset())]
    assert [set(run.ids) for run in world.decide()] == [{"i-0000", "i-0001"}]
    world = quiet_world()
    world.repairs = [replace(suspect, partner="i-0404")]
    assert world.decide() == []
    assert [(one.why, one.lasting) for one in world.last.unplaced] == [("partner i-0404: the partner left", True)]


@pytest.mark.parametrize(("more", "why"), [
    ({"paused": "by ann"}, "paused: by ann"),
    ({"busy": {"i-0000": "cli"}}, "a run is on the node"),
    ({"running": 99}, "all places are taken (planning.budget.concurrency)"),
])
def test_a_suspect_that_cannot_run_now_is_told_why(suspect: Repair, more: dict[str, Any], why: str) -> None:
    world = quiet_world()
    world.repairs = [suspect]
    assert world.decide(**more) == []
    assert [(one.why, one.lasting) for one in world.last.unplaced] == [(why, False)]


def test_only_so_many_suspects_are_re_paired_at_a_time() -> None:
    world = quiet_world(16, repairs=2, budget={"concurrency": 16})
    world.repairs = [Repair("mooncake", f"i-{index:04d}", "c", 0, "w") for index in range(4)]
    world.good = lambda _, one: one >= "i-0008"
    assert len(world.decide()) == 2
    assert {one.why for one in world.last.unplaced} == {"2 re-pairings go on already (planning.repairs)"}


def test_the_same_decision_has_the_same_names_and_another_has_others() -> None:
    runs = [[run.run_id for run in World_(fleet(8), config(spread=0)).pass_time(INTERVAL)] for _ in range(2)]
    assert runs[0] == runs[1]
    again = World_(fleet(8), config(spread=0), now=NOW + 7).pass_time(INTERVAL)
    assert not set(runs[0]) & {run.run_id for run in again}
    with pytest.raises(ValueError, match="longer than 52"):
        run_name("x" * 40, "r", 1)


def test_a_restart_in_mid_round_measures_the_rest_of_the_round_and_starts_no_wave() -> None:
    world = World_(fleet(20), config(only=("node", "mooncake"), budget={"concurrency": 3}))
    world.pass_time(INTERVAL + 700.0)
    before = [run for at, run in world.runs if at >= NOW + INTERVAL and run.probe == "mooncake"]
    again = world.restarted()
    number = world.planner.turns["mooncake", "p5.48xlarge/a/efa"].number
    assert len(again.decide()) <= 2
    after = again.pass_time(INTERVAL - 700.0 - 60.0)
    rest = [run for run in after if run.probe == "mooncake"]
    assert {run.round for run in rest} == {number}
    done = members(before) + members(rest)
    assert set(done) == world.inventory.ids
    assert max(done.values()) <= 2  # a pair that was in flight may run again
    assert not any(run.probe == "node" and at < again.now for at, run in again.runs if at - world.now < 60), "preflights are fresh"


def test_a_restart_keeps_places_cycle_and_what_is_known() -> None:
    world = World_(fleet(7), config())
    world.pass_time(3 * INTERVAL)
    again = world.restarted()
    key = ("mooncake", "p5.48xlarge/a/efa")
    assert again.planner.turns[key].circle == replace(world.planner.turns[key].circle, moved=again.planner.turns[key].circle.moved)
    assert {one: vars(book.entry("mooncake")) for one, book in again.planner.books.items()} == {
        one: vars(book.entry("mooncake")) for one, book in world.planner.books.items()}
    met = names(run for _, run in world.runs) + names(again.pass_time(4 * INTERVAL - 60))
    assert max(Counter(met).values()) == 1


def test_records_that_are_not_usable_are_named_and_begin_anew() -> None:
    journal = Journal({"node/i-0001": {"odd": 1}, "round/mooncake/p5.48xlarge/a/efa": {"number": "x"}})
    world = World_(fleet(4), config(), journal)
    assert len(journal.problems) == 2
    assert "node/i-0001" in journal.problems[0]
    assert len(world.pass_time(INTERVAL)) == 2


def test_a_dropped_run_frees_its_nodes_and_costs_nothing() -> None:
    world = World_(fleet(2), config(budget={"node_bytes_per_day": "5GiB"}))
    run = world.decide()[0]
    world.planner.dropped(run.run_id, world.now)
    assert world.planner.flying == {}
    assert world.planner.gates(world.world(), world.inventory.nodes[0], world.planner.probes[0]) == []


def test_an_adopted_run_keeps_its_nodes_until_it_ends() -> None:
    world = World_(fleet(4), config(spread=0))
    run = world.decide()[0]
    again = World_(fleet(4), config(spread=0))
    again.planner.adopt(run)
    assert not set(members(again.decide())) & set(run.ids)
    again.end(run.run_id)
    assert again.planner.flying == {} or run.run_id not in again.planner.flying


def test_a_new_configuration_keeps_rounds_and_forgets_probes() -> None:
    world = World_(fleet(6), config(only=("mooncake", "nixl")))
    world.pass_time(500.0)
    number = world.planner.turns["mooncake", "p5.48xlarge/a/efa"].number
    changed = config(only=("mooncake", "node"))
    world.planner.configure(probe_plans(changed), changed.planning)
    assert {run.probe for run in world.pass_time(2 * INTERVAL)} == {"mooncake", "node"}
    assert world.planner.turns["mooncake", "p5.48xlarge/a/efa"].number > number


def test_a_cron_schedule_begins_its_rounds_at_its_times() -> None:
    settings_ = Config.model_validate({"probes": {"node": {"enabled": False}, "nixl": {"enabled": False},
                                                  "mooncake": {"schedule": {"cron": "0 3 * * *"}}}, "planning": {"spread": 0}})
    world = World_(fleet(2), settings_)
    world.pass_time(60.0)
    world.pass_time(2 * 86400.0)
    assert [at % 86400 for at, _ in world.runs[1:]] == pytest.approx([3 * 3600.0] * 2, abs=61)


def test_the_forecast_shows_the_next_rounds_and_changes_nothing() -> None:
    world = World_(fleet(6, network_nodes=()), config(only=("node", "mooncake")))
    told = forecast(world.planner, world.world(), world.config.canary, rounds=5)
    assert {frozenset(pair) for each in told.rounds for pair in each.pairs} == set(
        map(frozenset, itertools.combinations((f"n{index}" for index in range(6)), 2)))
    assert [each.begins - NOW for each in told.rounds] == [0, 1800, 3600, 5400, 7200]
    assert world.planner.turns["mooncake", "p5.48xlarge/a/efa"].number == 0
    runs = [run for run in world.pass_time(INTERVAL - 60) if run.probe == "mooncake"]
    assert {frozenset(one.name for one in run.nodes) for run in runs} == set(map(frozenset, told.rounds[0].pairs))


def test_the_default_configuration_declares_less_than_its_goals() -> None:
    nccl_too = Config.model_validate({"probes": {"nccl": {"enabled": True}},
                                      "canary": {"targets": [{"name": "chat", "url": "http://h", "model": "m"}]}})
    world = World_(fleet(16), nccl_too)
    told = forecast(world.planner, world.world(), nccl_too.canary)
    assert told.fabric_share < 0.005
    assert told.gpu_share < 0.001
    assert [one.probe for one in told.probes] == ["node", "nccl", "mooncake", "nixl"]


def test_plans_are_made_of_enabled_probes_without_targets_of_their_own() -> None:
    given_ = Config.model_validate({"inventory": {"mode": "static", "nodes": [{"name": "a"}, {"name": "b"}]},
                                    "probes": {"nixl": {"targets": [{"nodes": ["a", "b"]}]}}})
    plans: list[ProbePlan] = probe_plans(given_)
    assert [plan.name for plan in plans] == ["node", "mooncake"]
    assert plans[0].spec((node(0),)) == {"instance_type": "p5.48xlarge", "allocatable": 32}
