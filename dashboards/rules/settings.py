"""Values that several rules share. A change of one is given beside the changes of single alerts, see `dashboards.rules.options`."""

from __future__ import annotations

from dashboards.rules.model import Parameter, duration, number

SETTINGS: dict[str, Parameter] = {
    "bridge": duration("10m", "time for which the last word of an exporter that went away still counts, so that a restart or a new leader "
                              "neither resolves an alert nor starts its `for` again; EfaPulseAbsent fires before it is over"),
    "fabric_share": number("0.5", "share of the nodes measured by a probe that must be bad for the fabric to be called broken"),
    "fabric_nodes": number("4", "nodes a probe must have measured for that share to say anything"),
    "ttft_short": number("1", "bound of the TTFT of the short prompt, seconds; one of the bucket bounds of efapulse_canary_ttft_seconds"),
    "ttft_long": number("5", "bound of the TTFT of the long prompt, seconds; a bucket bound as well"),
    "tpot": number("0.1", "bound of TPOT, seconds; one of the bucket bounds of efapulse_canary_tpot_seconds"),
    "objective": number("0.99", "share of canary requests that must be answered, and within the bounds"),
}

BOUNDS = {"ttft_short": "efapulse_canary_ttft_seconds", "ttft_long": "efapulse_canary_ttft_seconds", "tpot": "efapulse_canary_tpot_seconds"}
"""Settings that must be a bucket bound, and of which histogram: between two bounds nothing is counted."""
