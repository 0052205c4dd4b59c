"""Pieces that expressions are made of.

Each expression must hold behind a static scrape (target labels `instance`, `job`) and behind the operator's (`pod`, `namespace`, `service`,
`endpoint`, `container` too), with any external label, and with several replicas. So nothing is ever summed `by` a list of our labels:
aggregations drop `instance` and `pod` and matchings ignore our own labels.
"""

from __future__ import annotations

from probes.reasons import REASONS, Outcome, Reason

LAYERS: dict[str, int] = {"node": 0, "nccl": 1, "mooncake": 2, "nixl": 2, "uccl-ep": 3}
"""Layer of each probe of nodes, the lowest first; what fails in a lower layer explains what fails above it."""
FALLBACKS = "tcp|efa_no_rdma"
"""Transports that are a fallback where EFA was required."""
LEADER = "(last_over_time(efapulse_leader[@bridge@]) == 1)"


def of_leader(selector: str, *labels: str, agg: str) -> str:
    """The state that the leading replica tells, one series for all replicas.

    A replica that no longer leads still shows what it last knew, so only leaders count. The last value within `bridge` is taken, so that
    a restart or a new leader makes no gap in which an alert would resolve; in the meantime the old and the new word count together, by
    `agg` the worse one. `labels` are our own labels of the metric.
    """
    matching = f" and ignoring({', '.join(labels)}) " if labels else " and "
    return f"{agg} without (instance, pod) (\n  last_over_time({selector}[@bridge@]){matching}{LEADER}\n)"


def increase(selector: str, window: str, *labels: str) -> str:
    """How much counters rose within `window` over all replicas and over `labels`; each replica's own resets are accounted for first."""
    dropped = ", ".join(("instance", "pod", *labels))
    return f"sum without ({dropped}) (increase({selector}[{window}]))"


def upto(layer: int) -> str:
    """A pattern of the probes up to a layer."""
    return "|".join(probe for probe, at in LAYERS.items() if at <= layer)


def at(layer: int) -> str:
    """A pattern of the probes of a layer."""
    return "|".join(probe for probe, own in LAYERS.items() if own == layer)


def results(*outcomes: Outcome) -> str:
    """A pattern of the reasons that a canary request can end with and that belong to these outcomes."""
    return "|".join(reason.value for reason in Reason if REASONS[reason].outcome in outcomes)


VALID = results(Outcome.OK, Outcome.DEGRADED, Outcome.FAILED)
FAILED = results(Outcome.FAILED)
GOOD = results(Outcome.OK, Outcome.DEGRADED)
UNKNOWN = results(Outcome.UNKNOWN)
