"""Waiting in step: while lanes work, their probes tell each other every fraction of a second where each lane stands.

So a hang ends with everybody's last state, and a lost rank is noticed at once although the library below would wait for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from probes.lanes.fleet import RemoteTrouble
from probes.reasons import Reason
from probes.rendezvous import Rendezvous
from probes.worker import Context, ProbeFailure

BEAT_SECONDS = 0.1
SLOW_BEAT_SECONDS = 0.5
QUICK_PHASE_SECONDS = 5.0
GRACE_SECONDS = 2.5
BLAME_SECONDS = 1.5
SHOWN_RANKS = 8


class Workers(Protocol):
    """What is waited for: the lanes of this worker, or a program it started."""

    def listen(self, seconds: float) -> None:
        """Take news for at most `seconds`. Raises ProbeFailure or RemoteTrouble."""
        ...

    def states(self) -> list[str]:
        """What each rank of this worker does now."""
        ...


class Together:
    """The heartbeat of one run. `gather` is called at every beat, `more` once when time is up, for what else is known about the hang."""

    def __init__(self, ctx: Context, met: Rendezvous, gather: Callable[[], None], more: Callable[[], str] = str) -> None:
        self._ctx, self._met, self._gather, self._more = ctx, met, gather, more
        self._states: list[list[str]] = []
        self._told = ""

    def wait(self, what: str, workers: Workers, ready: Callable[[], bool]) -> None:
        """Return when all workers of the run are ready. Raises ProbeFailure: `deadline` with every rank's last state, or what a lane said;
        RendezvousError (`peer_lost`) when a rank went away."""
        begin = time.monotonic()
        trouble: tuple[float, str] | None = None
        while True:
            until = time.monotonic() + (BEAT_SECONDS if time.monotonic() - begin < QUICK_PHASE_SECONDS else SLOW_BEAT_SECONDS)
            try:
                while not ready() and (left := until - time.monotonic()) > 0:
                    workers.listen(left)
            except RemoteTrouble as noticed:
                trouble = trouble or (time.monotonic(), str(noticed))
            self._gather()
            states, here = workers.states(), ready()
            self._note(states)
            answers = self._met.exchange({"ready": here, "states": states})
            self._states = [answer["states"] for answer in answers]
            if all(answer["ready"] for answer in answers):
                return
            # The rank that caused it says so within a beat or two: its word counts more than the echo here.
            if trouble is not None and time.monotonic() - trouble[0] > BLAME_SECONDS:
                raise ProbeFailure(Reason.TRANSFER_FAILED, trouble[1])
            if self._ctx.remaining() < GRACE_SECONDS:
                raise ProbeFailure(Reason.DEADLINE, f"hung while {what}: {self._stand()}{self._more()}")
            if here or trouble is not None:
                time.sleep(max(0.0, until - time.monotonic()))

    def _note(self, states: list[str]) -> None:
        word = "; ".join(states)
        if word != self._told:
            self._told = word
            self._ctx.note(word)

    def _stand(self) -> str:
        """Every rank's last state."""
        states: list[str] = [state for worker in self._states for state in worker]
        text = ", ".join(f"rank {rank} {state}" for rank, state in enumerate(states[:SHOWN_RANKS]))
        return text + (f" and {len(states) - SHOWN_RANKS} more" if len(states) > SHOWN_RANKS else "")
