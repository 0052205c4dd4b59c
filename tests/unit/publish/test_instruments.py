"""Counters and histograms of the control loop."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from exporter.publish import render
from exporter.publish.family import Attribution, Cardinality, Family, Kind
from exporter.publish.instruments import Counters, Histograms

BUCKETS = (0.01, 0.1, 1.0)
EVENTS = Family("efapulse_events_total", Kind.COUNTER, "Events.", ("target", "why"), Attribution.SELF, Cardinality.PER_TARGET)
PLAIN = Family("efapulse_plain_total", Kind.COUNTER, "Plain.", ("why",), Attribution.SELF, Cardinality.FIXED)
WAIT = Family("efapulse_wait_seconds", Kind.HISTOGRAM, "Wait.", ("target",), Attribution.SELF, Cardinality.PER_TARGET, unit="seconds",
              buckets=BUCKETS, exemplars=True)


def test_a_started_counter_shows_zero_before_its_first_event() -> None:
    counters = Counters(EVENTS)
    counters.start([("a", "x"), ("a", "y")])
    assert dict(counters.rendered())["a"] == render.gauges(EVENTS, [(("a", "x"), 0), (("a", "y"), 0)])


def test_starting_again_keeps_the_count_and_changes_nothing() -> None:
    counters = Counters(EVENTS)
    counters.add(("a", "x"), 3)
    counters.rendered()
    counters.start([("a", "x")])
    assert counters.value(("a", "x")) == 3
    assert counters.rendered() == []


def test_only_owners_that_changed_are_rendered() -> None:
    counters = Counters(EVENTS)
    counters.start([("a", "x"), ("b", "x")])
    counters.rendered()
    counters.add(("b", "x"))
    assert [owner for owner, _ in counters.rendered()] == ["b"]
    assert counters.rendered() == []


def test_a_family_without_an_owner_is_one_piece() -> None:
    counters = Counters(PLAIN)
    counters.add(("x",))
    counters.add(("y",))
    assert counters.rendered() == [("", render.gauges(PLAIN, [(("x",), 1), (("y",), 1)]))]


def test_what_is_forgotten_is_removed_once() -> None:
    counters = Counters(EVENTS)
    counters.add(("a", "x"))
    counters.rendered()
    counters.forget("a")
    counters.forget("nobody")
    assert counters.rendered() == [("a", None)]


def test_a_counter_never_goes_down() -> None:
    with pytest.raises(ValueError, match="efapulse_events_total cannot count -1"):
        Counters(EVENTS).add(("a", "x"), -1)


def test_the_wrong_number_of_labels_names_those_needed() -> None:
    with pytest.raises(ValueError, match="efapulse_events_total has the labels target, why, got 1 values"):
        Counters(EVENTS).add(("a",))


def test_a_table_refuses_a_family_of_another_kind() -> None:
    with pytest.raises(ValueError, match="efapulse_wait_seconds is a histogram, not a counter"):
        Counters(WAIT)
    with pytest.raises(ValueError, match="efapulse_plain_total is a counter, not a histogram"):
        Histograms(PLAIN)


@given(st.lists(st.floats(-1, 10, allow_nan=False) | st.sampled_from([0.01, 0.1, 1.0, math.inf]), max_size=30))
def test_a_histogram_counts_as_prometheus_client_does(values: list[float]) -> None:
    registry = CollectorRegistry()
    peer = Histogram(WAIT.name, WAIT.help, WAIT.labels, buckets=BUCKETS, registry=registry).labels("a")
    histograms = Histograms(WAIT)
    histograms.start([("a",)])
    for value in values:
        peer.observe(value)
        histograms.observe(("a",), value)
    piece = dict(histograms.rendered())["a"]
    assert piece is not None
    expected = generate_latest(registry).partition(b"# HELP efapulse_wait_seconds_created")[0]
    assert render.classic_header(WAIT) + piece.text == expected


def test_the_exemplar_of_a_bucket_is_its_last_run() -> None:
    histograms = Histograms(WAIT)
    histograms.observe(("a",), 0.05, "run-1", 1.0)
    histograms.observe(("a",), 0.06, "run-2", 2.0)
    histograms.observe(("a",), 5.0, "run-3", 3.0)
    piece = dict(histograms.rendered())["a"]
    assert piece is not None
    assert piece.openmetrics is not None
    assert b"run-1" not in piece.openmetrics
    assert b'le="0.1",target="a"} 2.0 # {run_id="run-2"} 0.06 2.000' in piece.openmetrics
    assert b'le="+Inf",target="a"} 3.0 # {run_id="run-3"} 5.0 3.000' in piece.openmetrics


def test_a_nan_is_refused_before_it_spoils_the_sum() -> None:
    histograms = Histograms(WAIT)
    with pytest.raises(ValueError, match="cannot observe NaN"):
        histograms.observe(("a",), math.nan)
    assert histograms.count(("a",)) == 0
