"""Every metric family, declared once. The catalogue page and its test come from here; nothing else may name a family.

To add one: declare it here, fill it in `exporter.publish.publisher` (or `server` for what the server counts itself), and run
`python -m exporter.publish.catalogue` to write the page again. `drop` values leave gaps so that a new family finds its place.
"""

from __future__ import annotations

from exporter.publish import families_archive, families_baseline, families_pd
from exporter.publish.family import PREFIX, Attribution, Cardinality, Family, Kind

COUNTER, GAUGE, HISTOGRAM, INFO, STATE_SET = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM, Kind.INFO, Kind.STATE_SET
SELF, FLEET, NODE, PAIR, ENDPOINT = Attribution.SELF, Attribution.FLEET, Attribution.NODE, Attribution.PAIR, Attribution.ENDPOINT
FIXED, PER_NODE, PER_PAIR, PER_TARGET = Cardinality.FIXED, Cardinality.PER_NODE, Cardinality.PER_PAIR, Cardinality.PER_TARGET

SECONDS, RATE = "seconds", "bytes_per_second"

LABELS = {
    "bytes": "size of one transfer or message, bytes",
    "clock": "`kernel`: arrival times from the kernel; `user`: read by the client, after a step of the wall clock",
    "code": "HTTP status code",
    "device": "name of an EFA device",
    "event": "what was told to the publisher",
    "family": "name of a metric family",
    "gate": "what holds probes back: of a node a gate or budget of the planner; of all `paused`, `quiet`, `stale_inventory` or `standby`",
    "handler": "path of the server, or `other`",
    "instance_id": "EC2 instance id; elsewhere the name of the node",
    "instance_type": "EC2 instance type",
    "kind": "of a bandwidth: `busbw`, `algbw` or `goodput`; of devices: `gpu` or `efa`; of findings: what is bad, e.g. `node` or `nic`; "
            "of node conditions: `condition` or `event`; of changes: `step` (at once) or `drift` (little by little)",
    "memory": "`dram` or `gpu`",
    "method": "HTTP method",
    "node": "node name; of a pair the node of rank 0",
    "operation": "what was measured, e.g. `write`, `batch_read`, `all_reduce`, `dispatch`; with its variant as `operation:variant`",
    "outcome": "`ok`, `degraded`, `failed` or `unknown`",
    "part": "part of the page that is made at the scrape",
    "peer": "name of the node of rank 1",
    "phase": "`pull`, `launch`, `rendezvous`, `setup`, `measure` or `finish`",
    "placement_group": "EC2 placement group, empty when it is not known",
    "probe": "`node`, `mooncake`, `nixl`, `nccl`, `uccl-ep` or `canary`",
    "prompt": "`short`, `long` or `shared_prefix`",
    "python": "version of Python",
    "reason": "why a run ended as it did: the closed list of `probes.reasons`",
    "result": "how a canary request ended: the closed list of `probes.reasons`",
    "route": "how the canary reaches the model: `router`, `pair` or `baseline`",
    "state": "of series: `shown`, `dropped`; of devices: `expected`, `allocatable`, `seen`; of nodes: `measured`, `waiting`, `left_out`; "
             "of baselines: `learning`, `learned`, `changed`",
    "statistic": "`p50`, `p99` or `max` over the transfers of one run",
    "stratum": "distance of a pair: `same_leaf`, `same_spine`, `cross` or `unknown`; `all`: whatever distance",
    "target": "what one run measures: the name of a canary target",
    "transport": "`efa_rdma`, `efa_no_rdma`, `efa_partial`, `tcp`, `intra_node` or `indeterminate`",
    "version": "version of efa-pulse",
    "why": "why a run was left out, or a connection refused",
    "zone": "availability zone",
    **families_archive.LABELS,
    **families_pd.LABELS,
}
"""What each label means."""

