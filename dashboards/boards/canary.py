"""PD canary: TTFT, TPOT, stalls, PD against baseline, KV proof, integrity, errors by kind, and how far the client can be trusted."""

from __future__ import annotations

from dashboards.board import Board, Row, Variable
from dashboards.panels import (
    BYTES_RATE,
    COUNT,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RATIO,
    RED,
    SECONDS,
    TOKENS_RATE,
    YELLOW,
    Column,
    Query,
    lines,
    number,
    rows,
    spread,
    states,
)
from dashboards.promql import CLUSTER, UNKNOWN, age, mean, or_zero, pick, quantile, share_above

_ALL = ("target", "route", "prompt")
_VALID = f'result!~"{UNKNOWN}"'
_REQUESTS = pick("efapulse_canary_requests_total", *_ALL)
_OK = pick("efapulse_canary_requests_total", *_ALL, 'result="ok"')
_NOT_OK = pick("efapulse_canary_requests_total", *_ALL, 'result!="ok"')
_COUNTS = pick("efapulse_canary_requests_total", *_ALL, 'result!="ok"', _VALID)
_TIMED = pick("efapulse_canary_ttft_seconds_count", *_ALL)
_BY_KERNEL = pick("efapulse_canary_ttft_seconds_count", *_ALL, 'clock="kernel"')
_SAID = pick("efapulse_canary_requests_total", *_ALL, _VALID)
_WHO = "target, route, prompt"
_RECORDED = f'{CLUSTER}, target=~"$target", route="router"'
_NAME = "{{target}} {{route}} {{prompt}}"
_PODS = "cluster, target, role, pod_name"
_RATIO_STEPS = ((None, GREEN), (1.15, YELLOW), (1.3, RED))


def _quantiles(metric: str) -> list[Query]:
    return [Query(quantile(share, metric, _WHO, *_ALL), f"p{share * 100:g} {_NAME}") for share in (0.5, 0.95)]


_NOW = Row("Now", [
    number("Requests that were ok", "Share of the canary requests of the chosen time that were ok, of those that said something.",
           f"sum(increase({_OK}[$window])) / (sum(increase({_SAID}[$window])) > 0)", RATIO,
           steps=((None, RED), (0.9, YELLOW), (0.99, GREEN)), decimals=1, runbooks=["EfaPulseCanaryDown"]),
    number("TTFT, median", "Time to the first token event of any kind, by the kernel's arrival times, over the chosen time.",
           quantile(0.5, "efapulse_canary_ttft_seconds", "", *_ALL), SECONDS),
    number("TPOT, median", "Time per output token after the first, over the chosen time.",
           quantile(0.5, "efapulse_canary_tpot_seconds", "", *_ALL), SECONDS),
    number("Stalled answers", "Share of the answers of the chosen time with a gap of more than one second between two token events.",
           share_above("efapulse_canary_max_gap_seconds", "1", "", *_ALL), RATIO,
           steps=((None, GREEN), (0.01, YELLOW), (0.05, RED)), decimals=1),
    number("Cross-talk", "Answers of the shown time that held the nonce of another canary: one request's KV reached another. One is too "
           "many.", f"sum(increase({pick('efapulse_canary_crosstalk_total', 'target')}[$__range]))", COUNT,
           steps=((None, GREEN), (0.5, RED)), decimals=0, runbooks=["EfaPulseCanaryCrosstalk"]),
    number("Last ok", "Seconds since a canary was last ok, of the target, route and prompt that waits longest.",
           f"max({age('max by (target, route, prompt) (' + pick('efapulse_canary_last_success_timestamp_seconds', *_ALL) + ')')})", SECONDS,
           steps=((None, GREEN), (1800, YELLOW), (7200, RED)), decimals=0),
])

