"""The fleet: planner, localisation and journal together, over restarts and changes of leader."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from exporter.config import Config
from exporter.fleet import Fleet
from exporter.inventory import Inventory, Node, Room
from exporter.judge.judge import judge
from exporter.judge.localise import View
from exporter.plan.journal import SHARD_SECONDS
from exporter.plan.store import MemoryStore
from exporter.runs import Run, RunSpec, missing_result
from probes.reasons import Outcome, Reason, outcome_of
from probes.result import Measurement

NOW = 1_800_000_000.0
BAD = "n5"


def fleet_of(count: int) -> Inventory:
    return Inventory(tuple(Node(instance_id=f"i-{index:02d}", name=f"n{index}", instance_type="p5.48xlarge", zone="a", efa=Room(32),
                                created=NOW - 86400) for index in range(count)), NOW)


def config(**more: Any) -> Config:
    names = ("node", "nixl")
    return Config.model_validate({"probes": {**{name: {"enabled": False} for name in names}, **more.pop("probes", {})},
                                  "schedule": {"start_spread": 0},
                                  "planning": {"spread": 0, "budget": {"concurrency": 8}}, **more})


class Here:
    """One replica on a store that it shares with others."""

    def __init__(self, store: MemoryStore, now: float = NOW, count: int = 8, settings: Config | None = None) -> None:
        self.now = now
        self.store = store
        self.inventory = fleet_of(count)
        self.fleet = Fleet(settings or config(), store, self.inventory, clock=lambda: self.now, monotonic=lambda: self.now)

    def start(self) -> list[RunSpec]:
        return self.fleet.due(self.fleet.world(running=len(self.fleet.planner.flying)))

    def finish(self, spec: RunSpec, reason: Reason | None = None) -> None:
        said = reason or (Reason.BELOW_FLOOR if BAD in spec.nodes else Reason.OK)
        rows = [Measurement(operation="write", memory="dram", kind="goodput", bytes=[1 << 20], bandwidth=[1e10])]
        results = tuple(missing_result(spec, rank, said, "", self.now, self.now + 9).model_copy(update={"measurements": rows})
                        for rank in range(spec.world_size))
        self.concluded = self.fleet.finished(judge(Run(spec, results, self.now, self.now + 9)))

    def rounds(self, seconds: float) -> Iterator[RunSpec]:
        """Let time go by in steps of ten seconds; every run ends within one."""
        end = self.now + seconds
        while self.now < end:
            for spec in self.start():
                self.finish(spec)
                yield spec
            self.fleet.save()
            self.now += 10

    def views(self) -> dict[str, View]:
        return {one: self.fleet.localiser.view("mooncake", one) for one in sorted(self.inventory.ids)}


def test_a_bad_node_is_named_through_planner_and_localisation_together() -> None:
    here = Here(MemoryStore())
    list(here.rounds(600))
    assert [(finding.kind, finding.subjects) for finding in here.fleet.localiser.findings()] == [("node", ("i-05",))]
    assert sum(view.healthy is True for view in here.views().values()) == 7


def test_the_health_of_nodes_is_localisations_word_and_not_the_runs() -> None:
    here = Here(MemoryStore())
    told: dict[str, bool | None] = {}
    for _ in here.rounds(5 * 1800):
        told |= here.concluded.health
        assert here.concluded.health.get("n0") is not False, "a good node never answers for its partner"
    assert told == {**{f"n{index}": True for index in range(8)}, BAD: False}


@pytest.mark.parametrize("steps", range(6))
def test_a_new_leader_at_any_moment_goes_on_with_the_case(steps: int) -> None:
    store = MemoryStore()
    here = Here(store)
    for _ in range(steps):
        for spec in here.start():
            here.finish(spec)
        here.now += 10
    here.fleet.save(everything=True)
    there = Here(store, here.now + 15)
    assert there.views() == here.views()
    list(there.rounds(1900))
    found = there.fleet.localiser.findings()
    assert [(finding.kind, finding.subjects) for finding in found] == [("node", ("i-05",))]


def test_a_restart_neither_forgets_nor_starts_a_wave_nor_names_again() -> None:
    store = MemoryStore()
    here = Here(store)
    list(here.rounds(600))
    here.fleet.save(everything=True)
    there = Here(store, here.now + 20)
    heard: list[str] = []
    there.fleet.listen(lambda change: heard.append(change.what))
    assert there.start() == []
    assert there.fleet.localiser.findings() == here.fleet.localiser.findings()
    assert heard == []


def test_what_a_run_changed_is_owed_by_the_journal_as_soon_as_it_is_taken_in() -> None:
    here = Here(MemoryStore())
    spec = here.start()[0]
    here.fleet.save(everything=True)
    here.finish(spec)
    here.fleet.sync()
    owed = here.fleet.journal.owed()
    assert owed, "a result that is not owed would count as durable before it is stored"
    assert not here.fleet.journal.stored(owed)
    here.now += SHARD_SECONDS
    here.fleet.save(everything=True)
    assert here.fleet.journal.stored(owed)
    ids = spec.labels["instance-ids"].split(",")
    again = Here(here.store, here.now)
    assert all(again.fleet.planner.books[one].entry("mooncake").measured for one in ids)


def test_runs_of_an_earlier_leader_are_taken_in_as_if_they_were_its_own() -> None:
    store = MemoryStore()
    here = Here(store)
    specs = here.start()
    here.fleet.save(everything=True)
    there = Here(store, here.now + 5)
    for spec in specs:
        there.finish(spec)
    entries = [there.fleet.planner.books[one].entry("mooncake") for spec in specs for one in spec.labels["instance-ids"].split(",")]
    assert all(entry.measured == there.now + 9 for entry in entries)
    assert there.fleet.planner.flying == {}
    assert there.views()["i-05"].state == "suspect"


def test_runs_from_the_command_line_count_as_evidence_and_not_as_the_rounds() -> None:
    here = Here(MemoryStore())
    list(here.rounds(30))
    spec = RunSpec("cli-1", "mooncake", "n0--n1", ("n0", "n1"), "any", 60.0)
    before = here.fleet.planner.books["i-00"].entry("mooncake").measured
    here.now += 100
    here.finish(spec, Reason.TRANSFER_FAILED)
    assert here.fleet.planner.books["i-00"].entry("mooncake").measured == before
    assert here.views()["i-00"].state == "suspect"


def test_a_run_whose_node_left_is_nobodys_evidence() -> None:
    here = Here(MemoryStore())
    spec = next(spec for spec in here.start() if BAD in spec.nodes)
    here.fleet.take_in(replace(here.inventory, nodes=tuple(node for node in here.inventory if node.name != BAD)))
    here.finish(spec)
    assert {view.state for view in here.views().values()} == {"unknown"}


def test_quiet_windows_of_a_probe_hold_its_runs() -> None:
    morning = {"from": "07:00", "to": "08:30"}  # NOW is eight o'clock
    here = Here(MemoryStore(), settings=config(probes={"mooncake": {"schedule": {"quiet_windows": [morning]}}}))
    assert here.start() == []
    here.now += 31 * 60
    assert len(here.start()) == 4


def test_a_dropped_run_is_tried_again_and_blames_nobody() -> None:
    here = Here(MemoryStore())
    specs = here.start()
    for spec in specs:
        here.fleet.dropped(spec.run_id)
    assert here.fleet.planner.flying == {}
    here.now += 70
    assert len(here.start()) == len(specs)
    assert {view.state for view in here.views().values()} == {"unknown"}


def test_every_reason_that_is_unknown_leaves_the_fleet_as_it_was() -> None:
    for reason in [reason for reason in Reason if outcome_of(reason) is Outcome.UNKNOWN]:
        here = Here(MemoryStore())
        list(here.rounds(600))
        before = here.views()
        here.now += 1800
        for spec in here.start():
            here.finish(spec, reason)
        assert here.views() == before
