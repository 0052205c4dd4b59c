"""A simulated endpoint, plain and with TLS, and what a client needs to reach it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from canary_peers import MakeParams, quick, server_context

from probes.canary.params import CanaryParams
from probes.canary.simulated import SimulatedEndpoint


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    """A certificate authority that no system trusts."""
    return trustme.CA()


@pytest.fixture(scope="session")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


@pytest.fixture(scope="session")
def plain_endpoint() -> Iterator[SimulatedEndpoint]:
    with SimulatedEndpoint() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def tls_endpoint(authority: trustme.CA) -> Iterator[SimulatedEndpoint]:
    with SimulatedEndpoint(tls=server_context(authority, "127.0.0.1", "canary.test")) as endpoint:
        yield endpoint


@pytest.fixture(params=["plain", "tls"])
def endpoint(request: pytest.FixtureRequest) -> SimulatedEndpoint:
    """The simulated endpoint, once plain and once with TLS."""
    found: SimulatedEndpoint = request.getfixturevalue(f"{request.param}_endpoint")
    return found


@pytest.fixture
def params(endpoint: SimulatedEndpoint, ca_file: Path) -> MakeParams:
    """Makes the parameters of a request to `endpoint`. `scenario` says what it shall do; the rest are fields of CanaryParams."""

    def make(scenario: dict[str, Any] | None = None, **fields: Any) -> CanaryParams:
        script = {"ttft": 0.02, "gap": 0.002, **(scenario or {})}
        headers = {"x-simulated": json.dumps(script), **fields.pop("headers", {})}
        trust = {"ca_file": ca_file} if endpoint.url.startswith("https") else {}
        return quick(endpoint.url, **{"max_tokens": 8, **trust, **fields, "headers": headers})

    return make
