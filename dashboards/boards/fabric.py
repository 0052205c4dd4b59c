"""Fabric: bandwidth by probe, size and node, transport, NIC shares, baselines, coverage."""

from __future__ import annotations

from dashboards.board import Board, Row, Variable
from dashboards.panels import (
    BLUE,
    BYTES_RATE,
    COUNT,
    GREEN,
    GREY,
    HEALTH,
    ORANGE,
    RATIO,
    RED,
    SECONDS,
    YELLOW,
    Column,
    Query,
    bars,
    history,
    lines,
    rows,
    spread,
)
from dashboards.promql import age, latest, mean, pick, quantile, worst

_FIGURE = "cluster, probe, operation, bytes, memory, kind"
_NORM = "cluster, probe, operation, bytes, memory, kind, instance_type, stratum"
_RATE = latest(pick("efapulse_node_bandwidth_bytes_per_second", "probe", "operation"))
_AGAINST = f"{_RATE} / on ({_FIGURE}) group_left () quantile by ({_FIGURE}) (0.5, {_RATE})"
_STATE, _END = 'state="', '"'
_SHARE = ((None, RED), (0.7, ORANGE), (0.85, YELLOW), (0.95, GREEN))
_TRANSPORTS = {"efa_rdma": GREEN, "efa_no_rdma": YELLOW, "efa_partial": ORANGE, "tcp": RED, "intra_node": BLUE, "indeterminate": GREY}

_NODES = Row("Nodes", [
    history("Each node against the fleet", "Bandwidth of each node over the median of all nodes that were measured alike, its worst figure "
            "of the chosen probes. A row that is red from one moment on became slow then; a red column is no matter of one node.",
            Query(f"min by (node) ({_AGAINST})", "{{node}}"), RATIO, _SHARE, width=16, height=13, runbooks=["EfaPulseNodeBad"]),
    bars("Slowest nodes", "The ten nodes that are furthest below the median of their like, by their worst figure.",
         Query(f"bottomk(10, min by (node) ({_AGAINST}))", "{{node}}"), RATIO, _SHARE, width=8, height=13, high=1.2),
    lines("Bandwidth of nodes", "The best of the last pairs of each node at the largest size: the ten slowest of the chosen probes and "
          "operations.",
          [Query(f"bottomk(10, min by (node, probe, operation) ({_RATE}))", "{{node}} {{probe}} {{operation}}")], BYTES_RATE),
    lines("Bandwidth by probe and size", "Median over all runs that ended ok or degraded in the chosen time.",
          [Query(quantile(0.5, "efapulse_bandwidth_bytes_per_second", "probe, operation, bytes, kind", "probe", "operation"),
                 "{{probe}} {{operation}} {{bytes}} B {{kind}}")], BYTES_RATE),
    spread("How bandwidth of runs is spread", "All runs of the chosen probes and operations at all sizes: two bands where there was one "
           "are two kinds of node, or two kinds of path.",
           "sum by (le) (increase(" + pick("efapulse_bandwidth_bytes_per_second_bucket", "probe", "operation") + "[$window]))", BYTES_RATE),
    lines("Slowest twentieth of runs", "5th percentile of bandwidth over all runs of the chosen time: what the worst pairs get.",
          [Query(quantile(0.05, "efapulse_bandwidth_bytes_per_second", "probe, operation, bytes", "probe", "operation"),
                 "{{probe}} {{operation}} {{bytes}} B")], BYTES_RATE),
])

