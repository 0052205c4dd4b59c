"""Where the time to the first token went, from the client's own times and what the engines counted. Only for a request that was alone."""

from __future__ import annotations

from dataclasses import dataclass

from probes.canary.pd.evidence import Evidence, Side


@dataclass(frozen=True)
class Transfer:
    """The KV transfer of one request: bytes and seconds as the engine counted them, None where it does not."""

    moved: int | None = None
    seconds: float | None = None

    @property
    def rate(self) -> float | None:
        """Bytes per second."""
        return self.moved / self.seconds if self.moved and self.seconds else None


@dataclass(frozen=True)
class Split:
    """Seconds. `queue + prefill + transfer + handover` is the time to the first token; None: an engine does not tell it."""

    queue: float | None = None
    prefill: float | None = None
    transfer: float | None = None
    handover: float | None = None


def transfer(evidence: Evidence) -> Transfer:
    """The request's own transfer: counted on decode by engines that pull, on prefill by those that push. Nothing unless it was alone.

    Ranks transfer side by side: bytes add up, times do not.
    """
    if evidence.others() != 0:
        return Transfer()
    for side in (evidence.decode, evidence.prefill):
        moved, seconds = side.any_grew("kv_bytes"), side.any_grew("kv_seconds")
        if moved or seconds:
            timed = side.any_grew("kv_timed")
            return Transfer(round(moved) if moved else None, (seconds / timed if timed else seconds) if seconds else None)
    return Transfer()


def split(evidence: Evidence, moved: Transfer, *, ttft: float | None, prefill_leg: float | None, ttft_has_prefill: bool) -> Split:
    """The parts of `ttft` (seconds from the first write). `prefill_leg` is the time of the prefill request where the canary sent it itself.

    vLLM counts the wait for remote KV as queueing on decode, so the transfer is taken out there; what it counts for requests that failed
    is senseless, and a part longer than the whole is not told. The hand-over is what is left: it holds the first decode step, and is only
    told where every other part is known.
    """
    if evidence.others() != 0 or ttft is None:
        return Split(transfer=moved.seconds)
    waited = [_within(_mean(side, "queue"), ttft) for side in (evidence.prefill, evidence.decode)]
    if waited[1] is not None and moved.seconds is not None and "vllm" in evidence.decode.engines:
        waited[1] = max(0.0, waited[1] - moved.seconds)
    known = [one for one in waited if one is not None]
    queue = sum(known) if known else None
    prefill = _within(_mean(evidence.prefill, "prefill"), ttft)
    if prefill_leg is not None and ttft_has_prefill:
        prefill = max(0.0, prefill_leg - (waited[0] or 0.0))
    handover = None
    if ttft_has_prefill and prefill is not None and moved.seconds is not None:
        handover = max(0.0, ttft - (queue or 0.0) - prefill - moved.seconds)
    return Split(queue, prefill, moved.seconds, handover)


def _within(seconds: float | None, whole: float) -> float | None:
    return seconds if seconds is not None and 0 <= seconds <= whole else None


def _mean(side: Side, name: str) -> float | None:
    seconds, count = side.any_grew(f"{name}_seconds"), side.any_grew(f"{name}_count")
    return seconds / count if seconds is not None and count else None
