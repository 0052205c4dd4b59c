"""The launchers of a cluster as one: Indexed Jobs, and MPIJobs for nccl-tests over several nodes where the cluster knows them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from exporter.config.kubernetes import Kubernetes
from exporter.kube.api import Api, ApiError
from exporter.launch import OnFinished
from exporter.launch.kubernetes import KubernetesLauncher
from exporter.launch.mpijob import MpiRequests, available, needs_mpi
from exporter.runs import Run, RunSpec, missing_result
from probes.reasons import Reason


class ClusterLauncher:
    """See `KubernetesLauncher`, whose arguments and methods it has. The second launcher begins with the first run that needs it."""

    def __init__(self, api: Api, config: Kubernetes, on_finished: OnFinished, **more: Any) -> None:
        self._api, self._config, self._on_finished, self._more = api, config, on_finished, more
        self._jobs = KubernetesLauncher(api, config, on_finished, **more)
        self._mpi: KubernetesLauncher | None = None
        self._known: Callable[[str], bool] | None = None
        self._lock = threading.Lock()

    def start(self, spec: RunSpec) -> None:
        """See `Launcher.start`."""
        if not needs_mpi(spec):
            self._jobs.start(spec)
            return
        mpi, why = self._of_mpi()
        if mpi is not None:
            mpi.start(spec)
            return
        now = time.time()
        self._on_finished(Run(spec, tuple(missing_result(spec, rank, Reason.LAUNCH_FAILED, why, now, now)
                                          for rank in range(spec.world_size)), now, now))

    def cancel(self, run_id: str) -> None:
        """See `Launcher.cancel`."""
        for launcher in self._all():
            launcher.cancel(run_id)

    def release(self, run_id: str) -> None:
        """See `KubernetesLauncher.release`."""
        for launcher in self._all():
            launcher.release(run_id)

    def adopt(self, known: Callable[[str], bool]) -> None:
        """See `KubernetesLauncher.adopt`. MPIJobs are looked for too, where the cluster knows them."""
        self._known = known
        self._of_mpi()
        for launcher in self._all():
            launcher.adopt(known)

    def stand_down(self) -> None:
        """See `KubernetesLauncher.stand_down`."""
        self._known = None
        for launcher in self._all():
            launcher.stand_down()

    def running(self) -> list[str]:
        """See `Launcher.running`."""
        return sorted(run_id for launcher in self._all() for run_id in launcher.running())

    @property
    def jobs(self) -> int:
        """Jobs that exist or may exist, of both kinds."""
        return sum(launcher.jobs for launcher in self._all())

    @property
    def trouble(self) -> str:
        """Why the cluster cannot be followed now; empty when it can."""
        return next((launcher.trouble for launcher in self._all() if launcher.trouble), "")

    def wait(self, seconds: float = 60.0) -> bool:
        """Wait until Jobs and pods were read once. Returns whether they were."""
        return self._jobs.wait(seconds)

    def close(self, grace: float) -> None:
        """See `KubernetesLauncher.close`."""
        for launcher in self._all():
            launcher.close(grace)

    def _all(self) -> list[KubernetesLauncher]:
        return [self._jobs] if self._mpi is None else [self._jobs, self._mpi]

    def _of_mpi(self) -> tuple[KubernetesLauncher | None, str]:
        """The launcher of MPIJobs, or why there is none."""
        with self._lock:
            if self._mpi is not None:
                return self._mpi, ""
            try:
                if not available(self._api):
                    return None, "engine nccl-tests over several nodes needs MPIJobs (Kubeflow MPI operator), which this cluster lacks"
            except ApiError as error:
                return None, f"whether the cluster knows MPIJobs cannot be told: {error}"
            self._mpi = KubernetesLauncher(self._api, self._config, self._on_finished, **self._more, requests=MpiRequests)
            if self._known is not None:
                self._mpi.adopt(self._known)
            return self._mpi, ""
