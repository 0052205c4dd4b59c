"""The stamp on a dashboard that was pushed: a hidden constant variable that says what was pushed, and as which version.

Grafana counts every save of a dashboard. Where the version is still the one that the stamp promised, nobody has saved it since, whatever
Grafana itself has made of its fields meanwhile. A variable is kept by every version of Grafana, where a field of our own may be dropped.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

NAME = "efapulse_pushed"
_FORM = re.compile(r"([0-9a-f]{16})@(\d+)")

Json = dict[str, Any]


@dataclass(frozen=True)
class Stamp:
    """`digest` is that of what was pushed, `version` the one that the push became."""

    digest: str
    version: int

    def variable(self) -> Json:
        """The variable that carries it."""
        text = f"{self.digest}@{self.version}"
        return {"name": NAME, "type": "constant", "hide": 2, "query": text, "current": {"text": text, "value": text}, "skipUrlSync": True}


def plain(dashboard: Json) -> Json:
    """The dashboard without what Grafana gives it and without the stamp: what can be compared."""
    found = copy.deepcopy({key: value for key, value in dashboard.items() if key not in ("id", "version", "iteration")})
    templating = found.get("templating")
    if isinstance(templating, dict) and isinstance(templating.get("list"), list):
        templating["list"] = [one for one in templating["list"] if not (isinstance(one, dict) and one.get("name") == NAME)]
    return found


def digest(dashboard: Json) -> str:
    """A short digest of what can be compared."""
    return hashlib.sha256(json.dumps(plain(dashboard), sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def stamped(dashboard: Json, version: int) -> Json:
    """The dashboard with the stamp of a push that will become `version`."""
    found = plain(dashboard)
    found.setdefault("templating", {}).setdefault("list", []).append(Stamp(digest(dashboard), version).variable())
    return found


def read(dashboard: Json) -> Stamp | None:
    """The stamp, None where there is none that can be read."""
    templating = dashboard.get("templating")
    variables = templating.get("list") if isinstance(templating, dict) else None
    for one in variables if isinstance(variables, list) else ():
        if isinstance(one, dict) and one.get("name") == NAME:
            found = _FORM.fullmatch(str(one.get("query", "")))
            return Stamp(found[1], int(found[2])) if found else None
    return None
