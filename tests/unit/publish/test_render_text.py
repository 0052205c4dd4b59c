"""Our text against prometheus_client's own: the same bytes for the same samples, in both formats."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as TheirExemplar

from exporter.publish import render
from exporter.publish.family import Attribution, Cardinality, Family, Kind
from exporter.publish.render import Exemplar, Piece

LABEL_VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(['"', "\\", "\n", '\\n"', "é\u2028", ""])
VALUES = st.floats() | st.integers(-10, 10).map(float) | st.floats(1e5, 1e16)


def family(kind: Kind, name: str, labels: tuple[str, ...], help_text: str = "Help \\ with a backslash.", unit: str | None = None,
           buckets: tuple[float, ...] = ()) -> Family:
    return Family(name, kind, help_text, labels, Attribution.SELF, Cardinality.FIXED, unit=unit, buckets=buckets,
                  exemplars=kind is Kind.HISTOGRAM)


GAUGE = family(Kind.GAUGE, "efapulse_thing_seconds", ("zone", "able"), unit="seconds")
COUNTER = family(Kind.COUNTER, "efapulse_things_total", ("probe",))
HISTOGRAM = family(Kind.HISTOGRAM, "efapulse_wait_seconds", ("target", "clock", "route"), unit="seconds",
                   buckets=(0.001, 0.5, 1.0, 10.0, 1e7))
MARKS = st.none() | st.tuples(st.text("abc-123", min_size=1, max_size=40), st.floats(0, 1e9))


class One(Collector):
    """A collector of one ready family."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self.metric


def theirs(metric: Metric) -> tuple[bytes, bytes]:
    return generate_latest(One(metric)), generate_openmetrics(One(metric))  # type: ignore[no-untyped-call]


def ours(declared: Family, piece: Piece) -> tuple[bytes, bytes]:
    openmetrics = piece.text if piece.openmetrics is None else piece.openmetrics
    return render.classic_header(declared) + piece.text, render.openmetrics_header(declared) + openmetrics + render.END


@given(st.dictionaries(st.tuples(LABEL_VALUES, LABEL_VALUES), VALUES, max_size=4))
def test_gauges_are_the_same_bytes(samples: dict[tuple[str, str], float]) -> None:
    metric = GaugeMetricFamily(GAUGE.name, GAUGE.help, labels=GAUGE.labels, unit="seconds")
    for labels, value in samples.items():
        metric.add_metric(labels, value)
    assert ours(GAUGE, render.gauges(GAUGE, samples.items())) == theirs(metric)


@given(st.dictionaries(st.tuples(LABEL_VALUES), st.floats(0, allow_infinity=False), max_size=4))
def test_counters_are_the_same_bytes_with_and_without_total(samples: dict[tuple[str], float]) -> None:
    metric = CounterMetricFamily(COUNTER.name, COUNTER.help, labels=COUNTER.labels)
    for labels, value in samples.items():
        metric.add_metric(labels, value)
    assert ours(COUNTER, render.gauges(COUNTER, samples.items())) == theirs(metric)


@given(st.tuples(LABEL_VALUES, LABEL_VALUES, LABEL_VALUES), st.lists(st.integers(0, 10**6), min_size=6, max_size=6),
       st.floats(0, 1e12), st.lists(MARKS, min_size=6, max_size=6))
def test_histograms_are_the_same_bytes_exemplars_included(labels: tuple[str, str, str], counts: list[int], total: float,
                                                         marks: list[tuple[str, float] | None]) -> None:
    exemplars = [None if mark is None else Exemplar(*mark, timestamp=1700000000.125) for mark in marks]
    metric = Metric(HISTOGRAM.name, HISTOGRAM.help, "histogram", unit="seconds")
    base = dict(zip(HISTOGRAM.labels, labels, strict=True))
    seen = 0
    for bound, count, mark in zip([*map(render.number, HISTOGRAM.buckets), "+Inf"], counts, marks, strict=True):
        seen += count
        exemplar = None if mark is None else TheirExemplar({"run_id": mark[0]}, mark[1], 1700000000.125)
        metric.add_sample(f"{HISTOGRAM.name}_bucket", {**base, "le": bound}, float(seen), exemplar=exemplar)
    metric.add_sample(f"{HISTOGRAM.name}_count", base, float(seen))
    metric.add_sample(f"{HISTOGRAM.name}_sum", base, total)
    assert ours(HISTOGRAM, render.histogram(render.histogram_lines(HISTOGRAM, labels), counts, total, exemplars)) == theirs(metric)