_STREAM = Row("The stream as a user sees it", [
    lines("TTFT", "Time from the write of the request to the first token event of any kind. Long prompts take prefill and KV "
          "transfer in.",
          [*_quantiles("efapulse_canary_ttft_seconds"),
           Query("max by (prompt) (efapulse:threshold:canary_ttft_seconds)", "objective {{prompt}}", threshold=True)], SECONDS,
          runbooks=["EfaPulseCanaryTtftBurnFast"]),
    lines("TPOT", "Time per output token after the first, one observation per request.", [
        *_quantiles("efapulse_canary_tpot_seconds"),
        Query("max(efapulse:threshold:canary_tpot_seconds)", "objective", threshold=True)], SECONDS,
          runbooks=["EfaPulseCanaryTpotBurnFast"]),
    spread("How TTFT is spread", "All requests of the chosen targets that were ok. Two bands are two paths: prefix hits, or a pod of its "
           "own kind.", f"sum by (le) (increase({pick('efapulse_canary_ttft_seconds_bucket', *_ALL)}[$window]))", SECONDS),
    lines("Longest gap", "Longest gap between two token events of a request: it finds stalls that TPOT averages away.",
          _quantiles("efapulse_canary_max_gap_seconds"), SECONDS),
    lines("Inter-token latency", "Gap between neighbouring tokens (ITL), one observation per token.",
          _quantiles("efapulse_canary_inter_token_seconds"), SECONDS),
    lines("Whole answer", "Time from the write of the request to the last token event.", _quantiles("efapulse_canary_e2e_seconds"),
          SECONDS),
    lines("Output speed", "Output tokens per second after the first token, median.",
          [Query(quantile(0.5, "efapulse_canary_output_tokens_per_second", _WHO, *_ALL), _NAME)], TOKENS_RATE),
    lines("Around the stream", "Opening the connection (never part of TTFT), and from the last token to the end of the stream: medians.", [
        Query(quantile(0.5, "efapulse_canary_connect_seconds", "target, route", "target", "route"), "connect {{target}} {{route}}"),
        Query(quantile(0.5, "efapulse_canary_stream_close_seconds", _WHO, *_ALL), f"close {_NAME}")], SECONDS),
])

_ERRORS = Row("Objectives and errors by kind", [
    lines("Canaries beyond their objective", "Share of the canaries of 6 h by router that failed, or whose TTFT or TPOT was above its "
          "bound, by the recording rules of the alerts; dashed: what the objective allows. Needs the rules in Prometheus.", [
              Query(f"max by (target) (efapulse:canary_failed:increase6h{{{_RECORDED}}} / (efapulse:canary_valid:increase6h{{{_RECORDED}}} "
                    "> 0))", "failed {{target}}"),
              Query(f"max by (target, prompt) (efapulse:canary_ttft_slow:increase6h{{{_RECORDED}}} / "
                    f"(efapulse:canary_ttft_measured:increase6h{{{_RECORDED}}} > 0))", "TTFT {{target}} {{prompt}}"),
              Query(f"max by (target) (efapulse:canary_tpot_slow:increase6h{{{_RECORDED}}} / "
                    f"(efapulse:canary_tpot_measured:increase6h{{{_RECORDED}}} > 0))", "TPOT {{target}}"),
              Query("1 - max(efapulse:threshold:canary_objective_ratio)", "allowed", threshold=True)], RATIO, width=24,
          runbooks=["EfaPulseCanaryAvailabilityBurnFast", "EfaPulseCanaryTtftBurnFast", "EfaPulseCanaryTpotBurnFast"]),
    lines("Requests by result", "All requests but those that were ok, by how they ended, counted over the chosen time.",
          [Query(f"sum by (result) (increase({_NOT_OK}[$window])) > 0",
                 "{{result}}")], COUNT, bars=True, stacked=True, runbooks=["EfaPulseCanaryDown"]),
    rows("What went wrong", "Requests of the shown time by result. `counts` says whether it counts against the endpoint: shed and alike "
         "are unknown and do not.", [
             Query(f"sum by ({_WHO}, result) (increase({_NOT_OK}[$__range])) > 0",
                   "requests"),
             Query(f"count by ({_WHO}, result) (increase({_COUNTS}[$__range])"
                   " > 0)", "counts"),
         ], [Column("target"), Column("route"), Column("prompt"), Column("result"), Column("requests", COUNT),
             Column("counts", words={"1": ("yes", RED)})], sort=("requests", True), width=12),
])

