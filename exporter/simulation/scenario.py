"""What a simulation is made of: the fabric, its faults, and a configuration whose floors fit it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from exporter.config import Config
from exporter.config.thresholds import Floor
from exporter.inventory.model import Node
from exporter.launch.documents import rate_at
from exporter.launch.fabric import DISTANCE, Fabric, Layout
from exporter.launch.faults import Fault

FLOOR_SHARE = 0.82
"""Share of the slowest healthy distance below which a run is slow: 1 minus the 15 % under which thresholds flap by the sources, and the
spread between equal machines."""
START = 1_800_000_000.0
"""When every simulation begins, Unix seconds."""


@dataclass(frozen=True)
class Scenario:
    """One simulation. `seconds` of simulated time; `config` None means the defaults, with EFA required.

    `joins` and `leaves` are (seconds after the start, number of nodes). `chance` is the share of healthy runs that are slow by chance.
    """

    layout: Layout
    seconds: float = 4 * 3600.0
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    chance: float = 0.0
    joins: tuple[tuple[float, int], ...] = ()
    leaves: tuple[tuple[float, int], ...] = ()
    config: Config | None = field(default=None, compare=False)


def default_config(**more: Any) -> Config:
    """The configuration of a fleet with EFA: the defaults, transport required. `more` are sections to add."""
    efa = {"transport": "efa"}
    return Config.model_validate({"probes": {"mooncake": efa, "nixl": efa, "nccl": efa, "uccl-ep": efa}, **more})


def floors_for(config: Config, fabric: Fabric, node: Node) -> list[Floor]:
    """Floors for every figure that the KV and NCCL probes of `config` measure on this fabric."""
    found: list[Floor] = []
    for name, probe in config.probes.items():
        params: Any = probe.params
        if not probe.enabled or name not in ("mooncake", "nixl", "nccl"):
            continue
        full = fabric.healthy_rate(name, node) * min(DISTANCE.values())
        if name == "nccl":
            full /= 1 if params.gpus == "all" else (node.gpu.allocatable if node.gpu is not None else 8)
        for operation in params.operations:
            batch = params.batch if operation.startswith("batch_") else 1
            memory = "gpu" if name == "nccl" else params.memory
            found += [Floor(probe=name, operation=operation, bytes=size, memory=memory, source="simulated fabric",
                            min_bandwidth=FLOOR_SHARE * rate_at(size * batch, full)) for size in params.sizes]
    return found


def with_floors(config: Config, fabric: Fabric, node: Node) -> Config:
    """The configuration with the fabric's floors; floors of its own win."""
    own = {floor.key for floor in config.thresholds.floors}
    extra = [floor for floor in floors_for(config, fabric, node) if floor.key not in own]
    return config.model_copy(update={"thresholds": config.thresholds.model_copy(update={"floors": (*config.thresholds.floors, *extra)})})
