"""Probes of a single node: each node on its own clock, evenly spread over the interval."""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING

from exporter.inventory.model import Inventory, Node
from exporter.plan.book import NodeBook
from exporter.plan.probes import ProbePlan

if TYPE_CHECKING:
    from exporter.plan.planner import Ended

RETRY_SECONDS = 60.0
"""How long a node whose gate is closed, or that could not be measured, waits."""


class Singles:
    """Who is due when, for one probe. A node's first run comes soon after it was seen, later ones at its own place in the interval."""

    def __init__(self, plan: ProbePlan) -> None:
        self.plan = plan
        self.why: dict[str, str] = {}
        self._heap: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}

    def planned_by(self, plan: ProbePlan) -> Singles:
        """The same under a new configuration."""
        if plan.interval != self.plan.interval or (plan.cron is None) != (self.plan.cron is None):
            self._heap, self._due = [], {}
        self.plan = plan
        return self

    def update(self, inventory: Inventory, books: Mapping[str, NodeBook], now: float) -> None:
        """Take in who is there now."""
        for gone in [one for one in self._due if one not in inventory]:
            del self._due[gone]
            self.why.pop(gone, None)
        for node in inventory:
            one = node.instance_id
            if one not in self._due:
                tried = books[one].entry(self.plan.name).tried
                self.set(one, now + self._phase(one) * self.plan.start_spread if tried is None else self.after(one, tried))

    def after(self, instance_id: str, tried: float) -> float:
        """When a node tried at `tried` is due again: at its own phase of the interval, half an interval later at least."""
        if self.plan.cron is not None:
            return self.plan.next_round(tried)
        interval = self.plan.interval
        phase = self._phase(instance_id) * interval
        return math.ceil((tried + interval / 2 - phase) / interval) * interval + phase

    def ready(self, now: float) -> Generator[str, None, None]:
        """Ids that are due, longest waiting first. One that `set` does not move stays due."""
        looked: list[tuple[float, str]] = []
        try:
            while self._heap and self._heap[0][0] <= now:
                due, one = heapq.heappop(self._heap)
                if self._due.get(one) == due:
                    looked.append((due, one))
                    yield one
        finally:
            for due, one in looked:
                if self._due.get(one) == due:
                    heapq.heappush(self._heap, (due, one))

    def due_of(self, instance_id: str) -> float:
        """When a node is due."""
        return self._due[instance_id]

    def set(self, instance_id: str, due: float) -> None:
        """The node is due at `due`."""
        self._due[instance_id] = due
        heapq.heappush(self._heap, (due, instance_id))

    def wait(self, instance_id: str, now: float, why: str) -> None:
        """The node cannot be measured now: look again in a minute."""
        self.why[instance_id] = why
        self.set(instance_id, now + RETRY_SECONDS)

    def next_due(self) -> float:
        """The earliest time at which a node is due."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def ended(self, node: Node, ended: Ended, books: Mapping[str, NodeBook]) -> None:
        """A run on `node` has ended: one that could not measure is repeated soon, at most three times in a row."""
        book = books.get(node.instance_id)
        if book is None or node.instance_id not in self._due:
            return
        entry = book.entry(self.plan.name)
        if not ended.outcome.conclusive and entry.unknowns <= 3:
            self.wait(node.instance_id, ended.at, f"the last run could not measure ({ended.reason.value})")

    @staticmethod
    def _phase(instance_id: str) -> float:
        return int.from_bytes(hashlib.sha256(instance_id.encode()).digest()[:4], "big") / 2**32
