"""Passive neighbours, joined and not rebuilt: what DCGM, the EFA node exporter, NCCL Inspector and the engines tell, beside our verdict.

Each is there or not; a neighbour that is absent makes no series and breaks nothing. Their series are brought to our label `node`:

    dcgm-exporter       label `Hostname` is the node's name (it gets NODE_NAME)
    EFA node exporter   a fork of node-exporter: `node_uname_info` of the same target has the node's name
    NCCL Inspector      label `node`, written by the plugin into a textfile; behind a target label of that name it is `exported_node`
    engines             the pod's name and namespace, by `kube_pod_info` of kube-state-metrics

Names of nodes that Prometheus and Kubernetes spell differently (a short host name) do not meet: then only the figures of the whole cluster
are there. `by (cluster, ...)` keeps the external label where there is one.
"""

from __future__ import annotations

from dashboards.rules.model import Group, Recording
from dashboards.rules.recording import HEALTHY

WINDOW = "5m"
BLANK = "1e18"
"""dcgm-exporter shows a blank value as about 9.2e18."""
BUSY, QUIET_ERRORS = "0.5", "0"

PRESENT = "efapulse:neighbour_present"
GPU_BUSY = "efapulse:neighbour_gpu_busy:ratio"
EFA_SENT, EFA_RECEIVED = "efapulse:neighbour_efa_sent:bytes_per_second", "efapulse:neighbour_efa_received:bytes_per_second"
EFA_ERRORS = "efapulse:neighbour_efa_errors:increase1h"
NCCL = "efapulse:neighbour_nccl_busbw:bytes_per_second"
NCCL_TO_PROBE = "efapulse:neighbour_nccl_to_probe:ratio"
KV_SPEED, KV_FAILURES = "efapulse:neighbour_kv_speed:bytes_per_second", "efapulse:neighbour_kv_failures:increase1h"
NODE_KV_SPEED = "efapulse:neighbour_node_kv_speed:bytes_per_second"
BAD_WHEN_BUSY, FINE_WITH_ERRORS = "efapulse:node_bad_when_busy", "efapulse:node_fine_with_errors"

_SIGNS = {
    "dcgm": "DCGM_FI_DEV_GPU_UTIL", "efa_node_exporter": "node_amazonefa_tx_bytes or node_amazonefa_tx_bytes_total",
    "nccl_inspector": "nccl_bus_bandwidth_gbs", "vllm": "vllm:nixl_xfer_time_seconds_count",
    "sglang": "sglang:kv_transfer_speed_gb_s_count", "kube_state_metrics": "kube_pod_info",
}
_ERRORS = ("rx_drops", "retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events", "rdma_read_wr_err",
           "rdma_write_wr_err")


def _present() -> str:
    return "\nor\n".join(f'label_replace(count by (cluster) ({sign}) > bool 0, "neighbour", "{name}", "", "")'
                         for name, sign in _SIGNS.items())


def _efa(counter: str, how: str) -> str:
    """A counter of the EFA node exporter over all devices of a node. Its names end with `_total` in some builds."""
    either = f"{how.format(f'node_amazonefa_{counter}')} or {how.format(f'node_amazonefa_{counter}_total')}"
    return (f'sum by (cluster, node) (\n  label_replace(\n    sum by (cluster, instance) ({either})\n'
            "    * on (cluster, instance) group_left (nodename) max by (cluster, instance, nodename) (node_uname_info),\n"
            '    "node", "$1", "nodename", "(.+)"\n  )\n)')


