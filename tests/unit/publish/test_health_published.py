"""A node's health in a fleet is localisation's word: nobody answers for a bad partner."""

from __future__ import annotations

import pytest
from publishing import kv_verdict, value_of

from exporter.publish.publisher import Publisher
from probes.reasons import Reason


def healthy(made: Publisher, node: str) -> float | None:
    return value_of(made.commit(), "efapulse_node_healthy", node=node, probe="mooncake")


@pytest.fixture
def made() -> Publisher:
    """A publisher that has seen nodes a, b and c pass."""
    one = Publisher("1.2.3")
    for pair in (("a", "b"), ("a", "c")):
        one.run_finished(kv_verdict(pair, finished=1000.0), health=dict.fromkeys(pair, True))
    return one


def test_suspects_keep_what_was_shown_until_it_is_told(made: Publisher) -> None:
    made.run_finished(kv_verdict(("a", "b"), reason=Reason.BELOW_FLOOR, finished=2000.0), health={"a": None, "b": None})
    assert (healthy(made, "a"), healthy(made, "b")) == (1.0, 1.0)


def test_the_partner_of_a_bad_node_stays_healthy_and_the_bad_one_does_not(made: Publisher) -> None:
    made.run_finished(kv_verdict(("a", "b"), reason=Reason.BELOW_FLOOR, finished=2000.0), health={"a": False, "b": True})
    assert (healthy(made, "a"), healthy(made, "b")) == (0.0, 1.0)
    assert value_of(made.snapshot, "efapulse_node_verdict_timestamp_seconds", node="b", probe="mooncake") == 2000.0


def test_a_node_that_another_run_settles_is_shown_at_once(made: Publisher) -> None:
    made.run_finished(kv_verdict(("a", "b"), reason=Reason.BELOW_FLOOR, finished=2000.0), health={"a": None, "b": None})
    made.run_finished(kv_verdict(("b", "c"), finished=3000.0), health={"a": False, "b": True, "c": True})
    assert (healthy(made, "a"), healthy(made, "b"), healthy(made, "c")) == (0.0, 1.0, 1.0)
    assert value_of(made.snapshot, "efapulse_node_verdict_timestamp_seconds", node="a", probe="mooncake") == 3000.0


def test_a_new_node_under_suspicion_has_no_health_yet() -> None:
    made = Publisher("1.2.3")
    made.run_finished(kv_verdict(("a", "b"), reason=Reason.BELOW_FLOOR), health={"a": None, "b": None})
    assert healthy(made, "a") is None


def test_without_localisation_each_node_answers_for_its_run(made: Publisher) -> None:
    made.run_finished(kv_verdict(("a", "b"), reason=Reason.BELOW_FLOOR, finished=2000.0))
    assert (healthy(made, "a"), healthy(made, "b")) == (0.0, 0.0)


def test_unknown_changes_nothing_whatever_is_told(made: Publisher) -> None:
    made.run_finished(kv_verdict(("a", "b"), reason=Reason.PREEMPTED, finished=2000.0), health={"a": True, "b": True})
    assert value_of(made.commit(), "efapulse_node_verdict_timestamp_seconds", node="a", probe="mooncake") == 1000.0
