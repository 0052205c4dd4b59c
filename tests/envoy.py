"""A real Envoy as a gateway in front of a double: with a delay, a refusal, a time limit for the whole answer."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from thismachine import end, free_port

BINARY = Path(sys.executable).parent / "envoy"
START_SECONDS = 20.0


def bootstrap(listen: int, admin: int, upstream: int, *, fault: dict[str, Any] | None = None, route_timeout: str = "0s") -> dict[str, Any]:
    """A configuration: one listener, one route to 127.0.0.1:`upstream`. `fault` is that of Envoy's fault filter."""
    filters: list[dict[str, Any]] = []
    if fault is not None:
        filters.append({"name": "envoy.filters.http.fault", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault", **fault}})
    filters.append({"name": "envoy.filters.http.router", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}})
    route = {"match": {"prefix": "/"}, "route": {"cluster": "sidecar", "timeout": route_timeout}}
    manager = {"@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
               "stat_prefix": "gateway", "http_filters": filters,
               "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]}}
    where = {"socket_address": {"address": "127.0.0.1", "port_value": upstream}}
    return {"admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": admin}}}, "static_resources": {
        "listeners": [{"address": {"socket_address": {"address": "127.0.0.1", "port_value": listen}}, "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}]}],
        "clusters": [{"name": "sidecar", "connect_timeout": "1s", "load_assignment": {"cluster_name": "sidecar", "endpoints": [
            {"lb_endpoints": [{"endpoint": {"address": where}}]}]}}]}}


@contextlib.contextmanager
def envoy(folder: Path, upstream: int, **options: Any) -> Iterator[str]:
    """Run Envoy; gives its address."""
    listen, admin = free_port(), free_port()
    config = folder / f"envoy-{listen}.json"
    config.write_text(json.dumps(bootstrap(listen, admin, upstream, **options)))
    log = (folder / f"envoy-{listen}.log").open("wb")
    command = [str(BINARY), "-c", str(config), "--concurrency", "1", "--disable-hot-restart", "-l", "warning"]
    process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_until_ready(process, admin, folder / f"envoy-{listen}.log")
        yield f"http://127.0.0.1:{listen}"
    finally:
        end(process, 10)
        log.close()


def _wait_until_ready(process: subprocess.Popen[bytes], admin: int, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{admin}/ready", timeout=1) as answer:
            if answer.status == 200:
                return
        time.sleep(0.05)
    raise RuntimeError(f"Envoy is not ready: {log.read_text()[-2000:]}")
