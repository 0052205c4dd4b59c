"""Which pair is visited next: every prefill and every decode pod within the interval, by disjoint pairs, those that started first. Pure.

One pair is due every `interval / max(P, D)` seconds, with a quarter of the interval kept in reserve; the prefill and the decode pod that
waited longest form it. Among the decode pods that waited longest the one whose pair with this prefill pod is oldest is taken, so that the
whole product is covered in time as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from exporter.discovery.model import EnginePod

RESERVE = 0.75
CHOICE = 4
"""One part in so many of the decode pods, those that waited longest, is chosen from."""
NEVER = -math.inf

Topology = Callable[[str | None], tuple[str | None, str | None, str | None]]
"""Name of a node -> its zone, instance type and placement group."""


@dataclass(frozen=True)
class Pair:
    """A prefill and a decode pod to be visited together. `first_contact`: these two have not met since the later of them started."""

    prefill: EnginePod
    decode: EnginePod
    first_contact: bool = False

    @property
    def lives(self) -> tuple[str, str]:
        """Its identity: another start of either is another pair."""
        return self.prefill.life, self.decode.life


@dataclass
class Visits:
    """What was visited when (Unix seconds), of the pods that are there."""

    interval: float
    _pods: dict[str, float] = field(default_factory=dict)
    _turns: dict[str, float] = field(default_factory=dict)
    _pairs: dict[tuple[str, str], float] = field(default_factory=dict)
    _started: float = NEVER
    _since: dict[str, float] = field(default_factory=dict)
    _arrived: set[str] = field(default_factory=set)
    _watched: bool = False

    def see(self, pods: Sequence[EnginePod], now: float) -> None:
        """These pods are there; of others nothing is kept."""
        lives = {pod.life for pod in pods}
        if self._watched:
            self._arrived |= lives - self._since.keys()
        self._watched = self._watched or bool(pods)
        self._arrived &= lives
        for pod in pods:
            self._since.setdefault(pod.life, now)
        self._since = {life: at for life, at in self._since.items() if life in lives}
        self._pods = {life: at for life, at in self._pods.items() if life in lives}
        self._turns = {life: at for life, at in self._turns.items() if life in lives}
        self._pairs = {pair: at for pair, at in self._pairs.items() if lives.issuperset(pair)}

    def due(self, pods: Sequence[EnginePod], now: float, *, busy: Collection[str] = (),
            zone: Callable[[EnginePod], str | None] | None = None) -> Pair | None:
        """The pair to visit now, None when it is not time or none is free. `busy` are lives under a visit."""
        prefill = [pod for pod in pods if pod.prefills and pod.ready and pod.url]
        decode = [pod for pod in pods if pod.decodes and pod.ready and pod.url]
        free_p = [pod for pod in prefill if pod.life not in busy]
        free_d = [pod for pod in decode if pod.life not in busy]
        if not free_p or not free_d:
            return None
        # Those that were there from the beginning are visited at the pace of the interval: a restart of ours starts no wave.
        new = any(map(self._joined, (*free_p, *free_d)))
        gap = self.interval * RESERVE / max(len(prefill), len(decode))
        if not new and now - self._started < gap and now >= self._started:
            return None
        one = min(free_p, key=self._waited)
        others = [pod for pod in free_d if pod.life != one.life]
        same_zone = [pod for pod in others if zone is None or zone(pod) is None or zone(one) is None or zone(pod) == zone(one)]
        others = sorted(same_zone or others, key=self._waited)
        if not others:
            return None
        # A pod that has just joined goes before everything else, then those that nobody has visited yet.
        unseen = [pod for pod in others if self._joined(pod)] or [pod for pod in others if pod.life not in self._turns]
        choice = unseen or others[: max(1, math.ceil(len(others) / CHOICE))]
        other = min(choice, key=lambda pod: (self._pairs.get((one.life, pod.life), NEVER), self._waited(pod)))
        return Pair(one, other, (one.life, other.life) not in self._pairs)

    def begin(self, pair: Pair, now: float) -> None:
        """The pair is being visited."""
        self._started = now
        for life in pair.lives:
            self._turns[life] = now

    def left_out(self, pair: Pair) -> None:
        """The visit was not made after all: those that nobody has visited yet still come first."""
        for life in pair.lives:
            if life not in self._pods:
                self._turns.pop(life, None)

    def end(self, lives: tuple[str, str], now: float, *, met: bool) -> None:
        """The visit is over; `met`: an answer came through both."""
        for life in lives:
            if life in self._since:
                self._pods[life] = now
        if met and all(life in self._since for life in lives):
            self._pairs[lives] = now

    def pod_coverage(self, pods: Sequence[EnginePod], now: float) -> float | None:
        """The share of these ready pods that were visited within the interval; pods younger than that do not count until they were."""
        ready = [pod for pod in pods if pod.ready]
        counted = [pod for pod in ready if pod.life in self._pods or now - self._since.get(pod.life, now) >= self.interval]
        if not counted:
            return None
        return sum(now - self._pods.get(pod.life, NEVER) <= self.interval for pod in counted) / len(counted)

    def pair_coverage(self, pods: Sequence[EnginePod]) -> float | None:
        """The share of all pairs that met since both are there."""
        prefill, decode = [pod for pod in pods if pod.prefills and pod.ready], [pod for pod in pods if pod.decodes and pod.ready]
        every = sum(1 for one in prefill for other in decode if one.life != other.life)
        return sum((one.life, other.life) in self._pairs for one in prefill for other in decode) / every if every else None

    def _joined(self, pod: EnginePod) -> bool:
        """Whether it came, or started again, since we look, and nobody has visited it."""
        return pod.life in self._arrived and pod.life not in self._turns

    def _waited(self, pod: EnginePod) -> tuple[bool, float, str]:
        return not self._joined(pod), self._turns.get(pod.life, NEVER), pod.name
