"""How much memory does the publishing side of the service hold at 50,000 series, after scrapes of every kind and results that arrived?"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from bench.scrape_rig import rig, scrape, versions

NAME = "service_rss_50k"
SCRAPES = 20
GOAL_BYTES = 128 << 20


def run() -> list[dict[str, Any]]:
    """Resident bytes of the two processes, imports included."""
    with tempfile.TemporaryDirectory() as folder, rig(Path(folder)) as both:
        for _ in range(SCRAPES):
            for encoding in ("gzip", "identity"):
                for accept in ("text/plain", "application/openmetrics-text"):
                    scrape(both.plain, accept=accept, encoding=encoding)
            scrape(both.protected, accept="", encoding="gzip", context=both.context)
            both.theirs("gzip")
        series = both.series
        _, ours, theirs = both.end()
    return [{"name": NAME, "what": f"resident memory of publisher, pages and server at {series} series, imports included", "value": ours,
             "unit": "B", "peer": "prometheus_client, same families", "peer_value": theirs, "ratio": theirs / ours,
             "goal": f"<= {GOAL_BYTES >> 20} MiB", "holds": ours <= GOAL_BYTES, "versions": versions()}]
