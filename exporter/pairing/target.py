"""One canary target with its engine pods: what was found, who is visited, what the answers taught. Only the control loop's thread calls it;
`found` is swapped whole by the thread that looks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from exporter.config.canary import CanaryTarget
from exporter.config.jobs import Job
from exporter.config.pd import PdServing
from exporter.config.quiet import holding
from exporter.config.schedule import When
from exporter.discovery.findings import Finding
from exporter.discovery.model import EnginePod, Found
from exporter.discovery.visits import Pair, Topology, Visits
from exporter.judge.transport import Transport
from exporter.judge.verdict import Verdict
from exporter.pairing import requests
from exporter.pairing.pods import PodBook, Start
from exporter.pairing.ratios import Ratios, Sample
from probes.canary.pd.learn import learn
from probes.canary.pd.params import Learned
from probes.reasons import Outcome
from probes.result import Pd, Stream

SAMPLES_KEPT = 64
CANARY = "canary"


@dataclass
class PdTarget:
    """See the module. `here` is the node that canaries are sent from."""

    target: CanaryTarget
    serving: PdServing
    here: str
    when: When
    topology: Topology
    since: float
    found: Found = field(default_factory=lambda: Found(seen=False))
    findings: list[Finding] = field(default_factory=list)
    transports: list[str] = field(default_factory=list)
    learned: Learned | None = None
    visits: Visits = field(init=False)
    pods: PodBook = field(init=False)
    ratios: Ratios = field(init=False)
    flying: dict[str, Pair] = field(default_factory=dict)
    _samples: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=SAMPLES_KEPT))
    _turn: int = 0

    def __post_init__(self) -> None:
        self.visits = Visits(self.serving.pod_interval)
        self.pods = PodBook(self.since)
        longest = max((prompt.schedule.interval or 600.0) for _, prompt in self.target.prompts.items())
        self.ratios = Ratios(self.serving.baseline.samples if self.serving.baseline is not None else 10, within=2 * longest)

    def due(self, now: float) -> Job | None:
        """The visit that is due, at most one at a time."""
        pods = self.found.pods
        self.visits.see(pods, now)
        self.pods.see(pods)
        if not self.serving.pairs or self.target.stack not in requests.PAIR_STACKS or not self.target.enabled or self.flying:
            return None
        if holding(self.when.quiet, datetime.fromtimestamp(now, timezone.utc)) is not None:
            return None
        pair = self.visits.due(pods, now, zone=lambda pod: self.topology(pod.node)[0])
        if pair is None:
            return None
        self.visits.begin(pair, now)
        warm = any(self.pods.warming(pod, now, self.serving.startup_grace) for pod in (pair.prefill, pair.decode))
        labels = {"route": "pair", "prefill": pair.prefill.name, "decode": pair.decode.name,
                  **({"first_contact": "true"} if pair.first_contact else {}), **({"warmup": "true"} if warm else {})}
        name = self.target.name
        job = Job(id=f"{CANARY}/{name}/pair/{pair.prefill.name}/{pair.decode.name}", probe=CANARY, target=name, nodes=(self.here,),
                  transport="any", deadline=self.target.deadline(self.serving.prompt, "pair"),
                  spec=requests.pair_params(self.target, self.serving, pair, self.topology, self.learned), when=self.when,
                  lanes=(f"{CANARY}/{name}", *(f"engine/{life}" for life in pair.lives)), key=self.target.key, labels=labels)
        self.flying[job.id] = pair
        return job

    def more(self, job: Job) -> dict[str, Any]:
        """What a scheduled request is told of the pods. Raises RuntimeError when it needs one and none is ready."""
        route = job.labels.get("route")
        if route == "router" and self.found.seen:
            return {"pd": requests.router_params(self.serving, self.found, self.topology, self.learned)}
        if route == "baseline" and self.serving.baseline is not None and self.serving.baseline.decode:
            ready = [pod for pod in self.found.pods if pod.decodes and pod.ready and pod.url]
            if not ready:
                raise RuntimeError(f"no decode pod of {self.target.name} is ready for the baseline")
            self._turn += 1
            return requests.baseline_params(self.target, self.serving, ready[self._turn % len(ready)], self.topology)
        return {}

    def finished(self, verdict: Verdict, job_id: str | None) -> list[Start]:
        """Take in a judged request of this target. Returns the starts of pods that this was the first good answer of."""
        run = verdict.run
        result = run.results[0]
        pd, stream, now = result.pd, result.stream, run.finished
        route = run.spec.labels.get("route", "router")
        ok = verdict.outcome is Outcome.OK
        pair = self.flying.pop(job_id, None) if job_id is not None else None
        if pair is not None:
            self.visits.end(pair.lives, now, met=stream is not None and stream.token_events > 0)
        if ok and stream is not None and not stream.disturbed and route != "pair":
            figures = {"ttft": stream.ttft, "tpot": stream.tpot, "output_tokens_per_second": stream.output_tokens_per_second}
            self.ratios.add(run.spec.labels.get("prompt", "short"), Sample(now, figures), baseline=route == "baseline")
        if pd is None:
            return []
        if route != "baseline":
            self.pods.record(pd, stream, now, ok=ok)
            self._learn(pd, stream)
        if verdict.transport not in (None, Transport.INDETERMINATE):
            self._transport(str(verdict.transport.value if verdict.transport else ""))
        return [start for pod in self._through(pd, pair) if ok and (start := self.pods.good(pod, now)) is not None]

    def forget(self, job_id: str) -> None:
        """A visit was left out before it began."""
        pair = self.flying.pop(job_id, None)
        if pair is not None:
            self.visits.left_out(pair)

    def _through(self, pd: Pd, pair: Pair | None) -> list[EnginePod]:
        if pair is not None:
            return [pair.prefill, pair.decode]
        names = {pod.pod for pod in (pd.prefill, pd.decode) if pod is not None}
        return [pod for pod in self.found.pods if pod.name in names] if pd.route == "router" else []

    def _learn(self, pd: Pd, stream: Stream | None) -> None:
        tokens = stream.prompt_tokens if stream is not None else None
        if pd.disaggregation != "yes" or pd.kv_bytes is None or tokens is None or not pd.kv_bytes:
            return
        self._samples.append((tokens, pd.kv_bytes))
        self.learned = learn(self._samples, pd.block_tokens) or self.learned

    def _transport(self, transport: str) -> None:
        """The present one first, the one before after it."""
        self.transports = [transport, *(one for one in self.transports if one != transport)][:2]
