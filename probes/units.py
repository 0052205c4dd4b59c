"""Sizes, durations and rates as people write them: `64KiB`, `5m`, `25GB/s`. The values themselves are plain ints and floats in base units.

Use `Size`, `Duration` and `Rate` as field types of a pydantic model; a number is taken as it is, a text must name its unit.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_DECIMAL = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
# Kubernetes writes 64Mi for what everybody else calls 64MiB.
_KUBERNETES = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_SIZES = {**_DECIMAL, **_BINARY, **_KUBERNETES}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_BITS = {"bit": 1, "kbit": 10**3, "Mbit": 10**6, "Gbit": 10**9, "Tbit": 10**12}
_RATES: dict[str, float] = {**{unit + "/s": float(scale) for unit, scale in _SIZES.items()},
                            **{unit + "/s": scale / 8 for unit, scale in _BITS.items()}}

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_QUANTITY = re.compile(rf"({_NUMBER})\s*([A-Za-z/]+)")
_SPAN = re.compile(rf"(?:{_NUMBER}(?:us|ms|[smhdw]))+")
_PART = re.compile(rf"({_NUMBER})(us|ms|[smhdw])")
LARGEST = 2**63 - 1


def parse_size(value: Any) -> int:
    """Bytes of `65536`, `"64KiB"`, `"64Ki"` or `"1.5GB"`. Raises ValueError that says what a size looks like."""
    if not _usable(value):
        raise ValueError(f"a size such as 64KiB, or a number of bytes, is needed; got {_kind(value)}")
    if isinstance(value, str):
        value = _quantity(value, _SIZES, "a size such as 64KiB, 64MiB or 1GB, or a number of bytes, is needed")
    if not math.isfinite(value) or value != int(value):
        raise ValueError(f"a size is a whole number of bytes; got {value!r}")
    if not 0 <= value <= LARGEST:
        raise ValueError(f"a size is between 0 and {LARGEST} bytes; got {value!r}")
    return int(value)


def parse_duration(value: Any) -> float:
    """Seconds of `30`, `"30s"`, `"1h30m"` or `"250ms"`. Raises ValueError that says what a duration looks like."""
    if not _usable(value):
        raise ValueError(f"a duration such as 30s, 5m or 6h, or a number of seconds, is needed; got {_kind(value)}")
    if isinstance(value, str):
        text = value.strip()
        if not _SPAN.fullmatch(text):
            raise ValueError(f"a duration such as 30s, 5m or 1h30m, or a number of seconds, is needed; got {_short(value)}")
        value = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"a duration is a finite number of seconds, 0 or more; got {value!r}")
    return float(value)


def parse_rate(value: Any) -> float:
    """Bytes per second of `25e9`, `"25GB/s"` or `"200Gbit/s"`. Raises ValueError that says what a rate looks like."""
    if not _usable(value):
        raise ValueError(f"a rate such as 25GB/s or 200Gbit/s, or a number of bytes per second, is needed; got {_kind(value)}")
    if isinstance(value, str):
        value = _quantity(value, _RATES, "a rate such as 25GB/s, 20GiB/s or 200Gbit/s, or a number of bytes per second, is needed")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"a rate is a finite number of bytes per second, 0 or more; got {value!r}")
    return float(value)


def show_size(value: float) -> str:
    """The size in its largest whole binary unit: `64KiB`, `1000B`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if value and value % _BINARY[unit] == 0:
            return f"{value // _BINARY[unit]:.0f}{unit}"
    return f"{value:.0f}B"


def show_duration(seconds: float) -> str:
    """The duration in its largest whole unit: `30s`, `90m`, `6h`, `0.25s`."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


def _quantity(text: str, units: dict[str, Any], need: str) -> float:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{need}; got {_short(text)}")
    number, unit = match.groups()
    if unit not in units:
        raise ValueError(f"unknown unit {unit!r} in {_short(text)}: use one of {', '.join(units)}")
    scale: float = units[unit]
    # A whole number stays whole: floats lose bytes above 2**53.
    return float(number) * scale if "." in number else int(number) * scale


def _usable(value: Any) -> bool:
    return isinstance(value, (int, float, str)) and not isinstance(value, bool)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")


def _kind(value: Any) -> str:
    names = {"bool": "true or false", "NoneType": "nothing", "list": "a list", "dict": "a mapping"}
    return names.get(type(value).__name__, type(value).__name__)


def _schema(kind: str, pattern: str, example: str) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": kind, "minimum": 0}, {"type": "string", "pattern": pattern}], "examples": [example]})


Size = Annotated[int, BeforeValidator(parse_size), _schema("integer", rf"^\s*{_NUMBER}\s*({'|'.join(_SIZES)})\s*$", "64MiB")]
"""Bytes: an int in the model, `64MiB` or a number in a file."""
Duration = Annotated[float, BeforeValidator(parse_duration), PlainSerializer(float, when_used="json"),
                     _schema("number", rf"^\s*({_NUMBER}(us|ms|[smhdw]))+\s*$", "30s")]
"""Seconds: a float in the model, `30s`, `1h30m` or a number in a file."""
Rate = Annotated[float, BeforeValidator(parse_rate), _schema("number", rf"^\s*{_NUMBER}\s*({'|'.join(_RATES)})\s*$", "25GB/s")]
"""Bytes per second: a float in the model, `25GB/s`, `200Gbit/s` or a number in a file."""
