"""The board: what the control loop told, bounded, and a snapshot of it that anybody may read.

    control loop ─> verdict, change, turn ─> snapshot (swapped by reference) ─> status, explain

Bounds: one entry per node and probe (`MAX_ENTRIES`), three briefs in each, the last `RECENT` runs, the last `CHANGES` conclusions, 32 MiB
of packed details. What does not fit is counted and said.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from exporter.inventory.model import Inventory
from exporter.judge.casebook import Change
from exporter.judge.localise import Localiser
from exporter.judge.verdict import Verdict
from exporter.plan.planned import Unplaced
from exporter.status.cases import Cases, Reader
from exporter.status.records import DETAIL_BYTES, Brief, Details, Entry, brief_of, detail_of
from exporter.status.trails import Seen, Trails

MAX_ENTRIES = 65_536
"""Nodes times probes; the entry that was measured longest ago goes first."""
RECENT = 256
CHANGES = 1024
PACE_SECONDS = 1.0
CANARY, ROUTER, BY = "canary", "router", " by "

Json = dict[str, Any]
Key = tuple[str, str]


@dataclass(frozen=True)
class Looked:
    """What the control loop saw in one turn. Times are Unix seconds; nodes are names.

    `jobs` are those of the scheduler: id, probe, target, nodes and next time. `planned` names the probes that are planned over every node
    of `inventory`, `rounds` says where their rounds stand. `gates` has the closed gates of a node: by node, by probe, gate and why.
    `alone` has nodes that have no partner in a round, and why, by probe. `leading` None means that there is no election.
    """

    at: float
    version: str = ""
    jobs: Sequence[Json] = ()
    running: Sequence[Json] = ()
    waiting: Sequence[str] = ()
    planned: tuple[str, ...] = ()
    rounds: Sequence[Json] = ()
    inventory: Inventory | None = None
    nodes: frozenset[str] | None = None
    gates: Mapping[str, Mapping[str, Sequence[Json]]] = field(default_factory=dict)
    alone: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    wake_at: float | None = None
    unplaced: Sequence[Unplaced] = ()
    localiser: Localiser | None = None
    """Read within `StatusBoard.turn`, in the control loop's thread, and not kept."""
    leading: bool | None = None
    leader: str = ""
    paused: str | None = None
    quiet: Mapping[str, str] = field(default_factory=dict)
    config_ok: bool = True
    config_error: str | None = None
    config_at: float | None = None
    troubles: tuple[str, ...] = ()
    """What other parts cannot do now: the archive, EC2, node conditions."""


@dataclass(frozen=True)
class Snapshot:
    """Everything that is known at one moment. Nothing in it is ever changed.

    `entries` are by node and probe, `canaries` by target and prompt; `recent` has the last runs, the newest first. `details` are packed.
    """

    at: float = 0.0
    entries: Mapping[Key, Entry] = field(default_factory=dict)
    canaries: Mapping[Key, Entry] = field(default_factory=dict)
    recent: tuple[Brief, ...] = ()
    details: Mapping[str, bytes] = field(default_factory=dict)
    changes: tuple[Json, ...] = ()
    cases: Cases = field(default_factory=Cases)
    looked: Looked = field(default_factory=lambda: Looked(0.0))
    runs: int = 0
    details_dropped: int = 0
    entries_dropped: int = 0
    seen: Seen = field(default_factory=Seen)


