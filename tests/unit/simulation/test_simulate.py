"""Simulations: the real control loop on the simulated fabric finds what was injected, and spends what it says."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from exporter.launch.fabric import Fabric, Layout, make_inventory, random_faults
from exporter.launch.faults import PERSISTENT, Fault, FaultKind
from exporter.simulation.driver import Simulation, simulate
from exporter.simulation.report import Report
from exporter.simulation.scenario import START, Scenario, default_config
from exporter.simulation.trial import Trial

HOUR = 3600.0


def scenario(nodes: int, *faults: Fault, hours: float = 1.5, **more: object) -> Scenario:
    return Scenario(Layout(nodes, "p6-b200.48xlarge", leaf=8), seconds=hours * HOUR, seed=2, faults=faults, **more)  # type: ignore[arg-type]


def told(report: Report) -> list[tuple[str, tuple[str, ...], bool]]:
    return [(found.finding.kind, found.names, found.fault is not None) for found in report.found]


@pytest.mark.parametrize("fault", [
    Fault(FaultKind.SLOW_NODE, "sim-00003"), Fault(FaultKind.CRASH, "sim-00003"), Fault(FaultKind.HANG, "sim-00003"),
    Fault(FaultKind.TCP_FALLBACK, "sim-00003"), Fault(FaultKind.DEAD_NIC, "sim-00003", device=2),
    Fault(FaultKind.SLOW_RAIL, "sim-00003", device=2),
], ids=str)
def test_a_bad_node_is_found_and_nobody_else(fault: Fault) -> None:
    report = simulate(scenario(24, fault))
    assert report.ok, list(report.lines())
    assert {names[0] for _, names, _ in told(report)} == {"sim-00003"}
    assert report.found[0].after < HOUR


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    report = simulate(scenario(24))
    assert report.ok
    assert (report.found, report.repairs, report.overlaps) == ([], 0, [])
    assert report.outcomes.keys() == {"ok"}


def test_unknown_outcomes_and_chance_name_nobody() -> None:
    report = simulate(scenario(24, Fault(FaultKind.UNKNOWN, "all", severity=0.05), hours=3, chance=0.005))
    assert report.ok, list(report.lines())
    assert report.outcomes["unknown"] > 5


def test_a_closed_security_group_is_one_finding_a_probe_and_is_over_when_it_opens() -> None:
    report = simulate(scenario(48, Fault(FaultKind.CLOSED_SECURITY_GROUP, "all", start=2000, end=4000), hours=2))
    assert report.ok, list(report.lines())
    assert {(kind, names) for kind, names, _ in told(report)} == {("group", ("fleet all",))}
    assert len(report.over) == len(report.found) == 2
    assert report.repairs < 12


def test_two_nodes_make_a_pair() -> None:
    report = simulate(scenario(2, Fault(FaultKind.SLOW_NODE, "sim-00001")))
    assert {(kind, frozenset(names)) for kind, names, _ in told(report)} == {("pair", frozenset({"sim-00000", "sim-00001"}))}
    assert report.ok


def test_one_node_has_its_preflight_only() -> None:
    report = simulate(scenario(1))
    assert report.runs.keys() == {"node"}


def test_nodes_that_join_and_leave_in_mid_run_cost_no_overlap_and_no_name() -> None:
    report = simulate(scenario(24, hours=2, joins=((1000.0, 6), (5000.0, 1)), leaves=((1500.0, 3), (4000.0, 2))))
    assert report.ok, list(report.lines())
    assert report.found == []


def test_a_node_is_never_in_two_runs_and_the_page_is_served(tmp_path: Path) -> None:
    simulation = Simulation(scenario(32, Fault(FaultKind.SLOW_NODE, "sim-00003")), tmp_path)
    report = simulation.run()
    assert report.overlaps == []
    page = b"".join(segment.text for segment in simulation.publisher.snapshot.classic.segments).decode()
    assert 'efapulse_node_healthy{node="sim-00003",probe="mooncake"} 0' in page
    assert report.series > 500


def test_the_default_configuration_costs_less_than_its_goals() -> None:
    config = default_config(canary={"targets": [{"name": "chat", "url": "http://h", "model": "m"}]})
    config = config.model_copy(update={"probes": config.probes.model_copy(
        update={"nccl": config.probes.nccl.model_copy(update={"enabled": True})})})
    report = simulate(scenario(16, hours=8, config=config))
    assert 0 < report.fabric_time < 0.005
    assert 0 < report.gpu_time < 0.001


def test_the_report_is_json_and_text() -> None:
    report = simulate(scenario(12, Fault(FaultKind.CRASH, "sim-00003"), hours=0.5))
    data = json.loads(json.dumps(report.to_json()))
    assert data["simulated"] is True
    assert [found["nodes"] for found in data["found"]] == [["sim-00003"]] * len(report.found)
    text = "\n".join(report.lines())
    assert "injected  crash sim-00003 at 0:00:00" in text
    assert "found     node sim-00003" in text


def test_the_same_seed_gives_the_same_report() -> None:
    one, other = (simulate(scenario(16, Fault(FaultKind.SLOW_NODE, "sim-00003"), hours=0.7)) for _ in range(2))
    assert {**one.to_json(), "wall_seconds": 0} == {**other.to_json(), "wall_seconds": 0}


def test_a_fabric_without_nodes_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one node"):
        simulate(scenario(0))


@pytest.mark.parametrize("seed", range(6))
def test_trials_name_every_bad_node_in_time_and_nobody_else(seed: int) -> None:
    rng = random.Random(seed)
    inventory = make_inventory(Layout(rng.randint(20, 90), "p6-b200.48xlarge", unequal=True), seed, START)
    faults = random_faults(inventory, 2, rng, PERSISTENT)
    named = Trial(Fabric(inventory, seed, faults), default_config()).ours(2)
    assert named.names == {fault.where for fault in faults}
    bad = {fault.where for fault in faults}
    assert all(len(named.partners[one]) <= 2 + bool(bad & set(named.partners[one])) for one in bad)


@pytest.mark.parametrize("seed", range(3))
def test_runs_that_no_fault_touches_need_not_be_played(seed: int) -> None:
    inventory = make_inventory(Layout(30, "p6-b200.48xlarge", unequal=True), seed, START)
    faults = [*random_faults(inventory, 2, random.Random(seed), PERSISTENT), Fault(FaultKind.UNKNOWN, "all", severity=0.1)]
    place = Fabric(inventory, seed, faults, chance=0.02)
    short, full = (Trial(place, default_config(), full=full) for full in (False, True))
    assert short.ours(2).names == full.ours(2).names
    assert short.two_pass(random.Random(1)).names == full.two_pass(random.Random(1)).names


def test_the_peers_scheme_puts_an_odd_node_in_a_second_pair_and_takes_a_missing_result_for_bad() -> None:
    inventory = make_inventory(Layout(21, "p6-b200.48xlarge"), 0, START)
    quiet = Trial(Fabric(inventory, 0), default_config()).two_pass(random.Random(0))
    assert (quiet.runs, quiet.names) == (11, set())
    lost = Trial(Fabric(inventory, 0, [Fault(FaultKind.UNKNOWN, "all", severity=1.0)]), default_config()).two_pass(random.Random(0))
    assert lost.names == {node.name for node in inventory}
