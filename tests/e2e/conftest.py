"""The real cluster that the tests in this folder share, in namespaces of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import realtools
from e2e import cell
from e2e.controlplane import ControlPlane
from e2e.installed import Installation


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One control plane for the whole session. A test works in namespaces and on nodes of its own, and repairs what it breaks."""
    if why := cell.why_not():
        realtools.absent(why)
    with ControlPlane(tmp_path_factory.mktemp("cluster")) as plane:
        yield plane


@pytest.fixture
def install(cluster: ControlPlane) -> Iterator[Callable[..., Installation]]:
    """Makes installations of the product, each in namespaces of its own, and removes them."""
    made: list[Installation] = []

    def make(**settings: Any) -> Installation:
        one = Installation(cluster, **settings)
        made.append(one)
        return one

    yield make
    for one in made:
        one.remove()
