"""KV transfer: what KV blocks cost between nodes, by engine and block, cold against steady."""

from __future__ import annotations

from dashboards.board import Board, Row, Variable
from dashboards.panels import (
    BYTES_RATE,
    COUNT,
    GREEN,
    HEALTH,
    PURPLE,
    RED,
    SECONDS,
    YELLOW,
    Column,
    Query,
    lines,
    number,
    rows,
    spread,
)
from dashboards.promql import pick, quantile

_ENGINE = 'probe=~"$engine"'
_BOTH = (_ENGINE, "operation")
_TYPICAL = pick("efapulse_node_transfer_seconds", *_BOTH, 'statistic="p50"')
_TAIL = pick("efapulse_node_transfer_seconds", *_BOTH, 'statistic="p99"')
_BAD = f"max by (cluster, node, probe) ({pick('efapulse_node_healthy', _ENGINE)}) == 0"

_STEADY = quantile(0.5, "efapulse_transfer_seconds", "probe, operation, bytes", *_BOTH, 'statistic="p50"')

_NOW = Row("Now", [
    number("Bandwidth", "Median over all runs of the chosen time at the largest blocks, the slowest of the chosen engines and operations.",
           f"min({quantile(0.5, 'efapulse_bandwidth_bytes_per_second', 'probe, operation, bytes', *_BOTH)} and "
           "on (probe, operation, bytes) (count by (probe, operation, bytes) ("
           + pick("efapulse_node_bandwidth_bytes_per_second", *_BOTH) + ")))", BYTES_RATE, width=5),
    number("Latency of a small block", "Median over all runs of the chosen time of the typical latency at the smallest block.",
           f"min({_STEADY})", SECONDS, width=5),
    number("First transfer of a run", "Median of the first operation after the engines met, connection set-up of the fabric included: what "
           "the first request after idle pays.", quantile(0.5, "efapulse_cold_transfer_seconds", "", _ENGINE), SECONDS, width=5),
    number("Nodes with bad KV", "Nodes whose last conclusive verdict of a KV probe is bad.",
           f"count(count by (cluster, node) ({_BAD})) or 0 * count({pick('efapulse_node_healthy', _ENGINE)})", COUNT,
           steps=((None, GREEN), (1, RED)), width=4, runbooks=["EfaPulseNodeBad"]),
    number("Wrong content", "KV runs of the shown time in which bytes arrived wrong. Fast and wrong is failed, whatever the speed.",
           "sum(increase(" + pick("efapulse_runs_total", _ENGINE, 'reason="wrong_content"') + "[$__range]))", COUNT,
           steps=((None, GREEN), (0.5, RED)), width=5, decimals=0),
])

_SPEED = Row("By engine and block", [
    lines("Bandwidth by block", "Median over all runs that ended ok or degraded in the chosen time, by engine, operation and block size.",
          [Query(quantile(0.5, "efapulse_bandwidth_bytes_per_second", "probe, operation, bytes", *_BOTH),
                 "{{probe}} {{operation}} {{bytes}} B")], BYTES_RATE),
    lines("Latency by block: typical", "Median over runs of the median of one transfer.",
          [Query(quantile(0.5, "efapulse_transfer_seconds", "probe, operation, bytes", *_BOTH, 'statistic="p50"'),
                 "{{probe}} {{operation}} {{bytes}} B")], SECONDS, logarithmic=True),
    lines("Latency by block: tail", "Median over runs of the 99th percentile of one transfer.",
          [Query(quantile(0.5, "efapulse_transfer_seconds", "probe, operation, bytes", *_BOTH, 'statistic="p99"'),
                 "{{probe}} {{operation}} {{bytes}} B")], SECONDS, logarithmic=True),
    lines("Cold against steady", "The first transfer of a run beside the steady ones at the smallest block. A gap that grows is set-up of "
          "connections or registration of memory, not the wire.", [
              Query(quantile(0.5, "efapulse_cold_transfer_seconds", "probe", _ENGINE), "{{probe}} first"),
              Query(f"min by (probe) ({_STEADY})", "{{probe}} steady")], SECONDS, logarithmic=True),
    spread("How latency is spread", "Median latency of runs of the chosen engines and operations, at all sizes.",
           "sum by (le) (increase(" + pick("efapulse_transfer_seconds_bucket", *_BOTH, 'statistic="p50"') + "[$window]))", SECONDS),
    lines("Runs by outcome", "How KV runs ended, counted over the chosen time.",
          [Query("sum by (outcome) (increase(" + pick("efapulse_runs_total", _ENGINE) + "[$window]))", "{{outcome}}")], COUNT, stacked=True,
          colours={"ok": GREEN, "degraded": YELLOW, "failed": RED, "unknown": PURPLE}),
])

_NODES = Row("Nodes", [
    rows("Each node", "Verdict, bandwidth of the slowest operation at the largest block, and latency of the slowest at the smallest one: "
         "the best of the last pairs. Latency is the first thing left out of a node that has more series than it may have.", [
        Query(f"max by (cluster, node, probe) ({pick('efapulse_node_healthy', _ENGINE)})", "verdict"),
        Query("min by (cluster, node, probe) (" + pick("efapulse_node_bandwidth_bytes_per_second", *_BOTH) + ")", "bandwidth"),
        Query(f"max by (cluster, node, probe) ({_TYPICAL})", "p50"),
        Query(f"max by (cluster, node, probe) ({_TAIL})", "p99"),
    ], [Column("node"), Column("probe"), Column("verdict", words=HEALTH), Column("bandwidth", BYTES_RATE),
        Column("p50", SECONDS), Column("p99", SECONDS), Column("cluster")], sort=("bandwidth", False), height=10, width=16),
    rows("Why runs were not ok", "Reasons of KV runs that did not end ok in the shown time.",
         [Query("sum by (probe, outcome, reason) (increase(" + pick("efapulse_runs_total", _ENGINE, 'outcome!="ok"') + "[$__range])) > 0",
                "runs")],
         [Column("probe"), Column("outcome"), Column("reason"), Column("runs", COUNT)], sort=("runs", True), width=8, height=10),
])

BOARD = Board(
    "kv", "KV transfer", "KV-sized blocks between nodes with the engines that move KV cache: latency and bandwidth, cold against steady.",
    [_NOW, _SPEED, _NODES],
    [Variable("engine", "Engine", "efapulse_node_healthy", "probe", ('probe=~"mooncake|nixl"',), everything="mooncake|nixl"),
     Variable("operation", "Operation", "efapulse_node_bandwidth_bytes_per_second", "operation", (_ENGINE,))],
    window="6h", time_from="now-24h", annotated=(_ENGINE,))
