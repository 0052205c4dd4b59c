"""Rules as data: they name only what is published, drop the labels of replicas, and are what is written in the files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dashboards.rules import __main__ as generate
from dashboards.rules import promql, render
from dashboards.rules.catalogue import ALERTS, GROUPS
from dashboards.rules.model import Alert, Recording, RuleError, Severity, duration, fill, number, places
from dashboards.rules.settings import BOUNDS, SETTINGS
from exporter.layers import LAYERS
from exporter.publish.families import FAMILIES
from exporter.publish.family import FORBIDDEN_LABELS
from exporter.publish.legal import FALLBACKS

RULES = [rule for group in GROUPS for rule in group.rules]
FOREIGN = ("efapulse.neighbours", "efapulse.thresholds")
"""Groups that read metrics of others, or none: what boards show beside ours, by the labels that those others have."""
OWN = [rule for group in GROUPS if group.name not in FOREIGN for rule in group.rules]
HERE = Path(render.__file__).parent
METRIC = re.compile(r"(?<![a-z_:])(efapulse_[a-z0-9_]+|efapulse:[a-z0-9_:]+|up)(?![a-z0-9_:(])(?:\{([^}]*)\})?")
MATCHER = re.compile(r'([a-z_]+)(?:=~|!~|!=|=)"')
GROUPING = re.compile(r"(?:without|ignoring) \(([^)]*)\)|(?:without|ignoring)\(([^)]*)\)")
SAMPLES = {name: family for family in FAMILIES for name in (
    [family.name] if not family.buckets else [family.name + end for end in ("_bucket", "_count", "_sum")])}


def name_of(rule: Recording | Alert) -> str:
    return rule.record if isinstance(rule, Recording) else rule.name


def filled(rule: Recording | Alert) -> str:
    values = {name: parameter.default for name, parameter in SETTINGS.items()}
    if isinstance(rule, Alert):
        values |= {name: parameter.default for name, parameter in rule.parameters.items()}
    return fill(rule.expr, values)


@pytest.mark.parametrize("rule", OWN, ids=name_of)
def test_every_metric_is_published_with_the_labels_that_the_rule_chooses_by(rule: Recording | Alert) -> None:
    recorded = {one.record for one in RULES if isinstance(one, Recording)}
    found = METRIC.findall(filled(rule))
    assert found
    for name, chosen in found:
        labels = set(MATCHER.findall(chosen))
        if name == "up":
            assert labels == {"job"}
        elif name.startswith("efapulse:"):
            assert name in recorded, f"{name} is recorded nowhere"
        else:
            assert name in SAMPLES, f"{name} is not in the catalogue"
            assert labels <= {*SAMPLES[name].labels, "le"}, f"{name} has no label {labels}"


@pytest.mark.parametrize("rule", OWN, ids=name_of)
def test_labels_that_are_dropped_or_ignored_exist(rule: Recording | Alert) -> None:
    known = {label for family in FAMILIES for label in family.labels} | {"instance", "pod", "le"}
    for first, second in GROUPING.findall(filled(rule)):
        named = {label.strip() for label in (first or second).split(",")}
        assert named <= known


@pytest.mark.parametrize("rule", OWN, ids=name_of)
def test_no_rule_lists_the_labels_it_keeps(rule: Recording | Alert) -> None:
    assert not re.search(r"\b(by|on) ?\(", rule.expr), "a cluster or namespace label would be lost"


@pytest.mark.parametrize("rule", OWN, ids=name_of)
def test_what_is_read_from_replicas_is_one_series_for_all_of_them(rule: Recording | Alert) -> None:
    raw = [name for name, _ in METRIC.findall(filled(rule)) if name.startswith("efapulse_")]
    if raw and "absent(" not in rule.expr:
        assert "without (instance, pod" in rule.expr


@pytest.mark.parametrize("alert", ALERTS.values(), ids=lambda one: one.name)
def test_an_alert_says_whom_it_is_about_and_where_to_read_on(alert: Alert) -> None:
    rendered = next(rule for group in render.rule_groups()["groups"] for rule in group["rules"] if rule.get("alert") == alert.name)
    owners = ("node", "target", "probe")
    if alert.component.value != "monitor":
        assert any(f"$labels.{owner}" in alert.summary for owner in owners)
    assert rendered["annotations"]["runbook_url"].endswith(f"/{alert.name}.md")
    assert rendered["labels"]["severity"] in {one.value for one in Severity}
    assert len(alert.shape) > 60
    assert places(" ".join(map(str, rendered["annotations"].values()))) == set()


@pytest.mark.parametrize("alert", ALERTS.values(), ids=lambda one: one.name)
def test_every_parameter_is_used_and_every_place_has_a_value(alert: Alert) -> None:
    named = places(alert.expr + alert.summary + alert.description)
    assert set(alert.parameters) <= places(alert.expr)
    assert named <= set(alert.parameters) | set(SETTINGS)


def test_every_setting_and_every_recording_is_used() -> None:
    everything = "\n".join(rule.expr for rule in RULES)
    assert [name for name in SETTINGS if f"@{name}@" not in everything] == []
    for rule in OWN:
        if isinstance(rule, Recording):
            assert any(rule.record in other.expr for other in RULES if other is not rule), f"{rule.record} is read by no rule"


def test_no_metric_of_ours_has_a_label_that_the_operator_renames() -> None:
    assert not {label for family in FAMILIES for label in family.labels} & FORBIDDEN_LABELS


def test_bounds_of_latency_objectives_are_bucket_bounds() -> None:
    buckets = {family.name: family.buckets for family in FAMILIES}
    for setting, family in BOUNDS.items():
        assert float(SETTINGS[setting].default) in buckets[family]


def test_layers_and_fallbacks_are_those_of_the_judge() -> None:
    assert {**promql.LAYERS, "canary": max(promql.LAYERS.values()) + 1} == LAYERS
    assert promql.FALLBACKS.split("|") == list(FALLBACKS)


def test_names_are_given_once() -> None:
    names = [name_of(rule) for rule in RULES]
    assert len(names) == len(set(names))
    assert len({group.name for group in GROUPS}) == len(GROUPS)


@pytest.mark.parametrize("name", generate.generated())
def test_generated_files_are_up_to_date(name: str) -> None:
    assert (generate.HERE / name).read_text() == generate.generated()[name], "run python -m dashboards.rules"


def test_the_template_filled_by_the_rule_of_the_readme_is_the_rule_file() -> None:
    template = yaml.safe_load((HERE / "template.yaml").read_text())
    for group in template["groups"]:
        for rule in group["rules"]:
            values = {**template["settings"], **rule.pop("parameters", {})}
            rule["expr"] = fill(rule["expr"], values)
            if "alert" in rule:
                texts = {name: fill(text, values) for name, text in rule["annotations"].items()}
                rule["annotations"] = {**texts, "runbook_url": f"{template['runbook_base_url']}/{rule['alert']}.md"}
    assert {"groups": template["groups"]} == yaml.safe_load((HERE / "efa-pulse.rules.yaml").read_text())


def test_the_operators_object_holds_the_same_groups() -> None:
    made = render.prometheus_rule(name="x", namespace="monitoring", labels={"release": "stack"})
    assert made["spec"] == render.rule_groups()
    assert made["metadata"] == {"name": "x", "namespace": "monitoring",
                                "labels": {"app.kubernetes.io/name": "efa-pulse", "release": "stack"}}


@pytest.mark.parametrize("broken", [
    lambda: number("1e3", "x"), lambda: duration("5", "x"), lambda: duration("0s", "x"), lambda: Recording("node_healthy", "1", "x"),
    lambda: Alert("NodeBad", Severity.INFO, ALERTS["EfaPulseNodeBad"].component, "5m", "1", "s", "d", "w"),
    lambda: Alert("EfaPulseX", Severity.INFO, ALERTS["EfaPulseNodeBad"].component, "five", "1", "s", "d", "w"),
])
def test_a_rule_that_makes_no_sense_cannot_be_declared(broken: object) -> None:
    with pytest.raises(RuleError):
        broken()  # type: ignore[operator]
