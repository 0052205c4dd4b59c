"""Which replica a command asks when a Service answers by any of its pods."""

from __future__ import annotations

from typing import Any

import pytest

from exporter.cli.remote import _leader_of
from exporter.kube.api import ApiError

THROUGH = "/api/v1/namespaces/ns/services/efa-pulse:9877/proxy"
STANDBY = {"leading": False, "leader": "efa-pulse-7d9f-x2x4q-1"}


class Server:
    """An API server that knows these pages."""

    def __init__(self, **pages: dict[str, Any]) -> None:
        self._pages = pages
        self.asked: list[str] = []

    def get(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        self.asked.append(path)
        assert query == {"only": "notable"}
        assert path.endswith("/api/status")
        for pod, page in self._pages.items():
            if path.replace("https:", "").split("/")[6] == f"{pod.replace('_', '-')}:9877":
                return page
        raise ApiError(403, "pods/proxy is forbidden")


@pytest.mark.parametrize("page", [{"leading": True, "leader": "efa-pulse-7d9f-x2x4q-1"}, {"leading": None, "leader": ""},
                                  {"leading": False, "leader": ""}, {}])
def test_one_that_leads_or_knows_no_leader_answers_itself(page: dict[str, Any]) -> None:
    server = Server(efa_pulse=page)
    assert _leader_of(server, "ns", THROUGH, "efa-pulse:9877") == THROUGH  # type: ignore[arg-type]
    assert len(server.asked) == 1


@pytest.mark.parametrize(("service", "tls"), [("efa-pulse:9877", ""), ("https:efa-pulse:9877", "https:"), ("efa-pulse:http", "")])
def test_a_standby_names_the_pod_that_leads(service: str, tls: str) -> None:
    through = f"/api/v1/namespaces/ns/services/{service}/proxy".replace(":http/", ":9877/")
    server = Server(efa_pulse=STANDBY, efa_pulse_7d9f_x2x4q={"leading": True})
    at = _leader_of(server, "ns", through, service)  # type: ignore[arg-type]
    assert at == f"/api/v1/namespaces/ns/pods/{tls}efa-pulse-7d9f-x2x4q:9877/proxy"


@pytest.mark.parametrize("leader", [{}, {"efa_pulse_7d9f_x2x4q": {"leading": False}}])
def test_without_the_right_or_after_a_hand_over_the_standby_answers(leader: dict[str, Any]) -> None:
    server = Server(efa_pulse=STANDBY, **leader)
    assert _leader_of(server, "ns", THROUGH, "efa-pulse:9877") == THROUGH  # type: ignore[arg-type]
