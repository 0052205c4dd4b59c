"""A node that becomes slower without falling below any floor: the service's own control loop notices it on the simulated fabric."""

from __future__ import annotations

from pathlib import Path

from publishing import series_of

from exporter.launch.fabric import Layout
from exporter.launch.faults import Fault, FaultKind
from exporter.simulation.driver import Simulation
from exporter.simulation.scenario import Scenario, default_config

HOUR = 3600.0


def test_a_step_of_eight_percent_is_found_within_six_hours_and_nobody_is_blamed(tmp_path: Path) -> None:
    config = default_config()
    only = config.probes.model_copy(update={name: probe.model_copy(update={"enabled": False}) for name, probe in config.probes.items()
                                            if name != "mooncake"})
    fault = Fault(FaultKind.SLOW_NODE, "sim-00003", start=18 * HOUR, severity=0.92)
    scenario = Scenario(Layout(8, "p5.48xlarge", leaf=4), seconds=24 * HOUR, seed=4, faults=(fault,),
                        config=config.model_copy(update={"probes": only}))
    simulation = Simulation(scenario, tmp_path)
    report = simulation.run()
    assert report.found == [], "a change is no verdict: no node is named, nobody is re-paired"
    assert report.outcomes.keys() == {"ok"}
    simulation.clock.advance(simulation.clock() + 3600)
    page = simulation.publisher.commit()
    assert [dict(labels) for labels in series_of(page, "efapulse_node_change")] == [
        {"node": "sim-00003", "probe": "mooncake", "kind": "step"}]
    assert len(series_of(page, "efapulse_node_to_baseline_ratio")) == 8
    assert len(series_of(page, "efapulse_node_to_peers_ratio")) == 8
