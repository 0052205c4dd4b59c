"""What would change a verdict: sentences that follow from the rules and the run's own figures, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from exporter.judge.witnesses import BACKGROUND, FLAT, MIN_PAYLOAD, RAIL_SHARE, RISE, size
from exporter.status.records import Brief, Entry
from probes.reasons import REASONS, Outcome, Reason

Json = dict[str, Any]


def of_run(brief: Brief, detail: Json | None) -> Iterator[str]:
    """What would have made this run's verdict another one, and what its next run needs."""
    reason = Reason(brief.reason)
    if detail is None:
        detail = {}
    if brief.outcome == Outcome.UNKNOWN.value and reason is not Reason.TRANSPORT_INDETERMINATE:
        yield (f"Nothing was measured ({reason.value}: {REASONS[reason].meaning}): this run blames nobody and clears nobody. "
               f"First thing to do: {REASONS[reason].action}.")
    yield from _transport(brief, detail.get("witnesses", []), reason)
    yield from _speed(brief, detail.get("thresholds", []), detail, reason)
    yield from _answer(detail.get("proofs", []), reason)
    if brief.bad and reason not in _TOLD:
        info = REASONS[reason]
        yield f"A run that ends otherwise than with {reason.value} ({info.meaning}). First thing to do: {info.action}."


_TOLD = frozenset({Reason.BELOW_FLOOR, Reason.BELOW_BASELINE, Reason.TCP_FALLBACK, Reason.EFA_PARTIAL, Reason.WRONG_CONTENT,
                   Reason.EFA_NO_RDMA, Reason.NOT_EFA})


def of_entry(entry: Entry) -> Iterator[str]:
    """What would change the verdict that is shown for a node or a canary."""
    shown = entry.shown
    if entry.unknowns and entry.conclusive:
        runs = "run" if entry.unknowns == 1 else "runs"
        yield (f"{entry.unknowns} {runs} since could not measure, the last with {entry.last.reason}: the verdict shown stays until a "
               "conclusive run contradicts it or what it is about leaves.")
    elif not shown.conclusive:
        yield "Any conclusive run: there has been none yet, so the verdict is unknown."
    elif shown.bad and shown.run_id and len(shown.nodes) < 2:
        yield "One run that passes."
    elif not shown.bad:
        yield "One conclusive run that fails or is degraded; being old does not change it."


def of_case(case: Json | None, path: Json | None, findings: list[Json]) -> Iterator[str]:
    """What localisation waits for. `case` is of a node, `path` of a pair, `findings` are those that touch it."""
    if case is not None and case["explained_by"]:
        yield (f"First of all what explains it: {case['explained_by']}. Until that is over, nothing more is asked about {case['node']} "
               "here.")
    elif case is not None and case["state"] == "suspect":
        yield from _of_suspect(case)
    elif case is not None:
        left = case["passes_needed"] - len(case["passed_with"])
        if case["finding"]["kind"] in ("node", "nic") and case["failures"]:
            yield (f"{_count(left, 'run')} that pass{'es' if left == 1 else ''}{'' if left == 1 else ', each with another partner,'} clear "
                   f"{case['node']}" + (f" ({', '.join(case['passed_with'])} so far)." if case["passed_with"] else "."))
        else:
            yield f"One run of {case['node']} that passes ends the finding."
    if path is not None and path["finding"] is None:
        yield (f"They failed together {_count(path['failed'], 'time')} and both pass elsewhere: one more failed run of the two makes "
               "their path a finding, one that passes ends the case.")
    elif path is not None:
        left = max(path["needed"] - path["passed"], 1)
        yield f"{_count(left, 'run')} between the two that pass{'es' if left == 1 else ''} end{'s' if left == 1 else ''} the finding."
    for found in findings:
        if found["kind"] == "group":
            yield (f"The finding of {found['subjects'][0]} {found['subjects'][1]} ends when most of the last runs that touch it pass; its "
                   "nodes are not named one by one until then.")


def _of_suspect(case: Json) -> Iterator[str]:
    held = case["holds_back"]
    more = case["needed"] - len(case["agree"])
    if more > 0:
        yield (f"{_count(more, 'more failed run')} with {'a ' if more == 1 else ''}different known-good partner{'' if more == 1 else 's'} "
               f"name{'s' if more == 1 else ''} {case['node']}, one run that passes clears it.")
    for why in held[0 if more <= 0 else 1:]:
        yield f"It is not named while {why}."
    if case["asked"]:
        yield f"Run {case['asked']} asks another partner now."
    elif case["alone"]:
        yield "There is no other node to compare with: a third comparable node would tell."
    elif case["no_place"]:
        yield f"A re-pairing waits for a place: {case['no_place']}."


