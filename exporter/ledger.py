"""Which runs have a durable result, so that none is lost with its Job and none is counted twice after a restart.

A finished run is written into the journal; when the shards that it touched are stored, and the archive holds it, its Job may go. A leader
that takes over knows the runs of the one before by the same records, and which of them the archive does not hold yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from exporter.plan.journal import Journal

RUNS = "run/"
KEEP_SECONDS = 2 * 3600.0
"""How long a run is remembered: longer than its Job can live on after its end (`kubernetes.keep`, at least one hour)."""
PRUNE_SECONDS = 300.0
UNKEPT = "unkept"


@dataclass
class Ledger:
    """The runs of one journal. Times are Unix seconds. `archiving`: a run is durable only when `archived` was told of it as well."""

    journal: Journal
    keep: float = KEEP_SECONDS
    archiving: bool = False
    _pending: dict[str, dict[int, int]] = field(default_factory=dict)
    _pruned: float = 0.0

    def knows(self, run_id: str) -> bool:
        """Whether the result of this run was taken in already."""
        return self.journal.get(RUNS + run_id) is not None

    def unkept(self, run_id: str) -> bool:
        """Whether the result of this run was taken in and the archive does not hold it yet, as far as is known."""
        record = self.journal.get(RUNS + run_id)
        return self.archiving and record is not None and bool(record.get(UNKEPT))

    def settled(self, run_id: str) -> bool:
        """Whether nothing needs this run's Job any more."""
        return self.knows(run_id) and not self.unkept(run_id)

    def finished(self, run_id: str, at: float) -> None:
        """The result of a run was taken in: everything it changed is in the journal's memory. Also for one that comes again unkept."""
        record = self.journal.get(RUNS + run_id)
        if record is None:
            self.journal.put(RUNS + run_id, {"at": at, UNKEPT: True} if self.archiving else {"at": at})
        self._pending[run_id] = self.journal.owed()

    def archived(self, run_id: str) -> None:
        """The archive holds the result of this run. One that is not known here is ignored."""
        record = self.journal.get(RUNS + run_id)
        if record is not None and record.get(UNKEPT):
            self.journal.put(RUNS + run_id, {"at": record.get("at", 0.0)})

    def durable(self, now: float) -> Iterator[str]:
        """The runs whose changes are stored since the last call, each once."""
        for run_id, owed in list(self._pending.items()):
            if self.journal.stored(owed) and not self.unkept(run_id):
                del self._pending[run_id]
                yield run_id
        if now - self._pruned >= PRUNE_SECONDS:
            self._pruned = now
            for run_id, record in list(self.journal.under(RUNS)):
                if run_id not in self._pending and now - float(record.get("at", 0.0)) > self.keep:
                    self.journal.drop(RUNS + run_id)
