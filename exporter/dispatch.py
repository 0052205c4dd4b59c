"""Which due jobs start now: no two runs share a lane, probes and canaries have a cap each, the longest waiting goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from exporter.config.jobs import Job


@dataclass(frozen=True)
class Caps:
    """Most runs at the same time."""

    probes: int
    canaries: int


@dataclass
class Dispatcher:
    """Due jobs wait here until their lanes and a place under the cap are free. A job that waits or runs is never queued twice."""

    caps: Caps
    _waiting: OrderedDict[str, Job] = field(default_factory=OrderedDict)
    _running: dict[str, Job] = field(default_factory=dict)

    def due(self, job: Job) -> bool:
        """Queue a job. False when it waits or runs already: the tick is then left out, not made up for."""
        if job.id in self._waiting or any(running.id == job.id for running in self._running.values()):
            return False
        self._waiting[job.id] = job
        return True

    def ready(self) -> list[Job]:
        """The jobs that may start now, longest waiting first. They stay queued until `started` is called."""
        taken = {lane for job in self._running.values() for lane in job.lanes}
        room = {kind: cap - sum(self._kind(job) == kind for job in self._running.values())
                for kind, cap in (("probe", self.caps.probes), ("canary", self.caps.canaries))}
        found: list[Job] = []
        for job in self._waiting.values():
            kind = self._kind(job)
            if room[kind] > 0 and not taken.intersection(job.lanes):
                found.append(job)
                taken.update(job.lanes)
                room[kind] -= 1
        return found

    def started(self, job: Job, run_id: str) -> None:
        """A run of this job goes on under `run_id`."""
        self._waiting.pop(job.id, None)
        self._running[run_id] = job

    def finished(self, run_id: str) -> Job | None:
        """The run has ended; its lanes are free. Returns its job, None when the run is not known."""
        return self._running.pop(run_id, None)

    def keep(self, job_ids: Iterable[str]) -> None:
        """Forget waiting jobs that are not among `job_ids`, after a reload. Running ones go on."""
        kept = set(job_ids)
        for job_id in [job_id for job_id in self._waiting if job_id not in kept]:
            del self._waiting[job_id]

    @property
    def waiting(self) -> list[str]:
        """Ids of jobs that are due and wait."""
        return list(self._waiting)

    @property
    def running(self) -> dict[str, Job]:
        """Run id to job of what goes on."""
        return dict(self._running)

    @staticmethod
    def _kind(job: Job) -> str:
        return "canary" if job.probe == "canary" else "probe"
