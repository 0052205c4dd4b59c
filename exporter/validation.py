"""Validation of nodes layer by layer: which stages there are, what the gate after each one lets through, what the whole is worth. Pure.

    node ─> kv (mooncake, nixl) ─> nccl ─> uccl-ep ─> canary

After each stage stands a gate. A bad stage (failed or degraded) closes it: what comes above would only repeat its fault. A stage that could
not measure proves nothing, so it leaves the gate open and the validation as a whole unproven.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from exporter.judge.verdict import Verdict
from exporter.plan.gates import Closed
from probes.reasons import REASONS, Outcome, Reason

SCHEMA = "efa-pulse/validation/v1"

SOFT_GATES = frozenset({"paused", "quiet", "age", "image", "background", "idle", "busy"})
"""Gates that a person may override for one run: they protect schedules and figures. The others say that somebody wants no probe there
(excluded, cordoned), that the node goes or cannot, or that the scheduler would refuse the pod anyway."""


class StageError(ValueError):
    """A stage that does not exist. The text names those that do."""


@dataclass(frozen=True)
class Stage:
    """One layer: the probes that measure it, `title` for people."""

    name: str
    title: str
    probes: tuple[str, ...]


STAGES: tuple[Stage, ...] = (
    Stage("node", "node preflight", ("node",)),
    Stage("kv", "KV transfer", ("mooncake", "nixl")),
    Stage("nccl", "NCCL", ("nccl",)),
    Stage("uccl-ep", "UCCL-EP", ("uccl-ep",)),
    Stage("canary", "serving path", ("canary",)),
)
"""Every stage, the lowest layer first."""


class State(str, Enum):
    """What became of a step, a stage or the whole. The first four are outcomes of measurements."""

    OK = "ok"
    DEGRADED = "degraded"
    FAILED = "failed"
    UNKNOWN = "could not measure"
    SKIPPED = "skipped"
    BLOCKED = "not reached"

    @property
    def bad(self) -> bool:
        """Whether it says that something is wrong."""
        return self in {State.FAILED, State.DEGRADED}


_BY_OUTCOME = {Outcome.OK: State.OK, Outcome.DEGRADED: State.DEGRADED, Outcome.FAILED: State.FAILED, Outcome.UNKNOWN: State.UNKNOWN}
_WORST = (State.FAILED, State.DEGRADED, State.UNKNOWN, State.OK, State.BLOCKED, State.SKIPPED)


@dataclass(frozen=True)
class Step:
    """One measurement of a stage: a probe and what it was to measure. `why` says in words what is wrong, or why there is no verdict."""

    probe: str
    target: str
    state: State
    why: str = ""
    verdict: Verdict | None = None

    @classmethod
    def judged(cls, verdict: Verdict) -> Step:
        """The step of a run that was judged."""
        why = "" if verdict.outcome is Outcome.OK else f"{verdict.reason.value}: {verdict.message}".rstrip(": ")
        return cls(verdict.run.spec.probe, verdict.run.spec.target, _BY_OUTCOME[verdict.outcome], why, verdict)

    @property
    def reason(self) -> Reason | None:
        """The reason of the verdict, None without one."""
        return self.verdict.reason if self.verdict is not None else None

    @property
    def action(self) -> str:
        """What to do about it; empty where nothing is to be done or nothing is known."""
        return REASONS[self.verdict.reason].action if self.verdict is not None and self.state is not State.OK else ""

    @property
    def seconds(self) -> float:
        """How long its run took."""
        return max(0.0, self.verdict.run.finished - self.verdict.run.started) if self.verdict is not None else 0.0

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"probe": self.probe, "target": self.target, "state": self.state.value, "why": self.why,
                "reason": self.reason.value if self.reason is not None else None, "what_to_do": self.action,
                "seconds": round(self.seconds, 3), "verdict": self.verdict.to_json() if self.verdict is not None else None}


@dataclass(frozen=True)
class Reached:
    """A stage with what its steps came to, Unix seconds of its start and how long it took."""

    stage: Stage
    steps: tuple[Step, ...]
    began: float
    seconds: float = 0.0

    @property
    def state(self) -> State:
        """The worst of its steps, a bad one before one that could not measure. Steps that were left out do not count beside others."""
        return worst(step.state for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"name": self.stage.name, "title": self.stage.title, "state": self.state.value, "seconds": round(self.seconds, 3),
                "steps": [step.to_json() for step in self.steps]}


@dataclass(frozen=True)
class Validation:
    """Every stage, in order, and what they come to together."""

    nodes: tuple[str, ...]
    stages: tuple[Reached, ...]

    @property
    def state(self) -> State:
        """Ok only when something was measured and all that was measured is ok."""
        return worst(step.state for step in self.steps)

    @property
    def steps(self) -> list[Step]:
        """The steps of all stages."""
        return [step for reached in self.stages for step in reached.steps]

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes of what was to be measured, for the exit status. What was left out on purpose or not reached has none."""
        by_state = {state: outcome for outcome, state in _BY_OUTCOME.items()}
        return [by_state[step.state] for step in self.steps if step.state in by_state]

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"schema": SCHEMA, "nodes": list(self.nodes), "state": self.state.value,
                "stages": [reached.to_json() for reached in self.stages]}


