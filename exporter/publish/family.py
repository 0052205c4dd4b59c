"""What a metric family is. The families themselves are declared in `exporter.publish.families`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

PREFIX = "efapulse_"
FORBIDDEN_LABELS = frozenset({"endpoint", "instance", "job", "namespace", "pod", "service", "container", "quantile", "le"})
"""A ServiceMonitor renames these when we set them, and rules then silently match nothing; `quantile` and `le` belong to the format."""

_NAME = re.compile(r"^[a-z][a-z0-9]*(_[a-z0-9]+)*$")
_RESERVED_SUFFIXES = ("_total", "_created", "_count", "_sum", "_bucket", "_info", "_gcount", "_gsum")


class FamilyError(ValueError):
    """A family that must not be declared. The text names it and the rule it breaks."""


class Kind(str, Enum):
    """The type of a family. A state set and an info are gauges in the text format."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"
    STATE_SET = "state set"


class Attribution(str, Enum):
    """Whom a bad value speaks about."""

    SELF = "efa-pulse itself"
    FLEET = "the fleet"
    NODE = "the node"
    PAIR = "the pair"
    ENDPOINT = "the endpoint"


class Cardinality(str, Enum):
    """What the number of series of a family grows with."""

    FIXED = "fixed"
    PER_NODE = "per node"
    PER_PAIR = "per pair"
    PER_TARGET = "per target"


_OWNER_LABEL = {Cardinality.FIXED: "probe", Cardinality.PER_NODE: "node", Cardinality.PER_PAIR: "node", Cardinality.PER_TARGET: "target"}


@dataclass(frozen=True)
class Family:
    """One metric family, as it appears in the Prometheus text format.

    `name` is whole, prefix and `_total` or `_info` included. `unit` is the base unit the name ends with. `drop` is the place in the
    order in which families are left out above the series cap: 1 goes first, 0 never. `exemplars` are shown in OpenMetrics only.
    Raises FamilyError for a declaration that breaks a naming rule.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    attribution: Attribution
    cardinality: Cardinality
    unit: str | None = None
    buckets: tuple[float, ...] = ()
    drop: int = 0
    exemplars: bool = False

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise FamilyError(f"{self.name}: {problem}")

    def _problems(self) -> list[str]:
        forbidden = sorted(FORBIDDEN_LABELS & set(self.labels))
        owner = self.owner_label
        suffix = {Kind.COUNTER: "_total", Kind.INFO: "_info"}.get(self.kind, "")
        rules = {
            f"the name must start with {PREFIX}": not self.name.startswith(PREFIX),
            "the name must be lower case words joined by single underscores": not _NAME.match(self.name),
            f"the name must end with {suffix}": not self.name.endswith(suffix),
            "the name ends with a suffix that the format reserves": self.base_name.endswith(_RESERVED_SUFFIXES),
            f"the name must end with its unit {self.unit}": self.unit is not None and not self.base_name.endswith("_" + self.unit),
            "help must be one sentence on one line": not self.help.strip() or "\n" in self.help,
            f"forbidden label {', '.join(forbidden)}": bool(forbidden),
            "a label is given twice": len(set(self.labels)) != len(self.labels),
            "a label must be lower case words joined by single underscores": not all(map(_NAME.match, self.labels)),
            f"a family {self.cardinality.value} needs the label {owner}": owner is not None and owner not in self.labels,
            "a histogram needs buckets, ascending and finite": self.kind is Kind.HISTOGRAM and not _ascending(self.buckets),
            "only a histogram has buckets": self.kind is not Kind.HISTOGRAM and bool(self.buckets),
            "only a counter or a histogram has exemplars": self.exemplars and self.kind not in {Kind.COUNTER, Kind.HISTOGRAM},
            "a state set needs the label of its state": self.kind is Kind.STATE_SET and not self.labels,
        }
        return [rule for rule, broken in rules.items() if broken]

    @property
    def base_name(self) -> str:
        """The name of the family in OpenMetrics: without `_total` or `_info`."""
        suffix = {Kind.COUNTER: "_total", Kind.INFO: "_info"}.get(self.kind, "")
        return self.name.removesuffix(suffix)

    @property
    def owner_label(self) -> str | None:
        """The label whose value owns a piece of this family (a node, a target, a probe), or None when the family is one piece."""
        label = _OWNER_LABEL[self.cardinality]
        return label if self.cardinality is not Cardinality.FIXED or label in self.labels else None

    @property
    def state_label(self) -> str:
        """Of a state set: the label that names the state, by convention the last one."""
        return self.labels[-1]


def _ascending(buckets: tuple[float, ...]) -> bool:
    return bool(buckets) and list(buckets) == sorted(set(buckets)) and buckets[-1] != float("inf")
