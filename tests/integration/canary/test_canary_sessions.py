"""A whole canary: the measured request, the one before it that shares its prefix, the reference after it, the check of the answer."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from canary_peers import quick
from doubles.llmd import llm_d

from probes.canary.dial import SetupError
from probes.canary.params import CanaryParams
from probes.canary.scenario import Fault, Scenario
from probes.canary.session import Session, hold, reference_params
from probes.canary.simulated import SimulatedEndpoint
from probes.reasons import Reason

FAST = Scenario(ttft=0.02, gap=0.005)


def answer(fault: Fault = Fault.NONE, **fields: Any) -> Session:
    with SimulatedEndpoint(scenario=FAST.model_copy(update={"fault": fault})) as endpoint:
        return hold(quick(endpoint.url, **{"max_tokens": 32, "prompt_tokens": 200, **fields}))


def verdict(session: Session) -> str | None:
    return session.integrity.verdict if session.integrity is not None else None


def test_codes_that_come_back_make_the_answer_right() -> None:
    session = answer()
    assert (verdict(session), session.integrity.anchors if session.integrity else None) == ("ok", (3, 3))
    assert session.reason in (Reason.OK, Reason.DISTURBED)


def test_a_code_that_is_lost_is_wrong_content_where_codes_are_required() -> None:
    graded, required = answer(Fault.GARBLED), answer(Fault.GARBLED, anchors="required")
    assert (verdict(graded), verdict(required)) == ("drift", "mismatch")
    assert graded.reason in (Reason.OK, Reason.DISTURBED)
    assert required.reason is Reason.WRONG_CONTENT
    assert "2 of 3 codes" in required.message
    assert required.run.stream.status in ("ok", "disturbed"), "delivery is a verdict of its own"


def test_the_code_of_another_canary_is_wrong_content_always() -> None:
    session = answer(Fault.CROSSTALK)
    assert verdict(session) == "crosstalk"
    assert session.reason is Reason.WRONG_CONTENT


def test_a_request_that_failed_is_not_looked_at() -> None:
    session = answer(Fault.CUT)
    assert (session.integrity, session.reason) == (None, Reason.TRUNCATED)


def test_a_short_answer_keeps_its_own_reason() -> None:
    session = answer(Fault.SHORT)
    assert session.reason is Reason.WRONG_LENGTH
    assert session.integrity is not None


def test_no_codes_are_asked_for_where_they_are_off() -> None:
    session = answer(anchors="off")
    assert session.run.prompt.anchors == ()
    assert verdict(session) == "unknown"


def test_the_reference_gets_the_same_prompt_and_the_answers_are_compared() -> None:
    with SimulatedEndpoint(scenario=FAST) as here, SimulatedEndpoint(scenario=FAST) as there:
        session = hold(quick(here.url, max_tokens=32, prompt_tokens=200, reference=there.url, batch_invariant=True))
        assert verdict(session) == "ok"
        assert session.integrity is not None
        assert session.integrity.common_prefix == 1.0
        assert [finding.ok for finding in session.findings if finding.check == "reference"] == [True]


def test_an_answer_that_leaves_the_reference_is_a_mismatch_under_batch_invariance() -> None:
    with SimulatedEndpoint(scenario=FAST.model_copy(update={"fault": Fault.GARBLED})) as here, SimulatedEndpoint(scenario=FAST) as there:
        session = hold(quick(here.url, max_tokens=32, prompt_tokens=200, reference=there.url, batch_invariant=True))
    assert session.reason is Reason.WRONG_CONTENT
    assert "batch invariance" in session.message


def test_a_dead_reference_costs_the_comparison_only() -> None:
    session = answer(reference="http://127.0.0.1:1")
    finding = next(finding for finding in session.findings if finding.check == "reference")
    assert (finding.ok, finding.seen) == (None, "connect_failed")
    assert session.reason in (Reason.OK, Reason.DISTURBED)


def test_the_reference_is_one_plain_request() -> None:
    params = CanaryParams(url="http://d:1", model="m", stack="vllm", route="pair", prefill="http://p:1", reference="http://r:1",
                          batch_invariant=True)
    other = reference_params(params)
    assert (other.url, other.stack, other.route, other.prefill, other.reference) == ("http://r:1", "openai", "baseline", None, None)
    assert CanaryParams.model_validate(other.model_dump()) == other


def test_a_shared_prefix_is_found_in_the_cache_by_the_second_request() -> None:
    with llm_d() as there:
        session = hold(quick(there.decode.house.url, model="canary-model", max_tokens=8, prompt="shared_prefix", prompt_tokens=400))
        sent = [request.json()["messages"][0]["content"] for request in there.decode.seen]
    assert len(sent) == 2
    assert sent[0] != sent[1]
    assert sent[0][:1500] == sent[1][:1500]
    assert session.run.stream.cold_ttft is not None
    finding = next(finding for finding in session.findings if finding.check == "prefix_cache")
    # The double remembers whole prompts only, so it finds nothing: which is what a router does that sends the two to different workers.
    assert (finding.ok, finding.expected) == (False, "cached tokens above 0")
    assert finding.remedy is not None


def test_the_first_of_two_that_fails_is_the_result() -> None:
    session = answer(Fault.HTTP_500, prompt="shared_prefix")
    assert session.reason is Reason.HTTP_SERVER_ERROR
    assert session.findings == []


def test_every_try_has_a_new_first_block() -> None:
    with llm_d() as there:
        for _ in range(3):
            hold(quick(there.decode.house.url, model="canary-model", max_tokens=8))
        starts = {" ".join(request.json()["messages"][0]["content"].split()[:8]) for request in there.decode.seen}
    assert len(starts) == 3


def test_a_context_that_holds_no_prompt_and_answer_is_a_configuration_error() -> None:
    with SimulatedEndpoint(scenario=FAST, context_length=80) as endpoint, pytest.raises(SetupError, match="do not fit"):
        hold(quick(endpoint.url, max_tokens=64, prompt="long"))


def test_nothing_of_an_answer_leaves_but_scores_and_a_hash() -> None:
    with SimulatedEndpoint(scenario=FAST) as endpoint:
        session = hold(quick(endpoint.url, max_tokens=32, prompt_tokens=200), entropy=random.Random(3).randbytes)
    told = json.dumps([session.run.stream.model_dump(mode="json"), session.integrity.model_dump(mode="json") if session.integrity else None,
                       session.message])
    assert session.run.prompt.anchors[0] not in told
    assert "alpha" not in told
