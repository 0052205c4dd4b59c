"""Node: everything that is known of one node, for the person on call."""

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
    PURPLE,
    RATIO,
    RED,
    SECONDS,
    YELLOW,
    Column,
    Query,
    bars,
    lines,
    number,
    rows,
    states,
)
from dashboards.promql import age, latest, pick

_OF_PAIR = 'node=~"$node"', 'peer=~"$node"'
_SHARE = ((None, RED), (0.7, ORANGE), (0.85, YELLOW), (0.95, GREEN))


def _either(metric: str, by: str, condition: str = "") -> str:
    """Series of pairs in which the node is on either side."""
    return " or ".join(f"max by ({by}) ({pick(metric, side)}){condition}" for side in _OF_PAIR)


_NOW = Row("$node", [
    number("Worst verdict", "The last conclusive verdict of the node, of the probe that is worst: bad if any is.",
           f"min({pick('efapulse_node_healthy', 'node')})", "none", words=HEALTH, steps=((None, RED), (1, GREEN)), width=4,
           runbooks=["EfaPulseNodeBad"]),
    number("Suspicion", "Probability that this node is the bad one, by the runs it failed with different partners. `no data`: no suspect.",
           f"max({pick('efapulse_node_suspicion_ratio', 'node')})", RATIO, steps=((None, GREEN), (0.5, ORANGE), (0.9, RED)), width=4),
    number("Measured", "Seconds since a run last left figures of this node, of the probe that waits longest.",
           f"max({age('max by (probe) (' + pick('efapulse_node_last_measured_timestamp_seconds', 'node') + ')')})", SECONDS, width=4,
           decimals=0),
    number("First seen", "How long efa-pulse has known this node. A node that is new, or came back under an old name, starts clean.",
           age(f"max({pick('efapulse_node_first_seen_timestamp_seconds', 'node')})"), SECONDS, width=4),
    number("EFA devices", "Devices expected of the instance type, allocatable by Kubernetes, and seen by the preflight.",
           f"max by (state) ({pick('efapulse_node_efa_devices', 'node')})", COUNT, legend="{{state}}", width=4),
    number("Fallbacks", "Runs of this node in the shown time in which EFA was required and something else carried the payload.",
           f"sum(increase({pick('efapulse_transport_fallback_total', 'node')}[$__range]))", COUNT, steps=((None, GREEN), (0.5, RED)),
           width=4, decimals=0, runbooks=["EfaPulseTransportFallback"]),
    rows("What it is", "The machine as EC2 and Kubernetes know it. The instance id is its identity: names are used again.",
         [Query("max by (cluster, node, instance_id, instance_type, zone, placement_group) (" + pick("efapulse_node_info", "node") + ")",
                "there")],
         [Column("instance_id"), Column("instance_type"), Column("zone"), Column("placement_group"), Column("cluster"),
          Column("node"), Column("there", words={"1": ("yes", GREEN)})], height=4, width=16),
    rows("What keeps probes off it", "Gates that are closed for this node now. A closed gate is no fault of the node.",
         [Query(f"max by (gate) ({pick('efapulse_node_gate_closed', 'node')})", "closed")],
         [Column("gate"), Column("closed", words={"1": ("closed", ORANGE)})], height=4, width=8),
])

