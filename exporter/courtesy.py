"""Canaries make way: a target that turned one away is left alone for a while, longer each time. Pure; the clock is passed in."""

from __future__ import annotations

from dataclasses import dataclass, field

from exporter.config.canary import Courtesy
from exporter.judge.verdict import Verdict
from probes.reasons import Reason

CANARY = "canary"


@dataclass
class Manners:
    """Which targets are left alone until when (Unix seconds)."""

    settings: Courtesy = field(default_factory=Courtesy)
    _until: dict[str, float] = field(default_factory=dict)
    _refused: dict[str, int] = field(default_factory=dict)

    def heard(self, verdict: Verdict, now: float) -> None:
        """A run has ended. A canary that was shed begins or prolongs a pause; any other answer of the target ends it."""
        run = verdict.run
        if run.spec.probe != CANARY:
            return
        target = run.spec.target
        if verdict.reason is not Reason.SHED:
            if any(result.stream is not None and result.stream.http_status is not None for result in run.results):
                self._refused.pop(target, None)
                self._until.pop(target, None)
            return
        times = self._refused.get(target, 0)
        self._refused[target] = times + 1
        asked = max((result.stream.retry_after or 0.0 for result in run.results if result.stream is not None), default=0.0)
        pause = min(self.settings.backoff * 2.0 ** min(times, 30), self.settings.longest)
        self._until[target] = now + max(pause, asked)

    def waits(self, target: str, now: float) -> float:
        """Seconds for which the target is still left alone; 0 when it is not."""
        return max(0.0, self._until.get(target, 0.0) - now)

    def keep(self, targets: set[str]) -> None:
        """Forget targets that are no longer configured."""
        for table in (self._until, self._refused):
            for target in [target for target in table if target not in targets]:
                del table[target]
