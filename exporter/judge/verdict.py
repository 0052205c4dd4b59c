"""The judged result of a run: one outcome, and the three proofs it stands on, kept apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from exporter.judge.speed import Comparison
from exporter.judge.transport import Transport
from exporter.judge.witnesses import Statement
from exporter.runs import Run
from probes.reasons import Outcome, Reason, outcome_of


@dataclass(frozen=True)
class Proof:
    """One of the three proofs; of a canary with engine pods also whether it was disaggregated. `holds` None means it could not be told
    here; `says` names the figures or witnesses behind it."""

    name: Literal["transport", "disaggregation", "speed", "answer"]
    holds: bool | None
    says: str


@dataclass(frozen=True)
class Verdict:
    """A run and what it means. `transport` is None for a probe that moves nothing between ranks.

    `statements` are what the witnesses of the transport said, `comparisons` the figures that have a floor or a baseline.
    """

    run: Run
    reason: Reason
    message: str
    transport: Transport | None
    proofs: tuple[Proof, ...]
    statements: tuple[Statement, ...] = ()
    comparisons: tuple[Comparison, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The outcome that the reason belongs to."""
        return outcome_of(self.reason)

    def to_json(self) -> dict[str, Any]:
        """The verdict with its results as plain data, for `--json` and the archive."""
        spec = self.run.spec
        return {
            "run_id": spec.run_id, "probe": spec.probe, "target": spec.target, "nodes": list(spec.nodes), "mode": spec.transport,
            "started": self.run.started, "finished": self.run.finished, "outcome": self.outcome.value, "reason": self.reason.value,
            "message": self.message, "transport": self.transport.value if self.transport else None,
            "proofs": [{"name": proof.name, "holds": proof.holds, "says": proof.says} for proof in self.proofs],
            "results": [result.model_dump(mode="json", by_alias=True, exclude_defaults=True) for result in self.run.results],
        }
