"""The monitor itself: lag, gates, budget, coverage, leader, archive. A monitor that stands still shows old green figures for ever."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.panels import (
    COUNT,
    GREEN,
    HELD,
    ORANGE,
    PER_HOUR,
    PURPLE,
    RATIO,
    RED,
    SECONDS,
    YELLOW,
    YES_NO,
    Column,
    Query,
    lines,
    number,
    rows,
    states,
)
from dashboards.promql import age, pick, quantile, worst

_FRESH = ((None, GREEN), (60, YELLOW), (300, RED))
_NONE = ((None, GREEN), (0.5, RED))

_NOW = Row("Now", [
    number("Leader", "Replicas that plan and launch now: one. None: nothing is measured. Two for more than a moment: see the log of both.",
           f"sum({pick('efapulse_leader')})", COUNT, steps=((None, RED), (1, GREEN), (2, RED)), width=3),
    number("Scheduler looked", "Seconds since the scheduler last looked for due runs, of the replica that leads.",
           age(f"max({pick('efapulse_scheduler_last_tick_timestamp_seconds')})"), SECONDS, steps=_FRESH, width=3, decimals=0),
    number("Inventory", "Seconds since the nodes and pods of the cluster were last known to be all seen. `no data`: a static "
           "list of nodes.",
           age(f"max({pick('efapulse_inventory_complete_timestamp_seconds')})"), SECONDS, steps=_FRESH, width=3, decimals=0),
    number("Paused", "Whether an operator has paused all probes (`efa-pulse pause`).", f"max({pick('efapulse_paused')})", "none",
           words={"0": ("no", GREEN), "1": ("paused", ORANGE)}, steps=((None, GREEN), (1, ORANGE)), width=3),
    number("Configuration", "Whether the last load of the configuration worked; if not, the one before stays in use.",
           f"min({pick('efapulse_config_last_reload_successful')})", "none", words={"0": ("refused", RED), "1": ("loaded", GREEN)},
           steps=((None, RED), (1, GREEN)), width=3),
    number("Cluster", "Whether the API server can be followed and the Lease be held.", f"max({pick('efapulse_cluster_trouble')})", "none",
           words={"0": ("followed", GREEN), "1": ("trouble", RED)}, steps=((None, GREEN), (1, RED)), width=3),
    number("Series", "Series of the cached page of the replica that has most.", "max(" + pick("efapulse_series", 'state="shown"') + ")",
           COUNT, width=3),
    number("Left out", "Series that the cap keeps off the page now.", "max(" + pick("efapulse_series", 'state="dropped"') + ")", COUNT,
           steps=_NONE, width=3),
])

_WORK = Row("Does it measure", [
    lines("How late runs start", "How much later than due the scheduler started runs, over the chosen time.",
          [Query(quantile(share, "efapulse_scheduler_lag_seconds", ""), f"p{share * 100:g}") for share in (0.5, 0.99)], SECONDS, width=8),
    lines("Due runs left out", "Due runs that were not started and are not made up for, by why, over the chosen time.",
          [Query("sum by (why) (increase(" + pick("efapulse_runs_left_out_total") + "[$window]))", "{{why}}")], COUNT, width=8, bars=True),
    lines("Runs by reason that could not measure", "Runs that ended unknown, by reason, over the chosen time. They are nobody's fault and "
          "still a hole in what we see.",
          [Query("sum by (reason) (increase(" + pick("efapulse_runs_total", 'outcome="unknown"') + "[$window])) > 0", "{{reason}}")],
          COUNT, width=8, bars=True, stacked=True),
    states("Gates over all", "What holds back every probe: closed means that nothing is started.",
           [Query(f"max by (gate) (min without (instance, pod) ({pick('efapulse_gate_closed')}))", "{{gate}}")], HELD, width=8, height=8),
    lines("Nodes kept out by gates", "Nodes by the gate that keeps probes off them. Devices that serving holds are the usual reason.",
          [Query("count by (gate) (max by (cluster, node, gate) (" + pick("efapulse_node_gate_closed") + "))", "{{gate}}")], COUNT, width=8,
          stacked=True),
    lines("Coverage", "Share of the nodes measured in time, whatever the distance, by probe.",
          [Query("min by (probe) (" + worst(pick("efapulse_coverage_ratio", 'stratum="all"')) + ")", "{{probe}}")], RATIO, width=8,
          high=1.0, runbooks=["EfaPulseCoverageOld"]),
    lines("Baselines", "Nodes by how far their baseline is learned, and with a change that stands.",
          [Query("max by (probe, state) (" + pick("efapulse_baseline_nodes") + ")", "{{probe}} {{state}}")], COUNT, width=8),
    lines("Nodes flagged in Kubernetes", "Nodes whose condition is set by us, held back by the breaker, and whether the breaker is open.", [
        Query(f"max({pick('efapulse_node_conditions_flagged')})", "flagged"),
        Query(f"max({pick('efapulse_node_conditions_held_back')})", "held back"),
        Query(f"max({pick('efapulse_node_conditions_breaker_open')})", "breaker open")], COUNT, width=8),
    lines("Writes of node conditions", "Changes of node conditions and Events that were written, and that failed, over the chosen time.", [
        Query("sum by (kind) (increase(" + pick("efapulse_node_condition_writes_total") + "[$window]))", "{{kind}} written"),
        Query("sum by (kind, trouble) (increase(" + pick("efapulse_node_condition_failures_total") + "[$window]))",
              "{{kind}} failed: {{trouble}}")], COUNT, width=8, bars=True),
])

_REPLICAS = Row("Replicas and the cluster", [
    states("Who leads", "Each replica over time. A hand-over takes seconds; a gap is time in which nothing was planned.",
           [Query(f"max by (instance, pod) ({pick('efapulse_leader')})", "{{instance}} {{pod}}")],
           {"0": ("stands by", "#5a6a8a"), "1": ("leads", GREEN)}, width=8),
    rows("Versions and configuration", "Each replica: its version, and how long ago it took its configuration.", [
        Query(f"max by (instance, version, python) ({pick('efapulse_build_info')})", "up"),
        Query(age(f"max by (instance) ({pick('efapulse_config_last_reload_success_timestamp_seconds')})"), "configured"),
        Query(f"max by (instance) ({pick('efapulse_web_config_last_reload_successful')})", "TLS files"),
    ], [Column("instance"), Column("version"), Column("python"), Column("configured", SECONDS), Column("TLS files", words=YES_NO),
        Column("up", words=YES_NO)], width=8),
    lines("Requests to the API server", "Requests an hour, by method. A monitor that is light writes little.",
          [Query("sum by (method) (rate(" + pick("efapulse_api_requests_total") + "[$window])) * 3600", "{{method}}")], PER_HOUR, width=8),
    rows("EC2 facts", "What is known from EC2. What is not known is lost to planning and judging; the log says why.",
         [Query(f"max by (fact) ({pick('efapulse_ec2_facts_known')})", "known")],
         [Column("fact"), Column("known", words=YES_NO)], width=8),
    lines("EC2 calls", "Calls of the EC2 API and those that failed, over the chosen time.", [
        Query("sum by (call) (increase(" + pick("efapulse_ec2_requests_total") + "[$window]))", "{{call}}"),
        Query("sum by (call, trouble) (increase(" + pick("efapulse_ec2_request_failures_total") + "[$window]))",
              "{{call}} failed: {{trouble}}")], COUNT, width=8, bars=True),
    number("EC2 answered", "Seconds since everything that is asked of EC2 was last answered.",
           age(f"max({pick('efapulse_ec2_last_success_timestamp_seconds')})"), SECONDS, steps=((None, GREEN), (7200, YELLOW), (86400, RED)),
           width=8, height=8, decimals=0),
])

_ARCHIVE = Row("Archive", [
    number("Pending", "Results taken in that the archive does not hold yet.", f"max({pick('efapulse_archive_pending_results')})", COUNT,
           steps=((None, GREEN), (1000, YELLOW), (10000, RED)), width=4, height=8, decimals=0),
    number("Store", "Whether the archive can be written now.", f"max by (store) ({pick('efapulse_archive_trouble')})", "none",
           words={"0": ("written", GREEN), "1": ("trouble", RED)}, steps=((None, GREEN), (1, RED)), legend="{{store}}", width=4, height=8),
    lines("Results kept", "Results that the archive took in, and those it could not take, over the chosen time.", [
        Query("sum by (store) (increase(" + pick("efapulse_archive_results_total") + "[$window]))", "{{store}}"),
        Query("sum(increase(" + pick("efapulse_archive_dropped_results_total") + "[$window]))", "dropped")], COUNT, width=8,
          colours={"dropped": RED}),
    lines("Writes", "Writes that worked and that failed, over the chosen time.", [
        Query("sum by (store) (increase(" + pick("efapulse_archive_writes_total") + "[$window]))", "{{store}}"),
        Query("sum by (store, trouble) (increase(" + pick("efapulse_archive_write_failures_total") + "[$window]))",
              "{{store}} failed: {{trouble}}")], COUNT, width=8, bars=True),
    lines("Size on disk", "Bytes of the local archive, or of the spool before S3.",
          [Query(f"max({pick('efapulse_archive_local_bytes')})", "bytes")], "bytes", width=12),
    lines("Since the last write", "Seconds since a write to each store last worked.",
          [Query(age(f"max by (store) ({pick('efapulse_archive_last_success_timestamp_seconds')})"), "{{store}}")], SECONDS, width=12),
])

_PAGE = Row("The metrics page", [
    lines("Requests answered", "Requests of the metrics server by page and status, a second.",
          [Query("sum by (handler, code) (rate(" + pick("efapulse_http_requests_total") + "[$__rate_interval]))", "{{handler}} {{code}}")],
          "reqps", width=8),
    lines("Connections refused", "Connections closed without an answer, by why, over the chosen time.",
          [Query("sum by (why) (increase(" + pick("efapulse_http_connections_refused_total") + "[$window]))", "{{why}}")], COUNT, width=8,
          bars=True),
    lines("What could not be published", "Events and parts of the page that failed. They cost no other anything, and must not happen.", [
        Query("sum by (event) (increase(" + pick("efapulse_publish_errors_total") + "[$window])) > 0", "event {{event}}"),
        Query("sum by (part) (increase(" + pick("efapulse_scrape_errors_total") + "[$window]))", "part {{part}}")], COUNT, width=8,
          bars=True),
    lines("Series", "Series of the cached page, shown and left out by the cap.",
          [Query("max by (state) (" + pick("efapulse_series") + ")", "{{state}}")], COUNT, width=8,
          colours={"shown": GREEN, "dropped": PURPLE}),
    lines("Series dropped", "Series that went because the page reached its cap, by family, over the chosen time.",
          [Query("sum by (family) (increase(" + pick("efapulse_series_dropped_total") + "[$window])) > 0", "{{family}}")], COUNT, width=8,
          bars=True),
    lines("Memory of the exporter", "Resident memory of each replica; what grows for days is a fault.",
          [Query("max by (instance) (process_resident_memory_bytes and on (instance, job) " + pick("efapulse_build_info") + ")",
                 "{{instance}}")], "bytes", width=8),
])

BOARD = Board("monitor", "The monitor itself", "Whether efa-pulse itself works: lag, gates, coverage, leader, archive, its own page.",
              [_NOW, _WORK, _REPLICAS, _ARCHIVE, _PAGE])
