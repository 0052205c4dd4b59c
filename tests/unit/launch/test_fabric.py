"""The simulated fabric: equal seeds give equal runs, documents are real ones, and the judge sees each fault for what it is."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from exporter.inventory import Node, Stratum, stratum_of
from exporter.judge.judge import judge
from exporter.judge.observation import Observation, devices_of, observe
from exporter.judge.verdict import Verdict
from exporter.launch.fabric import Fabric, Layout, make_inventory, random_faults
from exporter.launch.faults import OF_NODES, PERSISTENT, Fault, FaultError, FaultKind, parse_fault
from exporter.launch.simulated import SimulatedClock, SimulatedLauncher, play
from exporter.runs import Run, RunSpec
from exporter.simulation.scenario import START, default_config, with_floors
from probes.reasons import Outcome, Reason
from probes.result import Result, decode, encode

PROBES = ("node", "mooncake", "nixl", "nccl", "uccl-ep")


def fabric(*faults: Fault, seed: int = 1, kind: str = "p5.48xlarge") -> Fabric:
    return Fabric(make_inventory(Layout(64, kind), seed, START), seed, list(faults))


def spec(probe: str, nodes: list[Node], run_id: str = "run", **more: Any) -> RunSpec:
    return RunSpec(run_id, probe, "--".join(node.name for node in nodes), tuple(node.name for node in nodes), "efa", 60.0, **more)


def named(place: Fabric, *names: str) -> list[Node]:
    found = [place.inventory.named(name) for name in names]
    assert None not in found
    return [node for node in found if node is not None]


def verdict(place: Fabric, probe: str = "mooncake", names: tuple[str, ...] = ("sim-00000", "sim-00040"), run_id: str = "run",
            now: float = START) -> tuple[Verdict, Observation]:
    nodes = named(place, *names)
    run, answers = play(place, spec(probe, nodes, run_id), nodes, now)
    config = with_floors(default_config(), place, nodes[0])
    found = judge(run, floors=config.thresholds.floors, instance_types={node.name: node.instance_type for node in nodes}, answers=answers)
    ids = tuple(node.instance_id for node in nodes)
    return found, observe(found, ids, devices={node.instance_id: carried for node in nodes
                                               if (carried := devices_of(answers).get(node.name))})


def test_a_layout_becomes_leaves_and_spines_with_the_devices_of_the_type() -> None:
    inventory = make_inventory(Layout(300, "p5en.48xlarge", leaf=16, leaves_per_spine=4), 7, START)
    nodes = {node.name: node for node in inventory}
    assert len(nodes) == len(inventory.ids) == 300
    assert nodes["sim-00000"].efa is not None
    assert (nodes["sim-00000"].efa.allocatable, nodes["sim-00000"].line_rate) == (16, 400e9)
    assert stratum_of(nodes["sim-00000"], nodes["sim-00015"]) is Stratum.LEAF
    assert stratum_of(nodes["sim-00000"], nodes["sim-00016"]) is Stratum.SPINE
    assert stratum_of(nodes["sim-00000"], nodes["sim-00064"]) is Stratum.CROSS
    assert make_inventory(Layout(300), 7).ids == make_inventory(Layout(300), 7).ids != make_inventory(Layout(300), 8).ids


def test_unequal_leaves_have_different_sizes() -> None:
    inventory = make_inventory(Layout(200, unequal=True), 3, START)
    sizes = {sum(other.leaf == node.leaf for other in inventory) for node in inventory}
    assert len(sizes) > 2
    assert max(sizes) <= 16


@pytest.mark.parametrize("probe", PROBES)
def test_every_rank_leaves_a_document_that_is_one(probe: str) -> None:
    place = fabric()
    nodes = named(place, *(("sim-00000",) if probe == "node" else ("sim-00000", "sim-00040")))
    run, _ = play(place, spec(probe, nodes), nodes, START)
    assert len(run.results) == len(nodes)
    for rank, result in enumerate(run.results):
        again = decode(encode(result))
        assert Result.model_validate(result.model_dump(by_alias=True)) == result
        assert (again.rank, again.node, again.reason) == (rank, nodes[rank].name, Reason.OK)
        assert again.started == START
        assert again.finished == pytest.approx(run.finished)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("probe", ["mooncake", "nixl", "nccl"])
def test_healthy_pairs_pass_whatever_the_seed_and_distance(probe: str, seed: int) -> None:
    place = fabric(seed=seed)
    for other in ("sim-00001", "sim-00020", "sim-00063"):
        found, seen = verdict(place, probe, ("sim-00000", other), f"{seed}-{other}")
        assert (found.outcome, found.reason) == (Outcome.OK, Reason.OK), found.message
        assert found.transport is not None
        assert found.transport.value == "efa_rdma"
        assert seen.weak == {}


def test_the_same_seed_and_run_give_the_same_documents_and_others_do_not() -> None:
    one, same, other = (verdict(fabric(seed=seed), run_id=run)[0].run for seed, run in ((4, "r"), (4, "r"), (4, "s")))
    assert one == same
    assert one.results != other.results


FAULTS: list[tuple[FaultKind, dict[str, Any], Reason, str | None]] = [
    (FaultKind.SLOW_NODE, {}, Reason.BELOW_FLOOR, "efa_rdma"),
    (FaultKind.DRIFT, {}, Reason.BELOW_FLOOR, "efa_rdma"),
    (FaultKind.DEAD_NIC, {"device": 3}, Reason.EFA_PARTIAL, "efa_partial"),
    (FaultKind.SLOW_RAIL, {"device": 3}, Reason.EFA_PARTIAL, "efa_partial"),
    (FaultKind.TCP_FALLBACK, {}, Reason.TCP_FALLBACK, "tcp"),
    (FaultKind.LOSSY_LEAF, {"where": "nn-leaf-0"}, Reason.BELOW_FLOOR, "efa_rdma"),
    (FaultKind.LOSSY_PATH, {"where": "nn-leaf-2--nn-leaf-0"}, Reason.BELOW_FLOOR, "efa_rdma"),
    (FaultKind.CLOSED_SECURITY_GROUP, {"where": "group-0"}, Reason.TRANSFER_FAILED, None),
    (FaultKind.CLOSED_SECURITY_GROUP, {"where": "all"}, Reason.TRANSFER_FAILED, None),
    (FaultKind.FLAPPING, {"severity": 1.0}, Reason.BELOW_FLOOR, "efa_rdma"),
    (FaultKind.HANG, {}, Reason.DEADLINE, None),
    (FaultKind.CRASH, {}, Reason.ENGINE_CRASHED, None),
]


@pytest.mark.parametrize(("kind", "fields", "reason", "transport"), FAULTS)
def test_each_fault_is_judged_for_what_it_is(kind: FaultKind, fields: dict[str, Any], reason: Reason, transport: str | None) -> None:
    place = fabric(Fault(kind, **{"where": "sim-00000", **fields}))
    found, seen = verdict(place)
    assert found.reason is reason
    assert (found.transport.value if found.transport is not None else None) == transport
    assert seen.bad
    untouched = ("sim-00020", "sim-00041") if fields.get("where") != "all" else None
    if untouched is not None:
        assert verdict(place, names=untouched)[0].reason is Reason.OK


@pytest.mark.parametrize(("days", "left"), [(0.0, 1.0), (1.0, 0.99), (10.0, 0.9), (1000.0, 0.2)])
def test_a_drifting_node_loses_its_share_of_speed_every_day(days: float, left: float) -> None:
    rates = []
    for faults in ((), (Fault(FaultKind.DRIFT, "sim-00000", START, severity=0.01),)):
        place = fabric(*faults)
        nodes = [place.inventory.named(name) for name in ("sim-00000", "sim-00001")]
        rates.append(place.effect("mooncake", [node for node in nodes if node is not None], "r", START + days * 86400).rate)
    assert rates[1] / rates[0] == pytest.approx(left)


def test_every_kind_of_fault_has_a_case_here() -> None:
    assert {kind for kind, *_ in FAULTS} | {FaultKind.UNKNOWN} == set(FaultKind)


@pytest.mark.parametrize(("kind", "says"), [
    (FaultKind.DEAD_NIC, "1 of its EFA devices did not show up"), (FaultKind.CRASH, "engine_crashed of itself"),
])
def test_evidence_of_one_side_points_at_the_side_with_the_fault(kind: FaultKind, says: str) -> None:
    for where in ("sim-00000", "sim-00040"):
        place = fabric(Fault(kind, where, device=3))
        sides = verdict(place)[1].sides
        assert [place.inventory.get(side.node) for side in sides] == named(place, where)
        assert says in sides[0].says


def test_a_dead_nic_is_seen_by_the_preflight_too() -> None:
    place = fabric(Fault(FaultKind.DEAD_NIC, "sim-00000"))
    assert verdict(place, "node", ("sim-00000",))[0].reason is Reason.DEVICES_MISSING
    assert verdict(place, "node", ("sim-00001",))[0].reason is Reason.OK


def test_a_weak_rail_shows_on_both_sides_and_its_share_is_that_of_the_fault() -> None:
    place = fabric(Fault(FaultKind.SLOW_RAIL, "sim-00000", device=5))
    assert set(verdict(place)[1].weak.values()) == {("rdmap5s0",)}
    assert len(verdict(place)[1].weak) == 2


def test_unknown_outcomes_come_as_often_as_asked_for() -> None:
    place = fabric(Fault(FaultKind.UNKNOWN, "all", severity=0.3))
    outcomes = [verdict(place, run_id=f"r{index}")[0].outcome for index in range(300)]
    assert set(outcomes) == {Outcome.OK, Outcome.UNKNOWN}
    assert 0.22 < outcomes.count(Outcome.UNKNOWN) / 300 < 0.38


def test_a_fault_is_there_between_its_start_and_its_end() -> None:
    place = fabric(Fault(FaultKind.CRASH, "sim-00000", START + 100, START + 200))
    reasons = [verdict(place, now=START + after)[0].reason for after in (0, 99, 100, 199, 200)]
    assert reasons == [Reason.OK, Reason.OK, Reason.ENGINE_CRASHED, Reason.ENGINE_CRASHED, Reason.OK]


def test_a_hang_lasts_until_the_deadline_and_a_crash_does_not() -> None:
    nodes = named(fabric(), "sim-00000", "sim-00040")
    hang, _ = play(fabric(Fault(FaultKind.HANG, "sim-00000")), spec("mooncake", nodes), nodes, START)
    crash, _ = play(fabric(Fault(FaultKind.CRASH, "sim-00000")), spec("mooncake", nodes), nodes, START)
    assert hang.finished - hang.started == 60.0
    assert crash.finished - crash.started < 10.0


def test_runs_slow_by_chance_come_as_often_as_asked_for() -> None:
    place = replace(fabric(), chance=0.1)
    slow = [verdict(place, run_id=f"r{index}")[0].reason is Reason.BELOW_FLOOR for index in range(300)]
    assert slow == [place.by_chance(f"r{index}") for index in range(300)]
    assert 0.05 < sum(slow) / 300 < 0.16


def test_random_faults_sit_on_different_nodes() -> None:
    inventory = fabric().inventory
    faults = random_faults(inventory, 3, random.Random(5), PERSISTENT)
    assert len({fault.where for fault in faults}) == 3
    assert all(fault.kind in PERSISTENT for fault in faults)
    assert FaultKind.FLAPPING in OF_NODES - PERSISTENT


NAMES = ["sim-00000", "sim-00001"]


def test_faults_are_written_as_kind_and_place() -> None:
    assert parse_fault("slow_node:1", NAMES) == Fault(FaultKind.SLOW_NODE, "sim-00001")
    assert parse_fault("dead-nic:sim-00000,device=4,start=60,end=90", NAMES) == Fault(FaultKind.DEAD_NIC, "sim-00000", 60.0, 90.0, device=4)
    assert parse_fault("closed_security_group:all,severity=0.5", NAMES).strength == 0.5


@pytest.mark.parametrize(("text", "says"), [
    ("slow:1", "no kind of fault: use one of slow_node"), ("slow_node", "does not say where"), ("slow_node:9", "'9' is no node"),
    ("slow_node:0,speed=1", "'speed' is no option"), ("slow_node:0,start=soon", "a number is needed"),
    ("slow_node:0,severity=2", "between 0 and 1"),
])
def test_a_fault_that_cannot_be_is_refused_with_what_to_write(text: str, says: str) -> None:
    with pytest.raises(FaultError, match=says):
        parse_fault(text, NAMES)


class Lab:
    def __init__(self, place: Fabric) -> None:
        self.clock = SimulatedClock(START)
        self.ended: list[Run] = []
        self.launcher = SimulatedLauncher(place, self.clock, self.ended.append)


def test_the_launcher_reports_each_run_once_when_its_time_has_come() -> None:
    place = fabric()
    lab = Lab(place)
    lab.launcher.start(spec("mooncake", named(place, "sim-00000", "sim-00001"), "a"))
    lab.launcher.start(spec("mooncake", named(place, "sim-00002", "sim-00003"), "b"))
    assert (lab.launcher.running(), lab.ended) == (["a", "b"], [])
    while lab.clock.advance(START + 100):
        pass
    assert sorted(run.spec.run_id for run in lab.ended) == ["a", "b"]
    assert lab.launcher.running() == lab.launcher.overlaps == []
    assert lab.clock() == START + 100
    assert set(lab.launcher.answers(lab.ended[0])) == set(lab.ended[0].spec.nodes)


def test_cancelled_runs_end_at_once_and_only_once() -> None:
    place = fabric()
    lab = Lab(place)
    lab.launcher.start(spec("mooncake", named(place, "sim-00000", "sim-00001"), "a"))
    lab.launcher.cancel("a")
    lab.launcher.cancel("a")
    lab.launcher.close(0)
    while lab.clock.advance(START + 100):
        pass
    assert [{result.reason for result in run.results} for run in lab.ended] == [{Reason.CANCELLED}]


def test_a_run_on_a_node_that_is_not_there_is_unscheduled() -> None:
    lab = Lab(fabric())
    lab.launcher.start(RunSpec("a", "mooncake", "x--y", ("sim-00000", "gone"), "efa", 60.0))
    while lab.clock.advance(START + 100):
        pass
    assert [result.reason for result in lab.ended[0].results] == [Reason.UNSCHEDULED] * 2


def test_two_runs_on_one_node_are_noticed() -> None:
    place = fabric()
    lab = Lab(place)
    for run_id in ("a", "b"):
        lab.launcher.start(spec("mooncake", named(place, "sim-00000", "sim-00001"), run_id))
    assert lab.launcher.overlaps[0] == "b and a on sim-00000"
