"""The declarations: names, labels, the catalogue made of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from exporter.publish import families as f
from exporter.publish.catalogue import PATH, catalogue
from exporter.publish.family import FORBIDDEN_LABELS, Attribution, Cardinality, Family, FamilyError, Kind

BY_NAME = {family.name: family for family in f.FAMILIES}


def declare(name: str = "efapulse_thing", kind: Kind = Kind.GAUGE, text: str = "A thing.", labels: tuple[str, ...] = (), *,
            cardinality: Cardinality = Cardinality.FIXED, unit: str | None = None, buckets: tuple[float, ...] = (),
            exemplars: bool = False) -> Family:
    return Family(name, kind, text, labels, Attribution.SELF, cardinality, unit=unit, buckets=buckets, exemplars=exemplars)


def test_every_family_is_declared_once() -> None:
    assert len(BY_NAME) == len(f.FAMILIES)


def test_no_family_has_a_label_that_a_service_monitor_renames() -> None:
    assert {"endpoint", "instance", "job", "namespace", "pod", "service", "container"} <= FORBIDDEN_LABELS
    assert [(family.name, label) for family in f.FAMILIES for label in family.labels if label in FORBIDDEN_LABELS] == []


@pytest.mark.parametrize("label", ["endpoint", "instance", "job", "namespace", "pod", "service", "container", "quantile", "le"])
def test_a_forbidden_label_cannot_be_declared(label: str) -> None:
    with pytest.raises(FamilyError, match=f"efapulse_thing: forbidden label {label}"):
        declare(labels=(label,))


@pytest.mark.parametrize(("family", "complaint"), [
    (lambda: declare("thing"), "must start with efapulse_"),
    (lambda: declare("efapulse_Thing"), "lower case"),
    (lambda: declare("efapulse_things", Kind.COUNTER), "must end with _total"),
    (lambda: declare("efapulse_build", Kind.INFO), "must end with _info"),
    (lambda: declare("efapulse_things_total"), "suffix that the format reserves"),
    (lambda: declare("efapulse_thing_count"), "suffix that the format reserves"),
    (lambda: declare(unit="seconds"), "must end with its unit seconds"),
    (lambda: declare("efapulse_seconds_total", Kind.COUNTER, unit="bytes"), "must end with its unit bytes"),
    (lambda: declare(text="Two\nlines."), "one sentence on one line"),
    (lambda: declare(text=" "), "one sentence on one line"),
    (lambda: declare(labels=("a", "a")), "given twice"),
    (lambda: declare(labels=("Not-a-word",)), "lower case"),
    (lambda: declare(cardinality=Cardinality.PER_NODE), "needs the label node"),
    (lambda: declare(cardinality=Cardinality.PER_TARGET, labels=("node",)), "needs the label target"),
    (lambda: declare(kind=Kind.HISTOGRAM), "needs buckets"),
    (lambda: declare(kind=Kind.HISTOGRAM, buckets=(2.0, 1.0)), "needs buckets, ascending"),
    (lambda: declare(kind=Kind.HISTOGRAM, buckets=(1.0, float("inf"))), "finite"),
    (lambda: declare(buckets=(1.0,)), "only a histogram has buckets"),
    (lambda: declare(exemplars=True), "only a counter or a histogram has exemplars"),
    (lambda: declare(kind=Kind.STATE_SET), "needs the label of its state"),
])
def test_a_declaration_that_breaks_a_rule_is_refused(family: object, complaint: str) -> None:
    assert callable(family)
    with pytest.raises(FamilyError, match=complaint):
        family()


def test_units_are_base_units() -> None:
    assert {family.unit for family in f.FAMILIES} <= {None, "seconds", "bytes", "bytes_per_second", "tokens_per_second"}
    assert [name for name in BY_NAME if any(word in name for word in ("_ms", "_us", "milli", "_gb", "_mb", "percent"))] == []


def test_a_name_that_says_seconds_has_that_unit() -> None:
    assert [family.name for family in f.FAMILIES if family.base_name.endswith("_seconds") and family.unit != "seconds"] == []


def test_every_label_is_explained_and_no_explanation_is_left_over() -> None:
    assert {label for family in f.FAMILIES for label in family.labels} == set(f.LABELS)


def test_the_order_of_dropping_has_no_ties() -> None:
    order = [family.drop for family in f.FAMILIES if family.drop]
    assert len(order) == len(set(order))


def test_everything_that_grows_can_be_dropped_except_the_counts_of_canary_requests() -> None:
    growing = {family.name for family in f.FAMILIES if family.cardinality is not Cardinality.FIXED and not family.drop}
    assert growing == {f.CANARY_REQUESTS.name, f.CANARY_SUCCESS_TIME.name, f.CANARY_UNRESOLVED.name}


def test_what_says_that_a_node_is_bad_goes_last() -> None:
    assert sorted((family.drop, family.name) for family in f.FAMILIES)[-2:] == [
        (f.NODE_TRANSPORT.drop, f.NODE_TRANSPORT.name), (f.NODE_HEALTHY.drop, f.NODE_HEALTHY.name)]


def test_exemplars_are_on_canary_histograms_only() -> None:
    assert {family.name.split("_")[1] for family in f.FAMILIES if family.exemplars} == {"canary"}
    assert {family.kind for family in f.FAMILIES if family.exemplars} == {Kind.HISTOGRAM}


def test_the_catalogue_page_is_up_to_date() -> None:
    assert PATH.read_text() == catalogue(), "run python -m exporter.publish.catalogue"


def test_the_catalogue_names_every_family_and_its_buckets() -> None:
    page = catalogue()
    for family in f.FAMILIES:
        assert f"### `{family.name}`\n\n{family.help}\n" in page
    assert "- buckets: 0.01, 0.025, 0.05" in page


def test_the_catalogue_command_says_whether_the_page_is_up_to_date() -> None:
    command = [sys.executable, "-m", "exporter.publish.catalogue", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "catalogue.md is up to date\n")
