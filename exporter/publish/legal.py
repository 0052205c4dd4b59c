"""Which reasons a probe can end with, and which transports count as a fallback: the label sets that start at 0.

A value outside of these lists is still counted when it comes; it only has no 0 before it.
"""

from __future__ import annotations

from probes.reasons import REASONS, Outcome, Reason, outcome_of

STREAM = frozenset({
    Reason.WRONG_LENGTH, Reason.CONNECT_FAILED, Reason.TLS_FAILED, Reason.HTTP_CLIENT_ERROR, Reason.HTTP_SERVER_ERROR,
    Reason.PROTOCOL_ERROR, Reason.ERROR_IN_STREAM, Reason.TRUNCATED, Reason.TIMEOUT_HEADER, Reason.TIMEOUT_FIRST_TOKEN,
    Reason.TIMEOUT_STALL, Reason.TIMEOUT_TOTAL, Reason.FINISH_ERROR, Reason.FINISH_ABORT, Reason.EMPTY_ANSWER, Reason.SHED,
    Reason.DISTURBED,
})
"""Only a canary request can end so."""
PREFLIGHT = frozenset({Reason.DEVICES_MISSING, Reason.NODE_MISCONFIGURED})
"""Only a node preflight can end so."""
FABRIC = frozenset({
    Reason.BELOW_FLOOR, Reason.BELOW_BASELINE, Reason.TAIL_LATENCY, Reason.FALLS_WITH_SIZE, Reason.EFA_NO_RDMA, Reason.EFA_PARTIAL,
    Reason.NIC_IMBALANCE,
    Reason.TCP_FALLBACK, Reason.NOT_EFA, Reason.WRONG_CONTENT, Reason.TRANSFER_FAILED, Reason.TRANSPORT_UNAVAILABLE,
    Reason.NO_ROWS, Reason.RANK_MISSING, Reason.PEER_LOST, Reason.RENDEZVOUS_FAILED, Reason.RENDEZVOUS_REFUSED,
    Reason.PORT_IN_USE, Reason.GPU_MISSING, Reason.GPU_BUSY, Reason.IMPLAUSIBLE, Reason.TRANSPORT_INDETERMINATE,
    Reason.DIED_IN_RENDEZVOUS,
})
"""Only a run that moves data between ranks can end so."""
CLUSTER = frozenset({
    Reason.UNSCHEDULED, Reason.NO_CAPACITY, Reason.IMAGE_PULL, Reason.PREEMPTED, Reason.EVICTED, Reason.POD_LOST, Reason.QUOTA,
    Reason.ADMISSION_DENIED,
})
"""Only Kubernetes ends a run so."""

FALLBACKS = ("tcp", "efa_no_rdma")
"""Transports that are a fallback where EFA was required."""

LOCAL = frozenset({
    Reason.ENGINE_ERROR, Reason.ENGINE_CRASHED, Reason.TRANSPORT_UNAVAILABLE, Reason.DEVICES_MISSING, Reason.NODE_MISCONFIGURED,
})
"""A fault of the rank that reported it: its partner is not blamed, and learns nothing about itself."""


def reasons(probe: str, *, cluster: bool = False) -> tuple[Reason, ...]:
    """The reasons a run of `probe` can end with, in the order of the list; `cluster` adds those of Kubernetes."""
    foreign = {"canary": PREFLIGHT | FABRIC - {Reason.WRONG_CONTENT}, "node": STREAM | FABRIC}.get(probe, STREAM | PREFLIGHT)
    return tuple(reason for reason in REASONS if reason not in foreign and (cluster or reason not in CLUSTER))


def outcomes(probe: str, *, cluster: bool = False) -> tuple[tuple[Outcome, Reason], ...]:
    """The same, each with its outcome."""
    return tuple((outcome_of(reason), reason) for reason in reasons(probe, cluster=cluster))
