"""A launcher whose runs happen on a simulated fabric, in simulated time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping

from exporter.inventory.model import Node
from exporter.launch import OnFinished, documents
from exporter.launch.fabric import Fabric
from exporter.runs import Run, RunSpec, missing_result
from probes.efa.window import WitnessAnswer
from probes.reasons import Reason

START_SECONDS = {"node": 3.0, "mooncake": 7.0, "nixl": 7.0, "nccl": 20.0, "uccl-ep": 35.0, "canary": 1.0}
"""From bind to the first payload, as our own workers need it."""
KEPT_ANSWERS = 4096


class SimulatedClock:
    """Time that passes only when somebody lets it. Unix seconds; calls due at one time happen in the order they were asked for."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def __call__(self) -> float:
        """Now."""
        return self._now

    def call_at(self, when: float, call: Callable[[], None]) -> None:
        """Call `call` when the time has come."""
        heapq.heappush(self._calls, (when, next(self._count), call))

    @property
    def next_call(self) -> float | None:
        """When the next call is due."""
        return self._calls[0][0] if self._calls else None

    def advance(self, until: float) -> bool:
        """Go to the next call, at most to `until`; make one call. False when there was none up to then."""
        if self._calls and self._calls[0][0] <= until:
            when, _, call = heapq.heappop(self._calls)
            self._now = max(self._now, when)
            call()
            return True
        self._now = max(self._now, until)
        return False


class SimulatedLauncher:
    """Starts runs on a fabric. Same contract as every launcher: each run ends exactly once, through the callback.

    `starts` counts the runs of each probe; `overlaps` must stay empty.
    """

    def __init__(self, fabric: Fabric, clock: SimulatedClock, on_finished: OnFinished) -> None:
        self._fabric = fabric
        self._clock = clock
        self._on_finished = on_finished
        self._running: dict[str, tuple[RunSpec, float]] = {}
        self._answers: dict[str, dict[str, WitnessAnswer]] = {}
        self.starts: dict[str, int] = {}
        self.overlaps: list[str] = []
        self._on_node: dict[str, str] = {}

    def start(self, spec: RunSpec) -> None:
        """Begin; the run ends in simulated time. A node that has a run already is noted in `overlaps`: that must never be."""
        now = self._clock()
        self.starts[spec.probe] = self.starts.get(spec.probe, 0) + 1
        if spec.probe != "canary":
            for name in spec.nodes:
                if name in self._on_node:
                    self.overlaps.append(f"{spec.run_id} and {self._on_node[name]} on {name}")
                self._on_node[name] = spec.run_id
        self._running[spec.run_id] = (spec, now)
        nodes = [self._fabric.inventory.named(name) for name in spec.nodes]
        known = [node for node in nodes if node is not None]
        if len(known) < len(nodes):
            self._clock.call_at(now + 60.0, lambda: self._end(spec, now, Reason.UNSCHEDULED, "a node of the run is not there"))
            return
        run, found = play(self._fabric, spec, known, now)
        self._clock.call_at(run.finished, lambda: self._finish(run, found))

    def cancel(self, run_id: str) -> None:
        """End a run now; its ranks report `cancelled`."""
        if run_id in self._running:
            spec, started = self._running[run_id]
            self._end(spec, started, Reason.CANCELLED, "stopped on request")

    def running(self) -> list[str]:
        """Ids of the runs that have not ended."""
        return list(self._running)

    def close(self, grace: float) -> None:  # noqa: ARG002 - time stands still here
        """Cancel what runs."""
        for run_id in list(self._running):
            self.cancel(run_id)

    def answers(self, run: Run) -> Mapping[str, WitnessAnswer]:
        """What the witnesses of the run's nodes counted, by node; kept for the last few thousand runs."""
        return self._answers.get(run.spec.run_id, {})

    def _end(self, spec: RunSpec, started: float, reason: Reason, message: str) -> None:
        now = self._clock()
        self._finish(Run(spec, tuple(missing_result(spec, rank, reason, message, started, now) for rank in range(spec.world_size)),
                         started, now), {})

    def _finish(self, run: Run, answers: dict[str, WitnessAnswer]) -> None:
        if self._running.pop(run.spec.run_id, None) is None:
            return
        for name in run.spec.nodes:
            if self._on_node.get(name) == run.spec.run_id:
                del self._on_node[name]
        if answers:
            self._answers[run.spec.run_id] = answers
            if len(self._answers) > KEPT_ANSWERS:
                del self._answers[next(iter(self._answers))]
        self._on_finished(run)


def play(fabric: Fabric, spec: RunSpec, nodes: list[Node], now: float) -> tuple[Run, dict[str, WitnessAnswer]]:
    """One run from start to end on the fabric: its results and what the witnesses counted."""
    effect = fabric.effect(spec.probe, nodes, spec.run_id, now)
    begin = START_SECONDS[spec.probe] * (1 + 0.1 * fabric.draw(spec.run_id + "/start").random())
    if any(reason is Reason.DEADLINE for reason in effect.reasons):
        wall, window = spec.deadline, 0.0
    elif any(reason is not Reason.OK for reason in effect.reasons):
        wall, window = begin, 0.0
    else:
        window = documents.window_of(spec, effect)
        wall = begin + window + 0.5
    found = documents.results(spec, nodes, effect, now, wall, window)
    return Run(spec, found, now, now + wall), documents.answers(nodes, effect, found)