PHASE_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
LAG_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)
RATE_BUCKETS = (1e7, 3e7, 1e8, 3e8, 1e9, 2e9, 4e9, 6e9, 8e9, 1e10, 1.25e10, 2e10, 2.5e10, 4e10, 5e10, 1e11, 2e11, 3e11, 4e11, 8e11)
TRANSFER_BUCKETS = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0)
COLD_BUCKETS = (1e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
TTFT_BUCKETS = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 30.0, 60.0)
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0)
GAP_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
CLOSE_BUCKETS = (1e-4, 1e-3, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)
E2E_BUCKETS = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0, 120.0)
CONNECT_BUCKETS = (5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
SPEED_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 80.0, 100.0, 150.0, 200.0, 300.0, 500.0, 1000.0)
CLIENT_LAG_BUCKETS = (1e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.05, 0.1, 1.0)

_CANARY = ("target", "route", "prompt", "clock")
_FIGURE = ("probe", "operation", "bytes", "memory", "kind")

# efa-pulse itself

BUILD_INFO = Family(PREFIX + "build_info", INFO, "The running version, always 1.", ("version", "python"), SELF, FIXED)
CONFIG_RELOAD_OK = Family(
    PREFIX + "config_last_reload_successful", GAUGE, "Whether the last load of the configuration worked; 0: the one before stays in use.",
    (), SELF, FIXED)
CONFIG_RELOAD_TIME = Family(
    PREFIX + "config_last_reload_success_timestamp_seconds", GAUGE, "When the configuration in use was loaded.", (), SELF, FIXED,
    unit=SECONDS)
LEADER = Family(
    PREFIX + "leader", GAUGE, "Whether this replica plans and launches; without replicas always 1.", (), SELF, FIXED)
PAUSED = Family(PREFIX + "paused", GAUGE, "Whether an operator has paused all probes.", (), SELF, FIXED)
GATE_CLOSED = Family(PREFIX + "gate_closed", GAUGE, "Whether a gate holds back every probe now.", ("gate",), SELF, FIXED)
CLUSTER_TROUBLE = Family(
    PREFIX + "cluster_trouble", GAUGE, "Whether the API server cannot be followed, or the Lease not be held, as it should be; see the log.",
    (), SELF, FIXED)
INVENTORY_TIME = Family(
    PREFIX + "inventory_complete_timestamp_seconds", GAUGE, "When the nodes and pods of the cluster were last known to be all seen.",
    (), SELF, FIXED, unit=SECONDS)
API_REQUESTS = Family(
    PREFIX + "api_requests_total", COUNTER, "Requests sent to the Kubernetes API server.", ("method",), SELF, FIXED)
SCHEDULER_TICK = Family(
    PREFIX + "scheduler_last_tick_timestamp_seconds", GAUGE, "When the scheduler last looked for due runs.",
    (), SELF, FIXED, unit=SECONDS)
SCHEDULER_LAG = Family(
    PREFIX + "scheduler_lag_seconds", HISTOGRAM, "How much later than due a run was started by the scheduler.", (), SELF, FIXED,
    unit=SECONDS, buckets=LAG_BUCKETS)
LEFT_OUT = Family(
    PREFIX + "runs_left_out_total", COUNTER, "Due runs that were not started, and are not made up for.", ("why",), SELF, FIXED)
SERIES = Family(PREFIX + "series", GAUGE, "Series of the cached page: shown, and left out by the series cap.", ("state",), SELF, FIXED)
SERIES_DROPPED = Family(
    PREFIX + "series_dropped_total", COUNTER, "Series left out because the page reached its cap, each counted once when it goes.",
    ("family",), SELF, FIXED)
PUBLISH_ERRORS = Family(
    PREFIX + "publish_errors_total", COUNTER, "Events that could not be published; they cost no other event anything.", ("event",),
    SELF, FIXED)
SCRAPE_ERRORS = Family(
    PREFIX + "scrape_errors_total", COUNTER, "Parts of the page that failed at a scrape and were left out of it.", ("part",), SELF, FIXED)
