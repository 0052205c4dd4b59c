"""What the control loop sees of a fleet now and then, and what it tells the publisher of it."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from publishing import series_of, value_of

from exporter.config import Config
from exporter.control import Control
from exporter.events import STALE_SECONDS, Conditions, Event, Finished, Inventoried, Leading
from exporter.fleet import Fleet
from exporter.inventory.model import Inventory, Node, Room
from exporter.judge.witnesses import Answers
from exporter.plan.store import MemoryStore
from exporter.publish.publisher import Publisher
from exporter.runs import Run, RunSpec
from exporter.scheduler import Scheduler
from exporter.survey import NODES_AT_ONCE, PACE_SECONDS
from probes.efa.window import CounterWindow, DeviceDelta, WitnessAnswer
from probes.result import Evidence, Measurement, Result

MIB = 1 << 20
START = 1_790_000_000.0


def config(**more: Any) -> Config:
    off = {"enabled": False}
    return Config.model_validate({"inventory": {"mode": "kubernetes"}, "schedule": {"start_spread": 0},
                                  "probes": {"node": off, "nixl": off, "nccl": off}, **more})


def node(name: str, **more: Any) -> Node:
    roomy = {"efa": Room(4), "cpu": Room(96_000), "memory": Room(1 << 40), "pods": Room(100)}
    return Node(f"i-{name}", name, instance_type="p5.48xlarge", zone="z", created=0.0, **{**roomy, **more})


class Loop:
    """A control loop over a fleet, with conditions that a test sets."""

    def __init__(self, folder: Path, *nodes: Node, settings: Config | None = None, elected: bool = False) -> None:
        self.now = START
        self.nodes = Inventory(nodes, source="kubernetes")
        self.started: list[RunSpec] = []
        self.conditions = Conditions()
        self.answers: Answers = {}
        self.settings = settings or config()
        events: queue.Queue[Event] = queue.Queue()
        self.publisher = Publisher("t", cluster=True)
        which: dict[str, Any] = {"make_fleet": lambda _: self.fleet()} if elected else {"fleet": self.fleet()}
        self.control = Control(self.settings, events=events, launcher=self, scheduler=Scheduler(events, clock=self),
                               publisher=self.publisher, secrets_dir=folder, clock=self,
                               conditions=lambda: self.conditions, ask=lambda _: self.answers, **which)
        self.control.handle(Inventoried(self.nodes))

    def __call__(self) -> float:
        return self.now

    def fleet(self) -> Fleet:
        return Fleet(self.settings, MemoryStore(), self.nodes, clock=self, monotonic=self)

    def start(self, spec: RunSpec) -> None:
        self.started.append(spec)

    def cancel(self, run_id: str) -> None: ...

    def running(self) -> list[str]:
        return []

    def close(self, grace: float) -> None: ...

    def turn(self, seconds: float = PACE_SECONDS) -> None:
        self.now += seconds
        self.control.handle(None)

    def become(self, *nodes: Node) -> None:
        self.nodes = Inventory(nodes, source="kubernetes")
        self.control.handle(Inventoried(self.nodes))

    def told(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """The values of one family by these labels."""
        return {tuple(dict(found).get(label, "") for label in labels): value
                for found, value in series_of(self.publisher.snapshot, name).items()}

    def gates(self) -> set[tuple[str, ...]]:
        return set(self.told("efapulse_node_gate_closed", "node", "gate"))

    def held(self) -> set[str]:
        return {gate for (gate,), value in self.told("efapulse_gate_closed", "gate").items() if value}

    def end(self, spec: RunSpec, *, rate: float = 2e9, devices: tuple[str, ...] = ("rdmap0",)) -> None:
        results = []
        for rank, name in enumerate(spec.nodes):
            share = (1 << 30, 0) if rank == 0 else (0, 1 << 30)
            row = Measurement(operation="write", memory="dram", kind="goodput", bytes=[MIB], bandwidth=[rate], wrong=[0])
            results.append(Result.model_validate({
                "run_id": spec.run_id, "probe": spec.probe, "target": spec.target, "rank": rank, "world_size": spec.world_size,
                "node": name, "started": self.now - 5, "finished": self.now, "reason": "ok",
                "measure": {"start": self.now - 3, "end": self.now - 1}, "measurements": [row],
                "evidence": Evidence(stack="mooncake", payload_bytes=share, tcp_bytes=share, devices=list(devices))}))
        self.control.handle(Finished(Run(spec, tuple(results), self.now - 5, self.now)))


def witnessed(name: str, moved: Mapping[str, int]) -> Answers:
    """What the witness of a node counted in the window of a run."""
    devices = {device: DeviceDelta({"rdma_write_bytes": count, "tx_bytes": count}) for device, count in moved.items()}
    window = CounterWindow(START, START + 2, devices)
    return {name: WitnessAnswer(name, window)}


def test_nodes_are_described_as_soon_as_they_are_there_and_gone_with_them(tmp_path: Path) -> None:
    loop = Loop(tmp_path, node("a", placement_group="pg"), node("b"))
    described = ("node", "instance_id", "instance_type", "zone", "placement_group")
    assert set(loop.told("efapulse_node_info", *described)) == {
        ("a", "i-a", "p5.48xlarge", "z", "pg"), ("b", "i-b", "p5.48xlarge", "z", "")}
    loop.become(node("b"))
    assert set(loop.told("efapulse_node_info", "node")) == {("b",)}


class TestGates:
    def test_a_closed_gate_comes_and_goes(self, tmp_path: Path) -> None:
        loop = Loop(tmp_path, node("a"), node("b"))
        loop.become(node("a", efa=Room(4, 4)), node("b"))
        loop.turn()
        assert loop.gates() == {("a", "efa_room")}
        loop.become(node("a"), node("b"))
        loop.turn()
        assert loop.gates() == set()

    def test_it_is_not_looked_at_in_every_turn(self, tmp_path: Path) -> None:
        loop = Loop(tmp_path, node("a"), node("b"))
        loop.turn()
        loop.become(node("a", ready=False), node("b"))
        loop.turn(PACE_SECONDS / 10)
        assert loop.gates() == set()
        loop.turn()
        assert loop.gates() == {("a", "ready")}

    def test_a_clock_that_was_set_back_does_not_silence_it(self, tmp_path: Path) -> None:
        loop = Loop(tmp_path, node("a"), node("b"))
        loop.turn()
        loop.become(node("a", ready=False), node("b"))
        loop.turn(-3600)
        assert loop.gates() == {("a", "ready")}

    def test_our_own_run_is_no_gate(self, tmp_path: Path) -> None:
        loop = Loop(tmp_path, node("a"), node("b"))
        for _ in range(20):
            loop.turn()
        assert len(loop.started) == 1
        loop.become(node("a", probe_pods=1), node("b", probe_pods=1))
        loop.turn()
        assert loop.gates() == set()

    def test_a_large_fleet_is_looked_at_in_parts(self, tmp_path: Path) -> None:
        count = NODES_AT_ONCE + 10
        loop = Loop(tmp_path, *(node(f"n{i:05d}", ready=False) for i in range(count)))
        assert len(loop.gates()) == NODES_AT_ONCE
        assert loop.told("efapulse_coverage_ratio", "stratum") == {}, "not before every node was looked at"
        loop.turn()
        assert len(loop.gates()) == count
        assert loop.told("efapulse_coverage_ratio", "stratum") == {("all",): 0.0}


class TestHeld:
    def test_all_open(self, tmp_path: Path) -> None:
        assert Loop(tmp_path, node("a"), node("b")).held() == set()

    def test_a_pause_is_seen_at_once(self, tmp_path: Path) -> None:
        loop = Loop(tmp_path, node("a"), node("b"))
        loop.conditions = Conditions(paused="maintenance")
        loop.turn(0.01)
        assert loop.held() == {"paused"}

    def test_a_quiet_window_of_every_probe(self, tmp_path: Path) -> None:
        window = {"from": "00:00", "to": "23:00"}
        loop = Loop(tmp_path, node("a"), node("b"), settings=config(schedule={"start_spread": 0, "quiet_windows": [window]}))
        loop.turn()
        assert loop.held() == {"quiet"}

    def test_nothing_is_planned_with_an_inventory_that_is_too_old(self, tmp_path: Path) -> None:
        loop = Loop(tmp_path)
        loop.conditions = Conditions(trouble="refused", inventory_age=STALE_SECONDS + 1, requests={})
        loop.become(node("a"), node("b"))
        for _ in range(20):
            loop.turn()
        assert (loop.started, loop.held()) == ([], {"stale_inventory"})
        loop.conditions = Conditions(inventory_age=0.0, requests={})
        for _ in range(20):
            loop.turn()
        assert (len(loop.started), loop.held()) == (1, set())

    def test_a_replica_that_does_not_lead(self, tmp_path: Path) -> None:
        loop = Loop(tmp_path, node("a", ready=False), node("b"), elected=True)
        assert loop.held() == {"standby"}
        loop.control.handle(Leading(True))
        loop.turn()
        assert (loop.held(), loop.gates()) == (set(), {("a", "ready")})
        assert loop.told("efapulse_coverage_nodes", "state") != {}
        loop.control.handle(Leading(False))
        assert (loop.held(), loop.gates()) == ({"standby"}, set())
        assert [loop.told(f"efapulse_{name}", "probe") for name in ("coverage_ratio", "coverage_nodes", "findings")] == [{}, {}, {}]


class TestCoverage:
    def test_nodes_that_lasting_reasons_keep_out_do_not_count(self, tmp_path: Path) -> None:
        loop = Loop(tmp_path, node("a"), node("b"), node("c"), node("d", annotations={"efa-pulse.io/exclude": "broken"}))
        for _ in range(20):
            loop.turn()
        loop.end(loop.started[0])
        for _ in range(10):
            loop.turn()
        states = loop.told("efapulse_coverage_nodes", "stratum", "state")
        assert states["all", "left_out"] == 1.0
        assert states["all", "measured"] == 2.0
        assert states["all", "waiting"] == 1.0
        assert loop.told("efapulse_coverage_ratio", "stratum")["all",] == pytest.approx(2 / 3)


def test_suspects_and_their_findings(tmp_path: Path) -> None:
    floor = {"probe": "mooncake", "operation": "write", "bytes": MIB, "memory": "dram", "min_bandwidth": 1e9, "source": "t"}
    loop = Loop(tmp_path, *(node(name) for name in "abcdef"), settings=config(thresholds={"floors": [floor]}))
    for _ in range(200):
        loop.turn()
        for spec in loop.started:
            loop.end(spec, rate=1e6 if "a" in spec.nodes else 2e9)
        loop.started.clear()
    loop.turn(10)
    assert loop.told("efapulse_node_suspicion_ratio", "node")["a",] == 1.0
    found = loop.told("efapulse_findings", "kind", "probe")
    assert found["node", "mooncake"] == 1.0
    assert {kind for kind, _ in found} == {"node", "nic", "path", "pair", "group"}
    bad = {pair: value for pair, value in loop.told("efapulse_pair_healthy", "node", "peer").items() if "a" in pair}
    assert len(bad) >= 2
    assert set(bad.values()) == {0.0}, "every pair of the suspect failed"


def test_shares_of_devices_come_from_the_witnesses(tmp_path: Path) -> None:
    loop = Loop(tmp_path, node("a"), node("b"))
    for _ in range(20):
        loop.turn()
    loop.answers = witnessed("a", {"rdmap0": 100, "rdmap1": 300})
    loop.end(loop.started[0], devices=("rdmap0", "rdmap1"))
    assert loop.told("efapulse_nic_share_ratio", "node", "device") == {("a", "rdmap0"): 0.5, ("a", "rdmap1"): 1.5}
    assert loop.told("efapulse_node_devices_measured", "node", "kind") == {("a", "efa"): 2.0, ("b", "efa"): 2.0}


def test_the_connection_to_the_cluster(tmp_path: Path) -> None:
    loop = Loop(tmp_path, node("a"), node("b"))
    assert loop.told("efapulse_cluster_trouble") == {}
    loop.conditions = Conditions(trouble="refused", inventory_age=20.0, requests={"GET": 3})
    loop.turn()
    page = loop.publisher.snapshot
    assert value_of(page, "efapulse_cluster_trouble") == 1.0
    assert value_of(page, "efapulse_inventory_complete_timestamp_seconds") == loop.now - 20
    assert value_of(page, "efapulse_api_requests_total", method="GET") == 3.0
    loop.conditions = Conditions(inventory_age=float("inf"), requests={"GET": 4})
    loop.turn()
    assert value_of(loop.publisher.snapshot, "efapulse_publish_errors_total", event="cluster_followed") == 0.0
