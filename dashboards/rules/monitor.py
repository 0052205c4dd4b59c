"""Alerts of the monitor itself: silence, blindness and trouble. What does not measure must not look healthy."""

from __future__ import annotations

from dashboards.rules.model import Alert, Component, Group, Severity, duration, number, pattern
from dashboards.rules.promql import increase

MONITOR = Component.MONITOR
PAUSED = "(max without (instance, pod) (efapulse_paused) == 1)"
QUICK, SLOWLY = 'probe!~"@slow@"', 'probe=~"@slow@"'


def _never_ran(probes: str, window: str) -> str:
    selector = f"efapulse_runs_total{{{probes}}}"
    return (f"(\n    {increase(selector, window, 'outcome', 'reason')} == 0\n"
            f"    and sum without (instance, pod, outcome, reason) ({selector} offset {window}) >= 0\n  )")


def _too_low(probes: str, age: str) -> str:
    return (f'(\n  efapulse:coverage:ratio{{stratum="all", {probes}}} < @share@\n'
            f'  and (max without (instance, pod) (efapulse_coverage_ratio{{stratum="all", {probes}}} offset {age})) >= 0\n)')


def _too_old(probes: str, age: str) -> str:
    oldest = f'efapulse_coverage_oldest_measurement_timestamp_seconds{{stratum="all", {probes}}}'
    return (f"(\n  time() - (min without (instance, pod) ({oldest}))"
            f" > {age}\n)")


def _unknown(drop: str, samples: str = "@samples@") -> str:
    unknown, every = (f"sum without ({drop}) (efapulse:runs:increase6h{chosen})" for chosen in ('{outcome="unknown"}', ""))
    return f"(\n  {unknown}\n  / {every} >= @share@\n  and round({every}) >= {samples}\n)"


SLOW = pattern("uccl-ep", "probes whose interval is longer than a day")
LEAST_RUNS = 10

