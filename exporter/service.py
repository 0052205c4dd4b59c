"""The service: wires the parts, runs them, and ends them in order. The only place that knows them all."""

from __future__ import annotations

import contextlib
import queue
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import exporter
from exporter import log
from exporter.config import Config
from exporter.config.reload import Reloader
from exporter.control import Control, Event, Finished, Listener, Loaded, Stop
from exporter.launch.local import LocalLauncher
from exporter.publish.publisher import Publisher
from exporter.publish.server import MetricsServer
from exporter.scheduler import Scheduler

CLOSE_SECONDS = 5.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Service:
    """Everything that `efa-pulse run` runs. `path` None means the configuration is fixed and never reloaded."""

    def __init__(self, config: Config, path: Path | None = None) -> None:
        self._config = config
        self._path = path
        self._stop = threading.Event()
        self._listeners: list[Listener] = []
        self._on_ready: Callable[[str], None] | None = None
        self.control: Control | None = None

    def listen(self, listener: Listener) -> None:
        """Call `listener` with every verdict, in the control loop's thread."""
        self._listeners.append(listener)

    def on_ready(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the address of the metrics server when it answers."""
        self._on_ready = callback

    def stop(self) -> None:
        """Ask the service to end. May be called from any thread and from a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Run until `stop` or SIGTERM. Probes get the configured grace to end; no process outlives this call.

        Raises OSError when the address to listen on is taken, ConfigError when files that the configuration names are not usable.
        """
        config = self._config
        publisher = Publisher(exporter.__version__, max_series=config.metrics.max_series, node_interval=config.metrics.node_interval,
                              best_of=config.metrics.best_of)
        events: queue.Queue[Event] = queue.Queue()
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="efa-pulse-secrets-")))
            launcher = LocalLauncher(lambda run: events.put(Finished(run)), namespaces=config.launch.local.network_namespaces,
                                     work_dir=config.launch.local.work_dir)
            scheduler = Scheduler(events)
            control = Control(config, events=events, launcher=launcher, scheduler=scheduler, publisher=publisher, secrets_dir=folder)
            self.control = control
            for listener in self._listeners:
                control.listen(listener)
            reloader = self._reloader(events)
            server = MetricsServer(config.server, lambda: publisher.snapshot, reload=reloader.request if reloader else None)
            stack.callback(server.close)
            server.start()
            loop = threading.Thread(target=control.run, name="control")
            loop.start()
            scheduler.start()
            if reloader is not None:
                reloader.start()
            with _signals(self._stop, reloader):
                server.ready(True)
                log.get().info("ready", address=server.url, jobs=len(control.jobs))
                if self._on_ready is not None:
                    self._on_ready(server.url)
                self._stop.wait()
                log.get().info("stopping", grace=config.launch.grace)
                server.ready(False)
                if reloader is not None:
                    reloader.close()
                scheduler.stop(CLOSE_SECONDS)
                events.put(Stop())
                loop.join()
                launcher.close(config.launch.grace)
                control.drain()
            log.get().info("stopped")

    def _reloader(self, events: queue.Queue[Event]) -> Reloader | None:
        if self._path is None:
            return None
        return Reloader(self._path, lambda config, error, at: events.put(Loaded(config, error, at)))


@contextlib.contextmanager
def _signals(stop: threading.Event, reloader: Reloader | None) -> Iterator[None]:
    """SIGTERM and SIGINT end the service, SIGHUP reloads; the handlers before are put back. Nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {sig: signal.signal(sig, lambda *_: stop.set()) for sig in SIGNALS}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, (lambda *_: reloader.request()) if reloader else signal.SIG_IGN)
    try:
        yield
    finally:
        for sig, handler in before.items():
            signal.signal(sig, handler)

