"""All canary targets with engine pods: a thread looks for the pods, the control loop asks what is due and tells what came of it.

    source ─> look (own thread) ─> found ─> due ─> [control loop: run, judge] ─> finished ─> readings
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from exporter import log
from exporter.config import Config, Job
from exporter.config.kubernetes import Kubernetes
from exporter.config.pd import PdServing
from exporter.discovery.findings import KINDS, Finding, findings
from exporter.discovery.kubernetes import KubernetesPods
from exporter.discovery.model import Found
from exporter.discovery.ray import RayPods
from exporter.discovery.static import static_pods
from exporter.inventory.model import Node
from exporter.judge.verdict import Verdict
from exporter.kube.api import Api
from exporter.pairing.pods import Start
from exporter.pairing.target import CANARY, PdTarget
from exporter.publish import families_pd as f
from exporter.publish.family import Family
from exporter.publish.surveyed import Samples

LOOK_SECONDS = 3.0
NO_CLUSTER = Found((), "there is no cluster to look in: set inventory.mode", seen=False)
JOIN_SECONDS = 5.0

NodeOf = Callable[[str], Node | None]
"""The node of a name, None when it is not known."""


class Source(Protocol):
    """Where the engine pods of a target are found."""

    def found(self) -> Found:
        """What there is now."""

    def close(self) -> None:
        """Follow nothing any more."""


class _Static:
    def __init__(self, serving: PdServing) -> None:
        self._found = static_pods(serving)

    def found(self) -> Found:
        return self._found

    def close(self) -> None:
        pass


def make_source(serving: PdServing, api: Api | None, kube: Kubernetes) -> Source | None:
    """The source that `serving` names; None when it needs a cluster and there is none."""
    if serving.source.static:
        return _Static(serving)
    if serving.source.ray is not None:
        return RayPods(serving, api)
    return KubernetesPods(api, serving, kube) if api is not None else None


class Pairing:
    """See the module. `look` runs in a thread of its own after `start`; everything else is called in the control loop's thread."""

    def __init__(self, *, api: Api | None = None, node_of: NodeOf = lambda _: None, clock: Callable[[], float] = time.time,
                 sources: Callable[[PdServing, Api | None, Kubernetes], Source | None] = make_source) -> None:
        self._api, self._node_of, self._clock, self._make = api, node_of, clock, sources
        self._since = clock()
        self._targets: dict[str, PdTarget] = {}
        self._sources: dict[str, tuple[PdServing, Source | None]] = {}
        self._jobs: dict[str, str] = {}
        self._said: dict[str, frozenset[str]] = {}
        self._lock = threading.Lock()
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="discovery", daemon=True)
        self._log = log.get()

    # the thread that looks

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Look no more. Every source is closed."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS)
        with self._lock:
            sources, self._sources = self._sources, {}
        for _, source in sources.values():
            if source is not None:
                source.close()

    def look(self) -> None:
        """Ask every source once."""
        with self._lock:
            asked = dict(self._sources)
        for name, (serving, source) in asked.items():
            try:
                found = source.found() if source is not None else NO_CLUSTER
                said = findings(found, self._topology, self._has_efa)
            except Exception as error:  # noqa: BLE001 - one source that fails must not blind the others
                found, said = Found((), f"{type(error).__name__}: {error}", seen=False), []
            with self._lock:
                target = self._targets.get(name)
                if target is not None and target.serving == serving:
                    target.found, target.findings = found, said
            self._tell(name, found, said)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.look()
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()

    def _tell(self, name: str, found: Found, said: list[Finding]) -> None:
        """Log what is new."""
        now = frozenset([*(one.text for one in said), *([found.trouble] if found.trouble else [])])
        before = self._said.get(name, frozenset())
        self._said[name] = now
        for text in sorted(now - before):
            self._log.warning("prefill and decode: configuration", target=name, says=text)
        for text in sorted(before - now):
            self._log.info("prefill and decode: no longer so", target=name, says=text)

    # the control loop

    def configure(self, config: Config) -> list[tuple[str, str, str]]:
        """Make these targets the ones that are looked after. What is known of a target whose pods are found alike stays. Returns target,
        route and prompt of the canaries that come from here."""
        targets: dict[str, PdTarget] = {}
        for target in config.canary.targets:
            serving = target.pd
            if serving is None or not target.enabled:
                continue
            when = dict(target.prompts.items())[serving.prompt].schedule.when(config.schedule)
            known = self._targets.get(target.name)
            if known is not None and known.serving == serving:
                known.target, known.when, known.here = target, when, config.here
                targets[target.name] = known
            else:
                targets[target.name] = PdTarget(target, serving, config.here, when, self._topology, self._since)
        old: list[Source] = []
        with self._lock:
            for name, (serving, source) in list(self._sources.items()):
                if name not in targets or targets[name].serving != serving:
                    del self._sources[name]
                    old += [source] if source is not None else []
            for name, one in targets.items():
                if name not in self._sources:
                    self._sources[name] = (one.serving, self._make(one.serving, self._api, config.kubernetes))
            self._targets = targets
        for source in old:
            source.close()
        self._wake.set()
        return [(name, "pair", one.serving.prompt) for name, one in targets.items() if one.serving.pairs]

    def due(self, now: float) -> list[Job]:
        """Visits that are due now."""
        jobs = [job for target in self._targets.values() if (job := target.due(now)) is not None]
        self._jobs.update({job.id: job.target for job in jobs})
        return jobs

    @property
    def visits(self) -> list[str]:
        """Ids of the visits that wait or go on, of targets that are still wanted."""
        return [job_id for job_id, name in self._jobs.items() if name in self._targets]

    def left_out(self, job: Job) -> None:
        """The visit was not taken: it comes again."""
        self._jobs.pop(job.id, None)
        target = self._targets.get(job.target)
        if target is not None:
            target.forget(job.id)

    def knows(self, job: Job) -> bool:
        """Whether this job comes from here and its target is still wanted."""
        return job.id in self._jobs and job.target in self._targets

    def prepare(self, job: Job, spec: Mapping[str, Any]) -> dict[str, Any]:
        """The spec of a canary run with what it needs to know of the pods. Raises RuntimeError when it cannot be sent now."""
        target = self._targets.get(job.target)
        merged = {**spec, **(target.more(job) if target is not None and job.probe == CANARY else {})}
        return {name: value for name, value in merged.items() if value is not None}

    def finished(self, verdict: Verdict, job: Job | None) -> list[Start]:
        """Take in a judged canary."""
        if job is not None:
            self._jobs.pop(job.id, None)
        target = self._targets.get(verdict.run.spec.target)
        return target.finished(verdict, job.id if job is not None else None) if target is not None else []

    def readings(self) -> Iterable[tuple[Family, Samples]]:
        """The gauges of all targets, each family whole."""
        now = self._clock()
        out: dict[str, tuple[Family, Samples]] = {family.name: (family, {}) for family in _GAUGES}
        for name, target in self._targets.items():
            for family, labels, value in _gauges(name, target, now):
                out[family.name][1][labels] = value
        return list(out.values())

    def _topology(self, node: str | None) -> tuple[str | None, str | None, str | None]:
        found = self._node_of(node) if node is not None else None
        return (found.zone, found.instance_type, found.placement_group) if found is not None else (None, None, None)

    def _has_efa(self, node: str | None) -> bool | None:
        found = self._node_of(node) if node is not None else None
        if found is None or (found.efa is None and found.efa_expected is None):
            return None
        return bool((found.efa.allocatable if found.efa is not None else 0) or found.efa_expected)