@given(st.dictionaries(st.tuples(LABEL_VALUES, LABEL_VALUES), VALUES, min_size=1, max_size=4))
def test_what_is_rendered_reads_back_as_it_was(samples: dict[tuple[str, str], float]) -> None:
    _, text = ours(GAUGE, render.gauges(GAUGE, samples.items()))
    (metric,) = text_string_to_metric_families(text.decode())  # type: ignore[no-untyped-call]
    read = {(sample.labels["zone"], sample.labels["able"]): sample.value for sample in metric.samples}
    assert read.keys() == samples.keys()
    assert all(value == samples[key] or (math.isnan(value) and math.isnan(samples[key])) for key, value in read.items())


@pytest.mark.parametrize(("value", "text"), [
    (0, "0.0"), (1.5, "1.5"), (float("inf"), "+Inf"), (float("-inf"), "-Inf"), (float("nan"), "NaN"), (1764547200.25, "1.76454720025e+09"),
    (1e22, "1e+22"), (67108864, "6.7108864e+07"),
])
def test_numbers(value: float, text: str) -> None:
    assert render.number(value) == text


def test_labels_come_in_alphabetical_order_whatever_the_declaration() -> None:
    assert render.gauges(GAUGE, [(("z", "a"), 1)]).text == b'efapulse_thing_seconds{able="a",zone="z"} 1.0\n'


def test_a_label_that_utf8_cannot_carry_does_not_break_the_page() -> None:
    assert render.gauges(COUNTER, [(("\ud800",), 1)]).text == b'efapulse_things_total{probe="?"} 1.0\n'


def test_the_wrong_number_of_label_values_is_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        render.gauges(GAUGE, [(("one",), 1)])


def test_exemplars_are_only_in_openmetrics() -> None:
    lines = render.histogram_lines(HISTOGRAM, ("t", "kernel", "r"))
    piece = render.histogram(lines, [0, 1, 0, 0, 0, 0], 0.1, [None, Exemplar("run-1", 0.1, 5.0), *[None] * 4])
    assert b"run-1" not in piece.text
    assert piece.openmetrics is not None
    assert piece.openmetrics.count(b'# {run_id="run-1"} 0.1 5.000\n') == 1


def test_without_an_observation_both_formats_share_one_text() -> None:
    assert render.histogram(render.histogram_lines(HISTOGRAM, ("t", "kernel", "r")), [0] * 6, 0.0, [None] * 6).openmetrics is None


def test_an_exemplar_longer_than_openmetrics_allows_is_left_out() -> None:
    long = render.histogram(render.histogram_lines(HISTOGRAM, ("t", "k", "r")), [1] * 6, 0.1, [Exemplar("x" * 123, 0.1, 5.0), *[None] * 5])
    fits = render.histogram(render.histogram_lines(HISTOGRAM, ("t", "k", "r")), [1] * 6, 0.1, [Exemplar("x" * 122, 0.1, 5.0), *[None] * 5])
    assert b"xxx" not in (long.openmetrics or b"")
    assert b"x" * 122 in (fits.openmetrics or b"")


def test_series_are_counted() -> None:
    assert render.gauges(GAUGE, [(("a", "b"), 1), (("a", "c"), 1)]).series == 2
    assert render.histogram(render.histogram_lines(HISTOGRAM, ("t", "k", "r")), [0] * 6, 0.0, []).series == 8
    assert render.together([render.gauges(COUNTER, [(("a",), 1)]), render.gauges(COUNTER, [(("b",), 1)])]).series == 2


def test_an_info_and_a_state_set_are_gauges_in_the_text_format() -> None:
    info = family(Kind.INFO, "efapulse_build_info", ("version",))
    states = family(Kind.STATE_SET, "efapulse_state", ("state",))
    assert b"# TYPE efapulse_build_info gauge" in render.classic_header(info)
    assert b"# TYPE efapulse_build info" in render.openmetrics_header(info)
    assert b"# TYPE efapulse_state gauge" in render.classic_header(states)
    assert b"# TYPE efapulse_state gauge" in render.openmetrics_header(states)