_VERDICTS = Row("Verdicts and evidence", [
    states("Verdict by probe", "The last conclusive verdict of each probe over time. An unknown run never changes it. A lower probe "
           "explains the ones above: node, then KV and NCCL, then UCCL-EP, then canaries.",
           [Query(f"min by (probe) ({pick('efapulse_node_healthy', 'node')})", "{{probe}}")], HEALTH, width=12, height=7),
    states("Outcome of the last run", "The outcome of the last run of each probe, unknown included: a row is there while it is the present "
           "one.", [Query(f"max by (probe, outcome) ({pick('efapulse_node_last_outcome', 'node')}) == 1", "{{probe}} {{outcome}}")],
           {"1": ("present", BLUE)}, width=12, height=7),
    rows("By probe", "Verdict with its age, the last outcome whatever it was, and the transport.", [
        Query(f"min by (probe) ({pick('efapulse_node_healthy', 'node')})", "verdict"),
        Query(age(f"max by (probe) ({pick('efapulse_node_verdict_timestamp_seconds', 'node')})"), "verdict age"),
        Query(age(f"max by (probe) ({pick('efapulse_node_last_measured_timestamp_seconds', 'node')})"), "measured"),
        Query(f"max by (probe, outcome) ({pick('efapulse_node_last_outcome', 'node')}) == 1", "is last"),
        Query(f"max by (probe, transport) ({pick('efapulse_node_transport', 'node')}) == 1", "is present"),
    ], [Column("probe"), Column("verdict", words=HEALTH), Column("verdict age", SECONDS), Column("measured", SECONDS), Column("outcome"),
        Column("transport"), Column("is last", words={"1": ("", GREEN)}, width=1, title=" "),
        Column("is present", words={"1": ("", GREEN)}, width=1, title="  ")], width=12, height=8),
    states("Transport by probe", "Last conclusive transport of each probe: a row is there while it is the present one.",
           [Query(f"max by (probe, transport) ({pick('efapulse_node_transport', 'node')}) == 1", "{{probe}} {{transport}}")],
           {"1": ("present", PURPLE)}, width=12, height=8, runbooks=["EfaPulseTransportFallback"]),
    lines("Suspicion over time", "Probability that this node is the bad one. It rises with every good partner it fails with, and a run "
          "that passes clears it.",
          [Query(f"max by (node) ({pick('efapulse_node_suspicion_ratio', 'node')})", "{{node}}")], RATIO, high=1.0,
          width=12, height=7),
    rows("Its pairs", "The latest runs of this node with others: which partners it is bad with tells whose fault it is.", [
        Query(_either("efapulse_pair_healthy", "probe, node, peer"), "verdict"),
        Query(_either("efapulse_pair_bandwidth_bytes_per_second", "probe, node, peer"), "bandwidth"),
    ], [Column("node"), Column("peer"), Column("probe"), Column("verdict", words=HEALTH),
        Column("bandwidth", BYTES_RATE)], sort=("verdict", False), width=12, height=7),
])

_SPEED = Row("Speed", [
    lines("Bandwidth", "The best of its last pairs at the largest size, by probe and operation; dashed: the median of all nodes measured "
          "alike.", [
              Query(latest(pick("efapulse_node_bandwidth_bytes_per_second", "node")), "{{probe}} {{operation}}"),
              Query("quantile by (probe, operation, bytes, memory, kind) (0.5, "
                    + latest(pick("efapulse_node_bandwidth_bytes_per_second")) + ") and on (probe, operation, bytes, memory, kind) "
                    + latest(pick("efapulse_node_bandwidth_bytes_per_second", "node")), "fleet {{probe}} {{operation}}", threshold=True)],
          BYTES_RATE, height=9),
    lines("Latency",
          "The best of its last pairs at the smallest size. It is the first thing left out of a node that has more series than it may "
          "have: then the board on KV transfer has what the fleet sees.",
          [Query(latest(pick("efapulse_node_transfer_seconds", "node")), "{{probe}} {{operation}} {{statistic}}")], SECONDS, height=9,
          logarithmic=True),
    lines("Against baseline, peers and hardware", "Its main figure of each probe over what its kind usually reaches, over its peers of the "
          "last round, and over the line rate of its devices.", [
              Query(f"min by (probe) ({pick('efapulse_node_to_baseline_ratio', 'node')})", "{{probe}} to baseline"),
              Query(f"min by (probe) ({pick('efapulse_node_to_peers_ratio', 'node')})", "{{probe}} to peers"),
              Query(f"min by (probe) ({pick('efapulse_node_to_ceiling_ratio', 'node')})", "{{probe}} to hardware")], RATIO, width=16),
    rows("Changes", "Whether it became slower than it was itself, at once or slowly.",
         [Query(f"max by (probe, kind) ({pick('efapulse_node_change', 'node')})", "stands")],
         [Column("probe"), Column("kind"), Column("stands", words={"0": ("over", GREEN), "1": ("stands", RED)})], width=8),
])

