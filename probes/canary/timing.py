"""From the arrivals of a stream to its latencies. Pure arithmetic; the definitions are those of `probes.canary`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from probes.canary.clock import Moment

ITL_LIMIT = 256
"""The most gaps a result keeps: one a token of the longest answer that can be asked for."""


@dataclass(frozen=True)
class TokenEvent:
    """One token event: the read and the HTTP chunk that completed it, and when. `tokens` is None when the event does not say; `begins`
    when it was the first thing in its read."""

    read: int
    chunk: int | None
    at: Moment
    tokens: int | None = None
    output: bool = True
    begins: bool = False


@dataclass(frozen=True)
class Timing:
    """Latencies of one answer, seconds from the start. `unresolved` counts events whose own arrival time is not known."""

    ttft: float | None = None
    ttfo: float | None = None
    e2e: float | None = None
    tpot: float | None = None
    max_gap: float | None = None
    itl: list[float] = field(default_factory=list)
    unresolved: int = 0
    disturbed: bool = False


@dataclass(frozen=True)
class _Delivery:
    """Token events of one chunk and one read: they arrived together. `sharp`: nothing at all came after them in their read."""

    events: list[TokenEvent]
    at: float
    resolved: bool
    sharp: bool

    def tokens(self, one_each: bool) -> int | None:
        """Tokens it brought; `one_each`: an event that does not say brought one."""
        total = 0
        for event in self.events:
            if event.tokens is None and not one_each:
                return None
            total += event.tokens or 1
        return total


def evaluate(events: Sequence[TokenEvent], total_tokens: int | None, seconds: Callable[[Moment], float],
             trailed: Collection[int] = ()) -> Timing:
    """The latencies of a stream of token events in order of arrival.

    `trailed` names the reads in which something other than tokens followed the last token, usually the end of the stream. The stamp of
    such a read is that of what followed. The token's own time is then the begin of the read if it came first in it, else that stamp; it
    counts for e2e, TPOT and the longest gap, not for the gaps per token.

    `total_tokens` is N; None when the server did not say. An event without a token count stands for one token as long as that adds up to N,
    an end token without text aside; else its count is unknown and so is the time per token of its gap.
    """
    if not events:
        return Timing()
    deliveries = _deliveries(events, seconds, trailed)
    first, last = deliveries[0], deliveries[-1]
    counted = sum(event.tokens or 1 for event in events)
    one_each = total_tokens is None or 0 <= total_tokens - counted <= 1
    output = next((d for d in deliveries if any(event.output for event in d.events)), None)
    max_gap, itl = _gaps(deliveries, one_each)
    return Timing(
        ttft=first.at,
        ttfo=output.at if output else None,
        e2e=last.at,
        tpot=_tpot(first, last, total_tokens if total_tokens is not None else counted),
        max_gap=max_gap,
        itl=itl[:ITL_LIMIT],
        unresolved=sum(len(d.events) for d in deliveries if not d.resolved),
        disturbed=not first.resolved,
    )


def _deliveries(events: Sequence[TokenEvent], seconds: Callable[[Moment], float], trailed: Collection[int]) -> list[_Delivery]:
    """Group events that came in one chunk of one read. In a read of several deliveries only the last is resolved."""
    # Without chunks nothing tells whether two events of one read were sent together, so each is a delivery of its own.
    keys = [(event.read, event.chunk if event.chunk is not None else -1 - index) for index, event in enumerate(events)]
    groups = [[events[index] for index in run] for _, run in groupby(range(len(events)), key=lambda index: keys[index])]
    out = []
    for index, group in enumerate(groups):
        resolved = index + 1 == len(groups) or groups[index + 1][0].read != group[0].read
        sharp = resolved and group[0].read not in trailed
        at = group[-1].at.begin() if resolved and not sharp and group[0].begins else group[-1].at
        out.append(_Delivery(group, seconds(at), resolved, sharp))
    return out


def _gaps(deliveries: list[_Delivery], one_each: bool) -> tuple[float | None, list[float]]:
    longest: float | None = None
    per_token: list[float] = []
    for before, after in pairwise(deliveries):
        if not (before.resolved and after.resolved):
            continue
        gap = after.at - before.at
        longest = gap if longest is None else max(longest, gap)
        tokens = after.tokens(one_each) if before.sharp and after.sharp else None
        if tokens:
            per_token += [gap / tokens] * min(tokens, ITL_LIMIT)
    return longest, per_token


def _tpot(first: _Delivery, last: _Delivery, total: int) -> float | None:
    """(last - first) / (N - n_first). None where no token came after the first delivery."""
    later = total - (first.tokens(one_each=True) or 1)
    return (last.at - first.at) / later if later > 0 and last is not first else None