_BASELINE = Row("Against what was learned", [
    lines("Baseline and its band", "What a healthy pair reaches with its present software: median, and three robust standard deviations "
          "below it (dashed).", [
              Query(f"max by ({_NORM}) ({pick('efapulse_baseline_bandwidth_bytes_per_second', 'probe', 'operation')})",
                    "{{probe}} {{operation}} {{stratum}} {{instance_type}}"),
              Query(f"max by ({_NORM}) ({pick('efapulse_baseline_bandwidth_bytes_per_second', 'probe', 'operation')}) * clamp_min(1 - 3 * "
                    f"max by ({_NORM}) ({pick('efapulse_baseline_spread_ratio', 'probe', 'operation')}), 0)",
                    "3 deviations below: {{probe}} {{operation}} {{stratum}}", threshold=True)], BYTES_RATE, runbooks=[]),
    lines("How far nodes are apart",
          "The lowest node and the median of all, against baseline and peers: where both fall it is not one node.", [
        Query("min by (probe) (" + pick("efapulse_node_to_baseline_ratio", "probe", "operation") + ")", "{{probe}} lowest to baseline"),
        Query("quantile by (probe) (0.5, " + pick("efapulse_node_to_baseline_ratio", "probe", "operation") + ")",
              "{{probe}} median to baseline")], RATIO),
    bars("Lowest against their baseline", "Nodes against what their kind of node, distance and software usually reaches: the ten lowest.",
         Query("bottomk(10, min by (node, probe) (" + pick("efapulse_node_to_baseline_ratio", "probe", "operation") + "))",
               "{{node}} {{probe}}"), RATIO, _SHARE, width=8, high=1.2),
    bars("Lowest against their peers", "Nodes against the median of those that were measured alike in the last round: the ten lowest.",
         Query("bottomk(10, min by (node, probe) (" + pick("efapulse_node_to_peers_ratio", "probe", "operation") + "))",
               "{{node}} {{probe}}"), RATIO, _SHARE, width=8, high=1.2),
    bars("Lowest against their hardware",
         "Nodes against the line rate of the EFA devices that the run had: the ten lowest. No probe reaches it.",
         Query("bottomk(10, min by (node, probe) (" + pick("efapulse_node_to_ceiling_ratio", "probe", "operation") + "))",
               "{{node}} {{probe}}"), RATIO, ((None, BLUE),), width=8, high=1.0),
    rows("Nodes that changed", "Nodes that became slower than they were themselves, at once (`step`) or slowly (`drift`), while that "
         "stands.",
         [Query("max by (cluster, node, probe, kind) (" + pick("efapulse_node_change", "probe") + ") == 1", "stands")],
         [Column("node"), Column("probe"), Column("kind"), Column("stands", COUNT), Column("cluster")], width=8),
    rows("The fleet against its baselines", "`level`: what all nodes of a kind reached last over their baseline; below 1 the whole fleet "
         "became slower. `upgrade`: with the present software over the one before.", [
             Query(f"max by ({_NORM}) ({pick('efapulse_baseline_level_ratio', 'probe', 'operation')})", "level"),
             Query(f"max by ({_NORM}) ({pick('efapulse_baseline_upgrade_ratio', 'probe', 'operation')})", "upgrade"),
             Query(f"max by ({_NORM}) ({pick('efapulse_baseline_samples', 'probe', 'operation')})", "samples"),
             Query(age(f"max by ({_NORM}) ({pick('efapulse_baseline_last_learned_timestamp_seconds', 'probe', 'operation')})"), "learned"),
         ], [Column("probe"), Column("operation"), Column("bytes", "bytes"), Column("memory"), Column("kind"), Column("instance_type"),
             Column("stratum"), Column("level", RATIO, steps=_SHARE), Column("upgrade", RATIO, steps=_SHARE), Column("samples", COUNT),
             Column("learned", SECONDS), Column("cluster")], width=16),
])

