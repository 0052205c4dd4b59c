"""What is known of one canary when it is judged: how it was sent, what the engines counted, what the provenance test and the wire said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from probes.canary.pd.reading import Change, summed

Route = Literal["router", "pair", "baseline"]
Says = Literal["yes", "no", "unknown"]
Provenance = Literal["moved", "recomputed", "neither", "inconclusive"]


@dataclass(frozen=True)
class Side:
    """All pages of one role. `complete`: these are all the pods of the role that may have served the request."""

    changes: tuple[Change, ...] = ()
    complete: bool = True

    def grew(self, meter: str) -> float | None:
        """The growth over all pods; None when a pod cannot tell it."""
        return summed(self.changes, meter)

    def any_grew(self, meter: str) -> float | None:
        """The growth over those pods that tell it; None when none does."""
        told = [one.grew[meter] for one in self.changes if one.usable and meter in one.grew]
        return sum(told) if told else None

    @property
    def trouble(self) -> str:
        """Why its counters cannot be used, for people; empty when they can."""
        if not self.changes:
            return "no metrics page is known"
        for one in self.changes:
            if one.problem is not None:
                return f"the metrics of {one.pod} could not be read: {one.problem}"
            if one.reset:
                return f"the counters of {one.pod} started again in the meantime"
            if one.silent:
                return f"{one.pod} ({one.engine}) has none of the metrics expected of it: {', '.join(one.missing[:3])}"
        return ""

    @property
    def engines(self) -> frozenset[str]:
        """The engines behind it."""
        return frozenset(one.engine for one in self.changes if one.engine is not None)

    @property
    def block_tokens(self) -> int | None:
        """Tokens of one KV block, where the engine tells."""
        return next((one.block_tokens for one in self.changes if one.block_tokens), None)


@dataclass(frozen=True)
class Evidence:
    """See the module. `delivered`: the client got the tokens of an answer. `required` False: a prompt this short may stay on decode.

    `handover` is what a canary that played the router got from the prefill worker; `path_signs` are what the client saw of the
    prefill/decode path, none of which proves that KV moved.
    """

    route: Route
    delivered: bool
    prompt_tokens: int | None
    connector: str | None = None
    required: bool = True
    provenance: Provenance | None = None
    handover: Literal["given", "missing"] | None = None
    path_signs: Sequence[str] = ()
    prefill: Side = Side()
    decode: Side = Side()
    router: Side = Side()
    epp: Side = Side()

    def others(self) -> int | None:
        """Requests of somebody else in the window, on the pods that served this one; None when it cannot be told.

        Each side counts its finished requests and the tokens of its prompts: whichever shows more than this request's own.
        """
        found: list[int] = []
        for side in (self.prefill, self.decode) if self.route != "baseline" else (self.decode,):
            requests, tokens = side.any_grew("requests"), side.any_grew("prompt_tokens")
            if requests is not None:
                found.append(max(0, round(requests) - 1))
            if tokens is not None and self.prompt_tokens:
                found.append(int(tokens > self.prompt_tokens * 1.05 + 8))
        return max(found) if found else None
