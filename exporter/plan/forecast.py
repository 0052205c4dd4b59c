"""What the probes will do and cost, before anything runs: `efa-pulse plan`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from exporter.config.canary import Canary
from exporter.inventory.model import Inventory, Node
from exporter.plan.cost import ALL_GPUS, DAY, Cost, canary_gpu_seconds_a_day
from exporter.plan.planned import World
from exporter.plan.planner import Planner
from exporter.plan.probes import ProbePlan


@dataclass(frozen=True)
class ProbeCost:
    """One probe: what a run costs a node, how often it comes, and what that makes of a node's time.

    `round_seconds` is how long a round takes (None for probes of single nodes), `cycle_seconds` until every pair has met.
    """

    probe: str
    interval: float
    cost: Cost
    runs_per_day: float
    fabric_share: float
    gpu_share: float
    bytes_per_day: float
    image: str | None
    image_bytes: int | None
    round_seconds: float | None
    cycle_seconds: float | None


@dataclass(frozen=True)
class ComingRound:
    """One of the next rounds: when it begins at the earliest (Unix seconds) and its pairs by name. `alone` have no partner in it."""

    probe: str
    group: str
    number: int
    begins: float
    pairs: tuple[tuple[str, str], ...]
    alone: tuple[str, ...]


@dataclass(frozen=True)
class Forecast:
    """The whole of it. Shares are of one node's time; `canary_gpu_share` is spread over the GPUs of the inventory."""

    nodes: int
    concurrency: int
    probes: tuple[ProbeCost, ...]
    rounds: tuple[ComingRound, ...]
    fabric_share: float
    gpu_share: float
    canary_gpu_share: float
    first_coverage: float
    holders: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"nodes": self.nodes, "concurrency": self.concurrency, "fabric_share": self.fabric_share, "gpu_share": self.gpu_share,
                "canary_gpu_share": self.canary_gpu_share, "first_coverage_seconds": self.first_coverage,
                "probes": [{**vars(one), "cost": {**vars(one.cost), "gpu_seconds": one.cost.gpu_seconds}} for one in self.probes],
                "rounds": [{**vars(one), "pairs": [list(pair) for pair in one.pairs], "alone": list(one.alone)} for one in self.rounds],
                "holders": [{"node": node, "pod": pod} for node, pod in self.holders]}


def forecast(planner: Planner, world: World, canary: Canary, rounds: int = 3) -> Forecast:
    """What comes next, from where the journal stands. Nothing is started and nothing is changed."""
    inventory = world.inventory
    concurrency = planner.concurrency()
    costs = tuple(_cost(plan, planner, concurrency) for plan in planner.probes)
    gpus = [node.gpu.allocatable for node in inventory if node.gpu is not None]
    canaries = canary_gpu_seconds_a_day(canary) / DAY / max(sum(gpus), 1) if gpus or canary.targets else 0.0
    slowest = max((one.round_seconds or one.interval for one in costs), default=0.0)
    return Forecast(
        len(inventory), concurrency, costs, tuple(_coming(planner, world, rounds)), sum(one.fabric_share for one in costs),
        sum(one.gpu_share for one in costs) + canaries, canaries, slowest,
        tuple((node.name, str(holder)) for node in inventory for holder in node.holders if not holder.probe))


def _cost(plan: ProbePlan, planner: Planner, concurrency: int) -> ProbeCost:
    cost = plan.cost
    per_day = DAY / plan.interval
    pairs = max((len(group.ids) // 2 for group in planner.groups.values()), default=0)
    total = sum(len(group.ids) // 2 for group in planner.groups.values())
    round_seconds = cycle = None
    if plan.ranks == 2 and pairs:
        round_seconds = max(planner.settings.spread * plan.interval, math.ceil(total / concurrency) * cost.wall)
        cycle = (2 * pairs - 1) * max(plan.interval, round_seconds)
    return ProbeCost(plan.name, plan.interval, cost, per_day, cost.window * per_day / DAY,
                     cost.gpu_seconds * per_day / (DAY * _gpus(planner.inventory)), cost.bytes * per_day, plan.needs.image,
                     plan.needs.image_bytes, round_seconds, cycle)


def _coming(planner: Planner, world: World, count: int) -> Iterable[ComingRound]:
    names = {node.instance_id: node.name for node in world.inventory}
    for (probe, group), turn in planner.turns.items():
        circle = replace(turn.circle, places=list(turn.circle.places), extra=list(turn.circle.extra))
        begins = max(turn.due_at(), world.now)
        for number in range(count):
            pairs = tuple((names[one], names[other]) for one, other in circle.advance() if one in names and other in names)
            paired = {name for pair in pairs for name in pair}
            alone = tuple(sorted(names[one] for one in planner.groups[group].ids if names[one] not in paired))
            yield ComingRound(probe, group, turn.number + 1 + number, begins, pairs, alone)
            begins = turn.plan.next_round(begins)


def _gpus(inventory: Inventory) -> int:
    counts = [node.gpu.allocatable for node in inventory if node.gpu is not None and node.gpu.allocatable]
    return min(counts, default=ALL_GPUS)


def explain_holders(node: Node) -> str:
    """Who holds the devices of a node, in words."""
    held = [f"{holder} ({holder.efa} EFA, {holder.gpu} GPU)" for holder in node.holders if not holder.probe]
    return ", ".join(held) or "nobody"
