"""The metric families of prefill/decode serving. `families` takes them in; see there for the rules."""

from __future__ import annotations

from exporter.publish.family import PREFIX, Attribution, Cardinality, Family, Kind

COUNTER, GAUGE, HISTOGRAM, STATE_SET = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM, Kind.STATE_SET
ENDPOINT = Attribution.ENDPOINT
PER_TARGET = Cardinality.PER_TARGET
SECONDS, RATE = "seconds", "bytes_per_second"

LABELS = {
    "evidence": "what decided on disaggregation: `provenance`, `counters`, `router_mode` or `none`",
    "finding": "what is wrong with the configuration of prefill and decode: `cross_zone`, `backend_not_efa`, `role_mismatch`, "
               "`metrics_missing` or `no_pods`",
    "measure": "`ttft`, `tpot` or `output_tokens_per_second`",
    "pod_name": "name of an engine pod, or of a Ray replica",
    "role": "`prefill` or `decode`",
    "stage": "part of the time to the first token: `queue`, `prefill`, `transfer` or `handover`",
    "start": "how an engine pod started: `cold` (first container of the pod) or `warm` (restart)",
    "verdict": "of disaggregation: `yes`, `no` or `unknown`; of integrity: `ok`, `drift`, `mismatch`, `crosstalk`, `degenerate`, `empty` "
               "or `unknown`",
}
"""What the labels of these families mean."""

KV_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
KV_RATE_BUCKETS = (1e7, 3e7, 1e8, 3e8, 1e9, 2e9, 4e9, 8e9, 1.25e10, 2.5e10, 5e10, 1e11, 2e11, 4e11)
STAGE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
START_BUCKETS = (10.0, 30.0, 60.0, 120.0, 240.0, 420.0, 600.0, 900.0, 1380.0, 1800.0, 3600.0)

_POD = ("target", "role", "pod_name")

# the answer

CANARY_INTEGRITY = Family(
    PREFIX + "canary_integrity_total", COUNTER, "Answers of canaries that were checked, by what the check said.", ("target", "verdict"),
    ENDPOINT, PER_TARGET, drop=192)
CANARY_CROSSTALK = Family(
    PREFIX + "canary_crosstalk_total", COUNTER, "Answers that held the nonce of another canary: one request's KV reached another.",
    ("target",), ENDPOINT, PER_TARGET, drop=193)

# whether KV moved, and how

PD_DISAGGREGATION = Family(
    PREFIX + "pd_disaggregation_total", COUNTER,
    "Canaries that had to be disaggregated, by whether KV moved from prefill to decode and what decided it.",
    ("target", "verdict", "evidence"), ENDPOINT, PER_TARGET, drop=194)
PD_TRANSPORT = Family(
    PREFIX + "pd_transport", STATE_SET,
    "Last conclusive transport of KV between a prefill and a decode node, by the witnesses of both: 1 for the present one.",
    ("target", "transport"), ENDPOINT, PER_TARGET, drop=196)
PD_TRANSPORTS = Family(
    PREFIX + "pd_transport_verdicts_total", COUNTER, "Canaries whose KV transport the witnesses of both nodes were asked for, by verdict.",
    ("target", "transport"), ENDPOINT, PER_TARGET, drop=64)
PD_KV_TRANSFER = Family(
    PREFIX + "pd_kv_transfer_seconds", HISTOGRAM, "Time of the KV transfer of a canary, as the engine counted it.", ("target",), ENDPOINT,
    PER_TARGET, unit=SECONDS, buckets=KV_BUCKETS, drop=172)
PD_KV_RATE = Family(
    PREFIX + "pd_kv_bytes_per_second", HISTOGRAM, "KV bytes of a canary over the time of their transfer, as the engine counted both.",
    ("target",), ENDPOINT, PER_TARGET, unit=RATE, buckets=KV_RATE_BUCKETS, drop=174)
PD_KV_PER_TOKEN = Family(
    PREFIX + "pd_kv_bytes_per_token", GAUGE, "KV bytes that move per prompt token: the slope learned from prompts of two lengths.",
    ("target",), ENDPOINT, PER_TARGET, drop=58)
PD_TTFT_STAGE = Family(
    PREFIX + "pd_ttft_stage_seconds", HISTOGRAM, "Parts of the time to the first token where engines tell them; `handover` is the rest.",
    ("target", "stage"), ENDPOINT, PER_TARGET, unit=SECONDS, buckets=STAGE_BUCKETS, drop=105)
