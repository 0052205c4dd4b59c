"""The baseline of one kind of run: what good runs of it reach, and what they reached with the software before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import lru_cache
from typing import Any

from exporter.inventory.model import Node, Stratum, stratum_of
from exporter.judge.sketch import Sketch
from probes.result import Result

COARSE = ("efa-pulse", "python")
"""Of these only the first two numbers of a version count: they move nothing themselves."""
WORDS = 400
"""Characters that are kept of what the software is."""


@dataclass(frozen=True, order=True)
class NormKey:
    """What makes runs comparable (DESIGN 9). `shape` and `software` are fingerprints, `stratum` is the distance of the nodes."""

    probe: str
    operation: str
    bytes: int
    memory: str
    kind: str
    instance_type: str
    stratum: str
    shape: str
    software: str

    @property
    def id(self) -> str:
        """A name that is short and the same everywhere."""
        return hashlib.sha256(json.dumps(astuple(self)).encode()).hexdigest()[:16]

    @property
    def kin(self) -> NormKey:
        """The same with any software."""
        return replace(self, software="")

    @property
    def group(self) -> NormKey:
        """The same at any distance: those whose nodes are peers."""
        return replace(self, stratum="")

    @property
    def says(self) -> str:
        """In words."""
        return f"{self.probe} {self.operation} of {self.bytes} bytes in {self.memory}, {self.instance_type}, {self.stratum}"

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> NormKey:
        """From JSON. Raises KeyError, TypeError or ValueError."""
        key = cls(**{name: data[name] for name in cls.__dataclass_fields__})
        words = [value for name, value in asdict(key).items() if name != "bytes"]
        if not all(isinstance(word, str) and len(word) <= 200 and word.isprintable() for word in words):
            raise ValueError("a part of its key is no short text")
        if isinstance(key.bytes, bool) or not isinstance(key.bytes, int) or not 0 <= key.bytes < 1 << 63:
            raise ValueError(f"{key.bytes!r} is no number of bytes")
        return key


@dataclass(frozen=True)
class Before:
    """A baseline as it stood when its software was replaced. `centre` is bytes per second, `spread` a share of it, `at` Unix seconds."""

    software: str
    says: str
    centre: float
    spread: float
    samples: float
    at: float


@dataclass
class Norm:
    """One baseline. `says` names the software in words, `before` is the frozen reference of the one before."""

    key: NormKey
    sketch: Sketch
    says: str = ""
    before: Before | None = None
    kin: NormKey = field(init=False)
    group: NormKey = field(init=False)

    def __post_init__(self) -> None:
        self.kin, self.group = self.key.kin, self.key.group

    def frozen(self, now: float) -> Before:
        """As a reference for the software after it."""
        return Before(self.key.software, self.says, self.sketch.centre, self.sketch.spread, self.sketch.samples(now), now)

    def dump(self) -> dict[str, Any]:
        """As JSON."""
        record: dict[str, Any] = {"key": asdict(self.key), "says": self.says, "sketch": self.sketch.dump()}
        if self.before is not None:
            record["before"] = asdict(self.before)
        return record

    @classmethod
    def load(cls, data: Mapping[str, Any], half_life: float) -> Norm:
        """From JSON. Raises KeyError, TypeError or ValueError when it is none."""
        key, says, before = NormKey.load(data["key"]), data.get("says", ""), data.get("before")
        if not isinstance(says, str):
            raise ValueError("its software is no text")
        found = Before(**before) if before is not None else None
        if found is not None:
            numbers = (found.centre, found.spread, found.samples, found.at)
            if not all(isinstance(number, (int, float)) and 0 <= number < 1e18 for number in numbers) or found.centre <= 0:
                raise ValueError("its frozen reference is out of range")
            if not isinstance(found.software, str) or not isinstance(found.says, str):
                raise ValueError("the software of its frozen reference is no text")
        return cls(key, Sketch.load(data["sketch"], half_life), says[:WORDS], found)


def software_of(results: Iterable[Result]) -> tuple[str, str]:
    """Fingerprint of the software of these ranks and what it is in words. Ranks that differ are named one after the other."""
    found = dict(_software(tuple(sorted(result.versions.items()))) for result in results)
    return "+".join(sorted(found)), "; ".join(found[one] for one in sorted(found))[:WORDS]


def shape_of(results: Iterable[Result]) -> str:
    """Fingerprint of the layout of a run: ranks, what each had and did, and how many devices it was given."""
    return _shape(tuple((tuple(sorted((name, str(value)) for name, value in result.shape.items())),
                         result.evidence.nics_allocated if result.evidence is not None else None) for result in results))


def types_of(nodes: Iterable[Node]) -> str:
    """The instance types of a run's nodes, joined where they differ."""
    return "+".join(sorted({node.instance_type or "unknown" for node in nodes})) or "unknown"


def distance_of(nodes: Iterable[Node]) -> str:
    """The stratum of a run's nodes: of a pair its distance, of one node the shortest, of more the longest of them."""
    found = list({node.instance_id: node for node in nodes}.values())
    if len(found) < 2:
        return Stratum.LEAF.value
    order = (Stratum.UNKNOWN, Stratum.CROSS, Stratum.SPINE, Stratum.LEAF)
    return min((stratum_of(found[0], other) for other in found[1:]), key=order.index).value


@lru_cache(maxsize=1024)
def _software(versions: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    kept = {name: ".".join(value.split(".")[:2]) if name in COARSE else value for name, value in versions}
    return _fingerprint(kept), ", ".join(f"{name} {value}" for name, value in kept.items()) or "not told"


@lru_cache(maxsize=1024)
def _shape(ranks: tuple[Any, ...]) -> str:
    return _fingerprint(ranks)


def _fingerprint(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
