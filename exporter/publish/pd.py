"""What a canary showed of prefill and decode, as counters and histograms. Gauges come from `exporter.pairing`, which knows the pods."""

from __future__ import annotations

from collections.abc import Callable

from exporter.judge.transport import Transport
from exporter.judge.verdict import Verdict
from exporter.publish import families_pd as f
from exporter.publish.family import Family
from exporter.publish.instruments import Counters, Histograms
from probes.reasons import Outcome
from probes.result import Integrity, Pd

DISAGGREGATION = (("yes", "provenance"), ("yes", "counters"), ("no", "provenance"), ("no", "counters"), ("no", "router_mode"),
                  ("unknown", "router_mode"), ("unknown", "none"))
"""Verdicts with the evidence each can have; yes never comes from a router's word."""
INTEGRITY = ("ok", "drift", "mismatch", "crosstalk", "degenerate", "empty", "unknown")
STAGES = ("queue", "prefill", "transfer", "handover")


def declare(count: Callable[[Family], Counters], histogram: Callable[[Family], Histograms], target: str, *, pods: bool) -> None:
    """Start the counters of a target; `pods`: its engine pods are looked at."""
    count(f.CANARY_INTEGRITY).start((target, verdict) for verdict in INTEGRITY)
    count(f.CANARY_CROSSTALK).start([(target,)])
    if not pods:
        return
    count(f.PD_DISAGGREGATION).start((target, verdict, evidence) for verdict, evidence in DISAGGREGATION)
    count(f.PD_TRANSPORTS).start((target, transport.value) for transport in Transport)
    count(f.PD_IMPURE).start((target, role) for role in ("prefill", "decode"))
    for family in (f.PD_FAILED, f.PD_EXPIRED):
        count(family).start([(target,)])
    for timed in (f.PD_KV_TRANSFER, f.PD_KV_RATE):
        histogram(timed).start([(target,)])
    histogram(f.PD_TTFT_STAGE).start((target, stage) for stage in STAGES)


def record(count: Callable[[Family], Counters], histogram: Callable[[Family], Histograms], verdict: Verdict) -> None:
    """Take in one judged canary. Counters of engines count for failed requests as well; times only for good ones of pairs that have met."""
    target = verdict.run.spec.target
    for pd in (result.pd for result in verdict.run.results if result.pd is not None):
        if pd.integrity is not None:
            _integrity(count, target, pd.integrity)
        if pd.route == "baseline":
            continue
        if pd.disaggregation is not None and (pd.says or pd.why):
            count(f.PD_DISAGGREGATION).add((target, pd.disaggregation, pd.evidence))
        if verdict.transport is not None:
            count(f.PD_TRANSPORTS).add((target, verdict.transport.value))
        for family, amount in ((f.PD_FAILED, pd.failed_transfers), (f.PD_EXPIRED, pd.expired)):
            if amount:
                count(family).add((target,), amount)
        for role, tokens in zip(("prefill", "decode"), pd.impure_tokens or (0, 0), strict=True):
            if tokens:
                count(f.PD_IMPURE).add((target, role), tokens)
        if verdict.outcome is Outcome.OK and not pd.first_contact:
            _times(histogram, target, pd)


def _times(histogram: Callable[[Family], Histograms], target: str, pd: Pd) -> None:
    for family, value in ((f.PD_KV_TRANSFER, pd.kv_transfer), (f.PD_KV_RATE, pd.kv_bytes_per_second)):
        if value is not None:
            histogram(family).observe((target,), value)
    for stage, seconds in zip(STAGES, (pd.queue, pd.prefill_seconds, pd.transfer, pd.handover), strict=True):
        if seconds is not None:
            histogram(f.PD_TTFT_STAGE).observe((target, stage), seconds)


def _integrity(count: Callable[[Family], Counters], target: str, integrity: Integrity) -> None:
    count(f.CANARY_INTEGRITY).add((target, integrity.verdict))
    if integrity.verdict == "crosstalk":
        count(f.CANARY_CROSSTALK).add((target,))
