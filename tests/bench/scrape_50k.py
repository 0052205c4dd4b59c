"""How long does a scrape of 50,000 series take, uncompressed, while results arrive? Peer: prometheus_client renders the same families.

Ours is the whole scrape over HTTP from connection to last byte; the peer is its call alone, without HTTP. They take turns.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from bench.report import quantile
from bench.scrape_rig import PEER, RESULTS_PER_SECOND, SERIES, rig, row, scrape, versions

NAME = "scrape_50k"
ROUNDS = 40
PER_ROUND = 5


def run() -> list[dict[str, Any]]:
    """Text, OpenMetrics, and what publishing one result costs meanwhile."""
    ours: dict[str, list[float]] = {"text/plain": [], "application/openmetrics-text": []}
    theirs: list[float] = []
    with tempfile.TemporaryDirectory() as folder, rig(Path(folder)) as both:
        for _ in range(ROUNDS):
            theirs.append(both.theirs("text"))
            for accept, times in ours.items():
                times += [scrape(both.plain, accept=accept, encoding="identity", expect=SERIES)[0] for _ in range(PER_ROUND)]
        series = both.series
        commits, _, _ = both.end()
    cost = {"name": NAME, "what": f"publishing one result at {series} series (render, deflate, swap), p99 of {len(commits)}",
            "value": quantile(commits, 0.99), "unit": "s", "peer": None, "peer_value": None, "ratio": None, "goal": None, "holds": None,
            "versions": versions()}
    busy = f"{RESULTS_PER_SECOND:.0f} results/s arriving"
    return [row(NAME, f"scrape as {accept} over HTTP, {busy}", times, theirs, PEER, series) for accept, times in ours.items()] + [cost]
