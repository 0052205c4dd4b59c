"""The real cluster that the tests in this folder share, in namespaces of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import realtools
from e2e import cell
from e2e.controlplane import ControlPlane


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One control plane for the whole session. A test works in namespaces and on nodes of its own, and repairs what it breaks."""
    if why := cell.why_not():
        realtools.absent(why)
    with ControlPlane(tmp_path_factory.mktemp("cluster")) as plane:
        yield plane
