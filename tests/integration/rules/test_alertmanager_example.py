"""The sample routing, read by amtool old and new: who gets which alert, and that its inhibitions name what exists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import alertmanager
import pytest
import yaml
from prometheus import VERSIONS

from dashboards.rules.catalogue import ALERTS

CONFIG = yaml.safe_load(alertmanager.EXAMPLE.read_text())
PROOFS = {"EfaPulseDataCorruption", "EfaPulseCanaryIntegrity", "EfaPulseCanaryCrosstalk"}


@pytest.fixture(params=VERSIONS)
def amtool(request: pytest.FixtureRequest) -> Path:
    return alertmanager.binary(request.param, "amtool")


def said(amtool: Path, *arguments: str) -> str:
    done = subprocess.run([str(amtool), *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_amtool_accepts_it(amtool: Path) -> None:
    assert "SUCCESS" in said(amtool, "check-config", str(alertmanager.EXAMPLE))


@pytest.mark.parametrize(("name", "receiver"), [
    ("EfaPulseFabricBroken", "pager"), ("EfaPulseCanaryCrosstalk", "pager"), ("EfaPulseDataCorruption", "pager"), ("EfaPulseAbsent",
        "pager"),
    ("EfaPulseNodeBad", "tickets"), ("EfaPulseCanaryTtftBurnSlow", "tickets"), ("EfaPulsePdNotDisaggregated", "tickets"),
    ("EfaPulseNodeSuspect", "nobody"), ("EfaPulseNoRoom", "nobody"),
])
def test_who_gets_what(amtool: Path, name: str, receiver: str) -> None:
    alert = ALERTS[name]
    labels = [f"alertname={name}", f"severity={alert.severity.value}", f"component={alert.component.value}"]
    assert said(amtool, "config", "routes", "test", f"--config.file={alertmanager.EXAMPLE}", *labels) == receiver


def test_alerts_of_others_are_not_touched(amtool: Path) -> None:
    assert said(amtool, "config", "routes", "test", f"--config.file={alertmanager.EXAMPLE}", "alertname=NodeDown",
        "severity=critical") == "tickets"


def patterns(matchers: list[str]) -> list[str]:
    return [found for matcher in matchers for found in re.findall(r'^alertname=~?"(.*)"$', matcher)]


def test_every_pattern_of_an_inhibition_names_alerts_that_exist() -> None:
    for rule in CONFIG["inhibit_rules"]:
        for pattern in patterns(rule["source_matchers"]) + patterns(rule["target_matchers"]):
            assert any(re.fullmatch(pattern, name) for name in ALERTS), pattern
            for group in re.findall(r"\(([^)]*)\)", pattern):
                for word in group.split("|"):
                    assert any(word in name for name in ALERTS), word


def inhibited(name: str) -> set[str]:
    """The alerts that this one mutes, by the matchers on name and component."""
    muted: set[str] = set()
    for rule in CONFIG["inhibit_rules"]:
        if all(matches(name, matcher) for matcher in rule["source_matchers"]):
            muted |= {other for other in ALERTS if all(matches(other, matcher) for matcher in rule["target_matchers"])}
    return muted


def matches(name: str, matcher: str) -> bool:
    found = re.fullmatch(r'(\w+)(=~|!~|=)"(.*)"', matcher)
    assert found is not None, matcher
    labels = {"alertname": name, "component": ALERTS[name].component.value, "severity": ALERTS[name].severity.value, **ALERTS[name].labels}
    hit = re.fullmatch(found[3], labels.get(found[1], "")) is not None
    return not hit if found[2] == "!~" else hit


def test_a_broken_node_mutes_its_pairs_and_a_broken_fabric_the_canary() -> None:
    assert "EfaPulsePairBad" in inhibited("EfaPulseNodeBad")
    assert {"EfaPulseCanaryDown", "EfaPulseNodeBad", "EfaPulsePairBad", "EfaPulsePdTransportFallback"} <= inhibited("EfaPulseFabricBroken")


@pytest.mark.parametrize("name", sorted(PROOFS))
def test_nothing_mutes_a_proof_of_wrong_data(name: str) -> None:
    assert [source for source in ALERTS if name in inhibited(source)] == []


def test_nothing_mutes_itself() -> None:
    assert [name for name in ALERTS if name in inhibited(name)] == []
