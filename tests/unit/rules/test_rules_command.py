"""`efa-pulse rules`: every alert can be switched, tuned and labelled, by file or flag; a mistake is one line that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.rules import render
from dashboards.rules.catalogue import ALERTS
from exporter import cli

SHIPPED = Path(render.__file__).parent / "efa-pulse.rules.yaml"


def written(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert cli.run(["rules", *arguments]) == 0
    return yaml.safe_load(capsys.readouterr().out)


def alerts(document: Any) -> dict[str, Any]:
    return {rule["alert"]: rule for group in document["groups"] for rule in group["rules"] if "alert" in rule}


def test_without_options_it_writes_the_shipped_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert written(capsys) == yaml.safe_load(SHIPPED.read_text())
    assert cli.run(["rules", "-o", str(tmp_path / "out.yaml")]) == 0
    assert (tmp_path / "out.yaml").read_text() == SHIPPED.read_text()


def test_a_file_switches_tunes_and_labels(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "options.yaml"
    path.write_text("""
runbook_base_url: https://wiki.example.com/efa/
labels: {team: platform}
settings: {bridge: 15m, ttft_short: 0.5}
alerts:
  EfaPulseNodeSuspect: {enabled: false}
  EfaPulseNodeBad: {for: 20m, severity: page, labels: {team: hardware}, annotations: {dashboard: https://g.example.com/d/1}}
  EfaPulsePdSlowerThanBaseline: {parameters: {ratio: 1.5}}
""")
    document = written(capsys, "-c", str(path))
    found = alerts(document)
    assert set(ALERTS) - set(found) == {"EfaPulseNodeSuspect"}
    bad = found["EfaPulseNodeBad"]
    assert (bad["for"], bad["labels"]["severity"], bad["labels"]["team"]) == ("20m", "page", "hardware")
    assert bad["annotations"]["dashboard"] == "https://g.example.com/d/1"
    assert bad["annotations"]["runbook_url"] == "https://wiki.example.com/efa/EfaPulseNodeBad.md"
    assert found["EfaPulseAbsent"]["labels"]["team"] == "platform"
    assert "> 1.5" in found["EfaPulsePdSlowerThanBaseline"]["expr"]
    text = "\n".join(rule["expr"] for group in document["groups"] for rule in group["rules"])
    assert "[15m]" in text
    assert "[10m]) == 1" not in text
    assert 'le=~"0.5(' in text


def test_flags_say_the_same_and_win(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "options.yaml"
    path.write_text("alerts: {EfaPulseNodeBad: {for: 20m}}\n")
    found = alerts(written(capsys, "-c", str(path), "--set", "EfaPulseNodeBad.for=1m", "--set", "EfaPulseNodeSuspect.suspicion=0.9",
                           "--disable", "EfaPulsePaused", "--label", "team=x", "--runbook-base-url", "https://r.example.com",
                           "--set", "objective=0.995"))
    assert found["EfaPulseNodeBad"]["for"] == "1m"
    assert ">= 0.9" in found["EfaPulseNodeSuspect"]["expr"]
    assert "EfaPulsePaused" not in found
    assert found["EfaPulseAbsent"]["annotations"]["runbook_url"] == "https://r.example.com/EfaPulseAbsent.md"
    assert "(1 - 0.995)" in found["EfaPulseCanaryTtftBurnFast"]["expr"]


def test_an_object_for_the_operator(capsys: pytest.CaptureFixture[str]) -> None:
    made = written(capsys, "--format", "operator", "-n", "monitoring", "--object-label", "release=stack")
    assert made["kind"] == "PrometheusRule"
    assert made["metadata"]["labels"]["release"] == "stack"
    assert made["spec"] == yaml.safe_load(SHIPPED.read_text())


@pytest.mark.parametrize(("arguments", "says"), [
    (["--disable", "EfaPulseNodBad"], "did you mean EfaPulseNodeBad?"),
    (["--set", "EfaPulseNodeBad.for=5"], "alerts.EfaPulseNodeBad.for: '5' is no duration such as 10m"),
    (["--set", "EfaPulseNodeBad.ratio=5"], "this alert has none"),
    (["--set", "EfaPulsePdSlowerThanBaseline.ratio=much"], "'much' is no number such as 1.3"),
    (["--set", "EfaPulseProbeNeverRan.slow=("], "no regular expression"),
    (["--set", "ttft_short=0.33"], "settings.ttft_short: 0.33 is no bucket bound of efapulse_canary_ttft_seconds: use one of 0.005"),
    (["--set", "brige=5m"], "did you mean bridge?"),
    (["--set", "nonsense"], "NAME=VALUE is needed"),
    (["--label", "alertname=x"], "cannot be the name of a label"),
    (["--runbook-base-url", "wiki"], "runbook_base_url"),
    (["-c", "/nonexistent/options.yaml"], "/nonexistent/options.yaml: No such file or directory"),
])
def test_a_mistake_is_one_line_and_status_64(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["rules", *arguments]) == 64
    error = capsys.readouterr().err
    assert says in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(("text", "says"), [
    ("alert: {}\n", "alert: Extra inputs are not permitted"), ("- a\n", "a mapping is needed"), ("a: [\n", "no YAML"),
    ("alerts: {EfaPulseNodeBad: {enable: false}}\n", "alerts.EfaPulseNodeBad.enable"),
])
def test_a_file_that_is_wrong_is_named(text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "options.yaml"
    path.write_text(text)
    assert cli.run(["rules", "-c", str(path)]) == 64
    error = capsys.readouterr().err
    assert says in error
    assert "options.yaml" in error


def test_the_list_names_every_alert_and_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["rules", "--list"]) == 0
    shown = capsys.readouterr().out
    assert cli.run(["rules", "--list", "--json"]) == 0
    document = yaml.safe_load(capsys.readouterr().out)
    assert [one["alert"] for one in document["alerts"]] == list(ALERTS)
    assert all(alert in shown for alert in ALERTS)
    assert document["settings"]["bridge"]["default"] == "10m"