_TRANSPORT = Row("Transport and devices", [
    lines("Transport of nodes", "Nodes and probes by their last conclusive transport. Only `efa_rdma` is EFA with RDMA by every witness.",
          [Query("count by (transport) (max by (cluster, node, probe, transport) (" + pick("efapulse_node_transport", "probe") + ") == 1)",
                 "{{transport}}")], COUNT, stacked=True, width=8, colours=_TRANSPORTS, runbooks=["EfaPulseTransportFallback"]),
    lines("Fallbacks", "Runs in which EFA was required and something else carried the payload, counted over the chosen time.",
          [Query("sum by (node, probe, transport) (increase(" + pick("efapulse_transport_fallback_total", "probe") + "[$window])) > 0",
                 "{{node}} {{probe}} {{transport}}")], COUNT, width=8, bars=True, runbooks=["EfaPulseTransportFallback"]),
    bars("Lowest NIC shares", "Bytes of an EFA device over those of an average one of its node: 1 when all carry alike. The fifteen "
         "lowest.",
         Query("bottomk(15, min by (node, device) (" + pick("efapulse_nic_share_ratio") + "))", "{{node}} {{device}}"), RATIO,
         ((None, RED), (0.5, ORANGE), (0.8, GREEN)), width=8, high=1.2, runbooks=["EfaPulseNicShareLow"]),
    rows("EFA devices that are missing", "Nodes that see fewer EFA devices than their instance type has, or than Kubernetes can "
         "allocate.", [
        Query("max by (cluster, node) (" + pick("efapulse_node_efa_devices", 'state="expected"') + ") > max by (cluster, node) ("
              + pick("efapulse_node_efa_devices", 'state="seen"') + ")", "expected"),
        Query("max by (cluster, node) (" + pick("efapulse_node_efa_devices", 'state="seen"') + ") < max by (cluster, node) ("
              + pick("efapulse_node_efa_devices", 'state="expected"') + ")", "seen"),
    ], [Column("node"), Column("expected", COUNT), Column("seen", COUNT, steps=((None, RED),)), Column("cluster")], width=8),
    rows("Bad pairs", "Pairs whose last conclusive verdict is bad, with the bandwidth they reached. Only the latest pairs of each node and "
         "those of suspects are kept as series; the heat map of all pairs is on the exporter's status page.", [
             Query("max by (cluster, probe, node, peer) (" + pick("efapulse_pair_healthy", "probe") + ") == 0", "verdict"),
             Query("min by (cluster, probe, node, peer) (" + pick("efapulse_pair_bandwidth_bytes_per_second", "probe", "operation")
                   + ") and on (cluster, probe, node, peer) (" + pick("efapulse_pair_healthy", "probe") + " == 0)", "reached"),
         ], [Column("node"), Column("peer"), Column("probe"), Column("verdict", words=HEALTH), Column("reached", BYTES_RATE),
             Column("cluster")], width=16, sort=("reached", True)),
])

_COVERAGE = Row("Coverage and cost", [
    history("Coverage by probe and distance", "Share of the nodes measured in time over paths of each distance.",
            Query(f"min by (probe, stratum) ({worst(pick('efapulse_coverage_ratio', 'probe'))})", "{{probe}} {{stratum}}"), RATIO,
            ((None, RED), (0.5, YELLOW), (0.9, GREEN)), width=12, height=9, runbooks=["EfaPulseCoverageOld"]),
    rows("Where coverage stands",
         "Nodes by what became of their measurement, and how old the oldest one is. Left out: by what lasts, such as "
         "devices that serving holds.", [
        *(Query(f"max by (cluster, probe, stratum) ({pick('efapulse_coverage_nodes', 'probe', f'{_STATE}{state}{_END}')})", name)
          for state, name in (("measured", "measured"), ("waiting", "waiting"), ("left_out", "left out"))),
        Query(age("min by (cluster, probe, stratum) (" + pick("efapulse_coverage_oldest_measurement_timestamp_seconds", "probe") + ")"),
              "oldest"),
    ], [Column("probe"), Column("stratum"), Column("measured", COUNT), Column("waiting", COUNT), Column("left out", COUNT),
        Column("oldest", SECONDS), Column("cluster")],
         height=9, width=12),
    lines("Where the time of runs goes", "Mean time of the slowest rank in each phase, over the chosen time. A long `launch` or `pull` is "
          "no matter of the fabric.", [Query(mean("efapulse_run_phase_seconds", "probe, phase", "probe"), "{{probe}} {{phase}}")],
          SECONDS, width=12),
    lines("Latency by probe and size", "Median over runs of the 99th percentile within a run.",
          [Query(quantile(0.5, "efapulse_transfer_seconds", "probe, operation, bytes", "probe", "operation", 'statistic="p99"'),
                 "{{probe}} {{operation}} {{bytes}} B")], SECONDS, width=12, logarithmic=True),
])

BOARD = Board(
    "fabric", "Fabric", "Bandwidth, transport, devices and coverage of nodes and paths. Pairs are on the exporter's status page.",
    [_NODES, _TRANSPORT, _BASELINE, _COVERAGE],
    [Variable("probe", "Probe", "efapulse_node_healthy", "probe"),
     Variable("operation", "Operation", "efapulse_node_bandwidth_bytes_per_second", "operation", ("probe",))], annotated=("probe",))