HTTP_REQUESTS = Family(
    PREFIX + "http_requests_total", COUNTER, "Requests answered by the metrics server.", ("handler", "code"), SELF, FIXED)
HTTP_REFUSED = Family(
    PREFIX + "http_connections_refused_total", COUNTER, "Connections closed without an answer to a request.", ("why",), SELF, FIXED)
WEB_CONFIG_OK = Family(
    PREFIX + "web_config_last_reload_successful", GAUGE,
    "Whether the last load of TLS and authentication files worked; 0: those before stay in use.", (), SELF, FIXED)

# runs

RUNS = Family(
    PREFIX + "runs_total", COUNTER, "Runs that ended, by probe, outcome and reason.", ("probe", "outcome", "reason"), FLEET, FIXED)
RUN_PHASE = Family(
    PREFIX + "run_phase_seconds", HISTOGRAM, "Time of the slowest rank in each phase of a run.", ("probe", "phase"), FLEET, FIXED,
    unit=SECONDS, buckets=PHASE_BUCKETS, drop=80)
BANDWIDTH = Family(
    PREFIX + "bandwidth_bytes_per_second", HISTOGRAM, "Bandwidth of runs that ended ok or degraded, one observation per run and size.",
    _FIGURE, FLEET, FIXED, unit=RATE, buckets=RATE_BUCKETS, drop=30)
TRANSFER = Family(
    PREFIX + "transfer_seconds", HISTOGRAM, "Latency of one transfer: p50 and p99 of each run that ended ok or degraded.",
    ("probe", "operation", "bytes", "memory", "statistic"), FLEET, FIXED, unit=SECONDS, buckets=TRANSFER_BUCKETS, drop=20)
COLD_TRANSFER = Family(
    PREFIX + "cold_transfer_seconds", HISTOGRAM,
    "The first operation of a run that ended ok or degraded: what connections and registration cost who comes first after idle.",
    ("probe", "memory"), FLEET, FIXED, unit=SECONDS, buckets=COLD_BUCKETS, drop=22)

COVERAGE = Family(
    PREFIX + "coverage_ratio", GAUGE,
    "Share of the nodes measured in time; nodes that lasting reasons keep out, such as devices that serving holds, do not count.",
    ("probe", "stratum"), FLEET, FIXED)
COVERAGE_NODES = Family(
    PREFIX + "coverage_nodes", GAUGE, "Nodes that can be measured so, by what became of that.", ("probe", "stratum", "state"), FLEET, FIXED)
COVERAGE_OLDEST = Family(
    PREFIX + "coverage_oldest_measurement_timestamp_seconds", GAUGE, "End of the oldest measurement among the nodes that count.",
    ("probe", "stratum"), FLEET, FIXED, unit=SECONDS)
FINDINGS = Family(
    PREFIX + "findings", GAUGE, "Findings of localisation that stand now; one that a lower layer explains does not count.",
    ("kind", "probe"), FLEET, FIXED)

# pairs

PAIR_HEALTHY = Family(
    PREFIX + "pair_healthy", GAUGE,
    "Last conclusive verdict of a pair: 1 ok, 0 degraded or failed. Each node's latest pair and those of suspects, the newest 500.",
    ("probe", "node", "peer"), PAIR, PER_PAIR, drop=7)
PAIR_BANDWIDTH = Family(
    PREFIX + "pair_bandwidth_bytes_per_second", GAUGE, "Bandwidth of the same pairs at the largest size measured.",
    ("probe", "node", "peer", "operation", "bytes", "memory", "kind"), PAIR, PER_PAIR, unit=RATE, drop=5)

# nodes

NODE_INFO = Family(
    PREFIX + "node_info", INFO,
    "What a node is, always 1. A distance belongs to a pair and not to a node, so there is no stratum here.",
    ("node", "instance_id", "instance_type", "zone", "placement_group"), NODE, PER_NODE, drop=135)
