"""What a rule is, as typed data. An expression may hold `@name@` for a parameter or a setting: whoever renders it puts the value there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

PREFIX = "EfaPulse"
RECORD_PREFIX = "efapulse:"
PLACE = re.compile(r"@([a-z][a-z0-9_]*)@")
"""A place in an expression or an annotation that a parameter or setting fills."""
DURATION = re.compile(r"^(?:0s|(?:[1-9][0-9]*(?:ms|[smhdwy]))+)$")
"""A duration as Prometheus writes it, units from large to small."""
NUMBER = re.compile(r"^[0-9]+(?:\.[0-9]+)?$")
LABEL = re.compile(r"^[a-zA-Z_][a-zA-Z0-9_]*$")


class RuleError(ValueError):
    """A rule, or a change of one, that makes no sense. The text says what, where and what to do."""


class Severity(str, Enum):
    """What an alert asks of people."""

    CRITICAL = "critical"
    """Wake somebody: users are, or soon will be, hurt, or answers cannot be trusted."""
    WARNING = "warning"
    """Look at it today."""
    INFO = "info"
    """Know it; nobody is notified by the sample routing."""


class Component(str, Enum):
    """Which part an alert is about; the sample routing and its inhibitions use it."""

    NODE = "node"
    FABRIC = "fabric"
    CANARY = "canary"
    PD = "pd"
    MONITOR = "monitor"


class Form(str, Enum):
    """What the value of a parameter looks like."""

    NUMBER = "number"
    DURATION = "duration"
    PATTERN = "pattern"


@dataclass(frozen=True)
class Parameter:
    """A value in an expression that may be set otherwise. Raises RuleError for a default that is none."""

    default: str
    form: Form
    meaning: str

    def __post_init__(self) -> None:
        self.check(self.default)

    def check(self, value: str) -> str:
        """The value, when it may stand here. Raises RuleError."""
        match self.form:
            case Form.NUMBER if not NUMBER.match(value):
                raise RuleError(f"{value!r} is no number such as {self.default}")
            case Form.DURATION if not DURATION.match(value) or value == "0s":
                raise RuleError(f"{value!r} is no duration such as {self.default} or 1h30m")
            case Form.PATTERN:
                _check_pattern(value)
        return value


def _check_pattern(value: str) -> None:
    try:
        re.compile(value)
    except re.error as error:
        raise RuleError(f"{value!r} is no regular expression: {error}") from None
    if not value or '"' in value or "\\" in value or "\n" in value or "@" in value:
        raise RuleError(f"{value!r}: a pattern is not empty and has no quote, backslash, @ or line break")


def number(default: str, meaning: str) -> Parameter:
    """A parameter that is a number."""
    return Parameter(default, Form.NUMBER, meaning)


def duration(default: str, meaning: str) -> Parameter:
    """A parameter that is a duration of Prometheus."""
    return Parameter(default, Form.DURATION, meaning)


def pattern(default: str, meaning: str) -> Parameter:
    """A parameter that is a regular expression for a label value."""
    return Parameter(default, Form.PATTERN, meaning)


@dataclass(frozen=True)
class Recording:
    """One recording rule. `why` says what it is for."""

    record: str
    expr: str
    why: str

    def __post_init__(self) -> None:
        if not self.record.startswith(RECORD_PREFIX):
            raise RuleError(f"{self.record}: the name of a recording rule starts with {RECORD_PREFIX}")


@dataclass(frozen=True)
class Alert:
    """One alert.

    `wait` is its `for`. `summary` is one line that names the node, pair or target; `description` says what that means and what to do first.
    `shape` is the reason for its expression, window and `for`: it is documentation and not rendered into the rule. `labels` are static.
    """

    name: str
    severity: Severity
    component: Component
    wait: str
    expr: str
    summary: str
    description: str
    shape: str
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = {
            f"the name starts with {PREFIX}": not self.name.startswith(PREFIX),
            f"for: {self.wait!r} is no duration": not DURATION.match(self.wait),
            "summary, description and shape are needed": not (self.summary and self.description and self.shape),
            "a summary is one line": "\n" in self.summary,
        }
        for problem, there in problems.items():
            if there:
                raise RuleError(f"{self.name}: {problem}")


@dataclass(frozen=True)
class Group:
    """Rules that are evaluated in order, one after the other. `interval` None means the server's own."""

    name: str
    rules: tuple[Recording | Alert, ...]
    interval: str | None = None


def places(text: str) -> set[str]:
    """The parameters and settings that a text names."""
    return set(PLACE.findall(text))


def fill(text: str, values: Mapping[str, str]) -> str:
    """The text with every place filled. Raises KeyError for a place without a value."""
    return PLACE.sub(lambda found: values[found[1]], text)
