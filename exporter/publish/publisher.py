"""What the control loop tells the world: one method per kind of event, and `commit`, which makes it visible.

Only the control loop's thread calls it. `snapshot` may be read by any thread at any time. An event that cannot be rendered is counted and
logged, and costs no other event anything.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Concatenate, ParamSpec

from exporter import log
from exporter.judge.verdict import Verdict
from exporter.publish import families as f
from exporter.publish import families_pd, legal, pd, render
from exporter.publish.family import Family, Kind
from exporter.publish.instruments import Counters, Histograms
from exporter.publish.nodes import Nodes, Standing, figures, operation_of
from exporter.publish.pairs import Pairs
from exporter.publish.store import Snapshot, Store
from exporter.publish.surveyed import FLEET_GATES, Samples, Surveyed, Suspicions, coverage_samples
from probes.reasons import Outcome, Reason
from probes.result import Phase, Result, Stream

CANARY, PREFLIGHT = "canary", "node"
MEASURED = (Outcome.OK, Outcome.DEGRADED)
"""Outcomes whose figures count: a failed run may have measured anything, an unknown one nothing."""

P = ParamSpec("P")


def _event(method: Callable[Concatenate[Publisher, P], None]) -> Callable[Concatenate[Publisher, P], None]:
    """An event that fails is counted and logged; it never stops the control loop."""

    @functools.wraps(method)
    def guarded(self: Publisher, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever one event does must not cost the others
            self.failed(method.__name__, error)

    return guarded


class Publisher:
    """The metrics of the service.

    `node_interval` (seconds) and `best_of` say which pairs a node's figures are the best of; `node_series` is the most series a node may
    have, `max_series` the cap of the page. `cluster` starts the counters of reasons that only Kubernetes gives.
    """

    def __init__(self, version: str, *, max_series: int = 50_000, node_interval: float = 86_400.0, best_of: int = 3, node_series: int = 40,
                 cluster: bool = False) -> None:
        self._cluster = cluster
        self._counters = {x.name: Counters(x) for x in f.FAMILIES if x.kind is Kind.COUNTER and x not in f.LIVE}
        self._histograms = {x.name: Histograms(x) for x in f.FAMILIES if x.kind is Kind.HISTOGRAM}
        self._tables: tuple[Counters | Histograms, ...] = (*self._counters.values(), *self._histograms.values())
        self._gauges: dict[str, dict[tuple[str, ...], float]] = {}
        self._nodes = Nodes(interval=node_interval, best_of=best_of, series=node_series)
        self._pairs = Pairs(interval=node_interval)
        self._suspicions = Suspicions(node_interval)
        self._store = Store(f.FAMILIES, max_series, self._planned)
        self._counted: dict[str, int] = {}
        self._count(f.PUBLISH_ERRORS).start((name,) for name in EVENTS)
        self._count(f.SERIES_DROPPED).start((x.name,) for x in f.FAMILIES if x.drop)
        self._histogram(f.SCHEDULER_LAG).start([()])
        self._count(f.LEFT_OUT).start((why,) for why in LEFT_OUT)
        self._planned({}, frozenset())
        self._gauge(f.BUILD_INFO, (version, platform.python_version()), 1)
        self.paused(False)
        self.leading(not cluster)
        for name in FLEET_GATES:
            self.gate(name, False)
        if cluster:
            self._count(f.API_REQUESTS).start((method,) for method in API_METHODS)
        self.commit()

    @property
    def snapshot(self) -> Snapshot:
        """What is visible now."""
        return self._store.snapshot

    def commit(self) -> Snapshot:
        """Make everything told since the last call visible at once."""
        for table in self._tables:
            for owner, piece in table.rendered():
                self._store.put(table.family, owner, piece)
        for rendered in (self._nodes.rendered(), self._pairs.rendered()):
            for family, node, piece in rendered:
                self._store.put(family, node, piece)
        return self._store.commit()

    # runs

    @_event
    def declare_probe(self, probe: str) -> None:
        """Start the counters of a probe that is configured."""
        self._count(f.RUNS).start((probe, o.value, r.value) for o, r in legal.outcomes(probe, cluster=self._cluster))

    @_event
    def run_finished(self, verdict: Verdict, devices: Mapping[str, Mapping[str, float]] | None = None,
                     health: Mapping[str, bool | None] | None = None) -> None:
        """Take in a judged run of any probe. Figures of a failed or unknown run are not used.

        `devices` are bytes per EFA device by node name, as witnesses counted them in the run's window. `health` is what localisation makes
        of nodes after it, None: not told yet; without it each node answers for the run.
        """
        run = verdict.run
        probe = run.spec.probe
        self._count(f.RUNS).add((probe, verdict.outcome.value, verdict.reason.value))
        for phase, seconds in run.phases.items():
            self._histogram(f.RUN_PHASE).observe((probe, Phase(phase).value), max(0.0, seconds))
        if probe == CANARY:
            self._canary_finished(verdict)
        else:
            self._fleet(verdict)
            self._node_results(verdict, health or {})
            self._devices_used(verdict, devices or {})
            self._pair(verdict)

    def _fleet(self, verdict: Verdict) -> None:
        if verdict.outcome not in MEASURED:
            return
        probe = verdict.run.spec.probe
        for m in (m for result in verdict.run.results for m in result.measurements):
            if m.cold is not None:
                self._histogram(f.COLD_TRANSFER).observe((probe, m.memory), m.cold)
            for i, size in enumerate(m.bytes):
                where = (probe, operation_of(m), str(size), m.memory)
                rate = m.bandwidth[i]
                if rate is not None:
                    self._histogram(f.BANDWIDTH).observe((*where, m.kind), rate)
                for statistic in ("p50", "p99"):
                    seconds = m.latency[statistic][i] if statistic in m.latency else None
                    if seconds is not None:
                        self._histogram(f.TRANSFER).observe((*where, statistic), seconds)

    def _node_results(self, verdict: Verdict, health: Mapping[str, bool | None]) -> None:
        run = verdict.run
        transport = None if verdict.transport is None else verdict.transport.value
        shared = [figure for result in run.results for figure in figures(result.measurements)]
        measured = bool(shared) or any(result.findings for result in run.results)
        for node in sorted({result.node for result in run.results if not self._nodes.left(result.node)}):
            self._nodes.record(node, run.spec.probe, outcome=node_outcome(verdict, node), finished=run.finished, partner=run.spec.target,
                               figures=shared, transport=transport, measured=measured, healthy=health.get(node, ...))
            if verdict.outcome.conclusive:
                self._devices(node, run.results)
            if run.spec.transport == "efa" and transport in legal.FALLBACKS:
                self._count(f.FALLBACK).add((node, run.spec.probe, transport))
        for node, healthy in health.items():
            if healthy is not None and node not in run.spec.nodes:
                self._nodes.judged(node, run.spec.probe, healthy, run.finished)

    def _devices(self, node: str, results: Iterable[Result]) -> None:
        for result in results:
            if result.probe != PREFLIGHT or result.node != node or result.evidence is None:
                continue
            told = {"expected": result.shape.get("expected_devices"), "allocatable": result.shape.get("allocatable_devices"),
                    "seen": result.evidence.nics_seen}
            self._nodes.devices(node, {state: int(count) for state, count in told.items() if count is not None})

    def _devices_used(self, verdict: Verdict, counted: Mapping[str, Mapping[str, float]]) -> None:
        """Which devices a conclusive run used, and how the bytes were spread over them. A preflight uses none."""
        if not verdict.outcome.conclusive or verdict.run.spec.probe == PREFLIGHT:
            return
        probe, finished = verdict.run.spec.probe, verdict.run.finished
        for result in verdict.run.results:
            evidence = result.evidence
            had = evidence.devices if evidence is not None else []
            if evidence is not None:
                for kind, names in (("efa", had), ("gpu", evidence.gpus)):
                    if names:
                        self._nodes.used(result.node, probe, kind, names, finished)
            own = evidence.device_bytes if evidence is not None else []
            carried = dict(zip(had, map(float, own), strict=True)) if own and len(own) == len(had) else counted.get(result.node)
            if carried:
                self._nodes.carried(result.node, carried, had)

    def _pair(self, verdict: Verdict) -> None:
        run = verdict.run
        nodes = tuple(result.node for result in run.results)
        if len(nodes) == 2 and nodes[0] != nodes[1] and verdict.outcome.conclusive and not any(map(self._nodes.left, nodes)):
            shown = verdict.outcome in MEASURED
            rates = [figure for result in run.results for figure in figures(result.measurements)] if shown else []
            self._pairs.record(run.spec.probe, (nodes[0], nodes[1]), finished=run.finished, healthy=verdict.outcome is Outcome.OK,
                               figures=rates)

    # canaries

    @_event
    def declare_canary(self, target: str, route: str, prompt: str, *, pods: bool = False) -> None:
        """Start the counters of a canary that is configured; `pods`: its engine pods are looked at."""
        self._count(f.CANARY_REQUESTS).start((target, route, prompt, r.value) for r in legal.reasons(CANARY, cluster=self._cluster))
        self._count(f.CANARY_UNRESOLVED).start([(target,)])
        self._histogram(f.CANARY_LAG).start([(target,)])
        self._histogram(f.CANARY_CONNECT).start([(target, route)])
        for family in _STREAM_TIMES.values():
            self._histogram(family).start([(target, route, prompt, "kernel")])
        pd.declare(self._count, self._histogram, target, pods=pods)

    @_event
    def canary_removed(self, target: str) -> None:
        """Drop the series of a target that is no longer configured."""
        for table in self._tables:
            if table.family.owner_label == "target":
                table.forget(target)
        for key in [key for key in self._gauges.get(f.CANARY_SUCCESS_TIME.name, {}) if key[0] == target]:
            del self._gauges[f.CANARY_SUCCESS_TIME.name][key]
        self._store.put(f.CANARY_SUCCESS_TIME, target, None)

    @_event
    def pod_started(self, target: str, role: str, start: str, seconds: float) -> None:
        """An engine pod gave its first good answer `seconds` after its container started."""
        self._histogram(families_pd.PD_START).observe((target, role, start), seconds)

    def _canary_finished(self, verdict: Verdict) -> None:
        run = verdict.run
        if run.spec.labels.get("warmup"):
            self._count(families_pd.PD_WARMUP).add((run.spec.target, verdict.reason.value))
            return
        pd.record(self._count, self._histogram, verdict)
        prompt = run.spec.labels.get("prompt") or str(run.spec.spec.get("prompt", "short"))
        labels = (run.spec.target, run.spec.labels.get("route", "router"), prompt)
        self._count(f.CANARY_REQUESTS).add((*labels, verdict.reason.value))
        if verdict.outcome is Outcome.OK:
            self._gauge(f.CANARY_SUCCESS_TIME, labels, run.finished)
        for stream in (result.stream for result in run.results if result.stream is not None):
            self._stream(verdict, labels, stream)

    def _stream(self, verdict: Verdict, labels: tuple[str, str, str], stream: Stream) -> None:
        run_id, finished = verdict.run.spec.run_id, verdict.run.finished
        target, route, _ = labels
        self._count(f.CANARY_UNRESOLVED).add((target,), stream.unresolved_events)
        if stream.clock_lag is not None:
            self._histogram(f.CANARY_LAG).observe((target,), stream.clock_lag)
        if stream.connect is not None:
            self._histogram(f.CANARY_CONNECT).observe((target, route), stream.connect + (stream.tls or 0.0))
        if verdict.outcome is not Outcome.OK:
            return
        where = (*labels, stream.clock)
        for name, family in _STREAM_TIMES.items():
            value = getattr(stream, name)
            if name == "ttft" and stream.disturbed:
                continue
            for seconds in value if isinstance(value, list) else [value]:
                if seconds is not None:
                    self._histogram(family).observe(where, seconds, run_id, finished)

    # nodes

    @_event
    def node_seen(self, node: str, at: float, efa_probes: Iterable[str] = ()) -> None:
        """A node exists since `at` (Unix seconds). `efa_probes` are the probes that require EFA on it: their fallback counters start."""
        required = tuple(efa_probes)
        self._nodes.seen(node, at, required)
        self._count(f.FALLBACK).start((node, probe, transport) for probe in required for transport in legal.FALLBACKS)

    @_event
    def node_described(self, node: str, instance_id: str, instance_type: str | None, zone: str | None, placement_group: str | None) -> None:
        """What a node that was seen is, by the inventory."""
        self._nodes.describe(node, (instance_id, instance_type or "", zone or "", placement_group or ""))

    @_event
    def surveyed(self, told: Surveyed) -> None:
        """Take in what was seen of the fleet. What was not looked at this time stays."""
        for node, closed in told.gates.items():
            self._nodes.gates(node, closed)
        for name, closed_now in told.held.items():
            if self._gauges.get(f.GATE_CLOSED.name, {}).get((name,)) != float(closed_now):
                self._gauge(f.GATE_CLOSED, (name,), float(closed_now))
        for family, samples in coverage_samples(told.coverage) if told.coverage is not None else ():
            self._replace(family, samples)
        if told.findings is not None:
            self._replace(f.FINDINGS, {key: float(count) for key, count in told.findings.items()})
        if told.suspicion is not None:
            for node, suspicion in self._suspicions.update(told.suspicion, told.at).items():
                self._nodes.suspect(node, suspicion)
            self._pairs.suspects(told.suspicion, told.at)
        self._nodes.age(told.at)

    @_event
    def compared(self, standings: Mapping[str, Standing]) -> None:
        """How nodes stand to their baselines, peers and hardware now."""
        for node, standing in standings.items():
            self._nodes.compared(node, standing)

    @_event
    def cluster_followed(self, trouble: str, complete_at: float | None, requests: Mapping[str, int]) -> None:
        """How the API server is followed: what is wrong (empty: nothing), when everything was last known to be seen (Unix seconds), and
        how many requests were sent so far by method."""
        self._gauge(f.CLUSTER_TROUBLE, (), float(bool(trouble)))
        if complete_at is not None:
            self._gauge(f.INVENTORY_TIME, (), complete_at)
        for method, total in requests.items():
            self._count(f.API_REQUESTS).raise_to((method,), total)

    @_event
    def node_removed(self, node: str) -> None:
        """A node left: its series go with the next commit."""
        self._nodes.remove(node)
        self._pairs.remove(node)
        self._suspicions.forget(node)
        self._count(f.FALLBACK).forget(node)

    # the service itself

    @_event
    def scheduler_tick(self, at: float, skipped: Iterable[tuple[tuple[str, str], int]] = ()) -> None:
        """The scheduler looked for due runs at `at`; `skipped` are its totals of ticks not sent, by job and why."""
        self._gauge(f.SCHEDULER_TICK, (), at)
        totals: dict[str, int] = {}
        for (_, why), count in skipped:
            totals[why] = totals.get(why, 0) + count
        for why, total in totals.items():
            self._count(f.LEFT_OUT).raise_to((why,), total)

    @_event
    def runs_left_out(self, why: str, count: int = 1) -> None:
        """Due runs were left out: `busy` (the last one still goes on) or `missed` (the service was held up)."""
        self._count(f.LEFT_OUT).add((why,), count)

    @_event
    def run_started(self, lag: float) -> None:
        """A due run was started `lag` seconds after its time."""
        self._histogram(f.SCHEDULER_LAG).observe((), max(0.0, lag))

    @_event
    def config_loaded(self, ok: bool, at: float) -> None:
        """The configuration was read; `ok` False means the one before stays in use."""
        self._gauge(f.CONFIG_RELOAD_OK, (), float(ok))
        if ok:
            self._gauge(f.CONFIG_RELOAD_TIME, (), at)

    @_event
    def gate(self, name: str, closed: bool) -> None:
        """A gate that holds back every probe opened or closed."""
        self._gauge(f.GATE_CLOSED, (name,), float(closed))

    @_event
    def leading(self, leading: bool) -> None:
        """This replica plans and launches, or does not."""
        self._gauge(f.LEADER, (), float(leading))

    @_event
    def recalled(self, verdict: Verdict, node: str) -> None:
        """Show of `node` what a run of before this process left, with its own time. It counts nowhere, and blames nobody: only a run that
        was ok tells that the node was healthy."""
        run = verdict.run
        found = [figure for result in run.results for figure in figures(result.measurements)]
        self._nodes.record(node, run.spec.probe, outcome=node_outcome(verdict, node), finished=run.finished, partner=run.spec.target,
                           figures=found, transport=None if verdict.transport is None else verdict.transport.value,
                           measured=bool(found) or any(result.findings for result in run.results),
                           healthy=True if verdict.outcome is Outcome.OK else None)

    @_event
    def reported(self, readings: Iterable[tuple[Family, Samples]]) -> None:
        """Take in what another part counts itself: the whole of each gauge's samples, and the totals of counters by label values."""
        for family, samples in readings:
            if family.kind is Kind.COUNTER:
                for values, total in samples.items():
                    self._count(family).raise_to(values, total)
            else:
                self._replace(family, samples)

    def kept(self, node: str, probe: str) -> dict[str, Any] | None:
        """What is published of a probe on a node, as JSON for the journal. None when nothing is."""
        return self._nodes.kept(node, probe)

    @_event
    def restore(self, node: str, probe: str, values: dict[str, Any]) -> None:
        """Publish what `kept` once gave, with its own times. What this process has measured since stays."""
        self._nodes.restore(node, probe, values)

    @_event
    def paused(self, paused: bool) -> None:
        """An operator paused or resumed all probes."""
        self._gauge(f.PAUSED, (), float(paused))

    def failed(self, event: str, error: Exception) -> None:
        """Count and log an event that could not be published. For parts that are made at the scrape, see `exporter.publish.live`."""
        self._count(f.PUBLISH_ERRORS).add((event,))
        log.get().error("an event could not be published", publish_event=event, error=f"{type(error).__name__}: {error}", exc_info=error)

    def _count(self, family: Family) -> Counters:
        return self._counters[family.name]

    def _histogram(self, family: Family) -> Histograms:
        return self._histograms[family.name]

    def _gauge(self, family: Family, labels: tuple[str, ...], value: float) -> None:
        values = self._gauges.setdefault(family.name, {})
        values[labels] = value
        label = family.owner_label
        at = None if label is None else family.labels.index(label)
        owner = "" if at is None else labels[at]
        mine = sorted((key, v) for key, v in values.items() if at is None or key[at] == owner)
        self._store.put(family, owner, render.gauges(family, mine))

    def _replace(self, family: Family, samples: Samples) -> None:
        """Make these the only samples of a family."""
        label = family.owner_label
        at = None if label is None else family.labels.index(label)
        before = self._gauges.get(family.name, {})
        if before == samples:
            return
        owners = {"" if at is None else key[at] for key in (*before, *samples)}
        self._gauges[family.name] = dict(samples)
        for owner in sorted(owners):
            mine = sorted((key, value) for key, value in samples.items() if at is None or key[at] == owner)
            self._store.put(family, owner, render.gauges(family, mine) if mine else None)

    def _planned(self, series: dict[str, int], dropped: frozenset[str]) -> None:
        for name in self._counted.keys() - dropped:
            del self._counted[name]
        for name in dropped:
            gone = series[name] - self._counted.get(name, 0)
            self._count(f.SERIES_DROPPED).add((name,), max(0, gone))
            self._counted[name] = series[name]
        for owner, piece in self._count(f.SERIES_DROPPED).rendered():
            self._store.put(f.SERIES_DROPPED, owner, piece)
        out = sum(series[name] for name in dropped)
        shown = sum(series.values()) - out
        self._store.put(f.SERIES, "", render.gauges(f.SERIES, [(("dropped",), out), (("shown",), shown)]))


