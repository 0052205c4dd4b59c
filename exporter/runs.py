"""A run on its way through the service: what to start, and what came back."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field, replace
from typing import Any

from probes.contract import Transport as TransportMode
from probes.reasons import Reason
from probes.result import Phase, Result


@dataclass(frozen=True)
class RunSpec:
    """One run to be started. `nodes[r]` is where rank r runs; the number of nodes is the world size.

    `target` names what is measured (a pair `a--b`, a node, a canary target); `deadline` is seconds from a worker's start to its forced end.
    """

    run_id: str
    probe: str
    target: str
    nodes: tuple[str, ...]
    transport: TransportMode
    deadline: float
    spec: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.nodes)


@dataclass(frozen=True)
class Run:
    """A run that has ended: exactly one result per rank, in rank order. Times are Unix seconds of the service's clock."""

    spec: RunSpec
    results: tuple[Result, ...]
    started: float
    finished: float
    logs: dict[int, str] = field(default_factory=dict)

    @property
    def phases(self) -> dict[Phase, float]:
        """The longest time any rank spent in each phase, seconds."""
        longest: dict[Phase, float] = {}
        for result in self.results:
            for phase, seconds in result.phases.items():
                longest[phase] = max(seconds, longest.get(phase, 0.0))
        return longest


def new_run_id(probe: str, now: float | None = None) -> str:
    """A unique id that sorts by time and is a valid Kubernetes name: `mooncake-20261129t230512-3f9a2c1b`."""
    stamp = time.strftime("%Y%m%dt%H%M%S", time.gmtime(now if now is not None else time.time()))
    return f"{probe}-{stamp}-{secrets.token_hex(4)}"


def missing_result(spec: RunSpec, rank: int, reason: Reason, message: str, started: float, finished: float) -> Result:
    """The result of a rank that left none, so that every run has one per rank."""
    return Result.model_validate({"run_id": spec.run_id, "probe": spec.probe, "target": spec.target, "rank": rank,
                                  "world_size": spec.world_size, "node": spec.nodes[rank], "started": started, "finished": finished,
                                  "reason": reason, "message": message})


def with_id(spec: RunSpec) -> RunSpec:
    """The same run under a new id."""
    return replace(spec, run_id=new_run_id(spec.probe))
