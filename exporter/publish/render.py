"""Samples as text. One text serves the Prometheus format 0.0.4 and OpenMetrics 1.0: only headers and exemplars differ.

Labels are written in alphabetical order and numbers as prometheus_client writes them, so that both render the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client.utils import floatToGoString

from exporter.publish.family import Family, Kind

END = b"# EOF\n"
EXEMPLAR_LABEL = "run_id"
EXEMPLAR_LIMIT = 128
"""Characters of label names and values that OpenMetrics allows in one exemplar."""


class Exemplar(NamedTuple):
    """The run behind an observation: its value, and when it was observed (Unix seconds)."""

    run_id: str
    value: float
    timestamp: float


class Piece(NamedTuple):
    """Rendered samples of one family and one owner. `openmetrics` is None where the text is the same."""

    text: bytes
    openmetrics: bytes | None
    series: int


def escape(value: str) -> str:
    """A label value with backslash, newline and quote escaped. What UTF-8 cannot carry (a lone surrogate) becomes `?`."""
    if "\\" in value or "\n" in value or '"' in value:
        value = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def number(value: float) -> str:
    """A sample value, `+Inf`, `-Inf` and `NaN` included."""
    if type(value) is int and -1_000_000 < value < 1_000_000:
        return f"{value}.0"
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def classic_header(family: Family) -> bytes:
    """HELP and TYPE for the text format 0.0.4."""
    kind = "gauge" if family.kind in {Kind.INFO, Kind.STATE_SET} else family.kind.value
    text = family.help.replace("\\", r"\\")
    return f"# HELP {family.name} {text}\n# TYPE {family.name} {kind}\n".encode()


def openmetrics_header(family: Family) -> bytes:
    """HELP, TYPE and UNIT for OpenMetrics 1.0. A state set stays a gauge: the label of its state has a name of its own."""
    kind = "gauge" if family.kind is Kind.STATE_SET else family.kind.value
    text = family.help.replace("\\", r"\\").replace('"', r"\"")
    unit = f"# UNIT {family.base_name} {family.unit}\n" if family.unit else ""
    return f"# HELP {family.base_name} {text}\n# TYPE {family.base_name} {kind}\n{unit}".encode()


def gauges(family: Family, samples: Iterable[tuple[Sequence[str], float]]) -> Piece:
    """Samples of a gauge, counter, info or state set: label values in the declared order, and the value."""
    lines = [f"{family.name}{_labels(family, values)} {number(value)}\n" for values, value in samples]
    return Piece("".join(lines).encode(), None, len(lines))


def histogram_lines(family: Family, values: Sequence[str]) -> tuple[str, ...]:
    """What does not change of a histogram: its lines up to their values, one per bucket, then count and sum."""
    pairs = sorted(zip(family.labels, values, strict=True))
    before = "".join(f'{name}="{escape(value)}",' for name, value in pairs if name < "le")
    after = "".join(f',{name}="{escape(value)}"' for name, value in pairs if name > "le")
    labels = _labels(family, values)
    buckets = (f'{family.name}_bucket{{{before}le="{number(bound)}"{after}}} ' for bound in (*family.buckets, float("inf")))
    return (*buckets, f"{family.name}_count{labels} ", f"{family.name}_sum{labels} ")


def histogram(lines: tuple[str, ...], counts: Sequence[int], total: float, exemplars: Sequence[Exemplar | None]) -> Piece:
    """One histogram of these `histogram_lines`. `counts` are per bucket, not cumulative, +Inf the last; `exemplars` per bucket, or none."""
    plain = [line + number(seen) for line, seen in zip(lines, accumulate(counts), strict=False)]
    tail = f"\n{lines[-2]}{number(sum(counts))}\n{lines[-1]}{number(total)}\n"
    openmetrics = None
    if any(exemplars):
        marked = [line + _exemplar(exemplar) for line, exemplar in zip(plain, exemplars, strict=True)]
        openmetrics = ("\n".join(marked) + tail).encode()
    return Piece(("\n".join(plain) + tail).encode(), openmetrics, len(lines))


def together(pieces: Sequence[Piece]) -> Piece:
    """Several pieces of one owner as one."""
    if len(pieces) == 1:
        return pieces[0]
    text = b"".join(piece.text for piece in pieces)
    differs = any(piece.openmetrics is not None for piece in pieces)
    openmetrics = b"".join(piece.text if piece.openmetrics is None else piece.openmetrics for piece in pieces) if differs else None
    return Piece(text, openmetrics, sum(piece.series for piece in pieces))


def _labels(family: Family, values: Sequence[str]) -> str:
    if not values and not family.labels:
        return ""
    pairs = sorted(zip(family.labels, values, strict=True))
    return "{" + ",".join(f'{name}="{escape(value)}"' for name, value in pairs) + "}"


def _exemplar(exemplar: Exemplar | None) -> str:
    if exemplar is None or len(EXEMPLAR_LABEL) + len(exemplar.run_id) > EXEMPLAR_LIMIT:
        return ""
    return f' # {{{EXEMPLAR_LABEL}="{escape(exemplar.run_id)}"}} {number(exemplar.value)} {exemplar.timestamp:.3f}'
