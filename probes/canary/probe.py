"""The canary as a probe: one request in a process of its own."""

from __future__ import annotations

from probes.canary.client import CanaryRun, measure
from probes.canary.dial import SetupError
from probes.canary.params import CanaryParams
from probes.reasons import Reason
from probes.result import Phase
from probes.worker import Context, ProbeFailure, Report


class CanaryProbe:
    """Sends one request by `CanaryParams`. World size 1."""

    def run(self, ctx: Context) -> Report:
        """Measure. A request that fails in any way is a report with its reason; only unusable parameters raise (`bad_spec`)."""
        params = ctx.parse(CanaryParams)
        if ctx.env.world_size != 1:
            raise ProbeFailure(Reason.BAD_SPEC, f"canary: one request is one rank, not {ctx.env.world_size}")
        if ctx.remaining() < params.longest:
            raise ProbeFailure(Reason.BAD_SPEC, f"canary: these timeouts add up to {params.longest:g} s and the run ends in "
                                                f"{ctx.remaining():.1f} s: raise its deadline or lower total_timeout")
        ctx.phase(Phase.SETUP)
        try:
            run = measure(params, before_request=lambda: ctx.phase(Phase.MEASURE))
        except SetupError as error:
            raise ProbeFailure(Reason.BAD_SPEC, f"canary: {error}") from None
        ctx.phase(Phase.FINISH)
        return _report(params, run)


def _report(params: CanaryParams, run: CanaryRun) -> Report:
    shape: dict[str, int | float | str] = {"api": params.api, "prompt": params.prompt, "prompt_tokens": run.prompt_tokens,
                                           "max_tokens": params.max_tokens}
    return Report(reason=run.reason, message=run.message, stream=run.stream, versions=run.versions, shape=shape)
