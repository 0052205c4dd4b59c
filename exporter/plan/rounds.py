"""Who meets whom: rounds of disjoint pairs that together hold every pair of a group once (circle method), and rounds of one stratum.

The circle has an even number of places; `probes.circle` says which of them meet. A node keeps its place for the whole cycle, so nodes
that stay meet as planned whoever joins or leaves; a place whose node left is a hole, and the next node that joins takes it. A cycle starts
on closed-up places.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from probes.circle import round_of

Pair = tuple[str, str]


@dataclass
class Circle:
    """The places of one group. `places[i]` is the id on place i, None for a hole; `extra` are ids that wait for the next cycle.

    `round` counts the rounds of this cycle that have begun. `offset` turns the cycle, so that probes on equal circles measure other pairs.
    """

    places: list[str | None] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    round: int = 0
    offset: int = 0
    moved: bool = True
    """Whether nodes have other places than when this was last set to False."""

    @property
    def members(self) -> list[str]:
        """Every id, on a place or waiting for one."""
        return [one for one in self.places if one is not None] + self.extra

    @property
    def rounds(self) -> int:
        """Rounds of a cycle: one less than there are places."""
        return max(len(self.places) - 1, 0)

    def update(self, members: Iterable[str]) -> bool:
        """Take in who is there now, in any order. Returns whether anything changed.

        When more than an eighth of the circle waits outside (and more than two), the cycle begins anew with all of them on it.
        """
        present = set(members)
        known = set(self.members)
        if present == known:
            return False
        self.moved = True
        self.places = [one if one in present else None for one in self.places]
        self.extra = [one for one in self.extra if one in present] + sorted(present - known)
        if self.round == 0:
            self._close_up()
            return True
        for index, one in enumerate(self.places):
            if one is None and self.extra:
                self.places[index] = self.extra.pop(0)
        if len(self.extra) > max(2, len(self.places) // 8):
            self._close_up()
        return True

    def advance(self) -> list[Pair]:
        """Begin the next round and return its pairs; a new cycle begins when all rounds of the last one were."""
        if self.round >= self.rounds:
            self._close_up()
        number = self.round
        self.round += 1
        return self.pairs(number)

    def pairs(self, number: int) -> list[Pair]:
        """The pairs of round `number` of this cycle, holes left out."""
        found: list[Pair] = []
        for low, high in round_of(len(self.places), number + self.offset):
            one, other = self.places[low], self.places[high]
            if one is not None and other is not None:
                found.append((one, other))
        return found

    def _close_up(self) -> None:
        if self.extra or None in self.places[:-1]:
            self.moved = True
        self.places = [*self.members]
        self.extra = []
        if len(self.places) % 2:
            self.places.append(None)
        self.round = 0


def leftovers(free: Sequence[str], usable: Callable[[str, str], bool]) -> list[Pair]:
    """Pairs among nodes that the round leaves alone, first come first served. `usable` refuses a pair, such as one met just now.

    Looks a bounded way ahead for a partner, so that it stays linear; who finds none stays alone in this round.
    """
    waiting = list(free)
    found: list[Pair] = []
    while waiting:
        one = waiting.pop(0)
        for index, other in enumerate(waiting[:16]):
            if usable(one, other):
                found.append((one, other))
                del waiting[index]
                break
    return found


def within(groups: Iterable[Sequence[str]], number: int) -> list[Pair]:
    """One round inside each group: the circle method over every group on its own. `number` counts such rounds, from 0."""
    found: list[Pair] = []
    for group in groups:
        members = list(group)
        if len(members) > 1:
            circle = Circle(members + ([None] if len(members) % 2 else []))
            found += circle.pairs(number % circle.rounds)
    return found


def between(groups: Iterable[Sequence[str]], number: int) -> list[Pair]:
    """One round of pairs whose ends are in different groups: as many as there can be.

    The two largest remainders give one node each until one group is left, which is a largest matching. Groups and members turn with
    `number`, so that partners change from round to round.
    """
    turned = []
    for index, group in enumerate(groups):
        members = list(group)
        shift = (number * (index + 1)) % max(len(members), 1)
        turned.append(members[shift:] + members[:shift])
    start = number % max(len(turned), 1)
    turned = turned[start:] + turned[:start]
    heap = [(-len(members), index) for index, members in enumerate(turned) if members]
    heapq.heapify(heap)
    found: list[Pair] = []
    while len(heap) > 1:
        _, first = heapq.heappop(heap)
        _, second = heapq.heappop(heap)
        found.append((turned[first].pop(), turned[second].pop()))
        for index in (first, second):
            if turned[index]:
                heapq.heappush(heap, (-len(turned[index]), index))
    return found