GROUP = Group("efapulse.monitor", (
    Alert(
        "EfaPulseAbsent", Severity.CRITICAL, MONITOR, "5m",
        "absent(efapulse_build_info)",
        "No efa-pulse exporter is scraped: nothing watches EFA and the canaries",
        "All replicas are down, or Prometheus no longer finds or reaches them. Every other alert of efa-pulse is blind.",
        "absent() fires only when no series at all is left, in none of the clusters this Prometheus watches, so it cannot tell which is "
        "gone: use one Prometheus per cluster, or EfaPulseReplicaDown beside it. 5m outlast a restart and are shorter than `bridge`, so "
        "alerts that fire hand over to this one without a gap."),
    Alert(
        "EfaPulseReplicaDown", Severity.WARNING, MONITOR, "15m",
        'sum without (instance, pod) (up{job=~"@job@"} == bool 0) > 0\n'
        'and max without (instance, pod) (max_over_time(up{job=~"@job@"}[@bridge@])) == 1',
        "{{ $value }} exporter(s) of efa-pulse (job {{ $labels.job }}) cannot be scraped",
        "A replica is down or does not answer. With another one left nothing is lost, but the next failure is a gap.",
        "`up` is the only series of a target that does not answer. 15m outlast an upgrade of a node. It needs the name of the scrape job.",
        {"job": pattern(".*efa-pulse.*", "scrape jobs of the exporter")}),
    Alert(
        "EfaPulseSchedulerStopped", Severity.CRITICAL, MONITOR, "1m",
        "time() - (max without (instance, pod) (\n  efapulse_scheduler_last_tick_timestamp_seconds and efapulse_leader == 1\n)) > @age@",
        "The scheduler of efa-pulse last ticked {{ $value | humanizeDuration }} ago: nothing is measured any more",
        "The exporter answers scrapes, but starts no run: its thread hangs or died. Every verdict shown is getting old.",
        "The tick is once a second and is published every turn of the control loop, so 300 s are no delay but an end. Only the leader's "
        "counts: a standby ticks as well.",
        {"age": number("300", "seconds without a tick")}),
    Alert(
        "EfaPulseNoLeader", Severity.CRITICAL, MONITOR, "5m",
        "sum without (instance, pod) (efapulse_leader) == 0",
        "No replica of efa-pulse leads: nothing is planned",
        "All replicas stand by: the Lease cannot be written, or is held by somebody who is gone.",
        "A hand-over takes seconds, half a minute after a crash; 5m are many times its longest."),
    Alert(
        "EfaPulseConfigRejected", Severity.WARNING, MONITOR, "5m",
        "max without (instance, pod) (efapulse_config_last_reload_successful == bool 0) == 1\n"
        "or max without (instance, pod) (efapulse_web_config_last_reload_successful == bool 0) == 1",
        "efa-pulse refused its changed configuration and goes on with the one before",
        "The file, or one that it names (TLS, passwords), has a mistake. The next restart would fail with it. "
        "efa-pulse check-config FILE names each problem with its place.",
        "A refused file stays refused until somebody changes it; 5m are a roll-out in which files arrive one after the other."),
    Alert(
        "EfaPulseClusterTrouble", Severity.WARNING, MONITOR, "10m",
        "max without (instance, pod) (efapulse_cluster_trouble) == 1\n"
        'or max without (instance, pod, gate) (efapulse_gate_closed{gate="stale_inventory"}) == 1',
        "efa-pulse cannot follow its cluster or hold its Lease",
        "Nodes and pods are not seen as they are; above 300 s nothing is planned. Rights, the API server or the network between.",
        "Watches break and are opened again all the time; 10m mean that they do not come back."),
    Alert(
        "EfaPulsePaused", Severity.INFO, MONITOR, "8h",
        "max without (instance, pod) (efapulse_paused) == 1",
        "efa-pulse is paused by an operator: nothing is probed",
        "The verdicts shown are those from before the pause. efa-pulse resume ends it.",
        "A pause is somebody's decision and no fault, but after a working day it may have been forgotten."),
    Alert(
        "EfaPulseEverythingUnknown", Severity.CRITICAL, MONITOR, "10m",
        _unknown("outcome, probe"),
        "efa-pulse is blind: {{ $value | humanizePercentage }} of all probe runs of 6 h ended unknown",
        "Runs start and none can measure, so no node can become bad and none can be cleared. The reasons: efa-pulse status; most often "
        "image pull, quota, admission, missing witnesses or a wrong secret.",
        "Unknown is never blame, so without this alert a monitor that measures nothing would look healthy. All probes at once is one "
        "cause and mutes EfaPulseProbeUnknown.",
        {"share": number("0.95", "share of unknown runs that is too much"),
         "samples": number(str(LEAST_RUNS), "runs in 6 h, at least")}),
    Alert(
        "EfaPulseProbeUnknown", Severity.WARNING, MONITOR, "10m",
        f"{_unknown('outcome')}\nunless ignoring (probe) {_unknown('outcome, probe', str(LEAST_RUNS))}",
        "{{ $labels.probe }} cannot measure: {{ $value | humanizePercentage }} of its runs of 6 h ended unknown",
        "The probe starts and does not get to a verdict. {{ $labels.probe }} says nothing about the fleet meanwhile; its reasons are in "
        "efapulse_runs_total and in efa-pulse status.",
        "As EfaPulseEverythingUnknown, for one probe: engine missing, GPU busy, pull failures. Five runs, since a small fleet has few.",
        {"share": number("0.95", "share of unknown runs that is too much"),
         "samples": number("5", "runs of the probe in 6 h, at least")}),
    Alert(
        "EfaPulseProbeNeverRan", Severity.WARNING, MONITOR, "10m",
        "(\n  " + _never_ran('probe!~"canary|@slow@"', "@window@") + "\n  or\n  " + _never_ran('probe=~"@slow@"', "@slow_window@") + "\n)\n"
        "unless ignoring (stratum, state) (\n  sum without (stratum, state) ("
        'efapulse:coverage_nodes{stratum="all", state!="left_out"}) == 0\n)\n'
        f"unless ignoring (probe) {PAUSED}",
        "Probe {{ $labels.probe }} is configured and has not run at all",
        "No run has ended, not even as unknown: a gate holds it back on every node, its budget is too small, or the scheduler does not "
        "reach it. efa-pulse plan shows what is due and why not.",
        "Counters start at 0 for every configured probe, so one that never ran is seen; `offset` asks that it was configured for the whole "
        "window. Nodes that lasting reasons keep out do not count (see EfaPulseNoRoom), a pause is no silence.",
        {"window": duration("1d", "time without a run"), "slow": SLOW, "slow_window": duration("9d", "the same for slow probes")}),
    Alert(
        "EfaPulseCoverageLow", Severity.WARNING, MONITOR, "1h",
        f"(\n{_too_low(QUICK, '@age@')}\nor\n{_too_low(SLOWLY, '@slow_age@')}\n)\nunless ignoring (probe, stratum) {PAUSED}",
        "Only {{ $value | humanizePercentage }} of the nodes were measured in time by {{ $labels.probe }}",
        "Nodes that could be measured were not, within metrics.node_interval: gates that close again and again, a budget that is too "
        "small, "
        "or runs that end unknown. efa-pulse plan tells why for each.",
        "Coverage is the promise `measured, or shown why not`. It starts at 0, so it counts only where it was there a day ago (slow "
        "probes: "
        "nine days). Lasting reasons are outside of the figure already.",
        {"share": number("0.9", "share of the nodes that must be measured"),
         "age": duration("1d", "how long coverage has time to build up"),
         "slow": SLOW, "slow_age": duration("9d", "the same for slow probes")}),
    Alert(
        "EfaPulseCoverageOld", Severity.WARNING, MONITOR, "1h",
        f"(\n{_too_old(QUICK, '@age@')}\nor\n{_too_old(SLOWLY, '@slow_age@')}\n)\nunless ignoring (probe, stratum) {PAUSED}",
        "The oldest measurement of {{ $labels.probe }} is {{ $value | humanizeDuration }} old",
        "At least one node has only an old verdict of {{ $labels.probe }}. It may be bad by now.",
        "A share can look good while one node is forgotten, so the oldest one counts here: twice metrics.node_interval by default.",
        {"age": number("172800", "age in seconds that is too much"), "slow": SLOW,
         "slow_age": number("1296000", "the same for slow probes")}),
    Alert(
        "EfaPulseNoRoom", Severity.INFO, MONITOR, "6h",
        'efapulse:coverage_nodes{stratum="all", state="left_out"} / ignoring (state) '
        'sum without (state) (efapulse:coverage_nodes{stratum="all"}) >= @share@',
        "{{ $labels.probe }} has no room on {{ $value | humanizePercentage }} of the nodes, and that will not pass by itself",
        "Serving holds every device there, or somebody excluded the nodes: they are left out of coverage and nothing is measured on them. "
        "Placement `shared`, a node kept free, or the canaries and witnesses alone are the choices; efa-pulse plan names the holders.",
        "Production always wins, so this is no fault; it is said once so that nobody takes silence for health. 6h let deployments move.",
        {"share": number("0.5", "share of the nodes without room")}),
    Alert(
        "EfaPulseRunsLeftOut", Severity.WARNING, MONITOR, "15m",
        'sum without (instance, pod, why) (increase(efapulse_runs_left_out_total{why=~"missed|queue_full|error"}[@window@])) >= @runs@',
        "efa-pulse is held up: due runs are left out",
        "The scheduler or the control loop does not keep up: too little CPU, or a disk or API server that hangs.",
        "Runs left out as busy, overlapping or paused are as planned and do not count; a few after a restart are no trouble.",
        {"window": duration("1h", "time over which it is counted"), "runs": number("10", "left-out runs, at least")}),
    Alert(
        "EfaPulseSeriesDropped", Severity.WARNING, MONITOR, "30m",
        'max without (instance, pod, state) (efapulse_series{state="dropped"}) > 0',
        "{{ $value | humanize }} series are left out of the page of efa-pulse",
        "The page is above metrics.max_series, so whole families are missing: panels and alerts that use them say nothing. Families go in "
        "the order that the catalogue lists.",
        "Which series are missing decides which alerts are blind, so it is no detail; 30m let a burst of suspects end."),
    Alert(
        "EfaPulseInternalErrors", Severity.WARNING, MONITOR, "0s",
        "(\n  sum without (instance, pod, event) (increase(efapulse_publish_errors_total[@window@]))\n"
        "  + sum without (instance, pod, part) (increase(efapulse_scrape_errors_total[@window@]))\n) > 0",
        "efa-pulse could not publish something that it knows",
        "A fault of efa-pulse itself: what it measured is not all on the page. The log has the traceback; please report it.",
        "It should never happen, so once is enough; it stays for the window.",
        {"window": duration("1h", "how long one event keeps the alert firing")}),
    Alert(
        "EfaPulseArchiveStuck", Severity.WARNING, MONITOR, "30m",
        "max without (instance, pod, store) (efapulse_archive_trouble) == 1\n"
        "or sum without (instance, pod) (increase(efapulse_archive_dropped_results_total[@window@])) > 0",
        "Results of efa-pulse do not reach their archive",
        "The disk or S3 cannot be written, or results were dropped. Metrics and verdicts are not touched, history is.",
        "Writes are tried again and nothing is lost while the queue holds; 30m are an outage of S3 worth knowing.",
        {"window": duration("1h", "how long a dropped result keeps the alert firing")}),
    Alert(
        "EfaPulseConditionsHeldBack", Severity.WARNING, MONITOR, "5m",
        "max without (instance, pod) (efapulse_node_conditions_breaker_open) == 1",
        "efa-pulse flags no more nodes: too large a share of them is flagged already",
        "The breaker keeps a mistake, or one common cause, from draining the fleet. Bad nodes stay schedulable meanwhile.",
        "Many bad nodes at once are one cause; a person decides. There is no wait to speak of, since the breaker itself has judged."),
))
