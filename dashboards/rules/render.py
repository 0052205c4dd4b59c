"""Rules as documents: a plain rule file, a PrometheusRule, and the template from which a chart makes the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from dashboards.rules.catalogue import ALERTS, GROUPS
from dashboards.rules.model import Alert, Recording, fill
from dashboards.rules.options import RUNBOOKS, Options
from dashboards.rules.settings import BOUNDS, SETTINGS

Json = dict[str, Any]
MADE = "# Made by efa-pulse rules from dashboards/rules. Do not edit: change the options and write it again.\n"


class _Dumper(yaml.SafeDumper):
    """Several lines as a block, so that an expression can be read."""


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _string)


def text(document: Json, head: str = MADE) -> str:
    """A document as YAML."""
    return head + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)


def rule_groups(options: Options | None = None) -> Json:
    """The content of a rule file. Groups without a rule are left out."""
    chosen = options or Options()
    groups: list[Json] = []
    for group in GROUPS:
        rules = [document for rule in group.rules if (document := _rule(rule, chosen)) is not None]
        if rules:
            groups.append({"name": group.name, **({"interval": group.interval} if group.interval else {}), "rules": rules})
    return {"groups": groups}


def prometheus_rule(options: Options | None = None, *, name: str = "efa-pulse", namespace: str | None = None,
                    labels: Mapping[str, str] | None = None) -> Json:
    """The same as an object of the Prometheus Operator. `labels` are those that its `ruleSelector` asks for."""
    metadata: Json = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    metadata["labels"] = {"app.kubernetes.io/name": "efa-pulse", **(labels or {})}
    return {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": metadata, "spec": rule_groups(options)}


def template() -> Json:
    """Everything with its places still open. How to fill it is said in `dashboards/rules/README.md`; a test does it in a few lines."""
    return {
        "runbook_base_url": RUNBOOKS,
        "settings": {name: parameter.default for name, parameter in SETTINGS.items()},
        "bounds": dict(BOUNDS),
        "groups": [{"name": group.name, "rules": [_open(rule) for rule in group.rules]} for group in GROUPS],
    }


def _rule(rule: Recording | Alert, options: Options) -> Json | None:
    if isinstance(rule, Recording):
        return {"record": rule.record, "expr": fill(rule.expr, options.values())}
    mine = options.of(rule)
    if not mine.enabled:
        return None
    values = options.values(rule)
    labels = {"severity": mine.severity or rule.severity.value, "component": rule.component.value, **rule.labels, **options.labels,
              **mine.labels}
    annotations = {"summary": fill(rule.summary, values), "description": fill(rule.description, values),
                   "runbook_url": runbook_url(rule.name, options.runbook_base_url), **mine.annotations}
    return {"alert": rule.name, "expr": fill(rule.expr, values), "for": mine.wait or rule.wait, "labels": labels,
            "annotations": annotations}


def _open(rule: Recording | Alert) -> Json:
    if isinstance(rule, Recording):
        return {"record": rule.record, "expr": rule.expr}
    return {"alert": rule.name, "expr": rule.expr, "for": rule.wait,
            "labels": {"severity": rule.severity.value, "component": rule.component.value, **rule.labels},
            "annotations": {"summary": rule.summary, "description": rule.description},
            "parameters": {name: parameter.default for name, parameter in rule.parameters.items()}}


def runbook_url(alert: str, base: str) -> str:
    """Where the runbook of an alert is read."""
    return f"{base.rstrip('/')}/{alert}.md"


def page() -> str:
    """The list of alerts for people, with the reason for the shape of each."""
    lines = ["# Alerts of efa-pulse", "", "Made from `dashboards/rules` by `python -m dashboards.rules`. Do not edit.", "",
             "| alert | severity | for | what it says |", "| --- | --- | --- | --- |"]
    lines += [f"| [{alert.name}](../runbooks/{alert.name}.md) | {alert.severity.value} | {alert.wait} | {_cell(alert.summary)} |"
              for alert in ALERTS.values()]
    lines += ["", "## Why each is as it is", ""]
    for alert in ALERTS.values():
        lines += [f"### {alert.name}", "", alert.shape, ""]
        lines += [f"- `{name}` (default {parameter.default}): {parameter.meaning}" for name, parameter in alert.parameters.items()]
        lines += [""] if alert.parameters else []
    lines += ["## Settings that several rules share", ""]
    lines += [f"- `{name}` (default {parameter.default}): {parameter.meaning}" for name, parameter in SETTINGS.items()]
    lines += ["", "## Recording rules", "", "| name | what it is |", "| --- | --- |"]
    lines += [f"| `{rule.record}` | {rule.why} |" for group in GROUPS for rule in group.rules if isinstance(rule, Recording)]
    return "\n".join(lines) + "\n"


def _cell(summary: str) -> str:
    return summary.replace("{{ $labels.", "<").replace("{{ $value", "<value").replace(" }}", ">").replace("|", "\\|")