def _transport(brief: Brief, witnesses: list[Json], reason: Reason) -> Iterator[str]:
    if brief.transport in (None, "efa_rdma") or not witnesses:
        return
    required = brief.mode == "efa"
    if (required and reason in (Reason.TCP_FALLBACK, Reason.NOT_EFA)) or (not required and brief.transport in ("tcp", "intra_node")):
        if not required:
            yield (f"Transport `any` is asked for, so {brief.transport} is a fact and no fault; with transport `efa` this run would have "
                   "failed.")
        for one in witnesses:
            if one["witness"] == "tcp" and one["says"] in ("payload", "some"):
                sent, received = (one["numbers"].get(name) or 0 for name in ("tcp_sent", "tcp_received"))
                load = max(one["numbers"].get("payload_sent") or 0, one["numbers"].get("payload_received") or 0)
                yield (f"{one['where']}: TCP would have to carry at most {size(FLAT * load)} ({FLAT:.0%} of the payload); it carried "
                       f"{size(max(sent, received))}.")
            elif one["witness"] == "counters" and one["says"] == "flat" and required:
                yield f"{one['where']}: the EFA counters would have to rise by {RISE:.0%} of the payload ({one['text']})."
    elif brief.transport == "indeterminate":
        yield "To prove the transport, every witness below would have to speak, and all of them alike:"
        yield from (f"{one['where']}: {_wanted(one)}" for one in witnesses if _wanted(one))
    elif brief.transport == "efa_partial":
        for one in witnesses:
            if one["says"] == "efa_partial":
                yield f"{one['where']}: {_whole(one)}"
    elif brief.transport == "efa_no_rdma" and reason is Reason.EFA_NO_RDMA:
        yield (f"The RDMA counters of every node would have to rise by {RISE:.0%} of the payload; send and receive carried it. "
               f"First thing to do: {REASONS[reason].action}.")


def _wanted(one: Json) -> str:
    """What a witness that proves nothing would need."""
    numbers = one["numbers"]
    if one["witness"] == "counters":
        payload = max((numbers.get(f"payload_{side}") or 0 for side in ("in", "out")), default=0)
        background = max((numbers.get(f"background_{side}") or 0 for side in ("in", "out")), default=0)
        return {
            "unknown": f"EFA counters of this node over the run's window ({one['text']})",
            "supports": "what other traffic there was just before and after the run",
            "background": f"a payload of at least {size(BACKGROUND * background)} ({BACKGROUND:g} times the background), or a quieter "
                          f"moment; it was {size(payload)}",
            "part": f"counters that rise by {RISE:.0%} of the payload ({one['text']})",
            "flat": f"counters that rise by {RISE:.0%} of the payload ({one['text']})",
            "idle": f"a payload of at least {size(MIN_PAYLOAD)}",
        }.get(one["says"], "")
    if one["witness"] == "tcp":
        return {"unknown": f"the bytes of the rank's own TCP sockets ({one['text']})", "idle": f"a payload of at least {size(MIN_PAYLOAD)}",
                "some": f"TCP bytes below {FLAT:.0%} or above {RISE:.0%} of the payload ({one['text']})"}.get(one["says"], "")
    return ""


def _whole(one: Json) -> str:
    numbers = one["numbers"]
    if "fair" in numbers:
        least = f"{RAIL_SHARE:.0%} of its fair part, {size(RAIL_SHARE * numbers['fair'])} here"
        return f"every rail has to carry at least {least} ({one['text']})."
    if "nics_allocated" in numbers:
        return f"all {numbers['nics_allocated']:.0f} allocated NICs have to be used ({one['text']})."
    return f"its log must not say: {one['text']}."


def _speed(brief: Brief, thresholds: list[Json], detail: Json, reason: Reason) -> Iterator[str]:
    if not thresholds:
        if any(proof["name"] == "speed" and proof["holds"] is None for proof in detail.get("proofs", [])) and brief.conclusive:
            yield "Speed changes nothing here: no floor is set for these figures (thresholds.floors sets one)."
        return
    below = [one for one in thresholds if one["share"] < 1]
    for one in below[:3]:
        need = f"at least {_figure(one, 'limit')}" if one["measure"] == "bandwidth" else f"at most {_figure(one, 'limit')}"
        what = f"{one['operation']} of {size(one['bytes'])} in {one['memory']}"
        yield f"{one['node']}: {what} must reach {need}; it was {_figure(one, 'value')}."
    if len(below) > 3:
        yield f"And {len(below) - 3} more figures below their floors."
    if below and reason is Reason.CPU_STARVED:
        yield "With enough CPU for the worker the same figures would be called slow; starved as it was, they say nothing."
    if not below:
        one = thresholds[0]
        word = "falls below" if one["measure"] == "bandwidth" else "takes longer than"
        yield (f"The next run is degraded when {one['operation']} of {size(one['bytes'])} {word} {_figure(one, 'limit')}: it was "
               f"{_figure(one, 'value')}, the closest of {detail.get('compared', len(thresholds))} figures to its floor.")


def _answer(proofs: list[Json], reason: Reason) -> Iterator[str]:
    if reason is Reason.WRONG_CONTENT:
        says = next((proof["says"] for proof in proofs if proof["name"] == "answer"), "")
        yield (f"Every check has to find the bytes that were sent{': ' + says if says else ''}. Fast and wrong stays failed, whatever the "
               "speed.")


def _figure(one: Json, name: str) -> str:
    value = float(one[name])
    return f"{value / 1e9:.3g} GB/s" if one["measure"] == "bandwidth" else f"{value * 1e6:.4g} us ({one['measure']})"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
