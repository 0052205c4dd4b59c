"""The small part of the page that is made at the scrape: what the server counts itself, and the process it runs in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from exporter import log
from exporter.publish import families as f
from exporter.publish import render
from exporter.publish.deflate import Segment, segment

Part = Callable[[bool], bytes]
"""Renders a part of the page; the argument asks for OpenMetrics."""

REFUSALS = ("bad_request", "full", "handshake", "reset", "slow_reader", "slow_request")
"""Why a connection ends without an answer, or in the middle of one."""



class ProcessPart:
    """CPU, memory, file descriptors, garbage collection and Python version of this process, from prometheus_client."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def __call__(self, openmetrics: bool) -> bytes:
        """Read and render."""
        if openmetrics:
            return bytes(generate_openmetrics(self._registry)).removesuffix(render.END)  # type: ignore[no-untyped-call]
        return generate_latest(self._registry)


class ServerPart:
    """Requests, refused connections, failed parts and the state of the web configuration. Any thread may count."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._lock = threading.Lock()
        self._web_config_ok = True
        self._counts: dict[str, dict[tuple[str, ...], float]] = {
            f.HTTP_REQUESTS.name: dict.fromkeys((("/metrics", code) for code in ("200", "401", "500")), 0.0),
            f.HTTP_REFUSED.name: dict.fromkeys(((why,) for why in REFUSALS), 0.0),
            f.SCRAPE_ERRORS.name: dict.fromkeys(((name,) for name in parts), 0.0),
        }

    def answered(self, handler: str, status: int) -> None:
        """Count a request."""
        self._add(f.HTTP_REQUESTS.name, (handler, str(status)))

    def refused(self, why: str) -> None:
        """Count a connection that ended without an answer."""
        self._add(f.HTTP_REFUSED.name, (why,))

    def failed(self, part: str, error: Exception) -> None:
        """Count and log a part of the page that could not be made."""
        self._add(f.SCRAPE_ERRORS.name, (part,))
        log.get().warning("a part of the metrics page failed", part=part, error=f"{type(error).__name__}: {error}")

    def web_config(self, ok: bool) -> None:
        """Note whether the last load of TLS and authentication files worked."""
        self._web_config_ok = ok

    def __call__(self, openmetrics: bool) -> bytes:
        """Render the present counts."""
        header = render.openmetrics_header if openmetrics else render.classic_header
        out = [header(f.WEB_CONFIG_OK), render.gauges(f.WEB_CONFIG_OK, [((), float(self._web_config_ok))]).text]
        with self._lock:
            counts = [(family, sorted(self._counts[family.name].items())) for family in f.LIVE if family.name in self._counts]
        for family, samples in counts:
            if samples:
                out += [header(family), render.gauges(family, samples).text]
        return b"".join(out)

    def _add(self, family: str, labels: tuple[str, ...]) -> None:
        with self._lock:
            self._counts[family][labels] = self._counts[family].get(labels, 0) + 1


def live_segments(parts: Mapping[str, Part], server: ServerPart, *, openmetrics: bool) -> Iterator[Segment]:
    """Each part that can be made, deflated. One that raises is left out and counted, in this page already."""
    for name, part in parts.items():
        try:
            yield segment(part(openmetrics), level=1)
        except Exception as error:  # noqa: BLE001 - a failing part never fails the scrape
            server.failed(name, error)
    yield segment(server(openmetrics) + (render.END if openmetrics else b""), level=1)