LEFT_OUT = ("busy", "missed", "overlap", "paused", "queue_full", "error", "shed")
"""Why a due run is left out; the last four are counted by the scheduler."""

API_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
"""Methods of requests to the API server, each counted from 0."""

EVENTS = ("declare_probe", "run_finished", "declare_canary", "canary_removed", "node_seen", "node_removed", "scheduler_tick",
          "run_started", "runs_left_out", "config_loaded", "gate", "leading", "restore", "paused",
          "node_described", "surveyed", "cluster_followed", "reported", "recalled", "compared", "pod_started")
"""The events of `Publisher`."""

_STREAM_TIMES = {
    "ttft": f.CANARY_TTFT, "tpot": f.CANARY_TPOT, "itl": f.CANARY_ITL, "max_gap": f.CANARY_GAP, "stream_close": f.CANARY_CLOSE,
    "e2e": f.CANARY_E2E, "output_tokens_per_second": f.CANARY_SPEED,
}
"""Fields of a stream and the histogram each goes to."""


def node_outcome(verdict: Verdict, node: str) -> Outcome:
    """What a run says of one of its nodes: its verdict, unless the fault is that of another rank alone. Then it says nothing: unknown."""
    own = [result.reason for result in verdict.run.results if result.node == node]
    if verdict.reason in legal.LOCAL and verdict.reason not in own and _reported(verdict.run.results, verdict.reason):
        return Outcome.UNKNOWN
    return verdict.outcome


def _reported(results: Iterable[Result], reason: Reason) -> bool:
    return any(result.reason is reason for result in results)
