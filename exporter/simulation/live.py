"""A simulation that is served: after its accelerated beginning it goes on at the pace of the wall clock, with metrics and status pages.

The fabric, its nodes and its faults are simulated; the control loop, localisation, planner, metrics and pages are the service's own, and
canaries are real requests. Faults that begin after the accelerated part begin while somebody watches.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable
from pathlib import Path

from exporter.config.server import Server
from exporter.launch.local import LocalLauncher
from exporter.publish.server import MetricsServer
from exporter.simulation.driver import Progress, Simulation
from exporter.simulation.report import Report
from exporter.simulation.scenario import Scenario
from exporter.status import StatusBoard
from exporter.status.pages import pages

TURN_SECONDS = 0.2
GRACE_SECONDS = 3.0
SETTLE_SECONDS = 10.0
SURVEY_SECONDS = 5.0


class LiveSimulation:
    """One scenario, played up to now and then lived on. `scenario.seconds` is the accelerated part, which ends at the present.

    It listens from its creation on. Raises OSError when the address is taken, WebConfigError when TLS or authentication cannot be set up.
    """

    def __init__(self, scenario: Scenario, folder: Path, server: Server, progress: Progress | None = None) -> None:
        self._board = StatusBoard()
        self._server = MetricsServer(server, lambda: self.simulation.publisher.snapshot, pages=pages(self._board))
        self.simulation = Simulation(scenario, folder, progress, start=time.time() - scenario.seconds, board=self._board,
                                     canaries=LocalLauncher, survey_seconds=SURVEY_SECONDS)

    @property
    def url(self) -> str:
        """Where it is served."""
        return self._server.url

    def run(self, ready: Callable[[Report], None], over: Callable[[], bool]) -> None:
        """Play the accelerated part, tell `ready` of it, and go on until `over` says so or the command is interrupted."""
        simulation = self.simulation
        with contextlib.ExitStack() as stack:
            stack.callback(self._server.close)
            if simulation.canaries is not None:
                stack.callback(simulation.canaries.close, GRACE_SECONDS)
            stack.callback(simulation.scheduler.stop, GRACE_SECONDS)
            report = simulation.run()
            simulation.publisher.pace = 1.0
            self._turn(None)
            # The board paces itself by what its last look cost: the first page shall not be one of the accelerated part.
            end = time.monotonic() + SETTLE_SECONDS
            while self._board.snapshot.at < time.time() - TURN_SECONDS * 10 and time.monotonic() < end:
                time.sleep(TURN_SECONDS)
                self._turn(None)
            simulation.scheduler.start()
            self._server.start()
            self._server.ready(True)
            ready(report)
            while not over():
                with contextlib.suppress(queue.Empty):
                    self._turn(simulation.events.get(timeout=TURN_SECONDS))
                    continue
                self._turn(None)

    def _turn(self, event: object) -> None:
        """One event of a thread, or none, and everything of the fabric that is due by the wall clock."""
        simulation = self.simulation
        if event is not None:
            simulation.control.handle(event)  # type: ignore[arg-type]
        while simulation.clock.advance(time.time()):
            while not simulation.events.empty():
                simulation.control.handle(simulation.events.get_nowait())
        if event is None:
            simulation.control.handle(None)
