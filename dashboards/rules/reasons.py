"""The page of reasons: each with its outcome, what it means, what to do first, and the runbooks of the alerts it leads to."""

from __future__ import annotations

from probes.reasons import REASONS, Outcome, Reason

R = Reason
_STREAM = ("EfaPulseCanaryDown", "EfaPulseCanaryAvailabilityBurnFast")
_NODE = ("EfaPulseNodeBad", "EfaPulsePairBad", "EfaPulseFabricBroken")
_UNKNOWN = ("EfaPulseProbeUnknown", "EfaPulseEverythingUnknown")
_CANARY_UNKNOWN = ("EfaPulseCanaryShedOrUnknown",)

LEADS_TO: dict[Reason, tuple[str, ...]] = {
    **{reason: _UNKNOWN for reason, info in REASONS.items() if info.outcome is Outcome.UNKNOWN},
    **{reason: _NODE for reason, info in REASONS.items() if info.outcome in (Outcome.FAILED, Outcome.DEGRADED)},
    **dict.fromkeys((R.CONNECT_FAILED, R.TLS_FAILED, R.HTTP_CLIENT_ERROR, R.HTTP_SERVER_ERROR, R.PROTOCOL_ERROR, R.ERROR_IN_STREAM,
                     R.TRUNCATED, R.TIMEOUT_HEADER, R.TIMEOUT_FIRST_TOKEN, R.TIMEOUT_STALL, R.TIMEOUT_TOTAL, R.FINISH_ERROR,
                     R.FINISH_ABORT, R.EMPTY_ANSWER), _STREAM),
    R.OK: (),
    R.WRONG_LENGTH: ("EfaPulseCanaryIntegrity",),
    R.WRONG_CONTENT: ("EfaPulseDataCorruption", "EfaPulseCanaryIntegrity"),
    R.TCP_FALLBACK: ("EfaPulseTransportFallback", *_NODE),
    R.EFA_NO_RDMA: ("EfaPulseTransportFallback", *_NODE),
    R.EFA_PARTIAL: ("EfaPulseNicShareLow", *_NODE),
    R.NIC_IMBALANCE: ("EfaPulseNicShareLow", *_NODE),
    R.DEVICES_MISSING: ("EfaPulseNodePreflightFailed",),
    R.NODE_MISCONFIGURED: ("EfaPulseNodePreflightFailed",),
    R.NO_CAPACITY: ("EfaPulseNoRoom", *_UNKNOWN),
    R.UNSCHEDULED: ("EfaPulseNoRoom", *_UNKNOWN),
    R.SHED: _CANARY_UNKNOWN,
    R.DISTURBED: _CANARY_UNKNOWN,
    R.INTERNAL_ERROR: ("EfaPulseInternalErrors", *_UNKNOWN),
}
"""Alerts whose runbooks say more about a reason. What several alerts share is named by the likeliest first."""


def page() -> str:
    """`dashboards/runbooks/reasons.md`."""
    lines = ["# Reasons", "",
             "Why a run or a canary ended as it did. Made from `probes/reasons.py` by `python -m dashboards.rules`. Do not edit.", "",
             "| reason | outcome | what it means | what to do first | runbooks |", "| --- | --- | --- | --- | --- |"]
    for reason, info in REASONS.items():
        books = ", ".join(f"[{name}]({name}.md)" for name in LEADS_TO[reason]) or "none"
        lines.append(f"| `{reason.value}` | {info.outcome.value} | {info.meaning} | {info.action} | {books} |")
    return "\n".join(lines) + "\n"
