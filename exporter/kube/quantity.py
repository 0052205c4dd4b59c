"""Kubernetes quantities (`500m`, `5120Mi`, `8`) as numbers."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

_FACTORS = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1), "k": Decimal(10) ** 3, "M": Decimal(10) ** 6,
            "G": Decimal(10) ** 9, "T": Decimal(10) ** 12, "P": Decimal(10) ** 15, "E": Decimal(10) ** 18,
            **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)}}
_SHAPE = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?", re.ASCII)


def parse(text: object) -> Decimal:
    """The quantity as an exact number. Raises ValueError."""
    match = _SHAPE.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{text!r} is no Kubernetes quantity")
    return Decimal(match[1]) * _FACTORS[match[2] or ""]


def whole(text: object) -> int:
    """The quantity rounded up to a whole number, as the scheduler counts bytes and devices. Raises ValueError."""
    return int(parse(text).to_integral_value(ROUND_CEILING))


def milli(text: object) -> int:
    """The quantity in thousandths, rounded up. Raises ValueError."""
    return int((parse(text) * 1000).to_integral_value(ROUND_CEILING))
