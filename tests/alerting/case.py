"""What a test of an alert is: samples a minute apart, and who must be alerted at which minute. Runs in promtool, see `test_alert_rules`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from dashboards.rules.catalogue import ALERTS
from dashboards.rules.options import RUNBOOKS

Json = dict[str, Any]

STATIC: Mapping[str, str] = {"job": "efa-pulse"}
OPERATOR: Mapping[str, str] = {"job": "efa-pulse", "namespace": "monitoring", "service": "efa-pulse", "endpoint": "metrics",
                               "container": "exporter"}
SCHEMES = {"static": STATIC, "operator": OPERATOR}
"""Labels of the target that stay after `instance` and `pod` are dropped: of a static scrape, and of the operator's own configuration."""


class Kind(str, Enum):
    """What a case shows. Every alert needs one of each; ZERO only where something is divided."""

    FIRES = "fires"
    NEAR_MISS = "near miss"
    RESOLVES = "resolves"
    RESTART = "survives a restart"
    MISSING = "missing series"
    ZERO = "zero denominator"


BOTH = (Kind.FIRES, Kind.RESTART)
"""Kinds that are tried with the labels of both schemes; the others with those of a static scrape."""


@dataclass(frozen=True)
class Series:
    """One series of one replica, in promtool's notation."""

    metric: str
    labels: Mapping[str, str]
    values: str
    replica: str = "a"

    def text(self, scheme: str) -> str:
        """The selector with the labels of its target."""
        target = {**SCHEMES[scheme], "instance": f"{self.replica}:9770"}
        if scheme == "operator":
            target["pod"] = f"efa-pulse-{self.replica}"
        pairs = ",".join(f'{name}="{value}"' for name, value in {**self.labels, **target}.items())
        return f"{self.metric}{{{pairs}}}"


def series(metric: str, values: str, replica: str = "a", **labels: str) -> Series:
    """See `Series`. `le_` stands for the label `le`, and so on for words that Python keeps for itself."""
    return Series(metric, {name.rstrip("_"): value for name, value in labels.items()}, values, replica)


def held(*parts: tuple[float | str, int]) -> str:
    """Values that are held for so many minutes each; `_` for no sample, `stale` for a target that went away."""
    words: list[str] = []
    for value, minutes in parts:
        if value == "stale":
            words += ["stale"] + ["_"] * (minutes - 1)
        elif value == "_":
            words += ["_"] * minutes
        else:
            words.append(f"{value}+0x{minutes - 1}" if minutes > 1 else f"{value}")
    return " ".join(words)


def rising(*parts: tuple[float, float, int]) -> str:
    """A counter: (value of the first minute, increase per minute, minutes)."""
    return " ".join(f"{start:g}+{step:g}x{minutes - 1}" for start, step, minutes in parts)


@dataclass(frozen=True)
class Fired:
    """An alert that is expected. `value` is what stands in the text in place of `$value`; `bare`: it has no label of a target."""

    labels: Mapping[str, str] = field(default_factory=dict)
    value: str = ""
    bare: bool = False


def fired(value: str = "", **labels: str) -> Fired:
    """See `Fired`."""
    return Fired(labels, value)


@dataclass(frozen=True)
class Check:
    """Exactly these alerts fire at this minute."""

    minute: int
    fired: tuple[Fired, ...] = ()


@dataclass(frozen=True)
class Case:
    """One story. A leader is added where the story has none."""

    kind: Kind
    says: str
    series: Sequence[Series]
    checks: Sequence[Check]
    alone: bool = False

    def all_series(self) -> list[Series]:
        """With the leader."""
        own = list(self.series)
        if not self.alone and not any(one.metric == "efapulse_leader" for one in own):
            own.append(series("efapulse_leader", held((1, 20000))))
        return own


@dataclass(frozen=True)
class Suite:
    """All cases of one alert. `every` is the pace of rules in minutes: slow SLOs need days."""

    alert: str
    cases: Sequence[Case]
    every: int = 1

    def document(self, rule_file: str) -> Json:
        """The test file for promtool."""
        tests = [self._test(case, scheme) for case in self.cases for scheme in SCHEMES if scheme == "static" or case.kind in BOTH]
        return {"rule_files": [rule_file], "evaluation_interval": f"{self.every}m", "tests": tests}

    def _test(self, case: Case, scheme: str) -> Json:
        inputs = [{"series": one.text(scheme), "values": one.values} for one in case.all_series()]
        checks = [{"eval_time": f"{check.minute}m", "alertname": self.alert,
            "exp_alerts": [self._alert(one, scheme) for one in check.fired]}
                  for check in case.checks]
        return {"name": f"{self.alert} {case.kind.value}: {case.says} ({scheme})", "interval": f"{self.every}m", "input_series": inputs,
                "alert_rule_test": checks}

    def _alert(self, one: Fired, scheme: str) -> Json:
        alert = ALERTS[self.alert]
        target = {} if one.bare else SCHEMES[scheme]
        labels = {**target, **one.labels, "severity": alert.severity.value, "component": alert.component.value, **alert.labels}
        texts = {"summary": alert.summary, "description": alert.description}
        return {"exp_labels": labels,
                "exp_annotations": {**{key: expand(text, labels, one.value, self.alert) for key, text in texts.items()},
                                    "runbook_url": f"{RUNBOOKS}/{self.alert}.md"}}


