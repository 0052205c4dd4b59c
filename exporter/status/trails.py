"""What the status page draws and the document does not need: the last verdict of each pair, and the last answers of each canary."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from types import MappingProxyType

from exporter.judge.verdict import Verdict
from exporter.status.records import Brief

MAX_PAIRS = 20_000
"""Pairs times probes; the one that was measured longest ago goes first."""
SAMPLES = 60
"""Requests that are kept of each canary target and prompt."""

PairKey = tuple[str, str, str]
"""Probe and the two nodes, the one that sorts first before the other."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One canary request: when it ended, how, and its TTFT in seconds where it had one."""

    finished: float
    outcome: str
    reason: str
    ttft: float | None


@dataclass(frozen=True)
class Seen:
    """Both, as nobody changes them any more: the last conclusive run of each pair; the samples of canaries by target and prompt, the oldest
    first."""

    pairs: Mapping[PairKey, Brief] = field(default_factory=dict)
    canaries: Mapping[tuple[str, str], tuple[Sample, ...]] = field(default_factory=dict)


class Trails:
    """See the module. Belongs to the control loop's thread; `seen` gives what may be read by any."""

    def __init__(self, max_pairs: int = MAX_PAIRS) -> None:
        self._max_pairs = max_pairs
        self._pairs: OrderedDict[PairKey, Brief] = OrderedDict()
        self._canaries: dict[tuple[str, str], deque[Sample]] = {}

    def canary(self, key: tuple[str, str], verdict: Verdict, brief: Brief) -> None:
        """Take in a canary request."""
        ttft = next((result.stream.ttft for result in verdict.run.results if result.stream is not None), None)
        self._canaries.setdefault(key, deque(maxlen=SAMPLES)).append(Sample(brief.finished, brief.outcome, brief.reason, ttft))

    def pair(self, brief: Brief) -> None:
        """Take in a run. One that is not of two nodes, or could not measure, changes nothing."""
        nodes = sorted(set(brief.nodes))
        if len(nodes) != 2 or not brief.conclusive:
            return
        key = (brief.probe, nodes[0], nodes[1])
        self._pairs.pop(key, None)
        self._pairs[key] = brief
        if len(self._pairs) > self._max_pairs:
            self._pairs.popitem(last=False)

    def keep_pairs(self, gone: Callable[[str, Brief], bool]) -> None:
        """Forget pairs with a node that is gone, or whose name another instance has now."""
        for key in [key for key, brief in self._pairs.items() if any(gone(node, brief) for node in key[1:])]:
            del self._pairs[key]

    def keep_canaries(self, wanted: Set[tuple[str, str]]) -> None:
        """Forget canaries that are not among these."""
        for key in self._canaries.keys() - wanted:
            del self._canaries[key]

    def seen(self) -> Seen:
        """What is known now."""
        return Seen(MappingProxyType(dict(self._pairs)), MappingProxyType({key: tuple(kept) for key, kept in self._canaries.items()}))
