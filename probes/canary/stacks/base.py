"""What a stack is: the way from one question to the requests that a serving stack wants to see. Without I/O.

A plan has one visible leg, the one a user would see and that is timed as a stream. Where the canary plays the router itself there is a
prefill leg as well:

* `serial`: the prefill leg first; `handover` makes of its reply what goes into the visible leg's body (vLLM with NIXL, pull mode).
* `concurrent`: both at once; the decode worker waits for the KV of the prefill worker (SGLang, vLLM with Mooncake).

A `lookup` is one GET before the legs, where they need something that only a worker knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from probes.canary.status import Status

if TYPE_CHECKING:
    from probes.canary.params import CanaryParams

StackName = Literal["openai", "vllm", "sglang", "llm-d", "ray-serve"]
Route = Literal["router", "pair", "baseline"]
Connector = Literal["nixl", "mooncake", "sglang", "shared-storage", "offloading"]
Order = Literal["single", "serial", "concurrent"]

Json = dict[str, Any]
LARGEST_ROOM = 2**63 - 1


class HandoverError(ValueError):
    """A prefill worker's reply does not hold what the decode worker needs. The text says what is missing; the visible leg is sent all
    the same, since that is what the routers do, and the hand-over is reported as missing."""


@dataclass(frozen=True)
class Leg:
    """One POST of an OpenAI-compatible API: `url` is the base address of the worker, `body` what it gets."""

    url: str
    body: Json
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Lookup:
    """One GET before the legs. `fields` makes of its JSON what is merged into the prefill and the visible body. Raises HandoverError."""

    url: str
    fields: Callable[[Json], tuple[Json, Json]]


@dataclass(frozen=True)
class Plan:
    """The requests of one canary."""

    visible: Leg
    prefill: Leg | None = None
    order: Order = "single"
    handover: Callable[[Json], Json] | None = None
    lookup: Lookup | None = None
    ttft_has_prefill: bool = True
    """Whether the first token can only come after the prefill worker has done its part. Without a proof that the decode worker waited for
    it, the time to the first token of a concurrent connector may not contain the prefill at all."""


@dataclass(frozen=True)
class Ask:
    """The question: the body a plain endpoint would get, and randomness. `given` is a hand-over made earlier, by a prefill of another
    request: then only the visible leg is planned, with it."""

    params: CanaryParams
    body: Json
    entropy: Callable[[int], bytes]
    given: Json | None = None


@dataclass(frozen=True)
class Refusal:
    """What an error answer means: `status` in place of that of its code, None to keep that, and who refused, in words."""

    status: Status | None
    who: str


class Stack(Protocol):
    """One serving stack. `routes` are the ways it can be reached; `connectors` are the KV connectors that make a difference on the wire,
    the first of them the default."""

    name: StackName
    routes: frozenset[Route]
    connectors: tuple[Connector, ...]

    def check(self, params: CanaryParams) -> None:
        """Raise ValueError for parameters that this stack cannot send; the text names the parameter and what to write."""
        ...

    def plan(self, ask: Ask) -> Plan:
        """The requests for one question."""
        ...

    def refusal(self, code: int, headers: Mapping[str, str], body: str) -> Refusal | None:
        """What an answer other than 200 means in this stack; None where the code says it all. Header names are lower case."""
        ...


class Plain:
    """What most stacks have in common: nothing to check, and answers that speak for themselves."""

    def check(self, params: CanaryParams) -> None:
        """Nothing beyond what holds for every stack."""

    def refusal(self, code: int, headers: Mapping[str, str], body: str) -> Refusal | None:  # noqa: ARG002 - it says nothing
        """None: the code says it all."""
        return None


def random_room(entropy: Callable[[int], bytes]) -> int:
    """A bootstrap room: a random positive number of 63 bits, so that none is ever used twice."""
    return int.from_bytes(entropy(8), "big") & LARGEST_ROOM or 1


def prefill_body(body: Json, *, stream: bool = False) -> Json:
    """`body` for a worker that shall only prefill: one token, no stream, and nothing that only a stream or a length makes sense of."""
    out = {name: value for name, value in body.items() if name not in ("stream_options", "min_tokens", "logprobs", "top_logprobs")}
    for limit in ("max_tokens", "max_completion_tokens"):
        if limit in out:
            out[limit] = 1
    return {**out, "stream": stream}
