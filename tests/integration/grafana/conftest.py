"""A double of Grafana for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from grafana_double import GrafanaDouble, served


@pytest.fixture
def grafana() -> GrafanaDouble:
    return GrafanaDouble()


@pytest.fixture
def url(grafana: GrafanaDouble) -> Iterator[str]:
    with served(grafana) as address:
        yield address
