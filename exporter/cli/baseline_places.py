"""Where `efa-pulse baseline` finds baselines: the file of a service without a cluster, or the journal of one in a cluster.

What a running service has in memory it writes over whatever lies in its journal. So a file is locked by the service that uses it, and in a
cluster nothing is written while a leader holds the Lease, except a node's annotation, which the leader obeys.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from datetime import datetime
from pathlib import Path
from typing import Any

from exporter.cli.cluster import Place
from exporter.cli.exits import NotMeasuredError, UsageError
from exporter.config import Config
from exporter.config.baselines import Baselines as Settings
from exporter.fleet import RESET
from exporter.kube.api import Api, ApiError
from exporter.kube.journal import ConfigMapJournal
from exporter.kube.pause import show_time
from exporter.memory import lock
from exporter.plan.journal import Journal, JournalError, JournalStore, flush
from exporter.plan.store import FileStore


class Source(ABC):
    """A journal with baselines. Use as a context manager; `settings` are those of the service that writes it, as far as known."""

    settings: Settings
    where: str

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def read(self) -> Journal:
        """Everything that is stored. Raises UsageError or NotMeasuredError."""

    @abstractmethod
    def write(self, journal: Journal) -> None:
        """Store what changed. Raises UsageError while a service uses it, NotMeasuredError when it cannot be written."""

    @abstractmethod
    def reset_node(self, name: str) -> str:
        """Let the baseline of one node begin anew, by its name. Returns what was done, in words."""

    def close(self) -> None:  # noqa: B027 - a file needs none
        """Nothing more is asked."""


class FileSource(Source):
    """The file of `baselines.file`. `must_exist`: a file that is not there is a mistake."""

    def __init__(self, path: Path, settings: Settings, *, must_exist: bool = True) -> None:
        self.path, self.settings, self.where = path, settings, str(path)
        if must_exist and not path.is_file():
            raise UsageError(f"{path}: there is no such file: a service writes it when `baselines.file` names it")
        self._store: JournalStore = FileStore(path)

    def read(self) -> Journal:
        """See Source."""
        try:
            return Journal.loaded(self._store.load())
        except JournalError as error:
            raise UsageError(str(error)) from None
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{self.path} cannot be read: {error}") from None

    def write(self, journal: Journal) -> None:
        """See Source."""
        try:
            held = lock(self.path)
        except OSError as error:
            raise UsageError(str(error)) from None
        try:
            flush(journal, self._store, time.monotonic(), everything=True)
        except (OSError, JournalError) as error:
            raise NotMeasuredError(f"{self.path} was not written: {error}") from None
        finally:
            os.close(held)

    def reset_node(self, name: str) -> str:
        """See Source."""
        journal = self.read()
        if journal.get(f"baseline/{name}") is None:
            raise UsageError(f"{self.path} knows no node {name!r}")
        journal.drop(f"baseline/{name}")
        self.write(journal)
        return f"the baseline of {name} begins anew"


class ClusterSource(Source):
    """The journal of an installation in a cluster. `stopped` says that its service does not run, where no Lease can tell."""

    def __init__(self, place: Place, config: Config, *, stopped: bool = False) -> None:
        kube = config.kubernetes
        self._api: Api = place.connect(config)
        self._kube, self._stopped, self.settings = kube, stopped, config.baselines
        self.where = f"the journal {kube.install}-journal in namespace {kube.namespace}"
        self._store = ConfigMapJournal(self._api, namespace=kube.namespace, name=f"{kube.install}-journal")

    def read(self) -> Journal:
        """See Source."""
        try:
            shards = self._store.load()
        except OSError as error:
            raise NotMeasuredError(str(error)) from None
        if not shards:
            raise NotMeasuredError(f"{self.where} is empty: is efa-pulse installed there, and has it measured anything?")
        return Journal.loaded(shards)

    def write(self, journal: Journal) -> None:
        """See Source."""
        holder = self._holder()
        if holder is not None:
            raise UsageError(f"{holder} leads and would write over this: scale the deployment to 0 first, then let it run again")
        try:
            flush(journal, self._store, time.monotonic(), everything=True)
        except (OSError, JournalError) as error:
            raise NotMeasuredError(f"{self.where} was not written: {error}") from None

    def reset_node(self, name: str) -> str:
        """See Source."""
        try:
            self._api.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {RESET: show_time(self._api.now())}}})
        except ApiError as error:
            if error.not_found:
                raise UsageError(f"there is no node {name!r} in the cluster") from None
            raise NotMeasuredError(f"node {name} could not be annotated: {error}") from None
        return f"node {name} is annotated with {RESET}: its baseline begins anew in the service that leads"

    def close(self) -> None:
        """See Source."""
        self._api.close()

    def _holder(self) -> str | None:
        """Who leads now; None when nobody does."""
        leader = self._kube.leader
        if self._stopped:
            return None
        if not leader.enabled:
            raise UsageError("kubernetes.leader.enabled is off, so nothing tells whether the service runs: stop it and give --stopped")
        try:
            lease = self._api.get(f"/apis/coordination.k8s.io/v1/namespaces/{self._kube.namespace}/leases/{leader.lease}")
        except ApiError as error:
            if error.not_found:
                return None
            raise NotMeasuredError(f"whether the service runs cannot be read: {error}") from None
        spec: dict[str, Any] = lease.get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        try:
            renewed = datetime.fromisoformat(str(spec.get("renewTime"))).timestamp()
        except ValueError:
            return None
        return holder if holder and self._api.now() - renewed < 2 * leader.duration else None


def source(file: Path | None, place: Place, *, stopped: bool = False, create: bool = False) -> Source:
    """The place that the options of a command name: a file, the configuration's file, or a cluster. Raises UsageError."""
    if file is not None:
        if place.kubeconfig is not None or place.context is not None:
            raise UsageError("--file is a file of a service without a cluster: give either it or --kubeconfig and --context")
        config = place.load() if place.config is not None else Config()
        return FileSource(file, config.baselines, must_exist=not create)
    config = place.load()
    in_cluster = config.inventory.mode == "kubernetes" or place.config is None or place.kubeconfig is not None or place.context is not None
    if in_cluster:
        return ClusterSource(place, config, stopped=stopped)
    if config.baselines.file is None:
        raise UsageError(f"{place.config}: baselines.file is not set, so the service keeps its baselines in memory only")
    return FileSource(config.baselines.file, config.baselines, must_exist=not create)
