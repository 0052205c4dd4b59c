"""The provenance test: the hand-over of prompt A goes to decode with prompt B. If KV really moved, the answer is A's; if not, B's.

It needs no metrics and does not mind other traffic. It is made with token ids, so that both prompts have the same length and end. Safety:
every request has a `cache_salt` and a first block of its own, never used again, because decode's prefix cache afterwards holds A's KV
under B's tokens; where engines share a KV store that would reach others, so there the test is refused. Only a serial connector that hands
over by `kv_transfer_params` can be tested. A hand-over is used once: what a stale one gives may be another user's.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from probes.canary.legs import PrefillRequest
from probes.canary.params import CanaryParams
from probes.canary.pd.evidence import Provenance
from probes.canary.stacks import STACKS, Ask, HandoverError, Leg
from probes.canary.stacks.base import Json, prefill_body
from probes.canary.stacks.vllm import ASK_FOR_HANDLE, handle_of
from probes.canary.transport import TransportError

OUTPUT_TOKENS = 16
LONGEST_PROMPT = 1024
VOCABULARY = range(300, 500)
"""Token ids that every vocabulary has and that are ordinary text in all of them."""
APART = 4
"""Tokens by which the answer must be nearer to one reference than to the other: near ties flip a token, chance does not make four."""

Tokens = tuple[int | str, ...]


@dataclass(frozen=True)
class Tested:
    """What came of it. `why` says more where it is inconclusive or neither."""

    says: Provenance
    why: str = ""


class RefusedError(Exception):
    """The test must not or cannot be made here. The text says why."""


def refusal(params: CanaryParams) -> str | None:
    """Why the test is not made with these parameters; None when it may be."""
    pd = params.pd
    if params.route != "pair" or params.prefill is None:
        return "provenance needs the route pair: a prefill and a decode worker that can be reached"
    if params.stack not in ("vllm", "llm-d") or params.wire_connector != "nixl":
        return f"provenance works where the hand-over is kv_transfer_params (NIXL), not with {params.stack}/{params.wire_connector}"
    if pd is not None and pd.shared_store:
        return "provenance is refused: the engines share a KV store, and the test's blocks could reach others"
    if not params.cache_salt:
        return "provenance needs cache_salt, which keeps the test's blocks apart from everybody's"
    return None


def classify(answer: Tokens, of_a: Tokens, of_b: Tokens) -> Provenance:
    """Whose answer it is, by how long each reference agrees with it from the start."""
    to_a, to_b = _agree(answer, of_a), _agree(answer, of_b)
    if _agree(of_a, of_b) + APART > min(len(of_a), len(of_b)):
        return "inconclusive"
    if to_a >= to_b + APART:
        return "moved"
    return "recomputed" if to_b >= to_a + APART else "neither"


def prompts(length: int, entropy: bytes) -> tuple[list[int], list[int]]:
    """Two prompts of `length` random token ids with the same last one."""
    rng = random.Random(entropy)  # noqa: S311 - the randomness is in the entropy
    a, b = ([rng.choice(VOCABULARY) for _ in range(length - 1)] for _ in range(2))
    last = rng.choice(VOCABULARY)
    return [*a, last], [*b, last]


class Prover:
    """Sends the requests of the test. Raises TransportError and HandoverError; every wait ends at `until` (monotonic seconds)."""

    def __init__(self, params: CanaryParams, secret: list[tuple[str, str]], until: float,
                 entropy: Callable[[int], bytes] = secrets.token_bytes) -> None:
        self._params, self._secret, self._until, self._entropy = params, secret, until, entropy

    def prefill(self, prompt: Sequence[int]) -> Json:
        """Prefill a prompt; the hand-over, good for one decode within its lease."""
        body = prefill_body(self._body(prompt)) | {"kv_transfer_params": ASK_FOR_HANDLE}
        return handle_of(self._post(Leg(self._params.prefill or "", body)))

    def decode(self, prompt: Sequence[int], given: Json | None = None) -> Tokens:
        """The answer of decode to a prompt, by itself or with a hand-over."""
        ask = Ask(self._params, self._body(prompt), self._entropy, given if given is not None else {})
        choices = self._post(STACKS[self._params.stack].plan(ask).visible).get("choices")
        first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        ids = first.get("token_ids")
        if isinstance(ids, list) and ids and all(isinstance(one, int) for one in ids):
            return tuple(ids)
        return tuple(str(first.get("text") or "").split())

    def _body(self, prompt: Sequence[int]) -> Json:
        return {"model": self._params.model, "prompt": list(prompt), "max_tokens": OUTPUT_TOKENS, "temperature": 0.0, "ignore_eos": True,
                "stream": False, "return_token_ids": True, "cache_salt": self._entropy(16).hex()}

    def _post(self, leg: Leg) -> Json:
        request = PrefillRequest(self._params.model_copy(update={"api": "completions"}), leg, self._secret)
        with contextlib.closing(request):
            request.open()
            request.send(self._until)
            request.drain(self._until)
        if request.failed:
            status = request.reader.status
            raise HandoverError(f"{status.value if status else 'no answer'}: {request.reader.message}")
        return request.reader.reply


def prove(params: CanaryParams, secret: list[tuple[str, str]], *, seconds: float,
          entropy: Callable[[int], bytes] = secrets.token_bytes) -> Tested:
    """Make the test within `seconds`. Raises RefusedError where it must not be made."""
    why = refusal(params)
    if why is not None:
        raise RefusedError(why)
    prover = Prover(params, secret, time.monotonic() + seconds, entropy)
    a, b = prompts(min(params.wanted_prompt_tokens, LONGEST_PROMPT), entropy(16))
    try:
        of_a, of_b = prover.decode(a), prover.decode(b)
        if _agree(of_a, of_b) + APART > min(len(of_a), len(of_b)):
            return Tested("inconclusive", "the model answers both prompts alike")
        answer = prover.decode(b, prover.prefill(a))
    except (TransportError, ValueError) as error:
        return Tested("inconclusive", str(error)[:200])
    says = classify(answer, of_a, of_b)
    return Tested(says, f"{_agree(answer, of_a)} and {_agree(answer, of_b)} of {len(answer)} tokens agree with A's and B's answer")


def _agree(one: Tokens, other: Tokens) -> int:
    """Length of the common beginning."""
    return next((at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right), min(len(one), len(other)))
