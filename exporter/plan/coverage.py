"""What of the fleet is measured, how old that is, and why the rest is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass

from exporter.inventory.model import Node, Stratum, group_of
from exporter.plan.gates import Closed, Stay
from exporter.plan.planned import World
from exporter.plan.planner import Planner
from exporter.plan.probes import ProbePlan
from exporter.plan.turn import STRATA

ALL = "all"


@dataclass(frozen=True)
class Coverage:
    """One probe at one distance (`all`: at any). `ratio` is of the nodes that can be measured so, None when there are none.

    `oldest` is the age in seconds of the oldest measurement that counts, None without one. `lasting` are nodes that do not count, since
    what keeps probes away from them does not pass by itself.
    """

    probe: str
    stratum: str
    nodes: int
    measured: int
    lasting: int
    oldest: float | None

    @property
    def ratio(self) -> float | None:
        """Share of the nodes that can be measured so that were, within the interval."""
        return self.measured / self.nodes if self.nodes else None


@dataclass(frozen=True)
class LeftOut:
    """Why a probe does not run on a node now, in words; `lasting` when that does not pass by itself."""

    node: Node
    probe: str
    why: str
    gate: str | None
    lasting: bool


def coverage(planner: Planner, world: World, node_interval: float) -> list[Coverage]:
    """The coverage of every probe, at any distance within `node_interval` seconds, and at each within the stratum interval."""
    lasting: dict[str, set[str]] = {}
    for plan in planner.probes:
        moment = planner.moment(world, plan)
        lasting[plan.name] = {node.instance_id for node in world.inventory
                              if any(closed.stay is Stay.LASTING for closed in planner.gates(world, node, plan, moment))}
    return covered(planner, lasting, world.now, lambda _: node_interval)


def covered(planner: Planner, lasting: Mapping[str, Set[str]], now: float, within: Callable[[ProbePlan], float]) -> list[Coverage]:
    """The same where somebody has looked at the gates: `lasting` are the nodes that do not count, by probe. `within` is in seconds."""
    found: list[Coverage] = []
    for plan in planner.probes:
        shut = lasting.get(plan.name, frozenset())
        paired = [one for group in planner.groups.values() if plan.ranks == 1 or len(group.ids) > 1 for one in group.ids]
        found.append(_covered(planner, plan, ALL, paired, shut, now, within(plan)))
        if plan.ranks == 2:
            for stratum in STRATA:
                possible = [one for group in planner.groups.values() for one in group.possible[stratum]]
                if possible:
                    found.append(_covered(planner, plan, stratum, possible, shut, now, planner.settings.stratum_interval))
    return found


def left_out(planner: Planner, world: World) -> Iterator[LeftOut]:
    """Every node and probe that could not start now, with every reason; nothing for those that are only not due."""
    moments = {plan.name: planner.moment(world, plan) for plan in planner.probes}
    for node in world.inventory:
        for plan in planner.probes:
            gates = planner.gates(world, node, plan, moments[plan.name])
            for closed in gates:
                yield _because(node, plan, closed)
            if not gates:
                yield from _alone(planner, node, plan)


def _alone(planner: Planner, node: Node, plan: ProbePlan) -> Iterator[LeftOut]:
    if plan.ranks == 1:
        return
    key = group_of(node)
    if len(planner.groups[key].ids) < 2:
        yield LeftOut(node, plan.name, f"there is no other node like it ({key}): type, zone and EFA must be the same", None, lasting=True)
        return
    turn = planner.turns.get((plan.name, key))
    if turn is not None and node.instance_id in turn.alone:
        yield LeftOut(node, plan.name, turn.alone[node.instance_id], None, lasting=False)


def _because(node: Node, plan: ProbePlan, closed: Closed) -> LeftOut:
    return LeftOut(node, plan.name, closed.why, closed.gate, closed.stay is Stay.LASTING)


def _covered(planner: Planner, plan: ProbePlan, stratum: Stratum | str, ids: list[str], lasting: Set[str], now: float,
             interval: float) -> Coverage:
    name = stratum.value if isinstance(stratum, Stratum) else stratum
    counted = [one for one in ids if one not in lasting]
    times: list[float] = []
    for one in counted:
        entry = planner.books[one].entries.get(plan.name)
        if entry is None:
            continue
        at = entry.strata.get(name) if isinstance(stratum, Stratum) else entry.measured
        if at is not None:
            times.append(at)
    fresh = [at for at in times if now - at <= interval]
    return Coverage(plan.name, name, len(counted), len(fresh), len(ids) - len(counted), now - min(times) if times else None)