NODE_GATE_CLOSED = Family(
    PREFIX + "node_gate_closed", GAUGE, "Gates that keep probes off this node now, always 1: the first two. Absent: open.",
    ("node", "gate"), NODE, PER_NODE, drop=145)
NODE_SUSPICION = Family(
    PREFIX + "node_suspicion_ratio", GAUGE,
    "Probability that the node is bad. Of suspects only, and 0 for `metrics.node_interval` after one is cleared.",
    ("node",), NODE, PER_NODE, drop=210)
NODE_DEVICES_MEASURED = Family(
    PREFIX + "node_devices_measured", GAUGE, "Distinct devices that runs of this node used within `metrics.node_interval`.",
    ("node", "probe", "kind"), NODE, PER_NODE, drop=85)
NIC_SHARE = Family(
    PREFIX + "nic_share_ratio", GAUGE,
    "Bytes of an EFA device over those of an average one of its node, in the last run over several: the four lowest. 1: all alike.",
    ("node", "device"), NODE, PER_NODE, drop=15)
NODE_HEALTHY = Family(
    PREFIX + "node_healthy", GAUGE, "Last conclusive verdict: 1 ok, 0 degraded or failed. An unknown run does not change it.",
    ("node", "probe"), NODE, PER_NODE, drop=240)
NODE_VERDICT_TIME = Family(
    PREFIX + "node_verdict_timestamp_seconds", GAUGE, "End of the run that gave the last conclusive verdict.",
    ("node", "probe"), NODE, PER_NODE, unit=SECONDS, drop=200)
NODE_OUTCOME = Family(
    PREFIX + "node_last_outcome", STATE_SET, "Outcome of the last run, unknown included: 1 for the present one, 0 for the one before.",
    ("node", "probe", "outcome"), NODE, PER_NODE, drop=150)
NODE_MEASURED_TIME = Family(
    PREFIX + "node_last_measured_timestamp_seconds", GAUGE, "End of the last run that left figures of this node.",
    ("node", "probe"), NODE, PER_NODE, unit=SECONDS, drop=140)
NODE_FIRST_SEEN = Family(
    PREFIX + "node_first_seen_timestamp_seconds", GAUGE, "When this node was first seen.", ("node",), NODE, PER_NODE,
    unit=SECONDS, drop=130)
NODE_BANDWIDTH = Family(
    PREFIX + "node_bandwidth_bytes_per_second", GAUGE,
    "Bandwidth at the largest size measured: the best of the last pairs, so that a bad partner does not count against this node.",
    ("node", *_FIGURE), NODE, PER_NODE, unit=RATE, drop=90)
NODE_TRANSFER = Family(
    PREFIX + "node_transfer_seconds", GAUGE, "Latency of one transfer at the smallest size measured: the best of the last pairs.",
    ("node", "probe", "operation", "bytes", "memory", "statistic"), NODE, PER_NODE, unit=SECONDS, drop=10)
NODE_TRANSPORT = Family(
    PREFIX + "node_transport", STATE_SET, "Last conclusive transport: 1 for the present one, 0 for the one before.",
    ("node", "probe", "transport"), NODE, PER_NODE, drop=230)
FALLBACK = Family(
    PREFIX + "transport_fallback_total", COUNTER, "Runs in which EFA was required and something else carried the payload.",
    ("node", "probe", "transport"), NODE, PER_NODE, drop=190)
NODE_EFA_DEVICES = Family(
    PREFIX + "node_efa_devices", GAUGE, "EFA devices: expected of the instance type, allocatable by Kubernetes, and seen by the preflight.",
    ("node", "state"), NODE, PER_NODE, drop=160)

# canaries

CANARY_REQUESTS = Family(
    PREFIX + "canary_requests_total", COUNTER, "Canary requests that ended, by result.", ("target", "route", "prompt", "result"), ENDPOINT,
    PER_TARGET)
