"""Asks a Prometheus what the panels ask, with the variables filled in as Grafana would."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TIMEOUT_SECONDS = 30.0
_NAME = re.compile(r"\$\{(\w+)(?::\w+)?\}|\$(\w+)")
_LABEL_VALUES = re.compile(r"^label_values\((.+), *(\w+)\)$", re.DOTALL)

Json = dict[str, Any]


class SourceError(Exception):
    """Prometheus refused a query or could not be reached. The text has its own words."""


@dataclass(frozen=True)
class Series:
    """One series: its labels and its points, Unix seconds and value."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def last(self) -> float:
        """The newest value."""
        return self.points[-1][1]


def fill(text: str, values: Mapping[str, str]) -> str:
    """The text with the variables filled in. Raises KeyError for one that has no value."""
    return _NAME.sub(lambda found: values[found[1] or found[2]], text)


class Source:
    """A Prometheus over its HTTP API. Ranges end now and are `seconds` long, in `steps` steps."""

    def __init__(self, url: str, seconds: float, steps: int = 120) -> None:
        self._url = url.rstrip("/")
        self.seconds = seconds
        self.end = time.time()
        self.start = self.end - seconds
        self.step = max(1.0, seconds / steps)

    def instant(self, expr: str) -> list[Series]:
        """The present value of each series."""
        data = self._get("query", query=expr, time=f"{self.end:.3f}")
        if data["resultType"] == "scalar":
            return [Series({}, (_point(data["result"]),))]
        return [Series(one["metric"], (_point(one["value"]),)) for one in data["result"]]

    def range(self, expr: str) -> list[Series]:
        """Every series over the range."""
        data = self._get("query_range", query=expr, start=f"{self.start:.3f}", end=f"{self.end:.3f}", step=f"{self.step:.3f}")
        return [Series(one["metric"], tuple(map(_point, one["values"]))) for one in data["result"]]

    def values_of(self, document: Json, chosen: Mapping[str, str]) -> dict[str, str]:
        """What the variables of a dashboard are: `chosen`, else All, else the first value that is there."""
        values = {"datasource": "prometheus", "__range": f"{int(self.seconds)}s", "__rate_interval": f"{max(15, int(4 * self.step))}s",
                  "__interval": f"{int(self.step)}s", **chosen}
        for variable in document["templating"]["list"]:
            name = variable["name"]
            if name in values:
                continue
            if variable["type"] == "query":
                values[name] = variable["allValue"] if variable["includeAll"] else self._first(fill(variable["query"]["query"], values))
            else:
                values[name] = str(variable.get("current", {}).get("value") or variable.get("query", ""))
        return values

    def _first(self, query: str) -> str:
        found = _LABEL_VALUES.match(query)
        if found is None:
            raise SourceError(f"only label_values is known here: {query}")
        data = self._get(f"label/{found[2]}/values", **{"match[]": found[1]})
        return str(data[0]) if data else ""

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - the address is the user's own
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise SourceError(f"{parameters.get('query', path)}: {error.read().decode(errors='replace')[:500]}") from None
        except (OSError, ValueError) as error:
            raise SourceError(f"{self._url} does not answer as a Prometheus does: {error}") from None


def _point(pair: list[Any]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])
