"""What is kept of a verdict: a brief that is always there, and the details, packed, that are there while there is room for them."""

from __future__ import annotations

import json
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from exporter.judge.verdict import Verdict
from probes.reasons import Outcome

MESSAGE_LENGTH = 400
"""Characters that are kept of a message or a sentence."""
COMPARISONS = 8
"""Comparisons with floors that are kept of a run, the worst first."""
STATEMENTS = 64
"""Statements of witnesses that are kept of a run."""
DETAIL_BYTES = 32 << 20
"""All packed details together, at most. Those of runs that were ok go first, the oldest of them first."""
LABELS = ("job", "why", "round", "stratum", "prompt", "route", "launched-by", "instance-ids")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Brief:
    """One judged run in short. Times are Unix seconds of the service's clock."""

    run_id: str
    probe: str
    target: str
    nodes: tuple[str, ...]
    started: float
    finished: float
    outcome: str
    reason: str
    message: str
    transport: str | None
    mode: str
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def conclusive(self) -> bool:
        """Whether it says anything about what it measured."""
        return Outcome(self.outcome).conclusive

    @property
    def bad(self) -> bool:
        """Whether it says that something is bad."""
        return self.outcome in (Outcome.FAILED.value, Outcome.DEGRADED.value)

    def label(self, name: str) -> str | None:
        """One of the labels that are kept: where the run came from."""
        return next((value for key, value in self.labels if key == name), None)

    def to_json(self) -> Json:
        """As plain data."""
        return {"run_id": self.run_id, "probe": self.probe, "target": self.target, "nodes": list(self.nodes), "started": self.started,
                "finished": self.finished, "outcome": self.outcome, "reason": self.reason, "message": self.message,
                "transport": self.transport, "mode": self.mode, "labels": dict(self.labels)}


@dataclass(frozen=True, slots=True)
class Entry:
    """One node and probe, or one canary target and prompt. `conclusive` has the last two runs that said something, the newest first.

    `since` is the end of the first run since which it is as good or as bad as now, of conclusive ones where there are any; `unknowns`
    counts runs since the last conclusive one.
    """

    last: Brief
    conclusive: tuple[Brief, ...] = ()
    since: float = 0.0
    unknowns: int = 0

    @property
    def shown(self) -> Brief:
        """The run whose verdict holds: the last conclusive one, else the last."""
        return self.conclusive[0] if self.conclusive else self.last

    def then(self, brief: Brief) -> Entry:
        """The entry after one more run. An unknown one never replaces a conclusive verdict."""
        if not brief.conclusive:
            since = self.since if self.conclusive else (self.since if self.last.outcome == brief.outcome else brief.finished)
            return Entry(brief, self.conclusive, since, self.unknowns + 1)
        same = bool(self.conclusive) and self.conclusive[0].bad == brief.bad
        return Entry(brief, (brief, *self.conclusive[:1]), self.since if same else brief.finished, 0)

    @classmethod
    def first(cls, brief: Brief) -> Entry:
        """The entry of a first run."""
        return cls(brief, (brief,) if brief.conclusive else (), brief.finished, int(not brief.conclusive))


def brief_of(verdict: Verdict) -> Brief:
    """A verdict in short."""
    spec = verdict.run.spec
    labels = tuple((name, spec.labels[name]) for name in LABELS if name in spec.labels)
    return Brief(spec.run_id, spec.probe, spec.target, spec.nodes, verdict.run.started, verdict.run.finished, verdict.outcome.value,
                 verdict.reason.value, _cut(verdict.message), verdict.transport.value if verdict.transport is not None else None,
                 spec.transport, labels)


def detail_of(verdict: Verdict) -> Json:
    """The three proofs with what they rest on: witnesses, comparisons with floors, what each rank said, the figures of a canary."""
    ranks: list[Json] = []
    for result in verdict.run.results:
        rank: Json = {"rank": result.rank, "node": result.node, "outcome": result.outcome.value, "reason": result.reason.value,
                      "message": _cut(result.message)}
        if result.measure is not None:
            rank["window"] = round(result.measure.end - result.measure.start, 6)
        evidence = result.evidence
        if evidence is not None:
            rank |= {"stack": evidence.stack, "provider": evidence.provider, "nics_allocated": evidence.nics_allocated,
                     "nics_seen": evidence.nics_seen}
        if result.stream is not None:
            stream = result.stream
            rank["stream"] = {"status": stream.status, "ttft": stream.ttft, "tpot": stream.tpot, "max_gap": stream.max_gap,
                              "e2e": stream.e2e, "output_tokens": stream.output_tokens, "clock": stream.clock}
        checks = [{"check": one.check, "seen": one.seen, "expected": one.expected, "remedy": one.remedy}
                  for one in result.findings if one.ok is False]
        if checks:
            rank["checks"] = checks[:STATEMENTS]
        ranks.append({key: value for key, value in rank.items() if value is not None})
    return {
        "proofs": [{"name": proof.name, "holds": proof.holds, "says": _cut(proof.says)} for proof in verdict.proofs],
        "witnesses": [{"witness": one.witness, "where": one.where, "says": one.says, "text": _cut(one.text), "numbers": dict(one.numbers)}
                      for one in verdict.statements[:STATEMENTS]],
        "thresholds": [{"node": one.node, "operation": one.operation, "bytes": one.bytes, "memory": one.memory, "measure": one.measure,
                        "value": one.value, "limit": one.limit, "share": one.share, "source": one.source, "basis": one.basis,
                        "says": _cut(one.says)}
                       for one in verdict.comparisons[:COMPARISONS]],
        "compared": len(verdict.comparisons),
        "ranks": ranks[:STATEMENTS],
        "phases": {phase.value: round(seconds, 3) for phase, seconds in verdict.run.phases.items()},
    }


class Details:
    """Details of runs by run id, packed, within a number of bytes. What is dropped is counted."""

    def __init__(self, limit: int = DETAIL_BYTES) -> None:
        self._limit = limit
        self._size = 0
        self._good: OrderedDict[str, bytes] = OrderedDict()
        self._other: OrderedDict[str, bytes] = OrderedDict()
        self.dropped = 0

    def put(self, brief: Brief, detail: Json) -> None:
        """Keep the details of one run."""
        packed = pack(detail)
        for kind in (self._good, self._other):
            self._size -= len(kind.pop(brief.run_id, b""))
        if len(packed) > self._limit:
            self.dropped += 1
            return
        kind = self._good if brief.outcome == Outcome.OK.value else self._other
        self._size += len(packed)
        kind[brief.run_id] = packed
        while self._size > self._limit:
            oldest = self._good or self._other
            _, gone = oldest.popitem(last=False)
            self._size -= len(gone)
            self.dropped += 1

    @property
    def size(self) -> int:
        """Bytes of all packed details."""
        return self._size

    def frozen(self) -> Mapping[str, bytes]:
        """What is kept now, as a mapping that nobody changes."""
        return MappingProxyType({**self._good, **self._other})


def pack(detail: Json) -> bytes:
    """Details as deflated JSON: about a kilobyte for a pair of nodes."""
    return zlib.compress(json.dumps(detail, separators=(",", ":")).encode(), 3)


def unpack(packed: bytes) -> Json:
    """What `pack` was given."""
    value: Json = json.loads(zlib.decompress(packed))
    return value


def _cut(text: str) -> str:
    return text if len(text) <= MESSAGE_LENGTH else text[: MESSAGE_LENGTH - 1] + "…"
