"""What the control loop has seen of the fleet as a whole, told to the publisher now and then: plain data, and the samples it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from exporter.publish import families as f
from exporter.publish.family import Family

FLEET_GATES = ("paused", "quiet", "stale_inventory", "standby")
"""Gates that hold back every probe: a pause, a quiet window of all probes, an inventory too old, a replica that does not lead."""

Samples = dict[tuple[str, ...], float]


@dataclass(frozen=True)
class Covered:
    """One probe at one distance. `left_out` are nodes that do not count; `oldest` is Unix seconds, None without a measurement."""

    probe: str
    stratum: str
    nodes: int
    measured: int
    left_out: int
    oldest: float | None


@dataclass(frozen=True)
class Surveyed:
    """See the module. `at` is Unix seconds, nodes are names. None means not looked at this time: what was told before stays.

    `gates` are the closed gates of the nodes that were looked at, `held` the gates of `FLEET_GATES`, `suspicion` the probability of each
    suspect, `findings` their number by kind and probe.
    """

    at: float
    gates: Mapping[str, Sequence[str]] = field(default_factory=dict)
    held: Mapping[str, bool] = field(default_factory=dict)
    coverage: Sequence[Covered] | None = None
    suspicion: Mapping[str, float] | None = None
    findings: Mapping[tuple[str, str], int] | None = None


def coverage_samples(found: Sequence[Covered]) -> list[tuple[Family, Samples]]:
    """The families of coverage, each whole."""
    nodes: Samples = {}
    for one in found:
        counts = {"measured": one.measured, "waiting": one.nodes - one.measured, "left_out": one.left_out}
        nodes.update({(one.probe, one.stratum, state): float(count) for state, count in counts.items()})
    return [
        (f.COVERAGE, {(one.probe, one.stratum): one.measured / one.nodes for one in found if one.nodes}),
        (f.COVERAGE_NODES, nodes),
        (f.COVERAGE_OLDEST, {(one.probe, one.stratum): one.oldest for one in found if one.oldest is not None}),
    ]


class Suspicions:
    """What is shown of suspects by node: their probability, then 0 for `interval` seconds after they were cleared, then nothing."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._cleared: dict[str, float] = {}
        self._suspected: frozenset[str] = frozenset()

    def update(self, suspicion: Mapping[str, float], now: float) -> dict[str, float | None]:
        """Take in the present suspects. Returns what to show of each node that anything changed of, None for nothing."""
        for node in self._suspected - suspicion.keys():
            self._cleared[node] = now
        over = [node for node, at in self._cleared.items() if node in suspicion or at <= now - self._interval]
        for node in over:
            del self._cleared[node]
        shown: dict[str, float | None] = {**dict.fromkeys(over), **dict.fromkeys(self._cleared, 0.0), **suspicion}
        self._suspected = frozenset(suspicion)
        return shown

    def forget(self, node: str) -> None:
        """The node left."""
        self._cleared.pop(node, None)
        self._suspected -= {node}
