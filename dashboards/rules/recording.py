"""Recording rules: the word of the leading replica as one series, what explains what, and counts of canaries in the windows of the SLOs."""

from __future__ import annotations

from dashboards.rules.model import Group, Recording
from dashboards.rules.promql import FAILED, FALLBACKS, LAYERS, VALID, at, increase, of_leader, upto

HEALTHY, BROKEN, EXPLAINED = "efapulse:node_healthy", "efapulse:fabric_broken", "efapulse:node_explained"
WINDOWS = ("30m", "6h", "3d")


def _explained() -> str:
    """For every probe: nodes of which a lower layer, or the fabric in this layer or a lower one, explains what is wrong."""
    ways: list[str] = []
    for layer in sorted(set(LAYERS.values())):
        mine = f'{HEALTHY}{{probe=~"{at(layer)}"}}'
        if layer > 0:
            ways.append(f'{mine} and ignoring (probe) ({HEALTHY}{{probe=~"{upto(layer - 1)}"}} == 0)')
        ways.append(f'{mine} and ignoring (node, probe) {BROKEN}{{probe=~"{upto(layer)}"}}')
    return "(\n  " + "\n  or\n  ".join(ways) + "\n) * 0 + 1"


def _broken() -> str:
    bad = f"({HEALTHY} == bool 0)"
    share = (f"avg without (node) {bad} >= @fabric_share@\n"
             f"  and count without (node) ({HEALTHY}) >= @fabric_nodes@")
    return f'(\n  max without (kind) (efapulse:findings{{kind="group"}} > 0)\n  or\n  {share}\n) * 0 + 1'


STATE = Group("efapulse.state", (
    Recording(HEALTHY, of_leader("efapulse_node_healthy", "node", "probe", agg="min"), "Last conclusive verdict of a node for a probe."),
    Recording("efapulse:pair_healthy", of_leader("efapulse_pair_healthy", "probe", "node", "peer", agg="min"),
              "Last conclusive verdict of a pair."),
    Recording("efapulse:node_suspicion:ratio", of_leader("efapulse_node_suspicion_ratio", "node", agg="max"),
              "Probability that a node is bad."),
    Recording("efapulse:node_transport", of_leader("efapulse_node_transport", "node", "probe", "transport", agg="max"),
              "1 for the last conclusive transport of a node."),
    Recording("efapulse:nic_share:ratio", of_leader("efapulse_nic_share_ratio", "node", "device", agg="min"),
              "Bytes of a NIC over those of an average one of its node."),
    Recording("efapulse:node_change", of_leader("efapulse_node_change", "node", "probe", "kind", agg="max"),
              "1 while a node is slower than it was itself."),
    Recording("efapulse:baseline_level:ratio",
              of_leader("efapulse_baseline_level_ratio", "probe", "operation", "bytes", "memory", "kind", "instance_type", "stratum",
                        agg="min"),
              "What all nodes of a kind reach over their baseline."),
    Recording("efapulse:pd_to_baseline:ratio", of_leader("efapulse_pd_to_baseline_ratio", "target", "measure", agg="max"),
              "PD over the same model without disaggregation."),
    Recording("efapulse:pd_transport", of_leader("efapulse_pd_transport", "target", "transport", agg="max"),
              "1 for the last conclusive transport of KV."),
    Recording("efapulse:pd_findings", of_leader("efapulse_pd_findings", "target", "finding", agg="max"),
              "Findings about prefill and decode that stand."),
    Recording("efapulse:pd_pod_coverage:ratio", of_leader("efapulse_pd_pod_coverage_ratio", "target", "role", agg="min"),
              "Share of the pods visited in time."),
    Recording("efapulse:findings", of_leader("efapulse_findings", "kind", "probe", agg="max"), "Findings of localisation that stand."),
    Recording("efapulse:coverage:ratio", of_leader("efapulse_coverage_ratio", "probe", "stratum", agg="min"),
              "Share of the nodes measured in time."),
    Recording("efapulse:coverage_nodes", of_leader("efapulse_coverage_nodes", "probe", "stratum", "state", agg="max"),
              "Nodes by what became of their measurement."),
    Recording("efapulse:runs:increase6h", increase('efapulse_runs_total{probe!="canary"}', "6h", "reason"),
              "Runs that ended within 6 h, by outcome."),
    Recording(BROKEN, _broken(), "1 for a probe to which the fabric as a whole is broken: a group finding, or a large share of its nodes "
                                 "is bad. It mutes alerts of single nodes and of canaries."),
    Recording(EXPLAINED, _explained(), "1 for nodes and probes of which a lower layer or the fabric explains what is wrong. It mutes "
                                       "alerts."),
    Recording("efapulse:node_fallback",
              f'efapulse:node_transport{{transport=~"{FALLBACKS}"}} == 1\n'
              f"and ignoring (transport) ({HEALTHY} == 0)\n"
              "and (sum without (instance, pod) (last_over_time(efapulse_transport_fallback_total[@bridge@])) >= 0)",
              "1 where EFA is required (only there the counter of fallbacks exists), the last conclusive transport is another, and "
              "localisation blames this node and not its partner."),
))


def _canaries() -> list[Recording]:
    found: list[Recording] = []
    for window in WINDOWS:
        for name, pattern in (("valid", VALID), ("failed", FAILED)):
            found.append(Recording(
                f"efapulse:canary_{name}:increase{window}",
                increase(f'efapulse_canary_requests_total{{result=~"{pattern}"}}', window, "prompt", "result"),
                f"Canary requests that {'could be judged' if name == 'valid' else 'failed'} within {window}; `unknown` ones (shed, "
                f"disturbed, "
                "cancelled) are neither."))
        for name, series in (("ttft", _ttft), ("tpot", _tpot)):
            found.append(Recording(f"efapulse:canary_{name}_measured:increase{window}",
                                   increase(f"efapulse_canary_{name}_seconds_count", window, "clock"), f"Canaries with a {name.upper()}."))
            found.append(Recording(f"efapulse:canary_{name}_slow:increase{window}",
                                   f"clamp_min(efapulse:canary_{name}_measured:increase{window} - (\n{series(window)}\n), 0)",
                                   f"Canaries whose {name.upper()} was above its bound."))
    return found


def _ttft(window: str) -> str:
    def of(prompt: str) -> str:
        return increase(f'efapulse_canary_ttft_seconds_bucket{{prompt="{prompt}", le=~"@ttft_{prompt}@(\\\\.0)?"}}', window, "clock", "le")

    return f"  {of('short')}\n  or\n  {of('long')}"


def _tpot(window: str) -> str:
    return "  " + increase('efapulse_canary_tpot_seconds_bucket{le=~"@tpot@(\\\\.0)?"}', window, "clock", "le")


CANARIES = Group("efapulse.canary_windows", tuple(_canaries()))
THRESHOLDS = Group("efapulse.thresholds", (
    Recording("efapulse:threshold:canary_ttft_seconds",
              'label_replace(vector(@ttft_short@), "prompt", "short", "", "")\nor\n'
              'label_replace(vector(@ttft_long@), "prompt", "long", "", "")',
              "Bound of TTFT by prompt, as dashboards draw it."),
    Recording("efapulse:threshold:canary_tpot_seconds", "vector(@tpot@)", "Bound of TPOT."),
    Recording("efapulse:threshold:canary_objective_ratio", "vector(@objective@)", "Share of canaries that must be answered in bounds."),
))
RECORDINGS = (STATE, CANARIES, THRESHOLDS)
