"""Which runs have a durable result, so that none is lost with its Job and none is counted twice after a restart.

A finished run is written into the journal; when the shards that it touched are stored, its Job may go. A leader that takes over knows the
runs of the one before by the same records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from exporter.plan.journal import Journal

RUNS = "run/"
KEEP_SECONDS = 2 * 3600.0
"""How long a run is remembered: longer than its Job can live on after its end (`kubernetes.keep`, at least one hour)."""
PRUNE_SECONDS = 300.0


@dataclass
class Ledger:
    """The runs of one journal. Times are Unix seconds."""

    journal: Journal
    keep: float = KEEP_SECONDS
    _pending: dict[str, dict[int, int]] = field(default_factory=dict)
    _pruned: float = 0.0

    def knows(self, run_id: str) -> bool:
        """Whether the result of this run was taken in already."""
        return self.journal.get(RUNS + run_id) is not None

    def finished(self, run_id: str, at: float) -> None:
        """The result of a run was taken in: everything it changed is in the journal's memory."""
        self.journal.put(RUNS + run_id, {"at": at})
        self._pending[run_id] = self.journal.owed()

    def durable(self, now: float) -> Iterator[str]:
        """The runs whose changes are stored since the last call, each once."""
        for run_id, owed in list(self._pending.items()):
            if self.journal.stored(owed):
                del self._pending[run_id]
                yield run_id
        if now - self._pruned >= PRUNE_SECONDS:
            self._pruned = now
            for run_id, record in list(self.journal.under(RUNS)):
                if run_id not in self._pending and now - float(record.get("at", 0.0)) > self.keep:
                    self.journal.drop(RUNS + run_id)
