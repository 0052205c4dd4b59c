"""What is known of each engine pod of a target by the canaries that went through it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from exporter.discovery.model import EnginePod
from probes.result import Pd, PdPod, Stream

MOST_PODS = 1000
"""Pods of a target that have series of their own."""


@dataclass
class PodFigures:
    """The last good figures through a pod: seconds, and its state beside the last sample. `success` is Unix seconds."""

    success: float | None = None
    ttft: float | None = None
    tpot: float | None = None
    kv_transfer: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_fill: float | None = None


@dataclass(frozen=True)
class Start:
    """A pod gave its first good answer `seconds` after its container started; `cold` is the first container of the pod."""

    role: str
    cold: bool
    seconds: float


@dataclass
class PodBook:
    """Figures by pod, of the pods that are there. `since` is when this service began to look: starts before it were not watched."""

    since: float
    figures: dict[tuple[str, str], PodFigures] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    otherwise: set[str] = field(default_factory=set)
    """Pods whose engine says of itself that it has another role."""
    _good: set[str] = field(default_factory=set)

    def see(self, pods: Sequence[EnginePod]) -> None:
        """These pods are there; of others nothing is kept."""
        lives, names = {pod.life for pod in pods}, {pod.name for pod in pods}
        self._good &= lives
        self.silent &= names
        self.otherwise &= names
        self.figures = {key: value for key, value in self.figures.items() if key[1] in names}

    def warming(self, pod: EnginePod, now: float, grace: float) -> bool:
        """Whether a failure through this pod is still warm-up: no good answer yet, and its container is younger than `grace`."""
        return pod.life not in self._good and pod.started is not None and now - pod.started < grace

    def good(self, pod: EnginePod, now: float) -> Start | None:
        """A good answer came through it. Returns its start when this is the first one and the start was watched."""
        if pod.life in self._good:
            return None
        self._good.add(pod.life)
        if pod.started is None or pod.started < self.since or now < pod.started:
            return None
        return Start("decode" if pod.role == "decode" else "prefill", pod.restarts == 0, now - pod.started)

    def record(self, pd: Pd, stream: Stream | None, now: float, *, ok: bool) -> None:
        """Take in one canary and the pods it went through."""
        for role, pod in (("prefill", pd.prefill), ("decode", pd.decode)):
            if pod is None:
                continue
            (self.silent.add if pod.missing else self.silent.discard)(pod.pod)
            if pod.engine_role is not None:
                other = pod.role in ("prefill", "decode") and pod.engine_role not in (pod.role, "dynamic")
                (self.otherwise.add if other else self.otherwise.discard)(pod.pod)
            if (role, pod.pod) not in self.figures and len(self.figures) >= 2 * MOST_PODS:
                continue
            known = self.figures.setdefault((role, pod.pod), PodFigures())
            self._state(known, pod)
            if ok and stream is not None:
                known.success = now
                known.ttft, known.tpot = (None if stream.disturbed else stream.ttft), stream.tpot
                if pd.kv_transfer is not None:
                    known.kv_transfer = pd.kv_transfer

    @staticmethod
    def _state(known: PodFigures, pod: PdPod) -> None:
        known.running, known.waiting, known.kv_fill = pod.running, pod.waiting, pod.kv_usage

    def samples(self, target: str, field_name: str) -> Iterator[tuple[tuple[str, str, str], float]]:
        """One figure of every pod that has it, with its labels."""
        for (role, name), known in self.figures.items():
            value = getattr(known, field_name)
            if value is not None:
                yield (target, role, name), value
