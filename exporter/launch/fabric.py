"""A simulated fabric: nodes on leaves and spines, how fast a healthy pair is, and what its faults do to a run. Deterministic by seed.

Healthy speeds are published ones (see `PUBLISHED`); spreads are those that the same sources report: about 6 % between equal machines, 5 to
10 % for pairs on different leaves. Nothing here is measured; everything that comes out of it is labelled `simulated`.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from exporter.inventory.model import Inventory, Node, Room, Stratum, snapshot, stratum_of
from exporter.launch.faults import Fault, FaultKind
from probes.efa import instances
from probes.reasons import Reason

PUBLISHED: dict[str, dict[str, float]] = {
    "mooncake": {"p5.48xlarge": 64e9, "p5e.48xlarge": 64e9, "p5en.48xlarge": 213e9, "p6-b200.48xlarge": 222e9, "p6-b300.48xlarge": 283e9},
    "nixl": {"p5.48xlarge": 75e9, "p5e.48xlarge": 75e9, "p5en.48xlarge": 134e9},
    "nccl": {"p5.48xlarge": 437e9, "p5e.48xlarge": 437e9, "p5en.48xlarge": 445e9},
    "uccl-ep": {"p5.48xlarge": 7e9, "p5en.48xlarge": 36e9, "p6-b200.48xlarge": 33e9},
}
"""Bytes per second between two nodes: Mooncake from host memory (Mooncake docs), NIXL LIBFABRIC from host memory (efa-validation), NCCL
all_reduce of 1 GiB (AWS docs, efa-validation), UCCL-EP dispatch of a rank (UCCL README)."""
UNKNOWN_SHARE = 0.3
"""Share of the line rate for types without a published figure."""
TCP_RATE = 9.5e9
"""TCP between two such nodes (Mooncake pull request 1509)."""
NODE_SPREAD = 0.03
"""Half of the spread between equal machines."""
RUN_SPREAD = 0.01
"""Standard deviation from run to run."""
DAY, SLOWEST = 86400.0, 0.2
"""Seconds of a day; the share of its speed that a drifting node ends at."""
DISTANCE = {Stratum.LEAF: 1.0, Stratum.SPINE: 0.95, Stratum.CROSS: 0.92, Stratum.UNKNOWN: 0.95}
"""Share of the speed of a pair on one leaf."""
UNKNOWNS = (Reason.UNSCHEDULED, Reason.PREEMPTED, Reason.CPU_STARVED, Reason.IMAGE_PULL, Reason.POD_LOST, Reason.EVICTED)
"""What a fault of kind `unknown` ends runs with."""


@dataclass(frozen=True)
class Layout:
    """The shape of a fabric. `unequal` makes leaves of different sizes, as EC2 gives them."""

    nodes: int
    instance_type: str = "p5.48xlarge"
    zone: str = "us-east-2a"
    leaf: int = 16
    leaves_per_spine: int = 8
    unequal: bool = False


@dataclass
class Effect:
    """What one run meets. `rate` is bytes per second at the largest size; the lists have one entry a rank.

    `weak` gives the share that a device (by index) carried of its fair part, `missing` how many devices did not show up; `tcp` says that
    the payload went by TCP, `lossy` stretches the slowest transfers.
    """

    rate: float
    reasons: list[Reason]
    weak: list[dict[int, float]]
    missing: list[int]
    tcp: bool = False
    lossy: bool = False


@dataclass
class Fabric:
    """The nodes and their faults. `seed` decides everything that is random; a run's own draw depends on its id only."""

    inventory: Inventory
    seed: int = 0
    faults: list[Fault] = field(default_factory=list)
    chance: float = 0.0
    """Share of healthy runs that are slow by chance."""

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)  # noqa: S311 - a simulation
        self._speed = {node.instance_id: 1 + rng.uniform(-NODE_SPREAD, NODE_SPREAD) for node in self.inventory}

    def speed(self, node: Node) -> float:
        """A node's own speed as a share of the typical one. Nodes that joined later have theirs by their id."""
        if node.instance_id not in self._speed:
            self._speed[node.instance_id] = 1 + random.Random(f"{self.seed}/{node.instance_id}").uniform(-NODE_SPREAD, NODE_SPREAD)  # noqa: S311
        return self._speed[node.instance_id]

    def draw(self, run_id: str) -> random.Random:
        """The random numbers of one run."""
        return random.Random(int.from_bytes(hashlib.sha256(f"{self.seed}/{run_id}".encode()).digest()[:8], "big"))  # noqa: S311

    def by_chance(self, run_id: str) -> bool:
        """Whether a run is slow without a fault."""
        return self.chance > 0 and self.draw(run_id + "/chance").random() < self.chance

    def healthy_rate(self, probe: str, node: Node) -> float:
        """The typical speed of `probe` between two nodes like this one on one leaf, bytes per second."""
        published = PUBLISHED.get(probe, {}).get(node.instance_type or "")
        return published if published is not None else UNKNOWN_SHARE * (node.line_rate or 50e9)

    def active(self, nodes: Sequence[Node], now: float) -> list[Fault]:
        """The faults that touch a run on these nodes at `now`."""
        return [fault for fault in self.faults if fault.active(now) and _touches(fault, nodes)]

    def effect(self, probe: str, nodes: Sequence[Node], run_id: str, now: float) -> Effect:
        """What a run of `probe` on these nodes at `now` meets."""
        rng = self.draw(run_id)
        rate = min(self.healthy_rate(probe, node) * self.speed(node) for node in nodes)
        rate *= DISTANCE[stratum_of(nodes[0], nodes[-1])] if len(nodes) > 1 else 1.0
        rate *= max(0.9, 1 + rng.gauss(0, RUN_SPREAD))
        if self.by_chance(run_id):
            rate *= 0.5
        effect = Effect(rate, [Reason.OK for _ in nodes], [{} for _ in nodes], [0 for _ in nodes])
        for fault in self.active(nodes, now):
            here = {index for index, node in enumerate(nodes) if fault.where in (node.name, node.nodegroup, "all")}
            if fault.kind in (FaultKind.DEAD_NIC, FaultKind.SLOW_RAIL):
                _rail(effect, fault, here, max(_devices(nodes[0]), 1), probe)
            elif probe != "node" or fault.kind is FaultKind.UNKNOWN:
                _end(effect, fault, here, rng)
                _slow(effect, fault, rng, now)
        return effect