_PROOF = Row("Does KV move, how fast, and is the answer right", [
    lines("Disaggregated or not", "Canaries that had to be disaggregated: whether KV moved from prefill to decode, counted over the chosen "
          "time.",
          [Query("sum by (verdict) (increase(" + pick("efapulse_pd_disaggregation_total", "target") + "[$window]))", "{{verdict}}")],
          COUNT, stacked=True, width=8, colours={"yes": GREEN, "no": RED, "unknown": PURPLE}, runbooks=["EfaPulsePdNotDisaggregated"]),
    rows("By what evidence", "What decided on disaggregation in the shown time. Provenance is the strongest, then engine counters, then "
         "what the router says.",
         [Query("sum by (target, verdict, evidence) (increase(" + pick("efapulse_pd_disaggregation_total", "target") + "[$__range])) > 0",
                "canaries")],
         [Column("target"), Column("verdict"), Column("evidence"), Column("canaries", COUNT)], width=8, sort=("canaries", True)),
    lines("Integrity of answers", "Answers that were checked, by what the check said, counted over the chosen time.",
          [Query("sum by (verdict) (increase(" + pick("efapulse_canary_integrity_total", "target") + "[$window]))", "{{verdict}}")], COUNT,
          stacked=True, width=8, runbooks=["EfaPulseCanaryIntegrity"],
          colours={"ok": GREEN, "drift": YELLOW, "mismatch": RED, "crosstalk": RED, "degenerate": ORANGE, "empty": ORANGE,
                   "unknown": GREY}),
    states("Transport of production KV", "Last conclusive transport between a prefill and a decode node while a canary ran: a row a target "
           "and transport, there while it is the present one.",
           [Query("max by (target, transport) (" + pick("efapulse_pd_transport", "target") + ") == 1", "{{target}} {{transport}}")],
           {"1": ("present", GREEN)}, width=12),
    lines("KV transport verdicts", "Canaries whose KV transport the witnesses of both nodes were asked for, over the chosen time.",
          [Query("sum by (transport) (increase(" + pick("efapulse_pd_transport_verdicts_total", "target") + "[$window]))",
                 "{{transport}}")],
          COUNT, stacked=True, width=12),
    lines("KV transfer time", "Time of the KV transfer of a canary, as the engine counted it.", [
        Query(quantile(share, "efapulse_pd_kv_transfer_seconds", "target", "target"), f"p{share * 100:g} {{{{target}}}}")
        for share in (0.5, 0.95)], SECONDS, width=8),
    lines("KV transfer speed", "KV bytes of a canary over the time of their transfer: median.",
          [Query(quantile(0.5, "efapulse_pd_kv_bytes_per_second", "target", "target"), "{{target}}")], BYTES_RATE, width=8),
    lines("KV bytes per prompt token", "Learned from prompts of two lengths. A step means another model, another block layout, or that "
          "only a part of the KV moves.", [Query(f"max by (target) ({pick('efapulse_pd_kv_bytes_per_token', 'target')})", "{{target}}")],
          "bytes", width=8),
    lines("Where TTFT goes", "Mean time of each part of the time to the first token, where the engines tell it; `handover` is the rest.",
          [Query(mean("efapulse_pd_ttft_stage_seconds", "target, stage", "target"), "{{target}} {{stage}}")], SECONDS, stacked=True,
          width=8),
    lines("Engines' own complaints", "Failed and expired KV transfers, anybody's, that engines counted while a canary ran.", [
        Query("sum by (target) (increase(" + pick("efapulse_pd_failed_transfers_total", "target") + "[$window]))", "failed {{target}}"),
        Query("sum by (target) (increase(" + pick("efapulse_pd_expired_transfers_total", "target") + "[$window]))", "expired {{target}}")],
          COUNT, width=8, bars=True),
    lines("Work of the wrong role", "Tokens generated on prefill beyond one a request, prompt tokens computed on decode.",
          [Query("sum by (target, role) (increase(" + pick("efapulse_pd_impure_tokens_total", "target") + "[$window]))",
                 "{{target}} {{role}}")], COUNT, width=8, bars=True, runbooks=["EfaPulsePdRoleNotPure"]),
])

_BASELINE = Row("PD against the same model without it", [
    lines("PD over baseline", "Median of PD over the median of the baseline, from samples that lie interleaved in time. 100 % is alike; of "
          "times more is worse.",
          [Query("max by (target, measure) (" + pick("efapulse_pd_to_baseline_ratio", "target") + ")", "{{target}} {{measure}}")], RATIO,
          runbooks=["EfaPulsePdSlowerThanBaseline"]),
    lines("TTFT by route", "Median TTFT of each route: `router` is what users see, `pair` one prefill and one decode pod, `baseline` the "
          "same model without disaggregation.",
          [Query(quantile(0.5, "efapulse_canary_ttft_seconds", "target, route", *_ALL), "{{target}} {{route}}")], SECONDS),
    rows("PD over baseline, now", "The present ratios. Of the output speed less than 1 is worse, of the times more than 1.",
         [Query("max by (cluster, target, measure) (" + pick("efapulse_pd_to_baseline_ratio", "target") + ")", "ratio")],
         [Column("target"), Column("measure"), Column("ratio", RATIO), Column("cluster")], width=12),
    lines("TPOT by route", "Median time per output token of each route.",
          [Query(quantile(0.5, "efapulse_canary_tpot_seconds", "target, route", *_ALL), "{{target}} {{route}}")], SECONDS),
])

