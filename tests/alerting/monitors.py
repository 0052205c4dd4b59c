"""Cases of the alerts of the monitor itself. Time in promtool begins at 0."""

from __future__ import annotations

from alerting.case import Case, Check, Fired, Kind, Series, Suite, count, fired, follow, held, rising, series

LONG = 700


def _absent() -> Suite:
    said = (Fired(bare=True),)

    def info(values: str, replica: str = "a") -> Series:
        return series("efapulse_build_info", values, replica, version="1", python="3.12")

    return Suite("EfaPulseAbsent", [
        Case(Kind.FIRES, "five minutes after the last replica went", [info(held((1, 20), ("stale", 100)))],
             [Check(19), Check(24), Check(26, said)], alone=True),
        Case(Kind.MISSING, "never scraped at all", [], [Check(4), Check(6, said)], alone=True),
        Case(Kind.NEAR_MISS, "one of two replicas is left", [info(held((1, 20), ("stale", 100))), info(held((1, 120)), "b")],
             [Check(30), Check(100)], alone=True),
        Case(Kind.RESTART, "away for four minutes", [info(held((1, 20), ("stale", 4), (1, 60)))], [Check(23), Check(26), Check(60)],
             alone=True),
        Case(Kind.RESOLVES, "with the first scrape", [info(held((1, 20), ("stale", 10), (1, 60)))], [Check(29, said), Check(31)],
             alone=True),
    ])


def _replica() -> Suite:
    said = (fired("1"),)
    info = series("efapulse_build_info", held((1, LONG)), "b", version="1", python="3.12")
    other = series("up", held((1, LONG)), "b")
    return Suite("EfaPulseReplicaDown", [
        Case(Kind.FIRES, "one of two does not answer", [series("up", held((1, 10), (0, LONG))), other, info],
             [Check(9), Check(24), Check(26, said), Check(100, said)]),
        Case(Kind.NEAR_MISS, "an upgrade of its node", [series("up", held((1, 10), (0, 13), (1, 60))), other, info],
            [Check(22), Check(26), Check(60)]),
        Case(Kind.NEAR_MISS, "all are gone: that is EfaPulseAbsent", [series("up", held((0, 90)))], [Check(60)]),
        Case(Kind.RESOLVES, "when it answers", [series("up", held((0, 30), (1, 60))), other, info], [Check(29, said), Check(31)]),
        Case(Kind.RESTART, "the other one restarts meanwhile", [
            series("up", held((0, 90))), series("up", held((1, 20), (0, 1), (1, 60)), "b"),
            series("efapulse_build_info", held((1, 20), ("_", 1), (1, 60)), "b", version="1", python="3.12")], [Check(19, said), Check(22,
                said)]),
        Case(Kind.MISSING, "no such target", [info], [Check(60)]),
    ])


def _stopped() -> Suite:
    ticks = "efapulse_scheduler_last_tick_timestamp_seconds"

    def said(text: str) -> tuple[Fired, ...]:
        return (fired(text),)

    return Suite("EfaPulseSchedulerStopped", [
        Case(Kind.FIRES, "no tick for five minutes", [series(ticks, rising((0, 60, 10), (540, 0, 100)))],
             [Check(9), Check(13), Check(16, said("7m 0s")), Check(60, said("51m 0s"))]),
        Case(Kind.FIRES, "of the leader, while a standby ticks", [
            series(ticks, rising((0, 60, 10), (540, 0, 100))), series(ticks, rising((0, 60, 110)), "b"),
            series("efapulse_leader", held((1, 200))), series("efapulse_leader", held((0, 200)), "b")], [Check(16, said("7m 0s"))]),
        Case(Kind.NEAR_MISS, "four minutes", [series(ticks, rising((0, 60, 10), (540, 0, 5), (840, 60, 60)))],
            [Check(14), Check(16), Check(50)]),
        Case(Kind.NEAR_MISS, "a replica that lost the lead stopped for good", [
            series(ticks, rising((0, 60, 10), (540, 0, 100))), series(ticks, rising((0, 60, 110)), "b"),
            series("efapulse_leader", held((1, 10), (0, 200))), series("efapulse_leader", held((0, 10), (1, 200)), "b")], [Check(60)]),
        Case(Kind.RESOLVES, "when it ticks again", [series(ticks, rising((0, 60, 10), (540, 0, 20), (1800, 60, 60)))],
             [Check(25, said("16m 0s")), Check(32)]),
        Case(Kind.RESTART, "a restarted exporter ticks at once",
            [series(ticks, rising((0, 60, 10)) + " stale _ _ " + rising((780, 60, 60)))],
             [Check(12), Check(14), Check(20)]),
        Case(Kind.MISSING, "the exporter is gone: that is EfaPulseAbsent", [series(ticks, rising((0, 60, 10)) + " stale")], [Check(60)]),
    ])


