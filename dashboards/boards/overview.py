"""Overview: is it healthy, what is bad, and since when."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.panels import (
    COUNT,
    GREEN,
    HEALTH,
    HELD,
    ORANGE,
    PURPLE,
    RATIO,
    RED,
    SECONDS,
    WORDS,
    YELLOW,
    Column,
    Query,
    lines,
    number,
    rows,
    states,
)
from dashboards.promql import UNKNOWN, age, latest, or_zero, pick, quantile, worst

_HEALTHY = pick("efapulse_node_healthy")
_BAD = f"max by (cluster, node, probe) ({_HEALTHY}) == 0"
_REQUESTS = pick("efapulse_canary_requests_total", f'result!~"{UNKNOWN}"')
# Fine for what is new, coarse for what is old: one fine look at a whole day would cost every refresh dearly.
_LAST_GOOD = " or ".join(f"max by (cluster, node, probe) (max_over_time(timestamp({_HEALTHY} == 1)[{span}]))"
                         for span in ("1h:30s", "1d:5m"))
_COVERED = pick("efapulse_coverage_ratio", 'stratum="all"')
_ENDPOINT = "cluster, target, route, prompt"
_NODE_LINK = ("This node", "/d/efa-pulse-node?${datasource:queryparam}&${cluster:queryparam}&var-node=${__data.fields.node}")

_NOW = Row("Now", [
    number("Bad nodes", "Nodes whose last conclusive verdict is bad for at least one probe. A run that could not measure changes nothing "
           "here.", or_zero(f"count(count by (cluster, node) ({_BAD}))", worst(_HEALTHY)), COUNT, steps=((None, GREEN), (1, RED)),
           width=3, runbooks=["EfaPulseNodeBad"]),
    number("Findings", "What localisation holds to be bad now: nodes, NICs, paths, pairs and groups. What a lower layer explains does not "
           "count.", f"sum({latest(pick('efapulse_findings'))})", COUNT, steps=((None, GREEN), (1, RED)), width=3),
    number("Endpoints failing", "Canary targets with fewer than half of their requests ok in the chosen time, of those that say something.",
           or_zero("count(sum by (cluster, target) (increase(" + pick("efapulse_canary_requests_total", 'result="ok"') + "[$window])) / "
                   f"(sum by (cluster, target) (increase({_REQUESTS}[$window])) > 0) < 0.5)",
                   f"sum by (cluster, target) (increase({_REQUESTS}[$window])) > 0"), COUNT, steps=((None, GREEN), (1, RED)), width=3),
    number("Fallbacks", "Runs in the shown time in which EFA was required and something else carried the payload. Each one is a fault.",
           f"sum(increase({pick('efapulse_transport_fallback_total')}[$__range]))", COUNT, steps=((None, GREEN), (0.5, RED)), width=3,
           decimals=0),
    number("Covered", "Share of the nodes measured in time, of the probe that is worst off, whatever the distance. Nodes that lasting "
           "reasons keep out do not count.", f"min({latest(_COVERED)})", RATIO,
           steps=((None, RED), (0.5, YELLOW), (0.9, GREEN)), width=3, decimals=0),
    number("Could not measure", "Share of probe runs in the chosen time that ended unknown. They blame nobody and clear nobody; many of "
           "them mean that we are blind.", "sum(increase(" + pick("efapulse_runs_total", 'outcome="unknown"', 'probe!="canary"')
           + "[$window])) / (sum(increase(" + pick("efapulse_runs_total", 'probe!="canary"') + "[$window])) > 0)", RATIO,
           steps=((None, GREEN), (0.1, YELLOW), (0.5, RED)), width=3, decimals=0),
    number("Scheduler looked", "Seconds since the scheduler last looked for due runs. Above a minute nothing is started any more, and "
           "every green figure here is an old one.", age(f"max({pick('efapulse_scheduler_last_tick_timestamp_seconds')})"), SECONDS,
           steps=((None, GREEN), (60, YELLOW), (300, RED)), width=3, decimals=0),
    number("Held back", "Gates that hold back every probe now: paused, quiet, stale inventory, or a replica on standby when none leads. "
           "Closed is not bad, but nothing is measured.", "count(min without (instance, pod) (" + pick("efapulse_gate_closed")
           + ") == 1) or 0 * count(" + pick("efapulse_gate_closed") + ")", COUNT, steps=((None, GREEN), (1, ORANGE)), width=3),
])

_BAD_NOW = Row("What is bad, and since when", [
    rows("Bad now", "Every node and probe whose last conclusive verdict is bad, the latest transport, how long it has been bad (looked up "
         "in the last day; empty: longer) and how old the verdict is. A click on a node opens everything about it.", [
             Query(_BAD, "verdict"),
             Query(f"{age(f'({_LAST_GOOD})')} and on (cluster, node, probe) ({_BAD})", "bad for"),
             Query(f"{age('max by (cluster, node, probe) (' + pick('efapulse_node_verdict_timestamp_seconds') + ')')} and "
                   f"on (cluster, node, probe) ({_BAD})", "verdict age"),
             Query(f"max by (cluster, node, probe, transport) ({pick('efapulse_node_transport')} == 1) and "
                   f"on (cluster, node, probe) ({_BAD})", "shown"),
         ], [Column("node", link=_NODE_LINK), Column("probe"), Column("verdict", words=HEALTH), Column("transport"),
             Column("bad for", SECONDS), Column("verdict age", SECONDS), Column("shown", words={"1": ("", GREEN)}, width=1, title=" "),
             Column("cluster")],
         sort=("bad for", True), width=16, height=9, runbooks=["EfaPulseNodeBad"]),
    rows("Findings", "What localisation concluded, by kind: a node, a NIC, a path between two good nodes, a pair that cannot be told "
         "apart, or a whole group. The status page of the exporter names them with their evidence.",
         [Query(f"max by (cluster, kind, probe) ({pick('efapulse_findings')}) > 0", "findings")],
         [Column("kind"), Column("probe"), Column("findings", COUNT, steps=((None, RED),)), Column("cluster")],
         sort=("findings", True), width=8, height=9),
    states("Nodes that were bad in the shown time", "One row a node that was bad at some time: red while its verdict was bad for any "
           "probe.",
           [Query(f"min by (cluster, node) ({_HEALTHY}) and on (cluster, node) "
                  f"(min_over_time((min by (cluster, node) ({_HEALTHY}))[$__range:$__interval] @ end()) == 0)", "{{node}}")],
           HEALTH, width=16, height=8),
    states("What holds back every probe", "Gates over all: closed means that no probe is started, not that anything is bad.",
           [Query(f"max by (gate) (min without (instance, pod) ({pick('efapulse_gate_closed')}))", "{{gate}}")], HELD, width=8, height=8),
])

_WORK = Row("Runs and canaries", [
    lines("Probe runs by outcome", "How probe runs ended, canaries left out, counted over the chosen time.",
          [Query("sum by (outcome) (increase(" + pick("efapulse_runs_total", 'probe!="canary"') + "[$window]))", "{{outcome}}")], COUNT,
          stacked=True, width=8, colours={"ok": GREEN, "degraded": YELLOW, "failed": RED, "unknown": PURPLE}),
    lines("Canary requests that were ok", "Share of the requests that said something: shed, preempted and other unknown ends are left out.",
          [Query("sum by (target, route) (increase(" + pick("efapulse_canary_requests_total", 'result="ok"') + "[$window])) / "
                 f"(sum by (target, route) (increase({_REQUESTS}[$window])) > 0)", "{{target}} {{route}}")], RATIO, width=8, high=1.0),
    lines("TTFT, 95th percentile", "Time to the first token of short canaries, by target and route.",
          [Query(quantile(0.95, "efapulse_canary_ttft_seconds", "target, route", 'prompt="short"'), "{{target}} {{route}}")], SECONDS,
          width=8),
    rows("Endpoints", "Every canary target: requests that were ok, median and 95th percentile of TTFT, median TPOT over the chosen time, "
         "and when one was last ok.", [
             Query(f"sum by ({_ENDPOINT}) (increase(" + pick("efapulse_canary_requests_total", 'result="ok"') + f"[$window])) / "
                   f"(sum by ({_ENDPOINT}) (increase({_REQUESTS}[$window])) > 0)", "ok"),
             Query(quantile(0.5, "efapulse_canary_ttft_seconds", _ENDPOINT), "TTFT p50"),
             Query(quantile(0.95, "efapulse_canary_ttft_seconds", _ENDPOINT), "TTFT p95"),
             Query(quantile(0.5, "efapulse_canary_tpot_seconds", _ENDPOINT), "TPOT p50"),
             Query(age(f"max by ({_ENDPOINT}) ({pick('efapulse_canary_last_success_timestamp_seconds')})"), "last ok"),
         ], [Column("target"), Column("route"), Column("prompt"), Column("ok", RATIO, steps=((None, RED), (0.9, YELLOW), (0.99, GREEN))),
             Column("TTFT p50", SECONDS), Column("TTFT p95", SECONDS), Column("TPOT p50", SECONDS), Column("last ok", SECONDS),
             Column("cluster")], sort=("ok", False), height=8, unit=WORDS),
])

BOARD = Board("overview", "Overview", "Is the fabric healthy, what is bad, and since when.", [_NOW, _BAD_NOW, _WORK], annotated=(),
              variables=())
