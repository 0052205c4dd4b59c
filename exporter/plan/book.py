"""What the planner remembers of each node: when it was tried and measured, with what outcome, and what was published of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from exporter.inventory.model import Stratum
from exporter.plan.journal import Record


@dataclass
class Entry:
    """One probe on one node. Times are Unix seconds; `place` is the node's place on the probe's circle, None while it waits for one.

    `tried` is the start of the last run, `measured` the end of the last conclusive one; `outcome`, `reason` and `verdict_at` are those of
    the last conclusive verdict. `unknowns` counts runs since then that could not measure, `unknown_reason` the last one's reason.
    `strata` holds the end of the last conclusive run at each distance. `values` is what the publisher keeps.
    """

    tried: float | None = None
    measured: float | None = None
    outcome: str | None = None
    reason: str | None = None
    verdict_at: float | None = None
    unknowns: int = 0
    unknown_reason: str | None = None
    place: int | None = None
    strata: dict[str, float] = field(default_factory=dict)
    values: Any = None

    def dump(self) -> Record:
        """As JSON, empty fields left out."""
        return {name: value for name, value in vars(self).items() if value not in (None, 0, {}) or (name == "place" and value == 0)}

    @classmethod
    def load(cls, data: Record) -> Entry:
        """From JSON; fields of another version are ignored."""
        entry = cls()
        for name in vars(entry):
            if name in data:
                setattr(entry, name, data[name])
        entry.strata = dict(entry.strata)
        return entry


@dataclass
class NodeBook:
    """One node, by its instance id. `first_seen` is Unix seconds; `left` is when it went missing, None while it is there."""

    name: str
    first_seen: float
    left: float | None = None
    entries: dict[str, Entry] = field(default_factory=dict)
    budget: dict[str, Any] = field(default_factory=dict)

    def entry(self, probe: str) -> Entry:
        """The entry of a probe, made when there is none."""
        entry = self.entries.get(probe)
        if entry is None:
            entry = self.entries[probe] = Entry()
        return entry

    def tried(self, probe: str) -> float:
        """When a probe was last started here, 0 when never."""
        entry = self.entries.get(probe)
        return entry.tried or 0.0 if entry is not None else 0.0

    def measured_at(self, probe: str, stratum: Stratum) -> float:
        """When a probe was last measured at this distance, else when the node was first seen."""
        entry = self.entries.get(probe)
        return entry.strata.get(stratum.value, self.first_seen) if entry is not None else self.first_seen

    def dump(self) -> Record:
        """As JSON."""
        record: Record = {"name": self.name, "first_seen": self.first_seen,
                          "probes": {probe: entry.dump() for probe, entry in sorted(self.entries.items())}}
        if self.budget:
            record["budget"] = self.budget
        if self.left is not None:
            record["left"] = self.left
        return record

    @classmethod
    def load(cls, data: Record) -> NodeBook:
        """From JSON. Raises KeyError or TypeError when it is none."""
        return cls(str(data["name"]), float(data["first_seen"]), data.get("left"),
                   {str(probe): Entry.load(entry) for probe, entry in data["probes"].items()}, dict(data.get("budget", {})))
