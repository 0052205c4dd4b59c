"""One canary with everything around its measured request: the request before it that shares its prefix, the reference after it, the check
of the answer."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from probes.canary.client import CanaryRun, Entropy, measure, prompt_length
from probes.canary.clock import Clocks
from probes.canary.integrity import judge, reason_of
from probes.canary.params import CanaryParams
from probes.canary.prompt import NONCE_BYTES, Prompt, compose_pair
from probes.canary.status import Status
from probes.reasons import Reason
from probes.result import Finding, Integrity

DELIVERED = frozenset({Status.OK.value, Status.DISTURBED.value, Status.WRONG_LENGTH.value})
"""Statuses of a request whose whole answer came: only such an answer is looked at."""


@dataclass(frozen=True)
class Session:
    """The measured request, what its answer is worth, and what was found beside it. `reason` is the request's own, or `wrong_content`."""

    run: CanaryRun
    integrity: Integrity | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def reason(self) -> Reason:
        """Delivery first; an answer that came in full can still be the wrong one."""
        return reason_of(self.integrity) or self.run.reason if self.run.stream.status in DELIVERED else self.run.reason

    @property
    def message(self) -> str:
        """What is wrong, in words."""
        wrong = self.integrity is not None and self.reason is Reason.WRONG_CONTENT
        return f"{self.integrity.verdict}: {self.integrity.why}" if wrong and self.integrity is not None else self.run.message


def hold(params: CanaryParams, *, clocks: Clocks | None = None, entropy: Entropy = secrets.token_bytes,
         before_request: Callable[[], None] | None = None, after_request: Callable[[CanaryRun], None] | None = None) -> Session:
    """Send everything that `params` ask for. Raises SetupError for unusable parameters only.

    `before_request` is called right before the measured request and `after_request` right after it, before anything else is sent.
    """
    findings: list[Finding] = []
    if params.prompt == "shared_prefix":
        run, findings = _after_its_like(params, clocks, entropy, before_request)
    else:
        run = measure(params, clocks=clocks, entropy=entropy, before_request=before_request)
    if after_request is not None:
        after_request(run)
    if run.stream.status not in DELIVERED:
        return Session(run, None, findings)
    reference = None
    if params.reference is not None:
        other = measure(reference_params(params), clocks=clocks, entropy=entropy, prompt=run.prompt)
        whole = other.stream.status in DELIVERED
        reference = other.answer if whole else None
        findings.append(Finding(check="reference", ok=True if whole else None, seen=other.stream.status,
                                remedy=None if whole else f"no answer to compare with: {other.message}"))
    integrity = judge(run.prompt, run.answer, required=params.anchors == "required", reference=reference, exact=params.batch_invariant)
    return Session(run, integrity, findings)


def reference_params(params: CanaryParams) -> CanaryParams:
    """The same question for the server that is compared with: one plain request, under a salt of its own."""
    return params.model_copy(update={"url": params.reference, "stack": "openai", "route": "baseline", "connector": None, "prefill": None,
                                     "objective": None, "server_name": None, "reference": None, "batch_invariant": False})


def _after_its_like(params: CanaryParams, clocks: Clocks | None, entropy: Entropy,
                    before_request: Callable[[], None] | None) -> tuple[CanaryRun, list[Finding]]:
    """Two requests that share all but their end; the second is the measured one unless the first fails."""
    prompts: list[Prompt] = list(compose_pair(prompt_length(params), entropy(NONCE_BYTES)))
    first = measure(params, clocks=clocks, entropy=entropy, prompt=prompts[0])
    if first.stream.status not in DELIVERED:
        if before_request is not None:
            before_request()
        return first, []
    run = measure(params, clocks=clocks, entropy=entropy, before_request=before_request, prompt=prompts[1])
    run = replace(run, stream=run.stream.model_copy(update={"cold_ttft": first.stream.ttft}))
    cached = run.stream.cached_tokens
    if run.stream.status not in DELIVERED:
        return run, []
    # Behind a sidecar or with SGLang it is the prefill worker's count: the right one here, since its cache is what is asked about.
    return run, [Finding(check="prefix_cache", ok=None if cached is None else cached > 0, expected="cached tokens above 0",
                         seen="not told" if cached is None else f"{cached} of {run.stream.prompt_tokens or run.prompt_tokens}",
                         remedy=None if cached else "prefix caching is off, or the router sent the second request to another worker")]