Measure = Callable[[Stage], Sequence[Step]]


def validate(nodes: Sequence[str], chosen: Sequence[Stage], measure: Measure, *, go_on: bool = False,
             on_stage: Callable[[Stage], None] = lambda _: None, on_reached: Callable[[Reached], None] = lambda _: None,
             clock: Callable[[], float] = time.time) -> Validation:
    """Take every stage in order. `measure` runs the steps of one; stages that are not `chosen` are skipped without asking it.

    A bad stage closes the gate: what comes after is not reached, unless `go_on`. `on_stage` is called before and `on_reached` after each.
    """
    found: list[Reached] = []
    closed_by: Stage | None = None
    for stage in STAGES:
        if stage not in chosen:
            reached = Reached(stage, (Step(stage.name, "", State.SKIPPED, "not chosen"),), clock())
        elif closed_by is not None:
            reached = Reached(stage, (Step(stage.name, "", State.BLOCKED, f"stage {closed_by.name} is bad"),), clock())
        else:
            on_stage(stage)
            began = clock()
            steps = tuple(measure(stage)) or (Step(stage.name, "", State.SKIPPED, "nothing to measure"),)
            reached = Reached(stage, steps, began, max(0.0, clock() - began))
            if reached.state.bad and not go_on:
                closed_by = stage
        found.append(reached)
        on_reached(reached)
    return Validation(tuple(nodes), tuple(found))


def choose(only: Iterable[str] | None, skip: Iterable[str] | None) -> list[tuple[Stage, tuple[str, ...]]]:
    """The stages to take with the probes of each, by names of stages or probes. Raises StageError for unknown names, or none left."""
    wanted = _probes(only) if only is not None else {probe for stage in STAGES for probe in stage.probes}
    wanted -= _probes(skip or ())
    found = [(stage, tuple(probe for probe in stage.probes if probe in wanted)) for stage in STAGES]
    left = [(stage, probes) for stage, probes in found if probes]
    if not left:
        raise StageError(f"no stage is left; there are {_known()}")
    return left


def waves(nodes: Sequence[str], *, single: bool) -> list[list[tuple[str, ...]]]:
    """The targets of a probe on `nodes`, in waves within which no node appears twice. `single`: one target a node, else pairs.

    With an odd number of nodes the last one meets the first in a second wave.
    """
    if single:
        return [[(node,) for node in nodes]] if nodes else []
    pairs = [(nodes[at], nodes[at + 1]) for at in range(0, len(nodes) - 1, 2)]
    rest = [(nodes[-1], nodes[0])] if len(nodes) > 2 and len(nodes) % 2 else []
    return [[tuple(pair) for pair in wave] for wave in (pairs, rest) if wave]


def holding(closed: Iterable[Closed], *, force: bool) -> list[Closed]:
    """The closed gates that stop a run that a person asked for."""
    return [one for one in closed if not (force and one.gate in SOFT_GATES)]


def forced(closed: Iterable[Closed]) -> bool:
    """Whether all of these closed gates open when a person insists."""
    return all(one.gate in SOFT_GATES for one in closed)


def worst(states: Iterable[State]) -> State:
    """The state that speaks for all of them; skipped when there is none."""
    seen = set(states)
    return next((state for state in _WORST if state in seen), State.SKIPPED)


def _probes(names: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for name in names:
        stage = next((stage for stage in STAGES if name == stage.name), None)
        if stage is not None:
            found.update(stage.probes)
        elif any(name in stage.probes for stage in STAGES):
            found.add(name)
        else:
            raise StageError(f"there is no stage {name!r}; there are {_known()}")
    return found


def _known() -> str:
    return ", ".join(stage.name if stage.probes == (stage.name,) else f"{stage.name} ({', '.join(stage.probes)})" for stage in STAGES)