class StatusBoard:
    """See the module. `snapshot` may be read by any thread; everything else belongs to the control loop's.

    `clock` gives Unix seconds, `monotonic` paces the snapshots: at most one in `pace` seconds, so that a burst of verdicts costs one.
    `leader` names the replica that leads, as this one sees it.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic,
                 pace: float = PACE_SECONDS, max_entries: int = MAX_ENTRIES, detail_bytes: int = DETAIL_BYTES,
                 leader: Callable[[], str] = lambda: "") -> None:
        self._leader = leader
        self._clock, self._monotonic, self._pace, self._max_entries = clock, monotonic, pace, max_entries
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._canaries: OrderedDict[Key, Entry] = OrderedDict()
        self._recent: deque[Brief] = deque(maxlen=RECENT)
        self._changes: deque[Json] = deque(maxlen=CHANGES)
        self._details = Details(detail_bytes)
        self._trails = Trails()
        self._inventory: Inventory | None = None
        self._here: frozenset[str] | None = None
        self._runs = self._dropped = 0
        self._due = -math.inf
        self._snapshot = Snapshot()

    @property
    def snapshot(self) -> Snapshot:
        """The last snapshot."""
        return self._snapshot

    def verdict(self, verdict: Verdict) -> None:
        """Take in one judged run."""
        brief = brief_of(verdict)
        self._details.put(brief, detail_of(verdict))
        self._recent.appendleft(brief)
        self._runs += 1
        if brief.probe == CANARY:
            key = (brief.target, asked_by(brief))
            self._take(self._canaries, key, brief)
            self._trails.canary(key, verdict, brief)
        else:
            self._trails.pair(brief)
            for node in dict.fromkeys(brief.nodes):
                if not self._gone(node, brief):
                    self._take(self._entries, (node, brief.probe), brief)

    def remember(self, node: str, probe: str, outcome: str, reason: str, at: float) -> None:
        """What the journal knows of a conclusive verdict before this process began; only where nothing newer is known."""
        if (node, probe) not in self._entries:
            message = "from the journal: the run was before this process began"
            brief = Brief("", probe, node, (node,), at, at, outcome, reason, message, None, "")
            self._take(self._entries, (node, probe), brief)

    def change(self, change: Change) -> None:
        """Take in what localisation has concluded."""
        self._changes.appendleft(Reader(self._inventory).change(change, self._clock()))

    def turn(self, look: Callable[[], Looked]) -> None:
        """Publish a snapshot when one is due. `look` is called only then: it says what the control loop sees."""
        now = self._monotonic()
        if now < self._due:
            return
        looked = look()
        self._forget(looked)
        cases = Cases()
        if looked.localiser is not None:
            unplaced = {(one.repair.probe, one.repair.suspect): one.why for one in looked.unplaced}
            cases = Reader(looked.inventory).read(looked.localiser, unplaced, looked.at)
        kept = replace(looked, localiser=None, leader=self._leader())
        self._snapshot = Snapshot(looked.at, MappingProxyType(dict(self._entries)), MappingProxyType(dict(self._canaries)),
                                  tuple(self._recent), self._details.frozen(), tuple(self._changes), cases, kept, self._runs,
                                  self._details.dropped, self._dropped, self._trails.seen())
        # A look that is dear makes the next one come later: the loop has other things to do.
        took = self._monotonic() - now
        self._due = now + max(self._pace, 20 * took if self._pace else 0.0)

    def _take(self, kept: OrderedDict[Key, Entry], key: Key, brief: Brief) -> None:
        old = kept.pop(key, None)
        kept[key] = old.then(brief) if old is not None else Entry.first(brief)
        if len(kept) > self._max_entries:
            kept.popitem(last=False)
            self._dropped += 1

    def _forget(self, looked: Looked) -> None:
        """What left is forgotten; a name that another instance uses now starts clean."""
        if looked.nodes != self._here or looked.inventory is not self._inventory:
            self._here, self._inventory = looked.nodes, looked.inventory
            for key in [key for key, entry in self._entries.items() if self._gone(key[0], entry.last)]:
                del self._entries[key]
            self._trails.keep_pairs(self._gone)
        asked = {(job["target"], job.get("prompt") or "") for job in looked.jobs if job["probe"] == CANARY}
        targets = {target for target, _ in asked}
        # Visits to pods are no jobs: they are kept as long as their target is.
        for key in [key for key in self._canaries if key not in asked and not (BY in key[1] and key[0] in targets)]:
            del self._canaries[key]
        self._trails.keep_canaries(self._canaries.keys())

    def _gone(self, node: str, brief: Brief) -> bool:
        """Whether the instance that a run measured under this name is no longer there."""
        if self._here is not None and node not in self._here:
            return True
        ids = (brief.label("instance-ids") or "").split(",")
        now = self._inventory.named(node) if self._inventory is not None else None
        return now is not None and len(ids) == len(brief.nodes) and now.instance_id not in ids


def asked_by(brief: Brief) -> str:
    """What tells canaries of a target apart: the prompt, and the route where it is not the one of users."""
    prompt, route = brief.label("prompt") or "", brief.label("route") or ROUTER
    return prompt if route == ROUTER else f"{prompt}{BY}{route}"
