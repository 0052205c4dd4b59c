"""Every alert in promtool, old and new: it fires, does not fire on the near miss, resolves, survives a restart and missing series."""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from alerting.case import Kind, Suite
from alerting.suites import SUITES
from prometheus import VERSIONS, Binaries, binaries

from dashboards.rules import render
from dashboards.rules.catalogue import ALERTS, GROUPS
from dashboards.rules.model import Recording

RECORDED = re.compile(r"efapulse:[a-z0-9_:]+")


@pytest.fixture(params=VERSIONS)
def found(request: pytest.FixtureRequest) -> Binaries:
    return binaries(request.param)


def rules_for(alert: str) -> dict[str, object]:
    """The rule file of one alert and of the recordings that it stands on, so that a test evaluates no others."""
    recordings = {rule.record: rule for group in GROUPS for rule in group.rules if isinstance(rule, Recording)}
    wanted: set[str] = set()
    ahead = RECORDED.findall(ALERTS[alert].expr)
    while ahead:
        name = ahead.pop()
        if name not in wanted:
            wanted.add(name)
            ahead += RECORDED.findall(recordings[name].expr)
    rules = [rule for group in render.rule_groups()["groups"] for rule in group["rules"]
             if rule.get("record") in wanted or rule.get("alert") == alert]
    assert len(rules) == len(wanted) + 1
    return {"groups": [{"name": "one", "rules": rules}]}


def written(folder: Path, suite: Suite) -> Path:
    rule_file, test_file = folder / f"{suite.alert}.rules.yaml", folder / f"{suite.alert}.test.yaml"
    rule_file.write_text(yaml.safe_dump(rules_for(suite.alert)))
    test_file.write_text(yaml.safe_dump(suite.document(rule_file.name), width=1000))
    return test_file


def promtool(found: Binaries, *arguments: str | Path) -> tuple[int, str]:
    """Status and everything it printed. One call tests many files; two of them share the work."""
    memory = Path("/dev/shm")  # promtool makes a database for each test and syncs it: on a busy disk that takes minutes
    environment = {**os.environ, "TMPDIR": str(memory)} if os.access(memory, os.W_OK) else None
    done = subprocess.run([str(found.promtool), *map(str, arguments)], capture_output=True, text=True, timeout=900, check=False,
                          env=environment)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(1800)
def test_every_case_holds(found: Binaries, tmp_path: Path) -> None:
    files = [written(tmp_path, suite) for suite in SUITES]
    with ThreadPoolExecutor(2) as pool:
        halves = list(pool.map(lambda half: promtool(found, "test", "rules", *half), (files[::2], files[1::2])))
    said = "".join(text for _, text in halves)
    assert [code for code, _ in halves] == [0, 0], said[-6000:]
    assert said.count("SUCCESS") == len(SUITES)


def test_a_case_that_does_not_hold_is_noticed(found: Binaries, tmp_path: Path) -> None:
    suite = next(suite for suite in SUITES if suite.alert == "EfaPulseNodeBad")
    path = written(tmp_path, suite)
    wrong = yaml.safe_load(path.read_text())
    wrong["tests"] = wrong["tests"][:1]
    wrong["tests"][0]["alert_rule_test"][-1]["exp_alerts"] = []
    path.write_text(yaml.safe_dump(wrong))
    code, said = promtool(found, "test", "rules", path)
    assert code != 0
    assert "EfaPulseNodeBad" in said


@pytest.mark.parametrize("name", ["efa-pulse.rules.yaml"])
def test_promtool_accepts_the_rule_file(found: Binaries, name: str) -> None:
    code, said = promtool(found, "check", "rules", Path(render.__file__).parent / name)
    assert code == 0, said


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_case_of_every_kind(alert: str) -> None:
    kinds = {case.kind for suite in SUITES if suite.alert == alert for case in suite.cases}
    wanted = set(Kind)
    divided = " / " in ALERTS[alert].expr or "avg " in ALERTS[alert].expr
    if not divided:
        wanted.discard(Kind.ZERO)
    assert wanted - kinds == set(), f"{alert} has no test of these kinds"


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.alert)
def test_cases_say_when_something_fires_and_when_nothing_does(suite: Suite) -> None:
    for case in suite.cases:
        if case.kind is Kind.FIRES:
            assert any(check.fired for check in case.checks), case.says
        if case.kind is Kind.RESOLVES:
            assert case.checks[0].fired, case.says
            assert not case.checks[-1].fired, case.says
        if case.kind is Kind.ZERO:
            assert not any(check.fired for check in case.checks), case.says
