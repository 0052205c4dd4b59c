"""How a node stands to those that were measured alike at about the same time."""

from __future__ import annotations

from statistics import median

FEWEST = 4
"""Nodes without which nothing is said of peers."""
LEVEL_FEWEST = 8
"""Nodes without which a level of all is not told from that of one."""
ROUNDS = 2.0
"""A node counts for so many of the usual gaps between two of its measurements."""
FIRST_GAP, LONGEST_GAP = 86400.0, 14 * 86400.0
SMOOTH = 0.1


class Peers:
    """The nodes of one kind. Figures are logarithms of what a node reached against the baseline of its distance.

    `raw` is that of its last run, `best` the best of its last pairs, which does not suffer from a bad partner.
    """

    def __init__(self) -> None:
        self._latest: dict[str, tuple[float, float, float]] = {}
        self._gap = FIRST_GAP
        self._fresh = 0
        self._medians: tuple[int, float, float] = (0, 0.0, 0.0)

    def tell(self, node: str, at: float, raw: float, best: float) -> None:
        """Take in the last run of a node, that ended `at`."""
        before = self._latest.get(node)
        if before is not None and at > before[0]:
            self._gap += SMOOTH * (min(at - before[0], LONGEST_GAP) - self._gap)
        self._latest[node] = (at, raw, best)
        self._fresh += 1

    def drop(self, node: str) -> None:
        """Forget a node that left, or is measured otherwise now."""
        if self._latest.pop(node, None) is not None:
            self._fresh += len(self._latest) + 1

    def level(self) -> float | None:
        """Median of the last runs of all; None with too few nodes."""
        count, raw, _ = self._middle()
        return raw if count >= LEVEL_FEWEST else None

    def usual(self) -> float | None:
        """Median of the best of all; None with too few nodes."""
        count, _, best = self._middle()
        return best if count >= FEWEST else None

    @property
    def count(self) -> int:
        """Nodes that count now."""
        return self._middle()[0]

    def _middle(self) -> tuple[int, float, float]:
        """Found again when a sixteenth of the nodes has news: in a round of 1,000 nodes that is 16 times."""
        if self._fresh > self._medians[0] / 16:
            newest = max((at for at, _, _ in self._latest.values()), default=0.0)
            count = [(raw, best) for at, raw, best in self._latest.values() if at >= newest - ROUNDS * self._gap]
            self._medians = (len(count), median(raw for raw, _ in count), median(best for _, best in count)) if count else (0, 0.0, 0.0)
            self._fresh = 0
        return self._medians