def plain(alert: str, name: str, bad: str, good: str, wait: int, *, said: Fired | None = None, near: list[Case], **labels: str) -> Suite:
    """An alert on a state that every replica shows for itself. Its last word does not outlive it."""
    text = (said or fired(),)
    sure = 10 + wait

    def of(values: str, replica: str = "a") -> Series:
        return series(name, values, replica, **labels)

    return Suite(alert, [
        Case(Kind.FIRES, "after its `for`, not before", [of(held((good, 10), (bad, wait + 30)))],
             [Check(9), Check(sure - 1), Check(sure + 1, text), Check(sure + 20, text)]),
        Case(Kind.FIRES, "when one replica of two shows it", [of(held((good, sure + 40)), "b"), of(held((good, 10), (bad, wait + 30)))],
             [Check(sure + 1, text)]),
        Case(Kind.NEAR_MISS, "for a shorter time than `for`", [of(held((good, 10), (bad, wait - 1), (good, 60)))],
             [Check(sure - 2), Check(sure + 1), Check(sure + 30)]),
        *near,
        Case(Kind.RESOLVES, "when the state is good again", [of(held((good, 10), (bad, wait + 10), (good, 60)))],
             [Check(sure + 8, text), Check(sure + 11)]),
        Case(Kind.RESTART, "the other replica restarts while it fires", [
            of(held((bad, sure + 60))), of(held((good, sure + 2), ("stale", 3), (good, 60)), "b")],
            [Check(sure + minute, text) for minute in range(1, 20, 2)]),
        Case(Kind.MISSING, "it is not shown", [], [Check(sure + 20)]),
    ])


def _no_leader() -> Suite:
    def leads(values: str, replica: str = "a") -> Series:
        return series("efapulse_leader", values, replica)

    said = (fired(),)
    return Suite("EfaPulseNoLeader", [
        Case(Kind.FIRES, "all stand by", [leads(held((1, 10), (0, 100))), leads(held((0, 110)), "b")],
            [Check(9), Check(14), Check(16, said)]),
        Case(Kind.NEAR_MISS, "a hand-over of four minutes", [leads(held((1, 10), (0, 100))), leads(held((0, 14), (1, 100)), "b")],
             [Check(13), Check(16), Check(60)]),
        Case(Kind.RESOLVES, "when one leads", [leads(held((0, 20), (1, 100)))], [Check(19, said), Check(21)]),
        Case(Kind.RESTART, "a standby restarts while there is none",
            [leads(held((0, 100))), leads(held((0, 10), ("stale", 3), (0, 60)), "b")],
             [Check(8, said), Check(11, said), Check(14, said)]),
        Case(Kind.MISSING, "no exporter: that is EfaPulseAbsent", [], [Check(30)], alone=True),
    ])


def runs(probe: str, outcome: str, values: str, replica: str = "a") -> Series:
    reason = {"ok": "ok", "unknown": "image_pull", "failed": "transfer_failed"}[outcome]
    return series("efapulse_runs_total", values, replica, probe=probe, outcome=outcome, reason=reason)


