"""How a site changes the rules: a small YAML file, or flags that say the same. Every alert can be switched off, tuned and labelled."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from dashboards.rules.catalogue import ALERTS
from dashboards.rules.model import DURATION, LABEL, Alert, Parameter, RuleError
from dashboards.rules.settings import SETTINGS

RUNBOOKS = "https://github.com/efa-pulse/efa-pulse/blob/main/dashboards/runbooks"
"""Where the runbooks are read when nobody says otherwise; `/NAME.md` is added."""
_OWN_LABELS = frozenset({"alertname", "component"})


def _text(value: Any) -> Any:
    """A number as text, as a person would write it: an expression knows no 1e+06."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    return f"{value:.15f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


Value = Annotated[str, BeforeValidator(_text)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, populate_by_name=True)


def _labels(labels: dict[str, str]) -> dict[str, str]:
    for name in labels:
        if not LABEL.match(name) or name in _OWN_LABELS:
            raise ValueError(f"{name!r} cannot be the name of a label here")
    return labels


class AlertOptions(_Model):
    """What is otherwise about one alert."""

    enabled: bool = True
    """Whether it is written."""
    wait: Annotated[str | None, Field(alias="for")] = None
    """Its `for`."""
    severity: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9_.-]{1,63}$")] = None
    """Its label `severity`, whatever the site's routing knows."""
    labels: dict[str, str] = {}
    """Labels to add."""
    annotations: dict[str, str] = {}
    """Annotations to add or replace."""
    parameters: dict[str, Value] = {}
    """Values in its expression, by the names that `efa-pulse rules --list` shows."""

    @field_validator("wait")
    @classmethod
    def _duration(cls, value: str | None) -> str | None:
        if value is not None and not DURATION.match(value):
            raise ValueError(f"{value!r} is no duration such as 10m")
        return value

    _no_own = field_validator("labels")(_labels)


class Options(_Model):
    """Everything a site may change. An empty document changes nothing."""

    runbook_base_url: Annotated[str, Field(pattern=r"^https?://\S+$")] = RUNBOOKS
    """Address of the folder with the runbooks; `/ALERT.md` is added."""
    labels: dict[str, str] = {}
    """Labels of every alert, for routing."""
    settings: dict[str, Value] = {}
    """Values that several rules share."""
    alerts: dict[str, AlertOptions] = {}
    """Changes of single alerts, by name."""

    _no_own = field_validator("labels")(_labels)

    @model_validator(mode="after")
    def _known(self) -> Options:
        _check("settings", self.settings, SETTINGS)
        for name, options in self.alerts.items():
            alert = ALERTS.get(name)
            if alert is None:
                raise ValueError(f"alerts.{name}: there is no such alert{_near(name, ALERTS)}")
            _check(f"alerts.{name}.parameters", options.parameters, alert.parameters)
        return self

    def of(self, alert: Alert) -> AlertOptions:
        """The changes of one alert."""
        return self.alerts.get(alert.name, AlertOptions())

    def values(self, alert: Alert | None = None) -> dict[str, str]:
        """What fills the places of an expression."""
        found = {name: parameter.default for name, parameter in SETTINGS.items()} | self.settings
        if alert is not None:
            found |= {name: parameter.default for name, parameter in alert.parameters.items()} | self.of(alert).parameters
        return found


def _near(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f", did you mean {close[0]}?" if close else "; efa-pulse rules --list names them"


def _check(where: str, given: Mapping[str, str], known: Mapping[str, Parameter]) -> None:
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"{where}.{name}: there is no such value" + (_near(name, known) if known else "; this alert has none"))
        try:
            known[name].check(value)
        except RuleError as error:
            raise ValueError(f"{where}.{name}: {error}") from None


def load(text: str, source: str = "options") -> Options:
    """Options from YAML. Raises RuleError with one line for each problem."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RuleError(f"{source}: no YAML: {' '.join(str(error).split())}") from None
    return build({} if document is None else document, source)


def build(document: Any, source: str = "options") -> Options:
    """Options from what YAML gave. Raises RuleError with one line for each problem."""
    if not isinstance(document, dict):
        raise RuleError(f"{source}: a mapping is needed, with the keys {', '.join(Options.model_fields)}")
    try:
        return Options.model_validate(document)
    except ValidationError as error:
        lines = []
        for one in error.errors():
            where = ".".join(str(part) for part in one["loc"])
            said = one["msg"].removeprefix("Value error, ")
            lines.append(f"{source}: {f'{where}: ' if where else ''}{said}")
        raise RuleError("\n".join(lines)) from None


def merged(base: Mapping[str, Any], changes: Iterable[tuple[tuple[str, ...], Any]]) -> dict[str, Any]:
    """`base` with values put in at their paths. Raises RuleError where a path leads through something that is no mapping."""
    document: dict[str, Any] = _copy(base)
    for path, value in changes:
        at = document
        for part in path[:-1]:
            at = at.setdefault(part, {})
            if not isinstance(at, dict):
                raise RuleError(f"{'.'.join(path)}: {part} is no mapping")
        at[path[-1]] = value
    return document


def _copy(value: Any) -> Any:
    return {key: _copy(one) for key, one in value.items()} if isinstance(value, Mapping) else value
