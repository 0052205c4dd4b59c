"""What localisation takes from a judged run: who took part, how it ended, and what each side's own evidence says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from exporter.judge.witnesses import Answers
from exporter.runs import Run
from probes.efa.counters import DATA_IN, DATA_OUT
from probes.efa.window import WitnessAnswer
from probes.reasons import ECHOES, Outcome, Reason
from probes.result import Result

WEAK_SHARE = 0.5
"""A device that carried less than this share of what an average one of its node carried is weak."""
OWN_FAULTS = frozenset({Reason.TRANSPORT_UNAVAILABLE, Reason.ENGINE_CRASHED, Reason.ENGINE_ERROR, Reason.DEVICES_MISSING,
                        Reason.NODE_MISCONFIGURED})
"""Reasons that a rank gives of its own side, where its partner only sees that something failed."""
FAR_SIDE = ECHOES | {Reason.TRANSFER_FAILED, Reason.DEADLINE, Reason.OK}
"""What the partner of such a rank says."""


@dataclass(frozen=True)
class Side:
    """Evidence that puts the fault of a pair on one of its nodes."""

    node: str
    says: str


@dataclass(frozen=True)
class Observation:
    """One run as evidence. `nodes` are instance ids by rank, times Unix seconds.

    `repair` says that it was a re-pairing. `weak` lists the devices of each node that carried too little.
    """

    run_id: str
    probe: str
    nodes: tuple[str, ...]
    started: float
    finished: float
    outcome: Outcome
    reason: str
    message: str = ""
    repair: bool = False
    sides: tuple[Side, ...] = ()
    weak: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def bad(self) -> bool:
        """Whether it says that something is bad. `unknown` says nothing."""
        return self.outcome in (Outcome.FAILED, Outcome.DEGRADED)


class Judged(Protocol):
    """What is needed of a verdict."""

    @property
    def run(self) -> Run:
        """The run."""

    @property
    def outcome(self) -> Outcome:
        """How it ended."""

    @property
    def reason(self) -> Reason:
        """Why."""

    @property
    def message(self) -> str:
        """In words."""


def observe(verdict: Judged, ids: tuple[str, ...], *, repair: bool = False,
            devices: Mapping[str, Mapping[str, float]] | None = None) -> Observation:
    """A judged run as evidence. `ids` are the instance ids by rank; `devices` are bytes per device of each id over the window, as the
    witness counted them, where the results do not say it themselves."""
    run = verdict.run
    counted = {one: _device_bytes(result) for one, result in zip(ids, run.results, strict=True)}
    for one, carried in (devices or {}).items():
        counted[one] = counted.get(one) or dict(carried)
    weak = {one: found for one, carried in counted.items() if (found := weak_devices(carried))}
    return Observation(run.spec.run_id, run.spec.probe, ids, run.started, run.finished, verdict.outcome, verdict.reason.value,
                       verdict.message, repair, tuple(sides_of(run.results, ids, weak)), weak)


def devices_of(answers: Answers) -> dict[str, dict[str, float]]:
    """Payload bytes of each device by node name, both directions together, as the witnesses counted them in the run's window."""
    return {node: {device: float(sum(delta.counters.get(name, 0) for name in (*DATA_OUT, *DATA_IN)))
                   for device, delta in answer.window.devices.items()}
            for node, answer in answers.items() if isinstance(answer, WitnessAnswer)}


def weak_devices(carried: Mapping[str, float]) -> tuple[str, ...]:
    """The devices that carried less than half of what the average device of the node did; none when most of them are weak."""
    if len(carried) < 2 or not sum(carried.values()):
        return ()
    mean = sum(carried.values()) / len(carried)
    weak = tuple(sorted(device for device, amount in carried.items() if amount < WEAK_SHARE * mean))
    return weak if len(weak) * 2 <= len(carried) else ()


def sides_of(results: tuple[Result, ...], ids: tuple[str, ...], weak: Mapping[str, tuple[str, ...]]) -> list[Side]:
    """Evidence of one side that the other side does not have as well. Only for pairs."""
    if len(results) != 2 or ids[0] == ids[1]:
        return []
    found: list[Side] = []
    for here, there in ((0, 1), (1, 0)):
        mine, other = results[here], results[there]
        if mine.reason in OWN_FAULTS and other.reason in FAR_SIDE:
            found.append(Side(ids[here], f"it says {mine.reason.value} of itself, its partner only {other.reason.value}"))
        missing, missing_there = _missing(mine), _missing(other)
        if missing and not missing_there:
            found.append(Side(ids[here], f"{missing} of its EFA devices did not show up, all of its partner's did"))
        if weak.get(ids[here]) and not weak.get(ids[there]):
            found.append(Side(ids[here], f"device {', '.join(weak[ids[here]])} carried too little, none of its partner's did"))
        marks = _defects(mine) - _defects(other)
        if marks:
            found.append(Side(ids[here], f"only its log has {', '.join(sorted(marks))}"))
    return found


def _device_bytes(result: Result) -> dict[str, float]:
    evidence = result.evidence
    if evidence is None or len(evidence.devices) != len(evidence.device_bytes):
        return {}
    return dict(zip(evidence.devices, map(float, evidence.device_bytes), strict=True))


def _missing(result: Result) -> int:
    evidence: Any = result.evidence
    if evidence is None or evidence.nics_allocated is None or evidence.nics_seen is None:
        return 0
    return max(int(evidence.nics_allocated) - int(evidence.nics_seen), 0)


def _defects(result: Result) -> set[str]:
    return {marker.id for marker in result.evidence.markers if marker.says != "efa"} if result.evidence is not None else set()