def _unknown(alert: str, wait: int) -> Suite:
    every = alert == "EfaPulseEverythingUnknown"
    said = (fired("100%"),) if every else (fired("100%", probe="nccl"),)
    # Of EfaPulseProbeUnknown: another probe measures well.
    beside = [] if every else [runs("node", "ok", rising((0, 1, LONG)))]
    at = 360 + wait + 5  # minutes, in steps of 5
    steps = at // 5
    return Suite(alert, [
        Case(Kind.FIRES, "no run can measure", [runs("nccl", "unknown", rising((0, 0.5, LONG))), runs("nccl", "ok", held((0, LONG))),
                                                *beside],
             [Check(20), Check(at, said)]),
        Case(Kind.NEAR_MISS, "one in ten can", [runs("nccl", "unknown", rising((0, 0.9, LONG))),
            runs("nccl", "ok", rising((0, 0.1, LONG))), *beside],
             [Check(at)]),
        Case(Kind.NEAR_MISS, "failed is a verdict", [runs("nccl", "failed", rising((0, 1, LONG))), *beside], [Check(at)]),
        Case(Kind.NEAR_MISS, "too few runs", [runs("nccl", "unknown", rising((0, 0.05, LONG))), *beside], [Check(at)]),
        Case(Kind.NEAR_MISS, "canaries have alerts of their own", [runs("canary", "unknown", rising((0, 1, LONG)))], [Check(at)]),
        Case(Kind.NEAR_MISS, "one of two probes" if every else "of all probes: EfaPulseEverythingUnknown says it", [
            runs("nccl", "unknown", rising((0, 0.5, LONG))), runs("node", "ok" if every else "unknown",
                rising((0, 0.5, LONG)))], [Check(at)]),
        Case(Kind.RESOLVES, "when runs measure again", [
            runs("nccl", "unknown", rising((0, 0.5, steps + 1), (0.5 * steps, 0, 300))),
            runs("nccl", "ok", rising((0, 0, steps + 1), (5, 5, 300))), *beside], [Check(at, said), Check(at + 100)]),
        Case(Kind.RESTART, "counters begin again at 0", [runs("nccl", "unknown", rising((0, 0.5, 40), (0, 0.5, 400))),
                                                        runs("nccl", "ok", held((0, LONG))), *beside], [Check(at, said), Check(at + 30,
                                                            said)]),
        Case(Kind.MISSING, "no run", beside, [Check(at)]),
        Case(Kind.ZERO, "no run has ended", [runs("nccl", "unknown", held((0, LONG))), runs("nccl", "ok", held((0, LONG)))], [Check(at)]),
    ], every=5)


def nodes(probe: str, measured: float, waiting: float, left_out: float) -> list[Series]:
    return [series("efapulse_coverage_nodes", held((count, LONG)), probe=probe, stratum="all", state=state)
            for state, count in (("measured", measured), ("waiting", waiting), ("left_out", left_out))]


def _never() -> Suite:
    """Steps of half an hour: a day is 48, nine days 432."""
    day, long = 1440, 500
    idle = runs("nccl", "ok", held((0, long)))
    said = (fired(probe="nccl"),)
    return Suite("EfaPulseProbeNeverRan", [
        Case(Kind.FIRES, "configured for a day and never ran", [idle, *nodes("nccl", 0, 4, 0)], [Check(day - 60), Check(day + 60, said)]),
        Case(Kind.FIRES, "it ran once, long ago", [runs("nccl", "ok", held((0, 7), (1, 200)))], [Check(1200), Check(210 + day + 60, said)]),
        Case(Kind.FIRES, "a slow probe after nine days", [runs("uccl-ep", "ok", held((0, long)))],
             [Check(day + 60), Check(9 * day + 60, (fired(probe="uccl-ep"),))]),
        Case(Kind.NEAR_MISS, "one unknown run is a run", [runs("nccl", "unknown", held((0, 34), (1, 60))), idle], [Check(day + 60)]),
        Case(Kind.NEAR_MISS, "configured for less than a day", [runs("nccl", "ok", held(("_", 30), (0, 46)))],
            [Check(day + 60), Check(2220)]),
        Case(Kind.NEAR_MISS, "no node has room, and that will not pass", [idle, *nodes("nccl", 0, 0, 4)], [Check(day + 60)]),
        Case(Kind.NEAR_MISS, "paused", [idle, series("efapulse_paused", held((1, long)))], [Check(day + 60)]),
        Case(Kind.NEAR_MISS, "canaries have an alert of their own", [runs("canary", "ok", held((0, long)))], [Check(day + 60)]),
        Case(Kind.RESOLVES, "with its first run", [runs("nccl", "ok", held((0, 51), (1, 60)))], [Check(day + 60, said), Check(day + 120)]),
        Case(Kind.RESTART, "counters at 0 of a new replica are no run", [
            runs("nccl", "ok", held((0, 30), ("stale", 60))), runs("nccl", "ok", held(("_", 30), (0, 60)), "b")], [Check(day + 60, said)]),
        Case(Kind.MISSING, "no longer configured", [runs("nccl", "ok", held((0, 50), ("stale", 100)))], [Check(3 * day)]),
    ], every=30)


