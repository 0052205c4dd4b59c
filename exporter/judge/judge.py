"""The verdict on one run: what its workers said, then transport, speed and answer, each proven for itself. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from exporter.config.thresholds import Floor
from exporter.judge.kv_transport import judge_kv_transport
from exporter.judge.speed import Comparison, Figure, Limit, judge_speed
from exporter.judge.transport import Transport, TransportVerdict, judge_transport
from exporter.judge.verdict import Proof, Verdict
from exporter.runs import Run
from probes.efa.window import NoAnswer, WitnessAnswer
from probes.observe import STACKS
from probes.reasons import Outcome, Reason, outcome_of, worst
from probes.result import Result

FALL_BACKS: dict[Transport, Reason] = {
    Transport.EFA_RDMA: Reason.OK,
    Transport.EFA_NO_RDMA: Reason.EFA_NO_RDMA,
    Transport.EFA_PARTIAL: Reason.EFA_PARTIAL,
    Transport.TCP: Reason.TCP_FALLBACK,
    Transport.INTRA_NODE: Reason.NOT_EFA,
    Transport.INDETERMINATE: Reason.TRANSPORT_INDETERMINATE,
}
"""What each transport means where EFA is required."""

# Within one measured run a finding of fact (bad speed) outweighs one that could not be made (transport not proven).
_ORDER = (Outcome.FAILED, Outcome.DEGRADED, Outcome.UNKNOWN, Outcome.OK)


def judge(run: Run, *, floors: Iterable[Floor] = (), instance_types: Mapping[str, str | None] | None = None,
          answers: Mapping[str, WitnessAnswer | NoAnswer | None] | None = None, rdma_hardware: bool | None = None,
          limits: Mapping[Figure, Limit] | None = None) -> Verdict:
    """Judge a run. `answers` are the witnesses' counters by node, `rdma_hardware` what the instance table says of its devices, `limits`
    what its figures usually reach (see `exporter.judge.baseline`).

    A run whose workers failed or could not measure keeps their reason: its figures and its transport explain it and do not change it.
    What workers call ok is not taken at their word: without a figure it is `no_rows`, with a wrong byte `wrong_content`, and where EFA is
    required, without a transport that is proven, never ok.
    """
    reason = worst([result.reason for result in run.results])
    message = next((result.message for result in run.results if result.reason is reason), "")
    found: list[tuple[Reason, str]] = [(reason, message)]
    proofs: list[Proof] = []
    required = run.spec.transport == "efa"
    measured = outcome_of(reason) in {Outcome.OK, Outcome.DEGRADED}
    transport = _transport(run, answers, rdma_hardware, owed=required and measured)
    answer = _answer(run, reason)
    if measured:
        found += _contradictions(run, answer)
    if transport is not None:
        said = _required(transport) if required else Reason.OK
        proofs.append(Proof("transport", _holds(said, transport, required=required), f"{transport.transport.value}: {transport.why}"))
        if measured and said is not Reason.OK:
            found.append((said, transport.why))
    proofs += [Proof("disaggregation", {"yes": True, "no": False}.get(pd.disaggregation), f"{pd.evidence}: {pd.why}")
               for pd in (result.pd for result in run.results) if pd is not None and pd.disaggregation is not None]
    comparisons: tuple[Comparison, ...] = ()
    if any(result.measurements for result in run.results):
        speed = judge_speed(run.results, floors, instance_types or {}, limits)
        comparisons = speed.comparisons
        proofs.append(Proof("speed", speed.holds if measured else None, speed.says))
        if measured and speed.reason is not Reason.OK:
            found.append((speed.reason, speed.says))
    proofs += answer
    final, why = min(found, key=lambda one: _ORDER.index(outcome_of(one[0]))) if measured else found[0]
    statements = transport.statements if transport else ()
    return Verdict(run, final, why, transport.transport if transport else None, tuple(proofs), statements, comparisons)


def _transport(run: Run, answers: Mapping[str, WitnessAnswer | NoAnswer | None] | None, rdma_hardware: bool | None, *,
               owed: bool) -> TransportVerdict | None:
    """None where the ranks say nothing of a transport: preflight, canary, and workers that died before they could.

    `owed`: where the probe is one that moves data, silence is no transport that is proven.
    """
    pd = next((result.pd for result in run.results if result.pd is not None), None)
    if pd is not None:
        return judge_kv_transport(pd, answers or {})
    told = any(result.evidence is not None and result.evidence.payload_bytes is not None for result in run.results)
    if not told and not (owed and run.spec.probe in STACKS):
        return None
    return judge_transport(run.results, answers, rdma_hardware=rdma_hardware)


def _required(transport: TransportVerdict) -> Reason:
    """What the transport means where EFA is required. Emulated RDMA is no fault of devices that have none."""
    return Reason.OK if transport.expected else FALL_BACKS[transport.transport]


def _holds(said: Reason, transport: TransportVerdict, *, required: bool) -> bool | None:
    """Whether the right transport is proven. Where none is required, knowing it is the proof."""
    if transport.transport is Transport.INDETERMINATE:
        return None
    return said is Reason.OK if required else True


def _contradictions(run: Run, answer: list[Proof]) -> list[tuple[Reason, str]]:
    """What the figures of a run say against workers that call it measured."""
    found: list[tuple[Reason, str]] = []
    if any(count for result in run.results for row in result.measurements for count in row.wrong or ()):
        found.append((Reason.WRONG_CONTENT, answer[0].says))
    if run.spec.probe in STACKS and not any(_has_figure(result) for result in run.results):
        found.append((Reason.NO_ROWS, "the workers ended well and left no figure"))
    return found


def _has_figure(result: Result) -> bool:
    return any(figure for row in result.measurements for column in (row.bandwidth, *row.latency.values()) for figure in column)


def _answer(run: Run, reason: Reason) -> list[Proof]:
    """Whether what arrived is what was sent."""
    checked = [count for result in run.results for row in result.measurements for count in row.wrong or () if count is not None]
    if checked:
        wrong = sum(checked)
        says = f"{wrong} wrong in {len(checked)} checks" if wrong else f"{len(checked)} checks, nothing wrong"
        return [Proof("answer", holds=wrong == 0 and reason is not Reason.WRONG_CONTENT, says=says)]
    streams = [result.stream for result in run.results if result.stream is not None]
    if streams:
        tokens = streams[0].output_tokens
        says = f"{streams[0].status}, {tokens if tokens is not None else 'no'} tokens, finish {streams[0].finish_reason or 'not told'}"
        return [Proof("answer", holds=None if outcome_of(reason) is Outcome.UNKNOWN else outcome_of(reason) is Outcome.OK, says=says)]
    return []
