"""The service: wires the parts, runs them, and ends them in order. The only place that knows them all."""

from __future__ import annotations

import contextlib
import queue
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import probes
from exporter import log, scratch
from exporter.archive.archive import Archive
from exporter.cluster import Cluster
from exporter.config import Config, Reloader
from exporter.control import Control, Listener
from exporter.events import Conditions, Event, Finished, Inventoried, Leading, Loaded, Stop
from exporter.flags import Flags
from exporter.flags import readings as flags_readings
from exporter.grafana.annotator import Annotator
from exporter.inventory.static import from_config
from exporter.launch import Launcher
from exporter.launch.local import LocalLauncher
from exporter.launch.routed import RoutedLauncher
from exporter.pairing import Pairing
from exporter.publish import archived, ec2facts
from exporter.publish.publisher import Publisher
from exporter.publish.server import MetricsServer
from exporter.runs import Run
from exporter.scheduler import Scheduler
from exporter.status import StatusBoard
from exporter.status.pages import pages

CLOSE_SECONDS = 5.0


class Service:
    """Everything that `efa-pulse run` runs. `path` None means the configuration is fixed and never reloaded.

    Raises OSError when the address to listen on is taken, WebConfigError when TLS or authentication cannot be set up.
    """

    def __init__(self, config: Config, path: Path | None = None) -> None:
        self._config = config
        self._publisher = Publisher(probes.__version__, max_series=config.metrics.max_series, node_interval=config.metrics.node_interval,
                                    best_of=config.metrics.best_of, cluster=config.inventory.mode == "kubernetes")
        self._events: queue.Queue[Event] = queue.Queue()
        self._scheduler = Scheduler(self._events)
        self._reloader = Reloader(path, self._loaded, current=config) if path is not None else None
        self._serving = False
        self._loop: threading.Thread | None = None
        # A SimpleQueue may be used in a signal handler; an Event may not.
        self._wishes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._listeners: list[Listener] = []
        self.control: Control | None = None
        self._leader: Callable[[], str] = lambda: ""
        self._board = StatusBoard(leader=lambda: self._leader())
        self._server = MetricsServer(config.server, lambda: self._publisher.snapshot, healthy=self._unhealthy, reload=self._reload,
                                     pages=pages(self._board))

    @property
    def url(self) -> str:
        """The address of the metrics server as a person would open it on this machine."""
        return self._server.url

    def listen(self, listener: Listener) -> None:
        """Call `listener` with every verdict, in the control loop's thread."""
        self._listeners.append(listener)

    def stop(self) -> None:
        """Ask the service to end. May be called from any thread and from a signal handler."""
        self._wishes.put(None)

    def run(self) -> None:
        """Run until `stop` or SIGTERM. Probes get the configured grace to end; no process outlives this call."""
        launch = self._config.launch
        with contextlib.ExitStack() as stack:
            stack.callback(self._server.close)
            folder = scratch.make("secrets")
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            ended: list[Callable[[Run], None]] = [self._finished]
            local = LocalLauncher(lambda run: ended[-1](run), namespaces=launch.local.network_namespaces, work_dir=launch.local.work_dir)
            launcher: Launcher = local
            cluster = self._cluster(stack)
            options: dict[str, Any] = {}
            if cluster is not None:
                launcher = RoutedLauncher(cluster.launcher, local)
                ended.append(cluster.canary_ended)
                options = {"ask": cluster.answers, "make_fleet": cluster.fleet, "on_fleet": cluster.launcher.adopt,
                           "on_durable": cluster.launcher.release,
                           "conditions": lambda: Conditions(cluster.paused, cluster.background(), cluster.trouble,
                                                            cluster.inventory_age, cluster.requests(), cluster.other_leads)}
                self._leader = lambda: cluster.election.holder if cluster.election is not None else ""
            archive = self._archive(cluster)
            flags = Flags(cluster.api, self._config.conditions, who=cluster.identity) \
                if cluster is not None and self._config.conditions.enabled else None
            nodes = cluster.inventory.snapshot if cluster is not None else partial(from_config, self._config.inventory, 0.0)
            pairing = Pairing(api=cluster.api if cluster is not None else None, node_of=lambda name: nodes().named(name))
            stack.callback(pairing.close)
            control = Control(self._config, events=self._events, launcher=launcher, scheduler=self._scheduler, publisher=self._publisher,
                              secrets_dir=folder, board=self._board, archive=archive, pairing=pairing, **options)
            control.report(pairing.readings)
            self.control = control
            for listener in self._listeners:
                control.listen(listener)
            stack.enter_context(self._signals())
            if archive is not None:
                control.report(lambda: archived.readings(archive))
                control.worry(lambda: [f"archive: {archive.trouble}"] if archive.trouble else [])
                stack.callback(archive.close)
                archive.start()
            if flags is not None:
                control.report(lambda: flags_readings(flags))
                control.worry(lambda: [f"node conditions: {flags.trouble}"] if flags.trouble else [])
                stack.callback(flags.close)
                flags.start()
            if cluster is not None and (ec2 := cluster.inventory.ec2) is not None:
                control.report(lambda: ec2facts.readings(ec2))
                control.worry(lambda: [f"EC2: {trouble}" for trouble in ec2.troubles])
            stack.callback(self._end, control, launcher, launch.grace)
            self._loop = threading.Thread(target=control.run, name="control")
            self._loop.start()
            self._scheduler.start()
            pairing.start()
            if self._reloader is not None:
                self._reloader.start()
            self._server.start()
            self._serving = True
            if self._config.grafana.annotations.enabled:
                annotator = Annotator(self._config.grafana, lambda: self._board.snapshot)
                stack.callback(annotator.close)
                annotator.start()
            if cluster is not None and not cluster.start(lambda: not self._wishes.empty()):
                return
            self._server.ready(True)
            log.get().info("ready", address=self.url, jobs=len(control.jobs))
            self._wishes.get()
            log.get().info("stopping", grace=launch.grace)
        log.get().info("stopped")

    def _archive(self, cluster: Cluster | None) -> Archive | None:
        settings = self._config.archive
        if not settings.enabled:
            return None
        if cluster is None:
            return Archive(settings)
        return Archive(settings, logs=cluster.logs, hold=self._config.kubernetes.max_jobs // 2)

    def _cluster(self, stack: contextlib.ExitStack) -> Cluster | None:
        if self._config.inventory.mode != "kubernetes":
            return None
        cluster = Cluster(self._config, on_finished=self._finished, on_inventory=lambda found: self._events.put(Inventoried(found)),
                          on_leading=lambda leading: self._events.put(Leading(leading)))
        stack.callback(cluster.close)
        return cluster

    def _finished(self, run: Run) -> None:
        self._events.put(Finished(run))

    def _end(self, control: Control, launcher: Launcher, grace: float) -> None:
        """No new runs; those under way get the grace; what they found is still judged and published."""
        self._serving = False
        self._server.ready(False, "stopping")
        if self._reloader is not None:
            self._reloader.close()
        self._scheduler.stop(CLOSE_SECONDS)
        self._events.put(Stop())
        if self._loop is not None:
            self._loop.join()
        launcher.close(grace)
        control.drain()
        control.save()

    def _loaded(self, config: Config | None, error: str | None, at: float) -> None:
        self._events.put(Loaded(config, error, at))

    def _reload(self) -> str | None:
        """Reload now, for POST /-/reload. None, or why the file was refused."""
        if self._reloader is None:
            return "the service was started without a configuration file"
        return self._reloader.reload().error

    def _unhealthy(self) -> str | None:
        if self._serving and self._loop is not None and not self._loop.is_alive():
            return "the control loop has ended"
        if self._serving and not self._scheduler.state.alive:
            return "the scheduler has ended"
        return None

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT end the service, SIGHUP reloads; the handlers before are put back. Nothing outside the main thread.

        Without a file to read again SIGHUP means what it means elsewhere: the terminal is gone.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        reload: Callable[..., None] = lambda *_: self._reloader.request() if self._reloader else self.stop()  # noqa: E731
        before = {number: signal.signal(number, handler) for number, handler in (
            (signal.SIGTERM, lambda *_: self.stop()), (signal.SIGINT, lambda *_: self.stop()), (signal.SIGHUP, reload))}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
