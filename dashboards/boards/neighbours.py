"""Neighbours: what others tell of the same nodes, beside our verdict. Empty where a neighbour is not installed.

The series are those of `dashboards.rules.neighbours`, so the rules have to be loaded.
"""

from __future__ import annotations

from dashboards.board import Board, Row, Variable
from dashboards.panels import BYTES_RATE, COUNT, GREEN, HEALTH, ORANGE, RATIO, RED, YES_NO, Column, Query, lines, rows, states
from dashboards.promql import pick

_BESIDE = Row("Beside our verdict", [
    rows("Which neighbours are there", "1 for each neighbour whose series this Prometheus has. One that is missing is no sign of health.",
         [Query(f"max by (neighbour) ({pick('efapulse:neighbour_present')})", "there")],
         [Column("neighbour"), Column("there", words=YES_NO)], width=8),
    rows("We say bad, and its GPUs work", "Nodes that are bad by our verdict while a job keeps their GPUs busy: its traffic may be what is "
         "seen. Compare with the traffic below.",
         [Query(f"max by (node, probe) ({pick('efapulse:node_bad_when_busy', 'node')}) + 1", "since now")],
         [Column("node"), Column("probe"), Column("since now", words={"1": ("yes", ORANGE)})], width=8,
         runbooks=["EfaPulseNodeBad"]),
    rows("We say good, and counters of trouble rise", "Nodes that pass our probes while drops, timeouts or failed work requests of their "
         "EFA devices rise: production sees what probes do not, or not yet.",
         [Query(f"max by (node, probe) ({pick('efapulse:node_fine_with_errors', 'node')})", "good by us")],
         [Column("node"), Column("probe"), Column("good by us", words=YES_NO)], width=8),
    states("Our verdict", "The last conclusive verdict of each node and probe.",
           [Query(f"min by (node, probe) ({pick('efapulse_node_healthy', 'node')})", "{{node}} {{probe}}")], HEALTH, width=12),
    lines("GPU utilisation", "Mean over the GPUs of a node, by dcgm-exporter. Probes of host memory run beside it, those on GPUs do not.",
          [Query(f"max by (node) ({pick('efapulse:neighbour_gpu_busy:ratio', 'node')})", "{{node}}")], RATIO, high=1.0),
])

_NETWORK = Row("Network", [
    lines("EFA traffic", "All EFA devices of a node, by the EFA node exporter: everybody's traffic, ours included.", [
        Query(f"max by (node) ({pick('efapulse:neighbour_efa_sent:bytes_per_second', 'node')})", "{{node}} sent"),
        Query(f"max by (node) ({pick('efapulse:neighbour_efa_received:bytes_per_second', 'node')})", "{{node}} received")], BYTES_RATE),
    lines("EFA trouble", "Drops, timeouts and failed work requests within an hour, by the EFA node exporter.",
          [Query(f"max by (node) ({pick('efapulse:neighbour_efa_errors:increase1h', 'node')})", "{{node}}")], COUNT, bars=True),
    lines("Collectives of jobs", "Best bus bandwidth of collectives over several nodes that jobs reached, by NCCL Inspector.",
          [Query(f"max by (node) ({pick('efapulse:neighbour_nccl_busbw:bytes_per_second', 'node')})", "{{node}}")], BYTES_RATE),
    lines("Collectives of jobs over our probe's", "The same over what our NCCL probe measures there. Shapes differ: its course and the "
          "difference between nodes say something, its height does not.",
          [Query(f"max by (node) ({pick('efapulse:neighbour_nccl_to_probe:ratio', 'node')})", "{{node}}")], RATIO),
])

_ENGINES = Row("KV transfers of engines", [
    lines("Speed", "KV bytes over the seconds they took, as engines count them. vLLM counts each tensor-parallel rank by itself.",
          [Query(f"max by (engine) ({pick('efapulse:neighbour_kv_speed:bytes_per_second')})", "{{engine}}")], BYTES_RATE, width=8),
    lines("Speed by node", "The same by the node of the pod. Needs kube-state-metrics.",
          [Query(f"max by (engine, node) ({pick('efapulse:neighbour_node_kv_speed:bytes_per_second', 'node')})", "{{engine}} {{node}}")],
          BYTES_RATE, width=8),
    lines("Failures", "KV transfers that engines count as failed within an hour.",
          [Query(f"max by (engine) ({pick('efapulse:neighbour_kv_failures:increase1h')})", "{{engine}}")], COUNT, width=8, bars=True,
          colours={"vllm": RED, "sglang": GREEN}),
])

BOARD = Board("neighbours", "Neighbours", "What DCGM, the EFA node exporter, NCCL Inspector and the engines tell, beside our verdict. "
              "Empty where a neighbour is not installed.", [_BESIDE, _NETWORK, _ENGINES],
              [Variable("node", "Node", "efapulse_node_healthy", "node")], time_from="now-24h")
