"""The Prometheus text format, read from a page that may hold anything: bounded, tolerant, and only the names that are wanted.

A line that cannot be read is left out and counted; it never costs the others anything.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

LINE_LIMIT = 16_384
SAMPLES_LIMIT = 20_000
LINES_LIMIT = 500_000
LABEL_LIMIT = 64

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|(?=\}))')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True)
class Sample:
    """One series at one moment."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass
class Exposition:
    """The wanted samples of a page. `prefixes` are the first words of the names seen (two words below `ray_`); `broken` counts unusable
    lines, `cut` says that there was more than is read."""

    samples: list[Sample] = field(default_factory=list)
    prefixes: set[str] = field(default_factory=set)
    broken: int = 0
    cut: bool = False


def read(page: str, wanted: Callable[[str], bool]) -> Exposition:
    """The samples of `page` whose name `wanted` takes."""
    found = Exposition()
    for number, line in enumerate(_lines(page)):
        if number >= LINES_LIMIT:
            found.cut = True
            break
        text = line.strip()
        if not text or text[0] == "#":
            continue
        match = _NAME.match(text)
        if match is None or len(text) > LINE_LIMIT:
            found.broken += 1
            continue
        name = match.group()
        if len(found.prefixes) < LABEL_LIMIT:
            found.prefixes.add(_prefix(name))
        if not wanted(name):
            continue
        if len(found.samples) >= SAMPLES_LIMIT:
            found.cut = True
            break
        sample = _sample(name, text[match.end():])
        if sample is None:
            found.broken += 1
        else:
            found.samples.append(sample)
    return found


def _prefix(name: str) -> str:
    words = re.split("[:_]", name, maxsplit=2)
    return "_".join(words[:2]) if words[0] == "ray" else words[0]


def _lines(page: str) -> Iterator[str]:
    """Lines by newline only: str.splitlines takes others for ends as well, which may stand inside a label."""
    start = 0
    while start < len(page):
        end = page.find("\n", start)
        end = len(page) if end < 0 else end
        yield page[start:end]
        start = end + 1


def _sample(name: str, rest: str) -> Sample | None:
    labels: dict[str, str] = {}
    rest = rest.lstrip()
    if rest.startswith("{"):
        at = 1
        while not rest[at:].lstrip().startswith("}"):
            match = _LABEL.match(rest, at)
            if match is None or len(labels) >= LABEL_LIMIT:
                return None
            labels[match.group(1)] = re.sub(r'\\[\\"n]', lambda escape: _ESCAPES[escape.group()], match.group(2))
            at = match.end()
        rest = rest[rest.index("}", at) + 1:]
    words = rest.split(maxsplit=1)
    try:
        value = float(words[0])
    except (IndexError, ValueError):
        return None
    return Sample(name, labels, value) if math.isfinite(value) and abs(value) < 2**63 else None
