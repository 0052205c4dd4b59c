"""JUnit XML of a validation: well-formed and complete, whatever the texts in it."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.cli.junit import TEXT_LIMIT, junit
from exporter.judge.judge import judge
from exporter.runs import Run, RunSpec, missing_result
from exporter.validation import STAGES, Reached, State, Step, Validation
from probes.reasons import Reason
from probes.result import Measurement

ODD = ["", "<&>\"' ]]> <!-- --> <?xml?>", "a\0b\x1b[31mred\x7f", "\ud800 lone", "\ufffe\uffff", "tab\tline\nreturn\r",
       "\u2028\u202e\U0001f4a9",
       "x" * 200_000, "<![CDATA[", "&#0;&amp;"]


def run_step(reason: Reason, message: str, target: str = "a--b") -> Step:
    spec = RunSpec("r-1", "mooncake", target, ("a", "b"), "any", 60.0)
    row = Measurement(operation="write", memory="dram", kind="goodput", bytes=[1 << 20], bandwidth=[1e9])
    results = tuple(missing_result(spec, rank, reason, message, 1.0, 2.0).model_copy(update={"measurements": [row]}) for rank in range(2))
    return Step.judged(judge(Run(spec, results, 1.0, 2.25)))


def of(*steps: Step, nodes: tuple[str, ...] = ("a", "b")) -> ET.Element:
    return ET.fromstring(junit(Validation(nodes, (Reached(STAGES[1], steps, 1_790_000_000.0, 3.0),))))


def only(root: ET.Element, path: str) -> ET.Element:
    found = root.findall(path)
    assert len(found) == 1
    return found[0]


def test_each_state_has_its_element_and_the_counts_agree() -> None:
    root = of(run_step(Reason.OK, ""), run_step(Reason.TCP_FALLBACK, "by TCP"), run_step(Reason.BELOW_FLOOR, "slow"),
              run_step(Reason.UNSCHEDULED, "no room"), Step("nccl", "a", State.SKIPPED, "no GPU"),
              Step("canary", "", State.BLOCKED, "stage kv is bad"), Step("nixl", "a--b", State.UNKNOWN, "gate busy: a probe pod is there"))
    suite = only(root, "testsuite")
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "7", "failures": "2", "errors": "2", "skipped": "2"}
    assert [len(root.findall(f".//{kind}")) for kind in ("testcase", "failure", "error", "skipped")] == [7, 2, 2, 2]
    first = root.findall(".//failure")[0]
    assert first.get("type") == "tcp_fallback"
    assert first.get("message") == "tcp_fallback: by TCP"
    assert "what to do: " in (first.text or "")
    assert "rank 1 on b" in (first.text or "")
    assert root.findall(".//error")[1].get("type") == "gate"
    case = root.findall(".//testcase")[0]
    assert (case.get("classname"), case.get("name"), case.get("time")) == ("efa-pulse.kv", "mooncake a--b", "1.250")
    assert suite.get("timestamp") == "2026-09-21T14:13:20"


@pytest.mark.parametrize("text", ODD)
def test_odd_texts_stay_well_formed(text: str) -> None:
    root = of(run_step(Reason.TCP_FALLBACK, text), Step("nccl", text, State.SKIPPED, text), nodes=(text,))
    assert len(root.findall(".//testcase")) == 2
    assert len(only(root, ".//failure").text or "") <= TEXT_LIMIT


@given(st.text(st.characters()), st.text(st.characters()))
def test_any_text_at_all(message: str, target: str) -> None:
    root = of(Step("nixl", target, State.FAILED, message), Step("nixl", target, State.BLOCKED, message))
    assert len(root.findall(".//testcase")) == 2


def test_what_xml_can_hold_comes_through_as_it_was() -> None:
    text = "rank 0: <efa> & \"tcp\" größer 数据"
    assert only(of(Step("nixl", "a--b", State.FAILED, text)), ".//failure").get("message") == text
