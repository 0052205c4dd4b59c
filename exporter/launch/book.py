"""What a launcher knows of its runs: those on their way, those that wait for a place, and what was last said of each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from exporter.launch.flight import Flight, Stage
from exporter.runs import RunSpec

GOING = frozenset({Stage.CREATING, Stage.FLYING, Stage.CANCELLING})
Progress = Callable[[str, dict[int, str]], None]


class Book:
    """Runs by the names of their Jobs. Changed by one thread, read by any."""

    def __init__(self, on_progress: Progress | None) -> None:
        self._flights: dict[str, Flight] = {}
        self._waiting: list[RunSpec] = []
        self._on_progress = on_progress
        self._said: dict[str, dict[int, str]] = {}
        self._lock = threading.Lock()

    def wait(self, spec: RunSpec) -> None:
        """A run that waits for a place."""
        with self._lock:
            self._waiting.append(spec)

    def next(self) -> RunSpec | None:
        """The longest waiting run, which then no longer waits."""
        with self._lock:
            return self._waiting.pop(0) if self._waiting else None

    def withdraw(self, run_id: str) -> list[RunSpec]:
        """The waiting runs of this id, which then no longer wait."""
        with self._lock:
            found = [spec for spec in self._waiting if spec.run_id == run_id]
            self._waiting = [spec for spec in self._waiting if spec.run_id != run_id]
        return found

    def add(self, flight: Flight) -> Flight:
        """A run is on its way."""
        with self._lock:
            self._flights[flight.name] = flight
        return flight

    def drop(self, flight: Flight) -> None:
        """Nothing of a run is left."""
        self._said.pop(flight.spec.run_id, None)
        with self._lock:
            self._flights.pop(flight.name, None)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._flights.clear()
            self._waiting.clear()
        self._said.clear()

    def of(self, name: str) -> Flight | None:
        """The run of the Job of this name."""
        return self._flights.get(name)

    def under(self, run_id: str) -> list[Flight]:
        """The runs of this id."""
        return [flight for flight in self.all() if flight.spec.run_id == run_id]

    def all(self) -> list[Flight]:
        """Every run on its way, those whose Job is only still to be deleted included."""
        with self._lock:
            return list(self._flights.values())

    def running(self) -> list[str]:
        """Ids of the runs that have not ended."""
        with self._lock:
            return sorted([flight.spec.run_id for flight in self._flights.values() if flight.stage in GOING]
                          + [spec.run_id for spec in self._waiting])

    def left(self) -> list[str]:
        """Ids of all runs that wait or still have a Job."""
        with self._lock:
            return [flight.spec.run_id for flight in self._flights.values()] + [spec.run_id for spec in self._waiting]

    def count(self, others: Iterable[str]) -> int:
        """How many Jobs exist or may exist: ours, and `others` by name."""
        with self._lock:
            return len({*self._flights, *others})

    def tell(self, flight: Flight) -> None:
        """Pass on what a run's ranks do, when it changed."""
        if self._on_progress is None:
            return
        said = flight.progress()
        if self._said.get(flight.spec.run_id) != said:
            self._said[flight.spec.run_id] = said
            self._on_progress(flight.spec.run_id, said)