CANARY_SUCCESS_TIME = Family(
    PREFIX + "canary_last_success_timestamp_seconds", GAUGE, "End of the last canary request that was ok.", ("target", "route", "prompt"),
    ENDPOINT, PER_TARGET, unit=SECONDS)
CANARY_TTFT = Family(
    PREFIX + "canary_ttft_seconds", HISTOGRAM, "Time from the write of the request to the first token event of any kind.",
    _CANARY, ENDPOINT, PER_TARGET, unit=SECONDS, buckets=TTFT_BUCKETS, drop=180, exemplars=True)
CANARY_TPOT = Family(
    PREFIX + "canary_tpot_seconds", HISTOGRAM, "Time per output token after the first, one observation per request.",
    _CANARY, ENDPOINT, PER_TARGET, unit=SECONDS, buckets=TOKEN_BUCKETS, drop=170, exemplars=True)
CANARY_ITL = Family(
    PREFIX + "canary_inter_token_seconds", HISTOGRAM, "Gap between neighbouring tokens (ITL), one observation per token.",
    _CANARY, ENDPOINT, PER_TARGET, unit=SECONDS, buckets=TOKEN_BUCKETS, drop=100, exemplars=True)
CANARY_GAP = Family(
    PREFIX + "canary_max_gap_seconds", HISTOGRAM, "Longest gap between token events of a request: it finds stalls.",
    _CANARY, ENDPOINT, PER_TARGET, unit=SECONDS, buckets=GAP_BUCKETS, drop=120, exemplars=True)
CANARY_CLOSE = Family(
    PREFIX + "canary_stream_close_seconds", HISTOGRAM, "Time from the last token event to the end of the stream.",
    _CANARY, ENDPOINT, PER_TARGET, unit=SECONDS, buckets=CLOSE_BUCKETS, drop=60, exemplars=True)
CANARY_E2E = Family(
    PREFIX + "canary_e2e_seconds", HISTOGRAM, "Time from the write of the request to the last token event.",
    _CANARY, ENDPOINT, PER_TARGET, unit=SECONDS, buckets=E2E_BUCKETS, drop=110, exemplars=True)
CANARY_SPEED = Family(
    PREFIX + "canary_output_tokens_per_second", HISTOGRAM, "Output tokens per second after the first token, one observation per request.",
    _CANARY, ENDPOINT, PER_TARGET, unit="tokens_per_second", buckets=SPEED_BUCKETS, drop=70, exemplars=True)
CANARY_CONNECT = Family(
    PREFIX + "canary_connect_seconds", HISTOGRAM, "Time to open the connection, TLS handshake included; never part of TTFT.",
    ("target", "route"), ENDPOINT, PER_TARGET, unit=SECONDS, buckets=CONNECT_BUCKETS, drop=40)
CANARY_LAG = Family(
    PREFIX + "canary_clock_lag_seconds", HISTOGRAM, "How late the canary process itself was woken: a disturbed client cannot be trusted.",
    ("target",), SELF, PER_TARGET, unit=SECONDS, buckets=CLIENT_LAG_BUCKETS, drop=50)
CANARY_UNRESOLVED = Family(
    PREFIX + "canary_unresolved_events_total", COUNTER, "Token events that shared a read with a later one: no arrival time of their own.",
    ("target",), SELF, PER_TARGET)

FAMILIES: tuple[Family, ...] = (*(value for value in list(globals().values()) if isinstance(value, Family)), *families_archive.FAMILIES,
                                *families_baseline.FAMILIES, *families_pd.FAMILIES)
"""All families in the order of declaration, which is the order of the page."""

LIVE = (HTTP_REQUESTS, HTTP_REFUSED, SCRAPE_ERRORS, WEB_CONFIG_OK)
"""Families that the server counts itself and renders at the scrape; all others are rendered when an event arrives."""
