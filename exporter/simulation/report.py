"""What came out of a simulation: what was injected, what was found, when, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from exporter.judge.hypotheses import Finding
from exporter.launch.faults import Fault, FaultKind


@dataclass(frozen=True)
class Found:
    """A finding, when it was made (seconds after the start) and how many probe runs had been started by then.

    `names` are the nodes it is about; `fault` is the injected fault that it names rightly, None when there is none.
    """

    finding: Finding
    after: float
    runs: int
    names: tuple[str, ...]
    fault: Fault | None


@dataclass
class Report:
    """See the module. Shares are of all nodes' time; `overlaps` are moments with two runs on one node, which must never be."""

    nodes: int
    seconds: float
    injected: tuple[Fault, ...]
    found: list[Found] = field(default_factory=list)
    over: list[tuple[float, Finding]] = field(default_factory=list)
    runs: dict[str, int] = field(default_factory=dict)
    repairs: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    fabric_time: float = 0.0
    gpu_time: float = 0.0
    bytes_per_node_day: float = 0.0
    series: int = 0
    dropped: int = 0
    journal_writes: int = 0
    overlaps: list[str] = field(default_factory=list)
    wall: float = 0.0

    @property
    def missed(self) -> list[Fault]:
        """Injected faults that nothing names."""
        told = {found.fault for found in self.found if found.fault is not None}
        return [fault for fault in self.injected if fault not in told and fault.kind is not FaultKind.UNKNOWN]

    @property
    def wrong(self) -> list[Found]:
        """Findings that name something that has no fault."""
        return [found for found in self.found if found.fault is None]

    @property
    def ok(self) -> bool:
        """Whether every fault was found, nobody else was named, and no node had two runs."""
        return not self.missed and not self.wrong and not self.overlaps

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "simulated": True, "nodes": self.nodes, "seconds": self.seconds, "injected": [_fault(fault) for fault in self.injected],
            "found": [{"kind": found.finding.kind, "probe": found.finding.probe, "nodes": list(found.names), "reason": found.finding.reason,
                       "score": found.finding.score, "says": found.finding.says, "after_seconds": found.after, "runs": found.runs,
                       "repairs": found.finding.runs, "right": found.fault is not None} for found in self.found],
            "missed": [_fault(fault) for fault in self.missed], "runs": dict(self.runs), "repairs": self.repairs,
            "outcomes": dict(self.outcomes), "fabric_time": self.fabric_time, "gpu_time": self.gpu_time,
            "bytes_per_node_day": self.bytes_per_node_day, "series": self.series, "series_dropped": self.dropped,
            "journal_writes": self.journal_writes, "overlaps": list(self.overlaps), "wall_seconds": self.wall, "ok": self.ok,
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"simulated fabric of {self.nodes} nodes, {self.seconds / 3600:.3g} h in {self.wall:.1f} s"
        for fault in self.injected:
            yield f"injected  {fault} at {_clock(fault.start)}" + (f" to {_clock(fault.end)}" if fault.end != float("inf") else "")
        for found in self.found:
            mark = "found" if found.fault is not None else "WRONG"
            yield (f"{mark:<9} {found.finding.kind} {', '.join(found.names)} at {_clock(found.after)} by {found.finding.probe}: "
                   f"{found.finding.reason}; {found.finding.runs} re-pairings, {found.runs} probe runs so far; {found.finding.says}")
        for after, finding in self.over:
            yield f"over      {finding.kind} by {finding.probe} at {_clock(after)}"
        for fault in self.missed:
            yield f"MISSED    {fault}"
        runs = ", ".join(f"{probe} {count}" for probe, count in sorted(self.runs.items()))
        yield f"runs      {runs}; {self.repairs} of them re-pairings; {', '.join(f'{k} {v}' for k, v in sorted(self.outcomes.items()))}"
        yield (f"cost      {self.fabric_time:.4%} of fabric time, {self.gpu_time:.4%} of GPU time, "
               f"{self.bytes_per_node_day / 1e9:.1f} GB a node and day")
        yield f"published {self.series} series, {self.dropped} dropped; {self.journal_writes} journal shards written"
        for overlap in self.overlaps:
            yield f"OVERLAP   {overlap}"


def _fault(fault: Fault) -> dict[str, Any]:
    return {"kind": fault.kind.value, "where": fault.where, "start": fault.start,
            "end": None if fault.end == float("inf") else fault.end, "severity": fault.strength, "device": fault.device}


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
