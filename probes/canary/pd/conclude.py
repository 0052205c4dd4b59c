"""The section of the result: what the counters showed, and the provenance test where it is asked for."""

from __future__ import annotations

from dataclasses import replace

from probes.canary.client import CanaryRun
from probes.canary.dial import SetupError, read_key
from probes.canary.params import CanaryParams
from probes.canary.pd.params import PROVENANCE_SECONDS
from probes.canary.pd.provenance import RefusedError, Tested, prove
from probes.canary.pd.watch import PdWatch, Sent
from probes.canary.stacks.signs import path_signs
from probes.result import Pd, PdSays


def look(watch: PdWatch, params: CanaryParams, run: CanaryRun, seconds: float) -> None:
    """Read the pages again, right after the request; ends in `seconds` less what the provenance test needs."""
    reserve = PROVENANCE_SECONDS if params.pd is not None and params.pd.provenance else 0.0
    watch.look(run.stream, _sent(params, run), seconds=max(0.0, seconds - reserve))


def conclude(watch: PdWatch, params: CanaryParams, run: CanaryRun, seconds: float) -> Pd:
    """Judge what `look` saw. Where it is asked for, test provenance first: it leaves traces in the counters, so it comes after them."""
    if params.pd is None or not params.pd.provenance or run.stream.token_events == 0:
        return watch.section(run.stream, _sent(params, run))
    try:
        tested = prove(params, read_key(params), seconds=max(1.0, min(PROVENANCE_SECONDS, seconds)))
    except (RefusedError, SetupError) as error:
        tested = Tested("inconclusive", str(error))
    pd = watch.section(run.stream, replace(_sent(params, run), provenance=tested.says))
    return pd.model_copy(update={"says": [_with_reason(one, tested) for one in pd.says]})


def _sent(params: CanaryParams, run: CanaryRun) -> Sent:
    return Sent(params.route, params.wire_connector, run.ttft_has_prefill, path_signs(run.headers, run.stream.request_id))


def _with_reason(one: PdSays, tested: Tested) -> PdSays:
    return one.model_copy(update={"text": f"{one.text} ({tested.why})"}) if one.kind == "provenance" and tested.why else one
