"""A validation as JUnit XML, for CI. The dialect is what Jenkins, GitLab and GitHub actions read: one suite, one case a step.

Failed and degraded steps are `failure`, what could not be measured is `error`, what was left out or not reached is `skipped`.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from datetime import datetime, timezone

from exporter.validation import Reached, State, Step, Validation

TEXT_LIMIT = 64 << 10
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Everything that XML 1.0 cannot hold, not even escaped: control characters, lone surrogates, U+FFFE and U+FFFF."""


def junit(validation: Validation) -> bytes:
    """The document, UTF-8. Whatever texts it is made of, it is well-formed."""
    began = min((reached.began for reached in validation.stages), default=0.0)
    root = ET.Element("testsuites")
    suite = ET.SubElement(root, "testsuite", {
        **_counts(validation), "name": "efa-pulse validate", "time": _seconds(sum(reached.seconds for reached in validation.stages)),
        "timestamp": datetime.fromtimestamp(began, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")})
    properties = ET.SubElement(suite, "properties")
    for name, value in (("nodes", ",".join(validation.nodes)), ("state", validation.state.value)):
        ET.SubElement(properties, "property", {"name": name, "value": _clean(value)})
    for reached in validation.stages:
        for step in reached.steps:
            _case(suite, reached, step)
    ET.indent(root)
    body: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return body + b"\n"


def _case(suite: ET.Element, reached: Reached, step: Step) -> None:
    name = _clean(f"{step.probe} {step.target}".strip())
    case = ET.SubElement(suite, "testcase", {"classname": f"efa-pulse.{reached.stage.name}", "name": name, "time": _seconds(step.seconds)})
    if step.state is State.OK:
        return
    if step.state in {State.SKIPPED, State.BLOCKED}:
        ET.SubElement(case, "skipped", {"message": _clean(step.why)})
        return
    kind = step.reason.value if step.reason is not None else "gate"
    made = ET.SubElement(case, "failure" if step.state.bad else "error", {"type": kind, "message": _clean(step.why)[:1000]})
    made.text = _clean("\n".join(_details(step)))[:TEXT_LIMIT]


def _details(step: Step) -> list[str]:
    lines = [f"{step.state.value}: {step.why}"]
    if step.action:
        lines.append(f"what to do: {step.action}")
    if step.verdict is not None:
        lines.append(f"run: {step.verdict.run.spec.run_id}")
        lines += [f"{proof.name}: {_TOLD[proof.holds]}: {proof.says}" for proof in step.verdict.proofs]
        for result in step.verdict.run.results:
            lines.append(f"rank {result.rank} on {result.node}: {result.reason.value}: {result.message}")
            lines += [f"  {found.check}: seen {found.seen or '-'}, expected {found.expected or '-'}: {found.remedy or ''}"
                      for found in result.findings if found.ok is False]
    return lines


_TOLD = {True: "holds", False: "broken", None: "not told"}


def _counts(validation: Validation) -> dict[str, str]:
    states = [step.state for step in validation.steps]
    return {"tests": str(len(states)), "failures": str(sum(state.bad for state in states)), "errors": str(states.count(State.UNKNOWN)),
            "skipped": str(states.count(State.SKIPPED) + states.count(State.BLOCKED))}


def _seconds(value: float) -> str:
    return f"{max(value, 0.0):.3f}"


def _clean(text: str) -> str:
    return _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", text)