def _low() -> Suite:
    """Steps of half an hour."""
    day = 1440

    def ratio(values: str, replica: str = "a", probe: str = "nixl", stratum: str = "all") -> Series:
        return series("efapulse_coverage_ratio", values, replica, probe=probe, stratum=stratum)

    said = (fired("50%", probe="nixl", stratum="all"),)
    return Suite("EfaPulseCoverageLow", [
        Case(Kind.FIRES, "half of the nodes, a day after the start", [ratio(held((0.5, 60)))], [Check(day - 90), Check(day + 90, said)]),
        Case(Kind.FIRES, "it was good and is not any more", [ratio(held((1, 60), (0.5, 20)))], [Check(1770), Check(1890, said)]),
        Case(Kind.FIRES, "of a slow probe after nine days", [ratio(held((0.5, 500)), probe="uccl-ep")],
             [Check(day + 90), Check(9 * day + 90, (fired("50%", probe="uccl-ep", stratum="all"),))]),
        Case(Kind.NEAR_MISS, "nine of ten", [ratio(held((0.9, 60)))], [Check(day + 90)]),
        Case(Kind.NEAR_MISS, "single distances are best effort", [ratio(held((0.1, 60)), stratum="cross")], [Check(day + 90)]),
        Case(Kind.NEAR_MISS, "paused", [ratio(held((0.1, 60))), series("efapulse_paused", held((1, 60)))], [Check(day + 90)]),
        Case(Kind.RESOLVES, "when they are measured", [ratio(held((0.5, 53), (1, 30)))], [Check(day + 90, said), Check(day + 180)]),
        Case(Kind.RESTART, "another replica goes on where the first ended", [
            ratio(held((0.5, 30), ("stale", 60))), ratio(held(("_", 30), (0.5, 60)), "b"),
            series("efapulse_leader", held((1, 30), ("stale", 60))), series("efapulse_leader", held((0, 30), (1, 60)), "b")],
            [Check(day + 90, said)]),
        Case(Kind.MISSING, "no such probe", [], [Check(day + 90)]),
    ], every=30)


def _old() -> Suite:
    """Steps of an hour: two days are 48, fifteen 360. The figure is a time, and time begins at 0."""
    def oldest(values: str, replica: str = "a", probe: str = "nixl") -> Series:
        return series("efapulse_coverage_oldest_measurement_timestamp_seconds", values, replica, probe=probe, stratum="all")

    def said(text: str, probe: str = "nixl") -> tuple[Fired, ...]:
        return (fired(text, probe=probe, stratum="all"),)

    hour = 60
    return Suite("EfaPulseCoverageOld", [
        Case(Kind.FIRES, "one node was last measured more than two days ago", [oldest(held((0, 100)))],
             [Check(48 * hour), Check(50 * hour, said("2d 2h 0m 0s"))]),
        Case(Kind.FIRES, "a slow probe after fifteen days", [oldest(held((0, 500)), probe="uccl-ep")],
             [Check(60 * hour), Check(362 * hour, said("15d 2h 0m 0s", "uccl-ep"))]),
        Case(Kind.NEAR_MISS, "just two days", [oldest(held((7200, 60)))], [Check(50 * hour)]),
        Case(Kind.NEAR_MISS, "paused", [oldest(held((0, 100))), series("efapulse_paused", held((1, 100)))], [Check(60 * hour)]),
        Case(Kind.RESOLVES, "when it is measured", [oldest(held((0, 52), (180000, 40)))],
            [Check(50 * hour, said("2d 2h 0m 0s")), Check(54 * hour)]),
        Case(Kind.RESTART, "another replica knows it from the journal",
            [oldest(held((0, 40), ("stale", 60))), oldest(held(("_", 40), (0, 60)), "b")],
             [Check(50 * hour, said("2d 2h 0m 0s"))]),
        Case(Kind.MISSING, "nothing was ever measured: EfaPulseProbeNeverRan", [], [Check(60 * hour)]),
    ], every=60)


def _room() -> Suite:
    labels = {"probe": "nccl", "stratum": "all", "state": "left_out"}
    more = [series("efapulse_coverage_nodes", held((2, LONG)), probe="nccl", stratum="all", state=state) for state in ("measured",
        "waiting")]
    cases = follow("efapulse_coverage_nodes", "12", "0", labels=labels, said=fired("75%", probe="nccl", stratum="all"), wait=360,
                   more=more, near=[
        Case(Kind.NEAR_MISS, "fewer than half", nodes("nccl", 5, 0, 4), [Check(600)]),
        Case(Kind.NEAR_MISS, "waiting passes", nodes("nccl", 0, 9, 1), [Check(600)]),
        Case(Kind.ZERO, "no node at all", nodes("nccl", 0, 0, 0), [Check(600)])])
    return Suite("EfaPulseNoRoom", cases)