def make_inventory(layout: Layout, seed: int = 0, taken: float = 0.0) -> Inventory:
    """The nodes of a layout: names and ids as EC2 would give them, devices from the instance table."""
    rng = random.Random(seed)  # noqa: S311 - a simulation
    row = instances.lookup(layout.instance_type)
    efa, gpus, line = (row.efa, row.gpus or 0, row.line_rate) if row is not None else (1, 0, 12.5e9)
    nodes: list[Node] = []
    leaf = 0
    while len(nodes) < layout.nodes:
        size = rng.randint(max(2, layout.leaf // 4), layout.leaf) if layout.unequal else layout.leaf
        spine = leaf // layout.leaves_per_spine
        for _ in range(min(size, layout.nodes - len(nodes))):
            number = len(nodes)
            nodes.append(Node(
                instance_id=f"i-{rng.getrandbits(68):017x}", name=f"sim-{number:05d}", instance_type=layout.instance_type, zone=layout.zone,
                region=layout.zone[:-1], nodegroup=f"group-{number * 4 // max(layout.nodes, 1)}",
                network_nodes=("nn-top", f"nn-spine-{spine}", f"nn-leaf-{leaf}"), efa=Room(efa), efa_source="device-plugin",
                efa_expected=efa, line_rate=line, gpu=Room(gpus) if gpus else None, created=taken - 86400.0))
        leaf += 1
    return snapshot(nodes, taken, "simulated")


def random_faults(inventory: Inventory, count: int, rng: random.Random, kinds: Iterable[FaultKind], start: float = 0.0) -> list[Fault]:
    """`count` faults of nodes, each on another node, of random kinds and strengths."""
    chosen = rng.sample(inventory.nodes, min(count, len(inventory)))
    pool = sorted(kinds)
    found: list[Fault] = []
    for node in chosen:
        kind = rng.choice(pool)
        severity = rng.uniform(0.2, 0.6) if kind is FaultKind.SLOW_NODE else None
        found.append(Fault(kind, node.name, start, severity=severity, device=rng.randrange(node.efa.allocatable if node.efa else 1)))
    return found


def _touches(fault: Fault, nodes: Sequence[Node]) -> bool:
    if fault.where == "all":
        return True
    if fault.kind is FaultKind.LOSSY_LEAF:
        return any(node.leaf == fault.where for node in nodes)
    if fault.kind is FaultKind.LOSSY_PATH:
        one, _, other = fault.where.partition("--")
        leaves = {node.leaf for node in nodes}
        return {one, other} <= leaves if one != other else leaves == {one}
    return any(fault.where in (node.name, node.nodegroup) for node in nodes)


def _end(effect: Effect, fault: Fault, here: set[int], rng: random.Random) -> None:
    """Faults that end a run without a figure. One that already failed stays as it is."""
    ranks = range(len(effect.reasons))
    if any(reason is not Reason.OK for reason in effect.reasons):
        return
    if fault.kind is FaultKind.UNKNOWN and rng.random() < fault.strength:
        reason = rng.choice(UNKNOWNS)
        effect.reasons = [reason if index == min(here, default=0) else Reason.RANK_MISSING for index in ranks]
    elif fault.kind is FaultKind.CLOSED_SECURITY_GROUP and len(ranks) > 1:
        effect.reasons = [Reason.TRANSFER_FAILED, *[Reason.PEER_LOST] * (len(ranks) - 1)]
    elif fault.kind is FaultKind.HANG:
        effect.reasons = [Reason.DEADLINE for _ in ranks]
    elif fault.kind is FaultKind.CRASH:
        effect.reasons = [Reason.ENGINE_CRASHED if index in here else Reason.PEER_LOST for index in ranks]


def _slow(effect: Effect, fault: Fault, rng: random.Random, now: float) -> None:
    """Faults that leave the run slower, or on another transport."""
    if fault.kind is FaultKind.TCP_FALLBACK:
        effect.tcp, effect.rate = True, min(effect.rate, TCP_RATE)
    elif fault.kind is FaultKind.SLOW_NODE:
        effect.rate *= fault.strength
    elif fault.kind is FaultKind.DRIFT:
        effect.rate *= max(1 - fault.strength * (now - fault.start) / DAY, SLOWEST)
    elif fault.kind is FaultKind.FLAPPING:
        effect.rate *= 0.4 if rng.random() < fault.strength else 1.0
    elif fault.kind in (FaultKind.LOSSY_LEAF, FaultKind.LOSSY_PATH):
        effect.rate, effect.lossy = effect.rate * fault.strength, True


def _rail(effect: Effect, fault: Fault, here: set[int], devices: int, probe: str) -> None:
    """A NIC that carries less or nothing. Rails are paired: the partner's device idles with it."""
    left = 0.0 if fault.kind is FaultKind.DEAD_NIC else fault.strength
    effect.rate *= (devices - 1 + left) / devices
    for weak in effect.weak:
        weak[fault.device % devices] = left
    for index in here if fault.kind is FaultKind.DEAD_NIC else ():
        effect.missing[index] += 1
        if probe == "node":
            effect.reasons[index] = Reason.DEVICES_MISSING


def _devices(node: Node) -> int:
    return node.efa.allocatable if node.efa is not None else 1
