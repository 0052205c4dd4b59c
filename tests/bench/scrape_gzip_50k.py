"""The same with gzip, which Prometheus asks for: over HTTP, and over TLS with basic authentication. Peer: prometheus_client with gzip.

Ours is the whole scrape from connection (and handshake) to last byte; the peer is its WSGI application called in its own process.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from bench.scrape_rig import PEER, RESULTS_PER_SECOND, SERIES, rig, row, scrape, versions

NAME = "scrape_gzip_50k"
ROUNDS = 30
PER_ROUND = 7


def run() -> list[dict[str, Any]]:
    """Over HTTP and over TLS, and how small the page is."""
    plain: list[float] = []
    protected: list[float] = []
    theirs: list[float] = []
    accept = "application/openmetrics-text;version=1.0.0"
    with tempfile.TemporaryDirectory() as folder, rig(Path(folder)) as both:
        # The first scrape with a password pays for bcrypt, once; it is not one of those counted.
        scrape(both.protected, accept=accept, encoding="gzip", context=both.context, expect=SERIES)
        for _ in range(ROUNDS):
            theirs.append(both.theirs("gzip"))
            for _ in range(PER_ROUND):
                seconds, packed = scrape(both.plain, accept=accept, encoding="gzip", expect=SERIES)
                plain.append(seconds)
                protected.append(scrape(both.protected, accept=accept, encoding="gzip", context=both.context, expect=SERIES)[0])
        whole = len(scrape(both.plain, accept=accept, encoding="identity")[1])
        series = both.series
        both.end()
    busy = f"{RESULTS_PER_SECOND:.0f} results/s arriving"
    size = {"name": NAME, "what": f"compression of the page, {whole} bytes to {len(packed)}", "value": whole / len(packed), "unit": "x",
            "peer": None, "peer_value": None, "ratio": None, "goal": None, "holds": None, "versions": versions()}
    return [row(NAME, f"gzip scrape over HTTP, {busy}", plain, theirs, f"{PEER} + gzip", series),
            row(NAME, f"gzip scrape over TLS with basic authentication, {busy}", protected, theirs, f"{PEER} + gzip", series), size]