def _left() -> Suite:
    labels = {"why": "missed"}
    cases = count("efapulse_runs_left_out_total", labels=labels, said=fired(), over=60, wait=15, fast=0.5, slow=0.14)
    cases.append(Case(Kind.NEAR_MISS, "busy, overlapping and paused ones are as planned", [
        series("efapulse_runs_left_out_total", rising((0, 5, 200)), why=why) for why in ("busy", "overlap", "paused")], [Check(100)]))
    return Suite("EfaPulseRunsLeftOut", cases)


def _internal() -> Suite:
    scrape = series("efapulse_scrape_errors_total", held((0, 400)), part="process")
    cases = count("efapulse_publish_errors_total", labels={"event": "run_finished"}, said=fired(), over=60, wait=0, fast=0.05, slow=0,
                  others=[scrape])
    cases.append(Case(Kind.FIRES, "a part of the page once", [
        series("efapulse_publish_errors_total", held((0, 100)), event="gate"),
        series("efapulse_scrape_errors_total", held((0, 5), (1, 100)), part="process")], [Check(4), Check(6, (fired(),))]))
    return Suite("EfaPulseInternalErrors", cases)


def _archive() -> Suite:
    suite = plain("EfaPulseArchiveStuck", "efapulse_archive_trouble", "1", "0", 30, store="s3", near=[
        Case(Kind.NEAR_MISS, "results that wait are not lost", [series("efapulse_archive_pending_results", held((500, 200)))],
             [Check(100)])])
    dropped = Case(Kind.FIRES, "results were dropped", [series("efapulse_archive_dropped_results_total", held((0, 5), (3, 100)))],
                   [Check(4), Check(40, (fired(),)), Check(90)])
    return Suite(suite.alert, [*suite.cases, dropped])


def _config() -> Suite:
    suite = plain("EfaPulseConfigRejected", "efapulse_config_last_reload_successful", "0", "1", 5, near=[])
    web = Case(Kind.FIRES, "the files of TLS and passwords as well", [
        series("efapulse_config_last_reload_successful", held((1, 100))),
        series("efapulse_web_config_last_reload_successful", held((1, 10), (0, 90)))], [Check(14), Check(16, (fired(),))])
    return Suite(suite.alert, [*suite.cases, web])


def _trouble() -> Suite:
    suite = plain("EfaPulseClusterTrouble", "efapulse_cluster_trouble", "1", "0", 10, near=[
        Case(Kind.NEAR_MISS, "a standby's closed gate is none", [series("efapulse_gate_closed", held((1, 100)), gate="standby")],
             [Check(60)])])
    stale = Case(Kind.FIRES, "an inventory that is too old", [series("efapulse_gate_closed", held((0, 10), (1, 100)),
                                                                     gate="stale_inventory")],
                 [Check(19), Check(21, (fired(),))])
    return Suite(suite.alert, [*suite.cases, stale])


SUITES: tuple[Suite, ...] = (
    _absent(), _replica(), _stopped(), _no_leader(), _config(), _trouble(),
    plain("EfaPulsePaused", "efapulse_paused", "1", "0", 480, near=[
        Case(Kind.NEAR_MISS, "a quiet window is no pause", [series("efapulse_gate_closed", held((1, 600)), gate="quiet")], [Check(550)])]),
    _unknown("EfaPulseEverythingUnknown", 10), _unknown("EfaPulseProbeUnknown", 10), _never(), _low(), _old(), _room(), _left(),
    plain("EfaPulseSeriesDropped", "efapulse_series", "500", "0", 30, state="dropped", said=fired("500"), near=[
        Case(Kind.NEAR_MISS, "series that are shown", [series("efapulse_series", held((50000, 200)), state="shown")], [Check(100)])]),
    _internal(), _archive(),
    plain("EfaPulseConditionsHeldBack", "efapulse_node_conditions_breaker_open", "1", "0", 5, near=[
        Case(Kind.NEAR_MISS, "flagged nodes with a closed breaker", [series("efapulse_node_conditions_flagged", held((3, 100)))],
             [Check(60)])]),
)
