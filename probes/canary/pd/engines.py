"""Engine metrics as data: which series a meter is read from, engine by engine and generation by generation (`engines.yaml`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

BUILT_IN = Path(__file__).with_name("engines.yaml")
KINDS = frozenset({"counter", "gauge", "last", "role", "block"})
ROLES = frozenset({"prefill", "decode", "router", "epp"})
_KEYS = frozenset({"series", "where", "label", "engine", "role", "kind", "scale", "since", "until", "zero"})
_RAY = "ray_"


class CatalogError(ValueError):
    """A catalog that cannot be used. The text names the row and what is wrong with it."""


@dataclass(frozen=True)
class Source:
    """One series a meter may be read from. `where` maps a label to the values that count; `role` None: on every engine page."""

    series: str
    engine: str
    kind: str
    where: Mapping[str, frozenset[str]] = field(default_factory=dict)
    label: str | None = None
    role: str | None = None
    scale: float = 1.0
    zero_is_no_data: bool = False
    versions: str = ""

    def on(self, role: str) -> bool:
        """Whether it belongs on a page of this role. A mixed engine does both."""
        return self.role is None or role in (self.role, "mixed")


@dataclass(frozen=True)
class Catalog:
    """All meters with their sources, newest first, and how engines are recognised."""

    meters: Mapping[str, tuple[Source, ...]]
    prefixes: Mapping[str, str]
    expected: Mapping[tuple[str, str], tuple[str, ...]]

    def engine_of(self, prefixes: set[str]) -> str | None:
        """The engine whose names are on a page; None when no known one is."""
        return next((engine for prefix, engine in self.prefixes.items() if prefix in prefixes), None)

    def expected_of(self, engine: str | None, role: str) -> tuple[str, ...]:
        """The meters of which an engine of this role must have at least one. A mixed engine is looked at as a decode one."""
        return self.expected.get((engine or "", "decode" if role == "mixed" else role), ())

    @property
    def names(self) -> frozenset[str]:
        """Every series name, as `plain` writes it."""
        return frozenset(source.series for sources in self.meters.values() for source in sources)


def plain(name: str) -> str:
    """A series name as the catalog writes it: `ray_vllm_x` and `ray_vllm:x` are `vllm:x`; a counter without `_total` keeps its name."""
    if name.startswith(_RAY):
        rest = name[len(_RAY):]
        for engine in ("vllm", "sglang"):
            if rest.startswith((f"{engine}_", f"{engine}:")):
                return f"{engine}:{rest[len(engine) + 1:]}"
    return name


@lru_cache(maxsize=1)
def catalog() -> Catalog:
    """The catalog that comes with efa-pulse."""
    return load(yaml.safe_load(BUILT_IN.read_text(encoding="utf-8")))


def load(data: Any) -> Catalog:
    """A catalog from its YAML. Raises CatalogError."""
    try:
        engines, meters = dict(data["engines"]), dict(data["meters"])
        prefixes = {str(prefix): str(engine) for engine, row in engines.items() for prefix in row["prefix"]}
        expected = {(str(engine), str(role)): tuple(map(str, names))
                    for engine, row in engines.items() for role, names in row.get("expected", {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CatalogError(f"engines and meters are needed: {error}") from None
    found = {str(meter): tuple(_source(str(meter), row) for row in rows or ()) for meter, rows in meters.items()}
    for (engine, role), names in expected.items():
        unknown = [name for name in names if name not in found]
        if unknown or role not in ROLES:
            raise CatalogError(f"engines.{engine}.expected.{role}: no such meter or role: {', '.join(unknown) or role}")
    return Catalog(found, prefixes, expected)


def _source(meter: str, row: Any) -> Source:
    if not isinstance(row, dict) or not row.keys() <= _KEYS or not {"series", "engine", "kind"} <= row.keys():
        raise CatalogError(f"meters.{meter}: a row needs series, engine and kind, and knows {', '.join(sorted(_KEYS))}")
    if row["kind"] not in KINDS or row.get("role", "decode") not in ROLES:
        raise CatalogError(f"meters.{meter}: kind {row['kind']!r} or role {row.get('role')!r} is not known")
    if (row["kind"] in {"role", "block"}) != ("label" in row):
        raise CatalogError(f"meters.{meter}: label is for the kinds role and block, and they need it")
    versions = f"{row.get('since', '')}..{row.get('until', '')}"
    where = {str(label): frozenset(str(values).split("|")) for label, values in (row.get("where") or {}).items()}
    return Source(str(row["series"]), str(row["engine"]), str(row["kind"]), where, row.get("label"), row.get("role"),
                  float(row.get("scale", 1.0)), row.get("zero") == "no_data", versions)
