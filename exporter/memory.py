"""What the control loop remembers of figures: it judges by baselines, teaches them, and publishes how nodes stand.

In a fleet baselines are part of its journal. Without one they are kept in the file of `baselines.file`, or in memory only.
"""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from exporter import log
from exporter.config import Config
from exporter.fleet import Fleet, keep
from exporter.inventory.model import Node
from exporter.judge.baseline import NODE, NORM, Baselines
from exporter.judge.speed import Figure, Limit
from exporter.judge.verdict import Verdict
from exporter.plan.journal import Journal, JournalStore, flush
from exporter.plan.store import FileStore
from exporter.publish import families_baseline as f
from exporter.publish.family import Family
from exporter.publish.nodes import Ratio, Standing
from exporter.publish.publisher import Publisher
from exporter.publish.surveyed import Samples
from exporter.runs import Run

LOOK_SECONDS = 30.0
MOST_NORMS = 300
"""Baselines that are published at most, those taught last."""
CANARY = "canary"


class LockedError(OSError):
    """Another process uses the file. The text says which file and what to do."""


class Memory:
    """See the module. Everything belongs to the control loop's thread but `report`, which it calls as well.

    Raises OSError, or JournalError (a ValueError), when `baselines.file` cannot be used.
    """

    def __init__(self, config: Config, publisher: Publisher, *, fleet: Fleet | None, alone: bool) -> None:
        self._publisher = publisher
        self._fleet = fleet
        self._members: dict[str, Node] = {}
        self._store: JournalStore | None = None
        self._lock: int | None = None
        self._journal = Journal()
        self._looked = -math.inf
        self._changed: set[str] = set()
        if alone and config.baselines.file is not None:
            self._lock = lock(config.baselines.file)
            self._store = FileStore(config.baselines.file)
            self._journal = Journal.loaded(self._store.load())
        self._own = Baselines(config.baselines, best_of=config.metrics.best_of, interval=config.metrics.node_interval)
        for problem in self._own.load(self._journal.under(NODE), self._journal.under(NORM)):
            log.get().warning("a part of the baselines could not be used", problem=problem)
        self.configure(config)

    @property
    def baselines(self) -> Baselines:
        """Those in use."""
        return self._fleet.baselines if self._fleet is not None else self._own

    def configure(self, config: Config) -> None:
        """Take in a new configuration."""
        self._members = {node.name: Node(node.name, node.name, node.instance_type) for node in config.inventory.members()}
        self._own.configure(config.baselines, config.metrics.best_of, config.metrics.node_interval)

    def adopt(self, fleet: Fleet | None, now: float) -> None:
        """The fleet is another one: publish how its nodes stand, as the journal knows it."""
        self._fleet = fleet
        if fleet is not None:
            self._publish(list(fleet.baselines.nodes), now)

    def limits(self, run: Run) -> dict[Figure, Limit]:
        """What the figures of a run must reach."""
        return self.baselines.limits(run, self._nodes(run)) if run.spec.probe != CANARY else {}

    def finished(self, verdict: Verdict, now: float) -> None:
        """Take in a judged run."""
        if verdict.run.spec.probe == CANARY:
            return
        baselines = self.baselines
        self._publish(baselines.observe(verdict, self._nodes(verdict.run)), now)
        for change in baselines.found:
            log.get().warning("a node became slower than it was", node=self._name(change.node), probe=change.probe, kind=change.kind,
                              by=f"{-change.size:.1%}")
        baselines.found.clear()

    def report(self, now: float) -> Iterable[tuple[Family, Samples]]:
        """What is known of the baselines themselves, when it is time to look; else nothing."""
        if 0 <= now - self._looked < LOOK_SECONDS:
            return ()
        self._looked = now
        self._publish([node for node in self._changed if node in self.baselines.nodes], now)
        if self._store is not None:
            self._save(now)
        return list(_samples(self.baselines, now))

    def close(self) -> None:
        """Write what is owed, and let others have the file."""
        if self._store is not None:
            self._save(math.inf, everything=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _save(self, now: float, *, everything: bool = False) -> None:
        keep(self._own, self._journal)
        try:
            if self._store is not None:
                flush(self._journal, self._store, now, everything=everything)
        except (OSError, ValueError) as error:
            log.get().warning("the baselines could not be written, it is tried again", error=str(error))

    def _nodes(self, run: Run) -> Mapping[str, Node]:
        if self._fleet is None:
            return self._members
        return {name: node for name in run.spec.nodes if (node := self._fleet.node(name)) is not None}

    def _name(self, instance_id: str) -> str | None:
        node = self._fleet.planner.inventory.get(instance_id) if self._fleet is not None else self._members.get(instance_id)
        return node.name if node is not None else None

    def _publish(self, ids: Iterable[str], now: float) -> None:
        told: dict[str, Standing] = {}
        for one in ids:
            name, standing = self._name(one), self.baselines.standing(one, now)
            if standing.changes:
                self._changed.add(one)
            else:
                self._changed.discard(one)
            if name is not None:
                told[name] = Standing(tuple(Ratio(f.RATIOS[ratio.to], (ratio.probe, *_labels(ratio.figure)), ratio.value)
                                            for ratio in standing.ratios), dict(standing.changes))
        if told:
            self._publisher.compared(told)


def lock(path: Path) -> int:
    """Take the file of baselines for this process; close the returned descriptor to give it back. Raises LockedError, OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise LockedError(f"{path} is in use by another efa-pulse: stop it first") from None
    return descriptor


def _labels(figure: Figure) -> tuple[str, str, str, str]:
    operation, size, memory, kind = figure
    return operation, str(size), memory, kind


def _samples(baselines: Baselines, now: float) -> Iterator[tuple[Family, Samples]]:
    yield f.NODES, {key: float(count) for key, count in baselines.states().items()}
    found: dict[str, Samples] = {family.name: {} for family in (f.SAMPLES, f.LEARNED_TIME, f.CENTRE, f.SPREAD, f.LEVEL, f.UPGRADE)}
    heads = sorted(baselines.heads(), key=lambda one: (-(one[0].sketch.last or 0.0), one[0].key))[:MOST_NORMS]
    for norm, level in sorted(heads, key=lambda one: (one[0].sketch.last or 0.0)):
        key, sketch = norm.key, norm.sketch
        labels = (key.probe, key.operation, str(key.bytes), key.memory, key.kind, key.instance_type, key.stratum)
        samples = sketch.samples(now)
        found[f.SAMPLES.name][labels] = samples
        found[f.LEARNED_TIME.name][labels] = sketch.last or 0.0
        if samples >= baselines.settings.samples:
            found[f.CENTRE.name][labels], found[f.SPREAD.name][labels] = sketch.centre, sketch.spread
            if norm.before is not None:
                found[f.UPGRADE.name][labels] = sketch.centre / norm.before.centre
            if level is not None:
                found[f.LEVEL.name][labels] = level
    for family in (f.SAMPLES, f.LEARNED_TIME, f.CENTRE, f.SPREAD, f.LEVEL, f.UPGRADE):
        yield family, found[family.name]
