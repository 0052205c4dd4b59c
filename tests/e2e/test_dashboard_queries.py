"""Every query of every panel runs on a real Prometheus, old and new, that scrapes real exporters, and gives data."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dashboard_rig import WITNESSED, exporters, scraped
from prometheus import VERSIONS, Prometheus, binaries

from dashboards.pictures.source import Source, fill
from dashboards.store import shipped

pytestmark = pytest.mark.timeout(400)
FILL_SECONDS = 75.0
PATIENCE_SECONDS = 60.0
"""On a busy machine a scrape may miss its time."""
NODES = (WITNESSED, "told-a", "told-c")
"""Nodes that the board of one node is asked about: one of the simulation that the witness is on, one that is told of everything, and one
of a single probe, which has room for its latency under the cap of series."""
SILENT: dict[tuple[str, str], str] = {
    ("efa-pulse-monitor", "Series dropped"): "only a page above its cap drops series; tests of the publisher make one",
}
"""Panels that need not show data here, and why."""

DOCUMENTS = shipped()
SILENT |= {("efa-pulse-neighbours", panel["title"]): "no neighbour is in this rig; their pages go through the rules in "
           "tests/integration/rules/test_neighbours.py" for panel in DOCUMENTS["efa-pulse-neighbours"]["panels"]
           if panel["title"] != "Our verdict"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Prometheus]]:
    """Both versions at once over the same exporters: they fill while the other one does."""
    with contextlib.ExitStack() as stack:
        found = {which: binaries(which) for which in VERSIONS}
        rig = stack.enter_context(exporters(tmp_path_factory.mktemp("exporters")))
        made: dict[str, Prometheus] = {}
        for which, one in found.items():
            folder: Path = tmp_path_factory.mktemp(which)
            made[which] = stack.enter_context(scraped(rig, one, folder))
        time.sleep(FILL_SECONDS)
        yield made


@pytest.mark.parametrize("uid", DOCUMENTS)
@pytest.mark.parametrize("which", VERSIONS)
def test_every_query_gives_data(servers: dict[str, Prometheus], which: str, uid: str) -> None:
    document = DOCUMENTS[uid]
    silent = {f"{panel['title']} {target['refId']}": target for panel in document["panels"] if panel["type"] != "row"
              for target in panel["targets"] if (uid, panel["title"]) not in SILENT}
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        source = Source(servers[which].url, seconds=60.0, steps=30)
        silent = {name: target for name, target in silent.items() if not any(_asked(source, document, target, node) for node in NODES)}
        if not silent or time.monotonic() > end:
            break
        time.sleep(3.0)
    assert {name: target["expr"] for name, target in silent.items()} == {}


@pytest.mark.parametrize("which", VERSIONS)
def test_variables_and_annotations_can_be_asked(servers: dict[str, Prometheus], which: str) -> None:
    source = Source(servers[which].url, seconds=60.0, steps=30)
    for document in DOCUMENTS.values():
        values = source.values_of(document, {"node": WITNESSED})
        assert all(values.values())
        for annotation in document["annotations"]["list"]:
            if "expr" in annotation:
                source.range(fill(annotation["expr"], values))
        for name in ("node", "probe", "target"):
            if any(variable["name"] == name for variable in document["templating"]["list"]):
                assert source.values_of({"templating": {"list": [
                    {**variable, "includeAll": False} for variable in document["templating"]["list"]]}}, {})[name]


def _asked(source: Source, document: dict[str, Any], target: dict[str, Any], node: str) -> bool:
    expr = fill(target["expr"], source.values_of(document, {"node": node, "window": "1h"}))
    return bool(source.instant(expr) if target.get("instant") else source.range(expr))
