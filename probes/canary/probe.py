"""The canary as a probe: one request in a process of its own."""

from __future__ import annotations

from probes.canary.client import CanaryRun
from probes.canary.dial import SetupError
from probes.canary.params import CanaryParams
from probes.canary.pd.conclude import conclude, look
from probes.canary.pd.watch import PdWatch
from probes.canary.session import Session, hold
from probes.reasons import Reason
from probes.result import Pd, Phase
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
        watch = PdWatch(params.pd) if params.pd is not None else None

        def before() -> None:
            if watch is not None:
                watch.before()
            ctx.phase(Phase.MEASURE)

        def after(run: CanaryRun) -> None:
            ctx.phase(Phase.FINISH)
            if watch is not None:
                look(watch, params, run, ctx.remaining())

        try:
            session = hold(params, before_request=before, after_request=after)
        except SetupError as error:
            raise ProbeFailure(Reason.BAD_SPEC, f"canary: {error}") from None
        report = _report(params, session)
        if watch is not None:
            proof = conclude(watch, params, session.run, ctx.remaining())
            report.pd = proof.model_copy(update={"integrity": session.integrity})
        return report


def _report(params: CanaryParams, session: Session) -> Report:
    run = session.run
    shape: dict[str, int | float | str] = {"api": params.api, "prompt": params.prompt, "prompt_tokens": run.prompt_tokens,
                                           "max_tokens": params.max_tokens, "stack": params.stack, "route": params.route}
    if params.wire_connector is not None:
        shape["connector"] = params.wire_connector
    pd = Pd(route=params.route, connector=params.wire_connector, integrity=session.integrity)
    return Report(reason=session.reason, message=session.message, stream=run.stream, pd=pd, versions=run.versions, shape=shape,
                  findings=session.findings)