_POD = Row("Prefill and decode pods", [
    rows("Each pod", "The last good pair canary through each pod, and what its engine did beside it. A pod that stands out here is the one "
         "to look at.", [
             Query(f"max by ({_PODS}) ({pick('efapulse_pd_pod_ttft_seconds', 'target')})", "TTFT"),
             Query(f"max by ({_PODS}) ({pick('efapulse_pd_pod_tpot_seconds', 'target')})", "TPOT"),
             Query(f"max by ({_PODS}) ({pick('efapulse_pd_pod_kv_transfer_seconds', 'target')})", "KV transfer"),
             Query(f"max by ({_PODS}) ({pick('efapulse_pd_pod_running_requests', 'target')})", "running"),
             Query(f"max by ({_PODS}) ({pick('efapulse_pd_pod_waiting_requests', 'target')})", "waiting"),
             Query(f"max by ({_PODS}) ({pick('efapulse_pd_pod_kv_fill_ratio', 'target')})", "KV in use"),
             Query(age(f"max by ({_PODS}) ({pick('efapulse_pd_pod_last_success_timestamp_seconds', 'target')})"), "last ok"),
         ], [Column("target"), Column("role"), Column("pod_name"), Column("TTFT", SECONDS), Column("TPOT", SECONDS),
             Column("KV transfer", SECONDS), Column("running", COUNT), Column("waiting", COUNT), Column("KV in use", RATIO),
             Column("last ok", SECONDS), Column("cluster")], sort=("TTFT", True), height=10),
    lines("Pods found", "Engine pods that discovery found, by role.",
          [Query("max by (target, role) (" + pick("efapulse_pd_pods", "target") + ")", "{{target}} {{role}}")], COUNT, width=8),
    lines("Pods and pairs visited", "Share of the ready pods of a role visited within `pod_interval`, and of all pairs since both are "
          "there.",
          [Query("max by (target, role) (" + pick("efapulse_pd_pod_coverage_ratio", "target") + ")", "{{target}} {{role}}"),
           Query("max by (target) (" + pick("efapulse_pd_pair_coverage_ratio", "target") + ")", "{{target}} pairs")], RATIO, width=8,
          high=1.0),
    rows("Findings about the configuration", "What is wrong with how prefill and decode are set up, as found now.",
         [Query("max by (cluster, target, finding) (" + pick("efapulse_pd_findings", "target") + ") > 0", "findings")],
         [Column("target"), Column("finding"), Column("findings", COUNT, steps=((None, RED),)), Column("cluster")], width=8),
    lines("Visits to pods that warm up", "Requests to engine pods that are young and gave no good answer yet, by result: they are no "
          "canary requests.",
          [Query("sum by (target, result) (increase(" + pick("efapulse_pd_warmup_requests_total", "target") + "[$window]))",
                 "{{target}} {{result}}")], COUNT, width=12, bars=True),
    lines("Start of engine pods", "Mean time from the start of an engine container to the first good answer through it.",
          [Query(mean("efapulse_pd_startup_seconds", "target, role, start", "target"), "{{target}} {{role}} {{start}}")], SECONDS,
          width=12),
])

_CLIENT = Row("Can the client be trusted", [
    lines("Lag of the canary process", "How late the canary process itself was woken: 99th percentile. What is disturbed by more than a "
          "few milliseconds says little about the endpoint.",
          [Query(quantile(0.99, "efapulse_canary_clock_lag_seconds", "target", "target"), "{{target}}")], SECONDS, width=8),
    lines("Unresolved token events", "Token events that shared a read with a later one: they have no arrival time of their own.",
          [Query("sum by (target) (increase(" + pick("efapulse_canary_unresolved_events_total", "target") + "[$window]))", "{{target}}")],
          COUNT, width=8),
    number("Timed by the kernel", "Share of the requests of the chosen time whose arrival times come from the kernel. The others fell back "
           "to the client's own clock after a step of the wall clock.",
           or_zero(f"sum(increase({_BY_KERNEL}[$window])) / "
                   f"(sum(increase({_TIMED}[$window])) > 0)",
                   f"increase({_TIMED}[$window]) > 0"), RATIO,
           steps=((None, RED), (0.9, YELLOW), (0.99, GREEN)), width=8, height=8),
])

BOARD = Board(
    "canary", "PD canary", "What users of prefill/decode endpoints see, whether KV really moves, and whether the answer is right.",
    [_NOW, _STREAM, _ERRORS, _PROOF, _BASELINE, _POD, _CLIENT],
    [Variable("target", "Target", "efapulse_canary_requests_total", "target"),
     Variable("route", "Route", "efapulse_canary_requests_total", "route", ("target",)),
     Variable("prompt", "Prompt", "efapulse_canary_requests_total", "prompt", ("target",))], annotated=())