PD_FAILED = Family(
    PREFIX + "pd_failed_transfers_total", COUNTER, "KV transfers that engines counted as failed while a canary ran, anybody's.",
    ("target",), ENDPOINT, PER_TARGET, drop=186)
PD_EXPIRED = Family(
    PREFIX + "pd_expired_transfers_total", COUNTER,
    "Prefilled requests whose KV nobody fetched in time while a canary ran, anybody's.", ("target",), ENDPOINT, PER_TARGET, drop=184)
PD_IMPURE = Family(
    PREFIX + "pd_impure_tokens_total", COUNTER,
    "Work of the wrong role while a canary ran: tokens generated on prefill beyond one a request, prompt tokens computed on decode.",
    ("target", "role"), ENDPOINT, PER_TARGET, drop=182)

# against the same model without disaggregation

PD_RATIO = Family(
    PREFIX + "pd_to_baseline_ratio", GAUGE,
    "Median of PD over median of the baseline, from samples that lie interleaved in time. Absent below the least number of samples.",
    ("target", "measure"), ENDPOINT, PER_TARGET, drop=178)

# pods and pairs

PD_PODS = Family(
    PREFIX + "pd_pods", GAUGE, "Engine pods found, by role.", ("target", "role"), ENDPOINT, PER_TARGET, drop=62)
PD_POD_COVERAGE = Family(
    PREFIX + "pd_pod_coverage_ratio", GAUGE, "Share of the ready pods of a role that a pair canary visited within `pod_interval`.",
    ("target", "role"), ENDPOINT, PER_TARGET, drop=98)
PD_PAIR_COVERAGE = Family(
    PREFIX + "pd_pair_coverage_ratio", GAUGE, "Share of all pairs of a prefill and a decode pod visited since both are there; best effort.",
    ("target",), ENDPOINT, PER_TARGET, drop=97)
PD_FINDINGS = Family(
    PREFIX + "pd_findings", GAUGE, "Findings on the configuration of prefill and decode that stand now.", ("target", "finding"), ENDPOINT,
    PER_TARGET, drop=188)
PD_START = Family(
    PREFIX + "pd_startup_seconds", HISTOGRAM, "Time from the start of an engine container to the first good answer through it.",
    ("target", "role", "start"), ENDPOINT, PER_TARGET, unit=SECONDS, buckets=START_BUCKETS, drop=65)
PD_WARMUP = Family(
    PREFIX + "pd_warmup_requests_total", COUNTER,
    "Visits to engine pods that warm up (young, and no good answer yet), by result; they are no canary requests.", ("target", "result"),
    ENDPOINT, PER_TARGET, drop=63)
PD_POD_SUCCESS = Family(
    PREFIX + "pd_pod_last_success_timestamp_seconds", GAUGE, "When a pair canary through this pod was last ok.", _POD, ENDPOINT, PER_TARGET,
    unit=SECONDS, drop=95)
PD_POD_TTFT = Family(
    PREFIX + "pd_pod_ttft_seconds", GAUGE, "Time to the first token of the last good pair canary through this pod.", _POD, ENDPOINT,
    PER_TARGET, unit=SECONDS, drop=27)
PD_POD_TPOT = Family(
    PREFIX + "pd_pod_tpot_seconds", GAUGE, "Time per output token of the last good pair canary through this pod.", _POD, ENDPOINT,
    PER_TARGET, unit=SECONDS, drop=26)
PD_POD_KV_TRANSFER = Family(
    PREFIX + "pd_pod_kv_transfer_seconds", GAUGE, "Time of the KV transfer of the last good pair canary through this pod.", _POD, ENDPOINT,
    PER_TARGET, unit=SECONDS, drop=28)
PD_POD_RUNNING = Family(
    PREFIX + "pd_pod_running_requests", GAUGE, "Requests that the engine of this pod worked on beside the last canary.", _POD, ENDPOINT,
    PER_TARGET, drop=24)
PD_POD_WAITING = Family(
    PREFIX + "pd_pod_waiting_requests", GAUGE, "Requests that waited in the engine of this pod beside the last canary.", _POD, ENDPOINT,
    PER_TARGET, drop=23)
PD_POD_KV_FILL = Family(
    PREFIX + "pd_pod_kv_fill_ratio", GAUGE, "Share of the KV blocks of this pod in use beside the last canary.", _POD, ENDPOINT, PER_TARGET,
    drop=25)

FAMILIES: tuple[Family, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Family))
"""In the order of declaration."""