def expand(text: str, labels: Mapping[str, str], value: str, alert: str) -> str:
    """An annotation as Prometheus would expand it, for the templates that the rules use."""
    from dashboards.rules.model import fill
    from dashboards.rules.options import Options

    out = fill(text, Options().values(ALERTS[alert]))
    for name, content in labels.items():
        out = out.replace(f"{{{{ $labels.{name} }}}}", content)
    for function in ("", " | humanizePercentage", " | humanizeDuration", " | humanize"):
        out = out.replace(f"{{{{ $value{function} }}}}", value)
    assert "{{" not in out, f"{alert}: {out}"
    return out


def follow(metric: str, bad: str, good: str, *, labels: Mapping[str, str], said: Fired, wait: int, near: Sequence[Case],
           more: Sequence[Series] = ()) -> list[Case]:
    """The cases of an alert on a state that an exporter shows: good for 10 minutes, then bad.

    `wait` is the alert's `for` in minutes, `more` are series that are there all the time, `near` the near misses.
    """
    def of(values: str, replica: str = "a") -> Series:
        return Series(metric, labels, values, replica)

    sure = 10 + wait
    kept = list(range(sure + 1, sure + 30, 3))
    return [
        Case(Kind.FIRES, "after its `for`, not before", [of(held((good, 10), (bad, wait + 20))), *more],
             [Check(9), Check(max(10, sure - 1) if wait else 9), Check(sure + 1, (said,)), Check(sure + 15, (said,))]),
        *near,
        Case(Kind.RESOLVES, "when the state is good again", [of(held((good, 10), (bad, wait + 10), (good, 20))), *more],
             [Check(sure + 5, (said,)), Check(sure + 12), Check(sure + 25)]),
        Case(Kind.RESTART, "the exporter is away for 4 minutes and comes back", [
            of(held((good, 10), (bad, wait + 5), ("stale", 4), (bad, 40))), *_leads(held((1, sure + 5), ("stale", 4), (1, 40))), *more],
            [Check(minute, (said,)) for minute in kept]),
        Case(Kind.RESTART, "the leader dies while it fires and another replica takes over", [
            of(held((good, 10), (bad, wait + 5), ("stale", 60))), of(held(("_", sure + 7), (bad, 60)), "b"),
            *_leads(held((1, sure + 5), ("stale", 60))), *_leads(held((0, sure + 7), (1, 60)), "b"), *more,
            *(replace(one, replica="b") for one in more)], [Check(minute, (said,)) for minute in kept]),
        Case(Kind.RESTART, "a replica that no longer leads and still shows the old word does not count", [
            of(held((bad, sure + 60))), of(held(("_", 5), (good, sure + 60)), "b"),
            *_leads(held((1, 5), (0, sure + 60))), *_leads(held((0, 5), (1, sure + 60)), "b"), *more,
            *(replace(one, replica="b") for one in more)], [Check(sure + 10), Check(sure + 40)]),
        Case(Kind.MISSING, "nothing is said", list(more), [Check(sure + 20)]),
        Case(Kind.MISSING, "the series is gone for longer than the bridge", [
            of(held((good, 10), (bad, wait + 10), ("stale", 40))), *more], [Check(sure + 5, (said,)), Check(sure + 35)]),
    ]


def _leads(values: str, replica: str = "a") -> list[Series]:
    return [series("efapulse_leader", values, replica)]


def count(metric: str, *, labels: Mapping[str, str], said: Fired, over: int, wait: int, fast: float, slow: float,
          others: Sequence[Series] = (), every: int = 1) -> list[Case]:
    """The cases of an alert on how much a counter rose within a window of `over` steps of `every` minutes; `wait` are steps as well.

    `fast` per step is enough and `slow` is not, `others` are counters beside it.
    """
    def of(*parts: tuple[float, float, int]) -> Series:
        return Series(metric, labels, rising(*parts))

    def at(step: int, *fired: Fired) -> Check:
        return Check(step * every, fired)

    full, end = over + wait + 1, 3 * over + wait + 10
    return [
        Case(Kind.FIRES, "enough in the window", [of((0, fast, full + 20)), *others], [at(full + 2, said)]),
        Case(Kind.NEAR_MISS, "a little less than enough", [of((0, slow, full + 20)), *others], [at(over), at(full + 2), at(full + 15)]),
        Case(Kind.RESOLVES, "when the window has passed", [of((0, fast, full + 5), (fast * (full + 4), 0, end)), *others],
             [at(full + 2, said), at(full + 2 * over + 5)]),
        Case(Kind.RESTART, "counters that begin again at 0 are no failure and hide none", [
            of((0, fast, full + 2), (0, fast, full)), *others],
            [at(step, said) for step in range(full + 2, full + over // 2 + 3, max(1, over // 6))]),
        Case(Kind.RESTART, "what the replica counted before it died still counts beside the new one's", [
            Series(metric, labels, rising((0, fast, full)) + " stale"), Series(metric, labels, rising((0, fast, 2 * full)), "b"), *others],
            [at(full + 1, said), at(full + over // 2, said)]),
        Case(Kind.MISSING, "the counter is not there", list(others), [at(full + 5)]),
    ]
