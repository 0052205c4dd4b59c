"""One archived run: the judged verdict with every rank's result, as one JSON object on one line.

Field for field it is the table of `schema.sql`. A reader ignores fields it does not know; a field never changes its meaning within v1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exporter.judge.transport import Transport
from exporter.judge.verdict import Proof, Verdict
from exporter.runs import Run, RunSpec
from probes.reasons import Outcome, Reason
from probes.result import Result

SCHEMA = "efa-pulse/archive/v1"
Record = dict[str, Any]
TEXTS = ("probe", "target", "outcome", "reason", "transport", "figure", "unit", "message")
OUTCOMES = frozenset(outcome.value for outcome in Outcome)
LAST_SECOND = 253402300799.0
"""The end of the year 9999: what is later is no time."""


class RecordError(ValueError):
    """A line that is no archived run. The text says why."""


@dataclass(frozen=True)
class Figure:
    """The one figure of a run that a list shows: its name, value and base unit."""

    name: str
    value: float
    unit: str


def record_of(verdict: Verdict, *, cluster: str, instance_ids: Sequence[str | None] = (), instance_types: Sequence[str | None] = (),
              logs: Mapping[int, str] | None = None) -> Record:
    """The record of a verdict. Ids and types are in rank order; `logs` is the end of each rank's log, by rank."""
    found = figure_of(verdict)
    record: Record = {
        "schema": SCHEMA, "cluster": cluster, **verdict.to_json(),
        "instance_ids": list(instance_ids), "instance_types": list(instance_types), "labels": dict(verdict.run.spec.labels),
        "figure": found.name if found else None, "value": found.value if found else None, "unit": found.unit if found else None,
    }
    if logs:
        record["logs"] = {str(rank): text for rank, text in sorted(logs.items())}
    return record


def figure_of(verdict: Verdict) -> Figure | None:
    """The best bandwidth of any rank, operation and size; of a canary its TTFT. None when nothing was measured."""
    best: Figure | None = None
    for result in verdict.run.results:
        if result.stream is not None and result.stream.ttft is not None:
            return Figure("ttft", result.stream.ttft, "s")
        for row in result.measurements:
            rate = max((value for value in row.bandwidth if value is not None), default=None)
            if rate is not None and (best is None or rate > best.value):
                best = Figure(f"{row.operation} {row.kind}", rate, "B/s")
    return best


def line_of(record: Record) -> bytes:
    """One line, its end included. Raises ValueError for what JSON cannot hold."""
    return json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def parse(line: bytes) -> Record:
    """The record of a line. Raises RecordError for anything that is none, a torn line above all."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"no JSON: {error}") from None
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise RecordError(f"no record of {SCHEMA}")
    if not isinstance(record.get("run_id"), str) or not _seconds(record.get("finished")):
        raise RecordError("a record without run_id or finished")
    nodes = record.get("nodes")
    if not isinstance(nodes, list | None) or not all(isinstance(node, str) for node in nodes or ()):
        raise RecordError("its nodes are no list of names")
    if not all(isinstance(record.get(name), str | None) for name in TEXTS):
        raise RecordError(f"one of {', '.join(TEXTS)} is no text")
    if record.get("outcome") not in OUTCOMES:
        raise RecordError("its outcome is none that there is")
    try:
        "".join([record["run_id"], *(nodes or ()), *(record.get(name) or "" for name in TEXTS)]).encode()
        float(record.get("value") or 0.0)
    except (TypeError, ValueError, OverflowError):
        raise RecordError("it has text that is no Unicode, or a value that is no number") from None
    return record


def verdict_of(record: Record) -> Verdict:
    """The verdict that was archived, as far as a record holds it: without statements and comparisons. Raises RecordError."""
    try:
        spec = RunSpec(str(record["run_id"]), str(record["probe"]), str(record["target"]), tuple(record["nodes"]), record["mode"], 0.0, {},
                       dict(record.get("labels") or {}))
        results = tuple(Result.model_validate(one) for one in record["results"])
        transport = Transport(record["transport"]) if record.get("transport") else None
        proofs = tuple(Proof(one["name"], one["holds"], str(one["says"])) for one in record.get("proofs") or ())
        run = Run(spec, results, float(record["started"]), float(record["finished"]))
        return Verdict(run, Reason(record["reason"]), str(record["message"]), transport, proofs)
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"record {str(record.get('run_id'))[:80]!r} cannot be read: {error}") from None


def _seconds(value: Any) -> bool:
    """Whether this is a time that has a date."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LAST_SECOND


def conclusive(record: Record) -> bool:
    """Whether the run says something of its nodes."""
    try:
        return Outcome(record["outcome"]).conclusive
    except (KeyError, ValueError):
        return False
