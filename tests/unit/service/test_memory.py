"""What the control loop remembers of figures: over the file of a service without a cluster, over the journal of a fleet, on the page."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from publishing import series_of, text_of, value_of
from usual import DAY, HALF, NEW, SIZE, T, book, ended, fleet, rounds

from exporter.config import Config
from exporter.fleet import RESET, Fleet
from exporter.inventory import Inventory
from exporter.judge.baseline import Baselines
from exporter.judge.judge import judge
from exporter.memory import LockedError, Memory
from exporter.plan.store import MemoryStore
from exporter.publish.publisher import Publisher
from probes.reasons import Reason

RATE = 60e9
NODES = fleet()
MEMBERS = [{"name": name, "instance_type": node.instance_type} for name, node in NODES.items()]
END = T + 5 * DAY


@cache
def _week() -> Baselines:
    made = book()
    rounds(made, NODES, dict.fromkeys(NODES, RATE), 5 * 48)
    return made


def learned() -> Baselines:
    return copy.deepcopy(_week())


def inventory(**annotations: str) -> Inventory:
    return Inventory(tuple(replace(node, annotations=annotations if node.name == "n3" else {}) for node in NODES.values()), T)


def configured(**more: Any) -> Config:
    return Config.model_validate({"inventory": {"mode": "static", "nodes": MEMBERS}, **more})


def page_of(publisher: Publisher) -> str:
    return text_of(publisher.commit().classic)


class Cell:
    """A fleet with its memory and page."""

    def __init__(self, store: MemoryStore, baselines: Baselines | None = None) -> None:
        self.config = Config.model_validate({})
        self.publisher = Publisher("t")
        self.fleet = Fleet(self.config, store, inventory(), clock=lambda: END, monotonic=lambda: END)
        if baselines is not None:
            self.fleet.baselines = baselines
        self.memory = Memory(self.config, self.publisher, fleet=None, alone=False)
        for node in NODES.values():
            self.publisher.node_seen(node.name, T)
        self.memory.adopt(self.fleet, END)

    def tell(self, rate: float, at: float, names: tuple[str, str] = ("n2", "n3"), **more: Any) -> Reason:
        run = ended(names, {"write": rate}, at, **more)
        verdict = judge(run, limits=self.memory.limits(run))
        self.memory.finished(verdict, at)
        return verdict.reason


@pytest.fixture
def cell() -> Cell:
    return Cell(MemoryStore(), learned())


class TestPage:
    def test_how_a_node_stands_is_on_the_page_after_its_run(self, cell: Cell) -> None:
        cell.tell(0.9 * RATE, END)
        page = cell.publisher.commit()
        labels = {"node": "n3", "probe": "mooncake", "operation": "write", "bytes": str(SIZE), "memory": "dram", "kind": "goodput"}
        assert value_of(page, "efapulse_node_to_baseline_ratio", **labels) == pytest.approx(1.0, abs=0.01), "the best of its last pairs"
        assert value_of(page, "efapulse_node_to_ceiling_ratio", **labels) == pytest.approx(0.15, abs=0.01)
        assert value_of(page, "efapulse_node_to_peers_ratio", **labels) == pytest.approx(1.0, abs=0.01)

    def test_a_change_is_shown_while_it_stands_and_as_over_afterwards(self, cell: Cell) -> None:
        for index in range(12):
            cell.tell(0.9 * RATE, END + index * HALF, (f"n{index % 3}", "n3"))
        assert series_of(cell.publisher.commit(), "efapulse_node_change") == {
            frozenset({("node", "n3"), ("probe", "mooncake"), ("kind", "step")}): 1.0}
        for index in range(40):
            cell.tell(RATE, END + DAY + index * HALF, (f"n{index % 3}", "n3"))
        assert list(series_of(cell.publisher.commit(), "efapulse_node_change").values()) == [0.0]
        cell.memory.report(END + 5 * DAY)
        assert series_of(cell.publisher.commit(), "efapulse_node_change") == {}

    def test_baselines_tell_of_themselves(self, cell: Cell) -> None:
        cell.publisher.reported(cell.memory.report(END))
        page = cell.publisher.commit()
        kind = {"probe": "mooncake", "operation": "write", "bytes": str(SIZE), "memory": "dram", "kind": "goodput",
                "instance_type": "p5.48xlarge", "stratum": "same_leaf"}
        assert value_of(page, "efapulse_baseline_bandwidth_bytes_per_second", **kind) == pytest.approx(RATE, rel=0.01)
        assert value_of(page, "efapulse_baseline_nodes", probe="mooncake", state="learned") == 8
        assert value_of(page, "efapulse_baseline_level_ratio", **kind) == pytest.approx(1.0, abs=0.01)
        assert (value_of(page, "efapulse_baseline_last_learned_timestamp_seconds", **kind) or 0) > T
        assert series_of(page, "efapulse_baseline_upgrade_ratio") == {}

    def test_an_upgrade_is_on_the_page(self, cell: Cell) -> None:
        for index in range(30):
            cell.tell(0.8 * RATE, END + index * HALF, ("n0", "n1"), versions=NEW)
        cell.publisher.reported(cell.memory.report(END + DAY))
        found = series_of(cell.publisher.commit(), "efapulse_baseline_upgrade_ratio")
        assert list(found.values()) == [pytest.approx(0.8, abs=0.01)]

    def test_looks_are_paced(self, cell: Cell) -> None:
        assert list(cell.memory.report(END))
        assert list(cell.memory.report(END + 10)) == []
        assert list(cell.memory.report(END - 3600)), "a clock that was set back does not silence it"

    def test_a_node_has_at_most_three_ratios_a_probe(self, cell: Cell) -> None:
        cell.tell(RATE, END)
        lines = [line for line in page_of(cell.publisher).splitlines() if 'node="n3"' in line and "_ratio{" in line]
        assert len(lines) == 3

    def test_canaries_are_left_alone(self, cell: Cell) -> None:
        run = ended(("n0", "n1"), {"write": 1.0}, END, probe="canary")
        assert cell.memory.limits(run) == {}
        cell.memory.finished(judge(run), END)


class TestFleet:
    def test_a_new_leader_has_it_from_the_journal_at_once(self, cell: Cell) -> None:
        store = MemoryStore()
        first = Cell(store, learned())
        for index in range(12):
            first.tell(0.9 * RATE, END + index * HALF, (f"n{index % 3}", "n3"))
        first.fleet.baselines._dirty_nodes |= set(first.fleet.baselines.nodes)
        first.fleet.baselines._dirty_norms |= set(first.fleet.baselines.norms)
        first.fleet.save(everything=True)
        second = Cell(store)
        assert second.fleet.problems == []
        page = second.publisher.commit()
        assert value_of(page, "efapulse_node_change", node="n3", probe="mooncake", kind="step") == 1.0
        assert second.tell(0.5 * RATE, END + DAY, ("n0", "n1")) is Reason.BELOW_BASELINE

    def test_an_annotated_node_begins_anew_once(self) -> None:
        store = MemoryStore()
        first = Cell(store, learned())
        first.fleet.take_in(inventory(**{RESET: "2026-11-30T03:00:00Z"}))
        assert "i-3" not in first.fleet.baselines.nodes
        assert "i-4" in first.fleet.baselines.nodes
        first.tell(RATE, END)
        first.fleet.take_in(inventory(**{RESET: "2026-11-30T03:00:00Z"}))
        assert "i-3" in first.fleet.baselines.nodes
        first.fleet.save(everything=True)
        second = Cell(store)
        second.fleet.take_in(inventory(**{RESET: "2026-11-30T03:00:00Z"}))
        assert "i-3" in second.fleet.baselines.nodes

    def test_a_node_that_left_is_forgotten_also_in_the_journal(self) -> None:
        store = MemoryStore()
        first = Cell(store, learned())
        first.tell(RATE, END)
        first.fleet.save(everything=True)
        assert first.fleet.journal.get("baseline/i-3") is not None
        first.fleet.take_in(Inventory(tuple(node for node in NODES.values() if node.name != "n3"), END))
        first.fleet.save(everything=True)
        assert first.fleet.journal.get("baseline/i-3") is None
        assert "i-3" not in Cell(store).fleet.baselines.nodes

    def test_a_foreign_run_of_unknown_nodes_teaches_nothing(self, cell: Cell) -> None:
        cell.fleet.baselines.changed_records()
        assert cell.tell(RATE, END, ("n0", "stranger")) is Reason.OK
        assert cell.fleet.baselines.changed_records() == ({}, set())


class TestFile:
    def memory(self, path: Path) -> Memory:
        return Memory(configured(baselines={"file": str(path)}), Publisher("t"), fleet=None, alone=True)

    def test_what_is_learned_survives_a_restart(self, tmp_path: Path) -> None:
        path = tmp_path / "state" / "baselines.json"
        first = self.memory(path)
        for index in range(30):
            run = ended(("n0", "n1"), {"write": RATE}, T + index * HALF)
            first.finished(judge(run, limits=first.limits(run)), T)
        first.close()
        second = self.memory(path)
        slow = ended(("n0", "n1"), {"write": RATE / 2}, T + DAY)
        assert judge(slow, limits=second.limits(slow)).reason is Reason.BELOW_BASELINE
        second.close()

    def test_it_is_written_now_and_then(self, tmp_path: Path) -> None:
        path = tmp_path / "baselines.json"
        memory = self.memory(path)
        run = ended(("n0", "n1"), {"write": RATE}, T)
        memory.finished(judge(run), T)
        list(memory.report(T))
        assert "norm/" in path.read_text()
        memory.close()

    def test_two_services_do_not_share_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "baselines.json"
        first = self.memory(path)
        with pytest.raises(LockedError, match="is in use by another efa-pulse: stop it first"):
            self.memory(path)
        first.close()
        self.memory(path).close()

    def test_without_a_file_it_is_kept_in_memory(self, tmp_path: Path) -> None:
        memory = Memory(configured(), Publisher("t"), fleet=None, alone=True)
        run = ended(("n0", "n1"), {"write": RATE}, T)
        memory.finished(judge(run), T)
        assert "n0" in memory.baselines.nodes
        memory.close()
        assert list(tmp_path.iterdir()) == []

    def test_a_node_without_a_known_type_has_a_baseline_all_the_same(self) -> None:
        two = {"mode": "static", "nodes": [{"name": "n0"}, {"name": "n1"}]}
        memory = Memory(Config.model_validate({"inventory": two}), Publisher("t"), fleet=None, alone=True)
        run = ended(("n0", "n1"), {"write": RATE}, T)
        memory.finished(judge(run), T)
        assert {norm.key.instance_type for norm in memory.baselines.norms.values()} == {"unknown"}


def test_a_publisher_ignores_how_unknown_nodes_stand() -> None:
    cell = Cell(MemoryStore(), learned())
    cell.publisher.node_removed("n3")
    cell.tell(RATE, END)
    assert not [line for line in page_of(cell.publisher).splitlines() if 'node="n3"' in line and "_ratio{" in line]
