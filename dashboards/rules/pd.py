"""Alerts of prefill/decode serving: KV does not move, moves the wrong way, or costs more than it saves."""

from __future__ import annotations

from dashboards.rules.model import Alert, Component, Group, Severity, duration, number
from dashboards.rules.promql import FALLBACKS, VALID, increase

PD = Component.PD
BROKEN = "(max without (probe) (efapulse:fabric_broken))"


def _verdicts(pattern: str) -> str:
    return increase(f'efapulse_pd_disaggregation_total{{verdict=~"{pattern}"}}', "@window@", "verdict", "evidence")


GROUP = Group("efapulse.pd", (
    Alert(
        "EfaPulsePdNotDisaggregated", Severity.WARNING, PD, "5m",
        f"(\n  {_verdicts('no')}\n  / {_verdicts('yes|no')} > @share@\n  and round({_verdicts('no')}) >= @failures@\n)\n"
        f"unless ignoring (target) {BROKEN}",
        "{{ $labels.target }} is not disaggregated: in {{ $value | humanizePercentage }} of the proofs no KV moved to decode",
        "Decode computes the prompt again, or prefill serves alone: the answer is right, and slow. A fallback of the router, a KV "
        "connector "
        "that failed with its error swallowed, or a policy that lets decode recompute.",
        "The verdict is that of a proof per request, with provenance before counters before router mode. Single misses happen at restarts, "
        "so more than half within an hour and three at least. Unknown is no proof and does not count.",
        {"window": duration("1h", "time over which it is counted"), "share": number("0.5", "share of the proofs that is too much"),
         "failures": number("3", "requests without a KV transfer in the window, at least")}),
    Alert(
        "EfaPulsePdUnproven", Severity.INFO, PD, "10m",
        f"{_verdicts('unknown')}\n/ {_verdicts('yes|no|unknown')} > @share@\nand round({_verdicts('yes|no|unknown')}) >= @samples@",
        "Whether {{ $labels.target }} is disaggregated cannot be told ({{ $value | humanizePercentage }} of the canaries)",
        "Engine metrics are missing or busy with other traffic, and no stronger proof is enabled. Nothing is known to be bad.",
        "Unknown is neither good nor bad and must be seen: EfaPulsePdNotDisaggregated cannot fire without proofs.",
        {"window": duration("6h", "time over which it is counted"), "share": number("0.9", "share of unknown verdicts that is too much"),
         "samples": number("10", "canaries in the window, at least")}),
    Alert(
        "EfaPulsePdRoleNotPure", Severity.WARNING, PD, "15m",
        "(\n  " + increase("efapulse_pd_impure_tokens_total", "@window@") + "\n  / ignoring (role) group_left ()\n  "
        + increase(f'efapulse_canary_requests_total{{result=~"{VALID}"}}', "@window@", "route", "prompt", "result") + " > @tokens@\n)",
        "The {{ $labels.role }} pods of {{ $labels.target }} do the other role's work: {{ $value | humanize }} tokens a canary",
        "Prefill pods generate more than the one token a request needs, or decode pods compute prompts. The roles are mixed up, or a "
        "fallback sends whole requests to one side.",
        "Counted per canary, since the engines' counters also hold what others did in the same moment. Decode may compute the last, "
        "unfinished block of a prompt again, so a few tokens are no fault; 64 is more than a block of any engine's default.",
        {"window": duration("1h", "time over which it is counted"), "tokens": number("64", "tokens of the wrong role per canary")}),
    Alert(
        "EfaPulsePdSlowerThanBaseline", Severity.WARNING, PD, "30m",
        f'efapulse:pd_to_baseline:ratio{{measure=~"ttft|tpot"}} > @ratio@\nunless ignoring (target, measure) {BROKEN}',
        "{{ $labels.measure }} of {{ $labels.target }} is {{ $value | humanize }} times that of the same model without disaggregation",
        "Disaggregation costs more than it may. TTFT: queue of prefill, KV transfer, transport. TPOT: decode is overloaded, or the KV "
        "transfer of others disturbs it.",
        "1.3 is the gate that published validations of PD on EFA use. The ratio is one of medians over interleaved samples and is absent "
        "below the least number of them, so a single slow request cannot fire it; 30m let a load spike pass.",
        {"ratio": number("1.3", "PD over baseline that is too much")}),
    Alert(
        "EfaPulsePdTransportFallback", Severity.WARNING, PD, "5m",
        f'efapulse:pd_transport{{transport=~"{FALLBACKS}"}} == 1\nunless ignoring (target, transport) {BROKEN}',
        "KV of {{ $labels.target }} moves over {{ $labels.transport }} and not over EFA RDMA",
        "The witnesses of a prefill and a decode node saw the KV of a canary and no RDMA for it. Production KV takes the same way: TTFT "
        "grows with the prompt, without any error.",
        "The state is the last conclusive one of two independent counters, so it needs no wait to be true; 5m ride out a single pair that "
        "is replaced at once."),
    Alert(
        "EfaPulsePdTransfersFail", Severity.WARNING, PD, "5m",
        f"(\n  {increase('efapulse_pd_failed_transfers_total', '@window@')}\n  + "
        f"{increase('efapulse_pd_expired_transfers_total', '@window@')}\n"
        f") >= @failures@\nunless ignoring (target) {BROKEN}",
        "KV transfers of {{ $labels.target }} fail or expire",
        "The engines counted failed transfers, or prefilled requests that nobody fetched, while a canary ran; they may be those of users.",
        "Engines retry or recompute, so a failed transfer need not fail a request: nothing else would show it. Five in an hour leave room "
        "for restarts of pods.",
        {"window": duration("1h", "time over which it is counted"), "failures": number("5", "failed or expired transfers, at least")}),
    Alert(
        "EfaPulsePdMisconfigured", Severity.WARNING, PD, "15m",
        "efapulse:pd_findings > 0",
        "{{ $labels.target }}: prefill and decode are set up wrong ({{ $labels.finding }})",
        "Zone, KV back end, role or metrics of the engine pods do not fit together. It may work now and fail with the next pod.",
        "What pods say of themselves is certain; 15m are a roll-out in which old and new pods stand beside each other."),
    Alert(
        "EfaPulsePdPodsNotVisited", Severity.WARNING, PD, "2h",
        "efapulse:pd_pod_coverage:ratio < @share@\nunless ignoring (target, role) (max without (instance, pod) (efapulse_paused) == 1)",
        "Only {{ $value | humanizePercentage }} of the {{ $labels.role }} pods of {{ $labels.target }} were visited in time",
        "A bad engine pod among the others would not be noticed: pair canaries are shed, fail to start, or the interval is too short for "
        "so "
        "many pods.",
        "The share is already over pod_interval, in which every pod should have been visited once; 2h more allow for scaling.",
        {"share": number("0.8", "share of the pods that must be visited")}),
))
