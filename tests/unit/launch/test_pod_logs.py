"""Logs of a run's pods, by rank: the end of each, nothing of ranks without a pod, and one sentence where they must not be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from scripted_api import Scripted

from exporter.kube.api import Api
from exporter.launch import names
from exporter.launch.podlogs import INDEX, logs_of
from exporter.runs import Run, RunSpec

RUN = Run(RunSpec("mooncake-1", "mooncake", "a--b", ("a", "b", "c"), "efa", 60.0, {}, {"round": "1"}), (), 0.0, 1.0)


class Pods:
    """A probe namespace with the pods of one run."""

    def __init__(self) -> None:
        self.refusals: dict[str, int] = {}
        self.server = Scripted(self.answer)

    def answer(self, method: str, path: str, query: dict[str, str]) -> tuple[int, Any]:
        if path.endswith("/pods"):
            assert query["labelSelector"] == f"{names.JOB}={names.job_name(RUN.spec)}"
            pods = [{"metadata": {"name": f"pod-{rank}", "labels": {INDEX: str(rank)}}} for rank in range(3)]
            return 200, {"items": [*pods, {"metadata": {"name": "stray", "labels": {}}}]}
        name = path.split("/")[-2]
        if name in self.refusals:
            return self.refusals[name], {"message": "not so", "reason": "Forbidden"}
        return 200, (f"{name} begins\n" + "x" * 5000 + f"\n{name} ends\n").encode()


@pytest.fixture
def pods() -> Iterator[Pods]:
    one = Pods()
    yield one
    one.server.close()


def read(pods: Pods) -> dict[int, str]:
    api = Api(pods.server.where)
    try:
        return logs_of(api, "probes", RUN, 1000)
    finally:
        api.close()


def test_the_end_of_each_ranks_log_is_read(pods: Pods) -> None:
    found = read(pods)
    assert sorted(found) == [0, 1, 2]
    assert found[1].endswith("pod-1 ends\n")
    assert {len(text) for text in found.values()} == {1000}


@pytest.mark.parametrize("status", [400, 404])
def test_a_pod_that_never_began_or_is_gone_has_no_log(pods: Pods, status: int) -> None:
    pods.refusals["pod-1"] = status
    assert read(pods)[1] == ""
    assert read(pods)[2].endswith("pod-2 ends\n")


def test_without_the_right_one_sentence_says_which(pods: Pods) -> None:
    pods.refusals["pod-0"] = 403
    with pytest.raises(OSError, match=r"mooncake-1 cannot be read: .*archive\.logs needs get on pods/log in the probe namespace"):
        read(pods)