def _engines(inner: str) -> str:
    """KV bytes over KV seconds of each engine. vLLM counts per tensor-parallel rank, so this is the speed of one rank's transfers."""
    vllm = (f"sum by ({inner}) (rate(vllm:nixl_bytes_transferred_sum[{WINDOW}]))\n"
            f"  / (sum by ({inner}) (rate(vllm:nixl_xfer_time_seconds_sum[{WINDOW}])) > 0)")
    sglang = (f"1e9 * sum by ({inner}) (rate(sglang:kv_transfer_speed_gb_s_sum[{WINDOW}]))\n"
              f"  / (sum by ({inner}) (rate(sglang:kv_transfer_speed_gb_s_count[{WINDOW}])) > 0)")
    return f'label_replace(\n  {vllm}, "engine", "vllm", "", ""\n)\nor\nlabel_replace(\n  {sglang}, "engine", "sglang", "", ""\n)'


def _failures() -> str:
    vllm = "increase(vllm:nixl_num_failed_transfers_total[1h]) or increase(vllm:nixl_num_failed_transfers[1h])"
    sglang = "increase(sglang:num_transfer_failed_reqs_total[1h])"
    return "\nor\n".join(f'label_replace(sum by (cluster) ({rises}), "engine", "{name}", "", "")'
                         for name, rises in (("vllm", vllm), ("sglang", sglang)))


def _inspector() -> str:
    """The best bus bandwidth of collectives over several nodes. A scrape that has a label `node` itself renames the plugin's."""
    seen = 'nccl_bus_bandwidth_gbs{n_nodes!="1"}'
    return f'1e9 * max by (cluster, node) (\n  label_replace({seen}, "node", "$1", "exported_node", "(.+)")\n)'


GROUP = Group("efapulse.neighbours", (
    Recording(PRESENT, _present(), "1 for each neighbour whose series are there: an empty panel beside it means no traffic."),
    Recording(GPU_BUSY, 'avg by (cluster, node) (\n  label_replace(DCGM_FI_DEV_GPU_UTIL < '
              f'{BLANK}, "node", "$1", "Hostname", "(.+)")\n) / 100', "Mean utilisation of a node's GPUs, by DCGM."),
    Recording(EFA_SENT, _efa("tx_bytes", f"rate({{}}[{WINDOW}])"), "Bytes sent on all EFA devices of a node, by the EFA node exporter."),
    Recording(EFA_RECEIVED, _efa("rx_bytes", f"rate({{}}[{WINDOW}])"), "Bytes received on them."),
    Recording(EFA_ERRORS, "\n+ ".join(f"({_efa(counter, 'increase({}[1h])')} or (0 * {EFA_SENT}))" for counter in _ERRORS),
              "Drops, timeouts and failed work requests of a node's EFA devices within 1 h. Counters that a driver does not have count 0."),
    Recording(NCCL, _inspector(), "Best bus bandwidth that a job's collectives over several nodes reached on a node, by NCCL Inspector."),
    Recording(NCCL_TO_PROBE, f'{NCCL}\n/ on (cluster, node)\n'
              'max by (cluster, node) (efapulse_node_bandwidth_bytes_per_second{probe="nccl"})',
              "That over what our probe measures there. Shapes differ, so only its course and other nodes are a comparison."),
    Recording(KV_SPEED, _engines("cluster"), "Speed of KV transfers as engines tell it, all pods together."),
    Recording(KV_FAILURES, _failures(), "KV transfers that engines count as failed within 1 h."),
    Recording(NODE_KV_SPEED, f"avg by (cluster, node, engine) (\n  ({_engines('cluster, namespace, pod')})\n"
              "  * on (cluster, namespace, pod) group_left (node)\n"
              "  max by (cluster, namespace, pod, node) (kube_pod_info)\n)", "The same by the node of the pod. Needs kube-state-metrics."),
    Recording(BAD_WHEN_BUSY, f"({HEALTHY} == 0) and on (cluster, node) ({GPU_BUSY} > {BUSY})",
              "Nodes that we call bad while their GPUs work: the traffic of a job may be what is seen."),
    Recording(FINE_WITH_ERRORS, f"({HEALTHY} == 1) and on (cluster, node) ({EFA_ERRORS} > {QUIET_ERRORS})",
              "Nodes that we call good while counters of trouble rise there: production sees what probes do not, or not yet."),
))
