"""Kubernetes quantities."""

from __future__ import annotations

import pytest

from exporter.kube.quantity import milli, parse, whole


@pytest.mark.parametrize(("text", "value"), [
    ("8", 8), ("0", 0), ("5120Mi", 5120 << 20), ("10Gi", 10 << 30), ("1.5Gi", 3 << 29), ("2k", 2000), ("1e3", 1000), ("1E3", 1000),
    ("1Ei", 1 << 60), (16, 16), ("100m", 1), ("1500m", 2), ("1n", 1), ("3E", 3 * 10**18),
])
def test_whole_numbers_round_up_as_the_scheduler_does(text: object, value: int) -> None:
    assert whole(text) == value


@pytest.mark.parametrize(("text", "value"), [("2", 2000), ("500m", 500), ("0.1", 100), ("1u", 1), ("192", 192_000)])
def test_thousandths_of_a_cpu(text: str, value: int) -> None:
    assert milli(text) == value


@pytest.mark.parametrize("text", ["", "abc", "1 Gi", "Gi", "1KiB", "nan", "inf", "--1", None])
def test_what_is_no_quantity(text: object) -> None:
    with pytest.raises(ValueError, match="no Kubernetes quantity"):
        parse(text)
