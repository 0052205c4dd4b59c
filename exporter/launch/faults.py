"""Faults of the simulated fabric: what can be wrong, where, when and how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class FaultKind(str, Enum):
    """The kinds of faults that can be injected."""

    SLOW_NODE = "slow_node"
    DRIFT = "drift"
    DEAD_NIC = "dead_nic"
    SLOW_RAIL = "slow_rail"
    TCP_FALLBACK = "tcp_fallback"
    LOSSY_LEAF = "lossy_leaf"
    LOSSY_PATH = "lossy_path"
    CLOSED_SECURITY_GROUP = "closed_security_group"
    FLAPPING = "flapping"
    HANG = "hang"
    CRASH = "crash"
    UNKNOWN = "unknown"


SEVERITY: dict[FaultKind, float] = {
    FaultKind.SLOW_NODE: 0.5, FaultKind.SLOW_RAIL: 0.05, FaultKind.LOSSY_LEAF: 0.55, FaultKind.LOSSY_PATH: 0.5, FaultKind.FLAPPING: 0.5,
    FaultKind.UNKNOWN: 0.02, FaultKind.DRIFT: 0.01,
}
"""Default severity: the share of the healthy speed that is left; for flapping and unknown the share of runs that it hits, for drift the
share of the healthy speed that is lost a day."""
OF_NODES = frozenset({FaultKind.SLOW_NODE, FaultKind.DRIFT, FaultKind.DEAD_NIC, FaultKind.SLOW_RAIL, FaultKind.TCP_FALLBACK,
                      FaultKind.FLAPPING, FaultKind.HANG, FaultKind.CRASH})
"""Kinds that sit on one node."""
PERSISTENT = OF_NODES - {FaultKind.FLAPPING, FaultKind.DRIFT}
"""Kinds that hit every run of their node."""


@dataclass(frozen=True)
class Fault:
    """One injected fault. Times are Unix seconds of the simulation.

    `where` is a node's name for faults of nodes, a leaf for `lossy_leaf`, two leaves joined by `--` for `lossy_path`, a node group, a node
    or `all` for `closed_security_group`, a node or `all` for `unknown`. `device` is the index of the NIC of `dead_nic` and `slow_rail`.
    """

    kind: FaultKind
    where: str
    start: float = 0.0
    end: float = float("inf")
    severity: float | None = None
    device: int = 0

    @property
    def strength(self) -> float:
        """The severity, that of the kind where none is given."""
        return self.severity if self.severity is not None else SEVERITY.get(self.kind, 0.0)

    def active(self, now: float) -> bool:
        """Whether it is there at `now`."""
        return self.start <= now < self.end

    def __str__(self) -> str:
        return f"{self.kind.value} {self.where}"


class FaultError(ValueError):
    """A fault that cannot be injected. The text says what is wrong and what to write."""


def parse_fault(text: str, names: Sequence[str]) -> Fault:
    """A fault from `KIND:WHERE[,start=SECONDS][,end=SECONDS][,severity=SHARE][,device=INDEX]`; WHERE may be the number of a node.

    Raises FaultError. `names` are the names of the nodes.
    """
    head, *options = text.split(",")
    kind_text, sep, where = head.partition(":")
    try:
        kind = FaultKind(kind_text.strip().replace("-", "_"))
    except ValueError:
        raise FaultError(f"{kind_text!r} is no kind of fault: use one of {', '.join(each.value for each in FaultKind)}") from None
    where = where.strip()
    if kind in OF_NODES and where.isdigit() and int(where) < len(names):
        where = names[int(where)]
    if not sep or not where:
        raise FaultError(f"{text!r} does not say where: {kind.value}:NODE is needed")
    if kind in OF_NODES and where not in names:
        raise FaultError(f"{where!r} is no node of the simulation: use a name such as {names[0]}, or a number below {len(names)}")
    values: dict[str, float] = {}
    for option in options:
        key, _, value = option.partition("=")
        if key.strip() not in ("start", "end", "severity", "device"):
            raise FaultError(f"{key.strip()!r} is no option of a fault: use start, end, severity or device")
        try:
            values[key.strip()] = float(value)
        except ValueError:
            raise FaultError(f"{option!r}: a number is needed") from None
    severity = values.get("severity")
    if severity is not None and not 0 <= severity <= 1:
        raise FaultError(f"severity {severity:g} is not between 0 and 1")
    return Fault(kind, where, values.get("start", 0.0), values.get("end", float("inf")), severity, int(values.get("device", 0)))
