"""One probe in one group of nodes: its circle, the round that goes on, and what of it is still to be done."""

from __future__ import annotations

import math
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from exporter.inventory.model import Inventory, Node, Stratum, stratum_of
from exporter.plan.book import NodeBook
from exporter.plan.gates import Closed
from exporter.plan.groups import Group
from exporter.plan.journal import Record
from exporter.plan.planned import Why
from exporter.plan.probes import ProbePlan
from exporter.plan.rounds import Circle, Pair, between, leftovers, within

STRATA = (Stratum.LEAF, Stratum.SPINE, Stratum.CROSS)
ALONE_SECONDS = 60.0
"""How often nodes without a partner are looked at again."""
LATE = 0.7
"""Share of the stratum interval after which a node is to be measured at that distance again."""
LONGEST_ROUND = 3
"""Intervals after which what is left of a round is given up."""

Gate = Callable[[Node], Closed | None]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pair that waits for its turn in the round."""

    pair: Pair
    stratum: Stratum
    why: Why


@dataclass
class Turn:
    """Where one probe stands in one group. `number` counts the rounds ever begun; `kind` is what the present round holds.

    `alone` are nodes that have no partner in this round, with the reason. `turns` counts the rounds of each stratum.
    """

    plan: ProbePlan
    group: str
    circle: Circle = field(default_factory=Circle)
    number: int = 0
    started: float | None = None
    kind: str = "circle"
    turns: dict[str, int] = field(default_factory=dict)
    queue: deque[Waiting] = field(default_factory=deque)
    alone: dict[str, str] = field(default_factory=dict)
    total: int = 0
    launched: int = 0
    met: set[Pair] = field(default_factory=set)
    retried: set[str] = field(default_factory=set)
    looked: float = 0.0

    def __post_init__(self) -> None:
        self.circle.offset = zlib.crc32(self.plan.name.encode())

    def due_at(self) -> float:
        """When the next round may begin, Unix seconds."""
        return self.plan.next_round(self.started) if self.started is not None else 0.0

    def may_begin(self, now: float) -> bool:
        """Whether the next round begins now: it is due, and the last one is done or has had its time."""
        if self.started is None:
            return True
        return now >= self.due_at() and (not self.queue or now >= self.started + LONGEST_ROUND * self.plan.interval)

    def begin(self, now: float, group: Group, inventory: Inventory, books: Mapping[str, NodeBook], gate: Gate,
              stratum_interval: float) -> None:
        """Begin the next round: its pairs, oldest measurement first, and partners for those that the round leaves alone."""
        self.kind = self._kind(now, group, books, stratum_interval)
        self.number += 1
        self.started = now
        if self.kind == "circle":
            pairs = self.circle.advance()
        else:
            count = self.turns.get(self.kind, 0)
            self.turns[self.kind] = count + 1
            pairs = _stratum_pairs(group, Stratum(self.kind), count)
        self.met, self.retried = set(), set()
        self._fill(now, pairs, group, inventory, books, gate)

    def resume(self, now: float, group: Group, inventory: Inventory, books: Mapping[str, NodeBook], gate: Gate) -> None:
        """After a restart: what is left of the round that had begun. Nodes tried since its start are done with it."""
        if self.started is None:
            return
        if self.kind == "circle":
            pairs = self.circle.pairs(self.circle.round - 1) if self.circle.round else []
        else:
            pairs = _stratum_pairs(group, Stratum(self.kind), self.turns.get(self.kind, 1) - 1)
        self._fill(now, pairs, group, inventory, books, gate)

    def _fill(self, now: float, pairs: list[Pair], group: Group, inventory: Inventory, books: Mapping[str, NodeBook], gate: Gate) -> None:
        started = self.started or now
        name = self.plan.name
        entries = {one: books[one].entry(name) for one in group.ids}
        todo = {one for one, entry in entries.items() if (entry.tried or 0.0) < started}
        shut: dict[str, str] = {}
        for one in todo:
            node = inventory.get(one)
            closed = gate(node) if node is not None else None
            if closed is not None and closed.gate != "busy":
                shut[one] = str(closed)
        open_pairs = [pair for pair in pairs if pair[0] in todo and pair[1] in todo and pair[0] not in shut and pair[1] not in shut]
        paired = {one for pair in open_pairs for one in pair}
        free = sorted(todo - paired - shut.keys(), key=lambda one: entries[one].measured or 0.0)
        extra = leftovers(free, self._usable)
        paired.update(one for pair in extra for one in pair)
        waiting = [self._waiting(inventory, pair, "round") for pair in open_pairs]
        waiting += [self._waiting(inventory, pair, "leftover") for pair in extra]
        waiting.sort(key=lambda one: min(entries[one.pair[0]].measured or 0.0, entries[one.pair[1]].measured or 0.0))
        self.queue = deque(waiting)
        self.alone = {one: shut.get(one, "no partner is left in this round") for one in sorted(todo - paired)}
        # What an earlier life of the service did of this round counts, so that the rest of it is spread as before.
        self.launched = (len(group.ids) - len(todo)) // 2
        self.total, self.looked = self.launched + len(waiting), now

    def allowed(self, now: float, spread: float, start_spread: float) -> int:
        """How many runs of this round may have been started by now, so that a round is spread over its interval."""
        if self.started is None or not self.total:
            return 0
        span = spread * self.plan.interval if self.number > 1 else start_spread
        passed = (now - self.started) / span if span > 0 else 1.0
        return self.total if passed >= 1 else max(1, math.ceil(self.total * passed))

    def next_allowed(self, spread: float, start_spread: float) -> float:
        """When one more run of this round may start, Unix seconds."""
        if self.started is None or not self.queue or not self.total:
            return math.inf
        span = spread * self.plan.interval if self.number > 1 else start_spread
        return self.started + span * self.launched / self.total

    def look_again(self, now: float, inventory: Inventory, gate: Gate, busy: Callable[[str], bool]) -> None:
        """Pair nodes that are alone and open now, at most once a minute."""
        if len(self.alone) < 2 or now - self.looked < ALONE_SECONDS:
            return
        self.looked = now
        free: list[str] = []
        for one in list(self.alone):
            node = inventory.get(one)
            closed = gate(node) if node is not None else None
            if closed is not None and closed.gate != "busy":
                self.alone[one] = str(closed)
            elif node is not None and not busy(one):
                free.append(one)
        pairs = leftovers(free, self._usable)
        paired = {one for pair in pairs for one in pair}
        # Two that met already in this round do so again rather than stay unmeasured.
        for pair in pairs + leftovers([one for one in free if one not in paired], lambda *_: True):
            self.queue.append(self._waiting(inventory, pair, "leftover"))
            self.total += 1
            for one in pair:
                self.alone.pop(one)

    def set_alone(self, ids: tuple[str, ...], why: str) -> None:
        """These nodes have no partner in this round any more."""
        for one in ids:
            self.alone[one] = why

    def retry(self, ids: tuple[str, ...], why: str) -> None:
        """A run could not measure: each of its nodes gets one more chance in this round, with another partner where there is one."""
        for one in ids:
            if one not in self.retried and one in self.circle.members:
                self.retried.add(one)
                self.alone[one] = why

    def remove(self, gone: set[str]) -> None:
        """Nodes left: their partners are alone."""
        for one in gone:
            self.alone.pop(one, None)
        kept = [waiting for waiting in self.queue if not gone.intersection(waiting.pair)]
        for waiting in self.queue:
            for one, other in (waiting.pair, waiting.pair[::-1]):
                if other in gone and one not in gone:
                    self.alone[one] = "its partner left"
        self.total -= len(self.queue) - len(kept)
        self.queue = deque(kept)

    def dump(self) -> Record:
        """Where the round stands, as JSON. Places are kept with the nodes."""
        return {"number": self.number, "started": self.started, "kind": self.kind, "turns": dict(self.turns),
                "cursor": self.circle.round, "places": len(self.circle.places)}

    def load(self, data: Record, books: Mapping[str, NodeBook], members: list[str]) -> None:
        """Take in what `dump` gave; the places come from the nodes' books. Raises KeyError, TypeError or ValueError when it is none."""
        self.number, self.started, self.kind = int(data["number"]), data["started"], str(data["kind"])
        self.turns = {str(kind): int(count) for kind, count in data["turns"].items()}
        places: list[str | None] = [None] * int(data["places"])
        extra: list[str] = []
        for one in members:
            place = books[one].entry(self.plan.name).place if one in books else None
            if place is not None and 0 <= place < len(places) and places[place] is None:
                places[place] = one
            else:
                extra.append(one)
        self.circle = Circle(places, extra, int(data["cursor"]), self.circle.offset)

    def _waiting(self, inventory: Inventory, pair: Pair, why: Why) -> Waiting:
        one, other = inventory.get(pair[0]), inventory.get(pair[1])
        stratum = stratum_of(one, other) if one is not None and other is not None else Stratum.UNKNOWN
        return Waiting(pair, stratum, why)

    def _usable(self, one: str, other: str) -> bool:
        return (one, other) not in self.met and (other, one) not in self.met

    def _kind(self, now: float, group: Group, books: Mapping[str, NodeBook], interval: float) -> str:
        """A round of one stratum when half of the nodes that have such a partner will soon have waited `interval` for one.

        Else one of the circle. Never two of them in a row, so that the circle goes on.
        """
        if self.kind != "circle" or self.number == 0 or len(group.leaves) == 0:
            return "circle"
        for stratum in STRATA:
            possible = group.possible[stratum]
            late = sum(now - books[one].measured_at(self.plan.name, stratum) > LATE * interval for one in possible)
            if possible and late * 2 >= len(possible):
                return stratum.value
        return "circle"


def _stratum_pairs(group: Group, stratum: Stratum, count: int) -> list[Pair]:
    found: list[Pair] = []
    for pieces in group.parts(stratum):
        found += within(pieces, count) if stratum is Stratum.LEAF else between(pieces, count)
    return found
