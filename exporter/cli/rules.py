"""`efa-pulse rules`: recording and alert rules for Prometheus, as a site wants them."""

from __future__ import annotations

import json
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.table import Table

from dashboards.rules import options as site
from dashboards.rules import render
from dashboards.rules.catalogue import ALERTS
from dashboards.rules.model import RuleError
from dashboards.rules.settings import BOUNDS, SETTINGS
from exporter.cli import render as terminal
from exporter.cli.exits import Exit, UsageError
from exporter.publish.families import FAMILIES

BUCKETS = {family.name: family.buckets for family in FAMILIES if family.buckets}


class Format(str, Enum):
    """What is written."""

    PLAIN = "plain"
    OPERATOR = "operator"


def rules(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Options of your site, a small YAML file.")] = None,
    style: Annotated[Format, typer.Option("--format", help="A rule file, or a PrometheusRule for the operator.")] = Format.PLAIN,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; default: standard output.")] = None,
    disable: Annotated[list[str] | None, typer.Option(metavar="ALERT", help="Leave an alert out.")] = None,
    put: Annotated[list[str] | None, typer.Option(
        "--set", metavar="ALERT.KEY=VALUE", help="KEY: for, severity or a parameter; without ALERT a shared setting.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Label of every alert.")] = None,
    runbook_base_url: Annotated[str | None, typer.Option(metavar="URL", help="Folder of the runbooks.")] = None,
    name: Annotated[str, typer.Option(help="Name of the PrometheusRule.")] = "efa-pulse",
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace of the PrometheusRule.")] = None,
    object_label: Annotated[list[str] | None, typer.Option(
        metavar="NAME=VALUE", help="Label of the PrometheusRule, as the operator's ruleSelector asks for it.")] = None,
    show: Annotated[bool, typer.Option("--list", help="List the alerts, their severity and parameters, and write no rules.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The list as JSON.")] = False,
) -> int:
    """Write the recording and alert rules, as they are or changed to what a site needs."""
    if show:
        _list(as_json)
        return Exit.OK
    try:
        chosen = site.build(_document(config, disable or [], put or [], label or [], runbook_base_url), str(config or "options"))
        check_bounds(chosen)
    except RuleError as error:
        raise UsageError(str(error)) from None
    if style is Format.OPERATOR:
        document = render.prometheus_rule(chosen, name=name, namespace=namespace, labels=dict(_pair(one) for one in object_label or []))
    else:
        document = render.rule_groups(chosen)
    text = render.text(document)
    if output is None:
        sys.stdout.write(text)
        return Exit.OK
    try:
        output.write_text(text)
    except OSError as error:
        raise UsageError(f"{output}: {error.strerror}") from None
    return Exit.OK


def check_bounds(options: site.Options) -> None:
    """Bounds of latency SLOs must be bucket bounds. Raises RuleError naming those that are."""
    values = options.values()
    for setting, family in BOUNDS.items():
        if float(values[setting]) not in BUCKETS[family]:
            known = ", ".join(f"{bound:g}" for bound in BUCKETS[family])
            raise RuleError(f"settings.{setting}: {values[setting]} is no bucket bound of {family}: use one of {known}")


def _document(config: Path | None, disable: list[str], put: list[str], labels: list[str], runbooks: str | None) -> Any:
    base: Any = {}
    if config is not None:
        try:
            base = yaml.safe_load(config.read_text()) or {}
        except OSError as error:
            raise UsageError(f"{config}: {error.strerror}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UsageError(f"{config}: no YAML: {' '.join(str(error).split())}") from None
    changes: list[tuple[tuple[str, ...], Any]] = [(("alerts", one, "enabled"), False) for one in disable]
    changes += [_setting(*_pair(one)) for one in put]
    changes += [(("labels", key), value) for key, value in map(_pair, labels)]
    if runbooks is not None:
        changes.append((("runbook_base_url",), runbooks))
    return site.merged(base, changes) if changes and isinstance(base, dict) else base


def _setting(key: str, value: str) -> tuple[tuple[str, ...], str]:
    alert, dot, name = key.rpartition(".")
    if not dot:
        return ("settings", name), value
    return (("alerts", alert, name) if name in ("for", "severity") else ("alerts", alert, "parameters", name)), value


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise UsageError(f"{text!r}: NAME=VALUE is needed")
    return key.strip(), value.strip()


def _list(as_json: bool) -> None:
    if as_json:
        alerts = [{"alert": one.name, "severity": one.severity.value, "component": one.component.value, "for": one.wait,
                   "summary": one.summary, "why": one.shape,
                   "parameters": {name: {"default": value.default, "form": value.form.value, "meaning": value.meaning}
                                  for name, value in one.parameters.items()}} for one in ALERTS.values()]
        settings = {name: {"default": value.default, "form": value.form.value, "meaning": value.meaning}
                    for name, value in SETTINGS.items()}
        sys.stdout.write(json.dumps({"alerts": alerts, "settings": settings}, indent=2) + "\n")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("alert", "severity", "for", "parameters"):
        table.add_column(column)
    for one in ALERTS.values():
        table.add_row(one.name, one.severity.value, one.wait, " ".join(f"{key}={value.default}" for key, value in one.parameters.items()))
    out = terminal.console()
    out.print(table)
    out.print("\nSettings that several rules share:", markup=False)
    for key, value in SETTINGS.items():
        out.print(f"  {key}={value.default}: {value.meaning}", markup=False)