_DEVICES = Row("Devices", [
    bars("NIC shares", "Bytes of an EFA device over those of an average one of the node in the last run over several: the lowest are kept.",
         Query(f"min by (device) ({pick('efapulse_nic_share_ratio', 'node')})", "{{device}}"), RATIO,
         ((None, RED), (0.5, ORANGE), (0.8, GREEN)), width=8, high=1.2, runbooks=["EfaPulseNicShareLow"]),
    rows("Devices that were measured", "Distinct devices that runs of this node used within `metrics.node_interval`.",
         [Query(f"max by (probe, kind) ({pick('efapulse_node_devices_measured', 'node')})", "devices")],
         [Column("probe"), Column("kind"), Column("devices", COUNT)], width=8),
    lines("Fallbacks", "Runs in which EFA was required and something else carried the payload, over the chosen time.",
          [Query("sum by (probe, transport) (increase(" + pick("efapulse_transport_fallback_total", "node") + "[$window]))",
                 "{{probe}} {{transport}}")], COUNT, width=8, bars=True, runbooks=["EfaPulseTransportFallback"]),
    lines("EFA traffic by device", "Bytes sent and received by the counters of the witness, anybody's traffic. Needs the witness "
          "DaemonSet.", [
        Query("sum by (device) (rate(" + pick("efapulse_witness_efa_tx_bytes_total", "node") + "[5m]))", "{{device}} sent"),
        Query("sum by (device) (rate(" + pick("efapulse_witness_efa_rx_bytes_total", "node") + "[5m]))", "{{device}} received")],
          BYTES_RATE),
    lines("EFA RDMA by device", "Bytes read and written by RDMA, by the counters of the witness. Flat while bytes moved is a fallback.", [
        Query("sum by (device) (rate(" + pick("efapulse_witness_efa_rdma_read_bytes_total", "node") + "[5m]))", "{{device}} read"),
        Query("sum by (device) (rate(" + pick("efapulse_witness_efa_rdma_write_bytes_total", "node") + "[5m]))", "{{device}} written")],
          BYTES_RATE),
    lines("EFA trouble by device", "Drops and errors that the driver counts, by the witness.", [
        Query("sum by (device) (increase(" + pick("efapulse_witness_efa_rx_drops_total", "node") + "[$window]))", "{{device}} drops"),
        Query("sum by (device) (increase(" + pick("efapulse_witness_efa_rdma_read_wr_err_total", "node") + "[$window]))",
              "{{device}} read errors"),
        Query("sum by (device) (increase(" + pick("efapulse_witness_efa_rdma_write_wr_err_total", "node") + "[$window]))",
              "{{device}} write errors"),
        Query("sum by (device) (increase(" + pick("efapulse_witness_device_resets_total", "node") + "[$window]))", "{{device}} resets")],
          COUNT, bars=True),
    lines("The witness", "Whether counters of this node are there at all: 1 for each version of the witness that answers.",
          [Query("max by (version) (" + pick("efapulse_witness_build_info", "node") + ")", "{{version}}")], COUNT, colours={"": GREY}),
])

BOARD = Board("node", "Node", "Everything that is known of one node, for the person on call. `efa-pulse explain NODE` says why.",
              [_NOW, _VERDICTS, _SPEED, _DEVICES], [Variable("node", "Node", "efapulse_node_healthy", "node", multi=False)],
              time_from="now-24h", annotated=("node",))