_POD_FIELDS = {f.PD_POD_SUCCESS: "success", f.PD_POD_TTFT: "ttft", f.PD_POD_TPOT: "tpot", f.PD_POD_KV_TRANSFER: "kv_transfer",
               f.PD_POD_RUNNING: "running", f.PD_POD_WAITING: "waiting", f.PD_POD_KV_FILL: "kv_fill"}
_GAUGES = (f.PD_TRANSPORT, f.PD_KV_PER_TOKEN, f.PD_RATIO, f.PD_PODS, f.PD_POD_COVERAGE, f.PD_PAIR_COVERAGE, f.PD_FINDINGS, *_POD_FIELDS)


def _gauges(name: str, target: PdTarget, now: float) -> Iterable[tuple[Family, tuple[str, ...], float]]:
    """Every gauge of one target."""
    pods = target.found.pods
    for index, transport in enumerate(target.transports):
        yield f.PD_TRANSPORT, (name, transport), float(index == 0)
    if target.learned is not None:
        yield f.PD_KV_PER_TOKEN, (name,), target.learned.slope
    for measure, ratio in target.ratios.best().items():
        yield f.PD_RATIO, (name, measure), ratio
    if target.found.seen:
        for role, side in (("prefill", target.found.of("prefill")), ("decode", target.found.of("decode"))):
            yield f.PD_PODS, (name, role), float(len(side))
            covered = target.visits.pod_coverage(side, now) if target.serving.pairs else None
            if covered is not None:
                yield f.PD_POD_COVERAGE, (name, role), covered
        pairs = target.visits.pair_coverage(pods) if target.serving.pairs else None
        if pairs is not None:
            yield f.PD_PAIR_COVERAGE, (name,), pairs
        counts = dict.fromkeys(KINDS, 0)
        for one in target.findings:
            counts[one.kind] += 1
        counts["metrics_missing"] += len(target.pods.silent)
        counts["role_mismatch"] += len(target.pods.otherwise)
        for kind, count in counts.items():
            yield f.PD_FINDINGS, (name, kind), float(count)
    for family, field_name in _POD_FIELDS.items():
        for labels, value in target.pods.samples(name, field_name):
            yield family, labels, value

