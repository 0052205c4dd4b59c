"""What probe pods ask for: devices of a run's workers, and the room that gates look for."""

from __future__ import annotations

from typing import Any

import pytest

from exporter.config.kubernetes import Kubernetes
from exporter.inventory.model import Node, Room
from exporter.launch.claims import claim_of
from exporter.launch.manifest import Claim, ManifestError
from exporter.plan.needs import needs_of
from exporter.runs import RunSpec


def settings(**more: Any) -> Kubernetes:
    return Kubernetes.model_validate(more)


def node(name: str, efa: int = 32, gpu: int | None = 8, source: Any = "device-plugin") -> Node:
    return Node(name, name, efa=Room(efa), gpu=Room(gpu) if gpu is not None else None, efa_source=source)


def run(probe: str) -> RunSpec:
    return RunSpec("r", probe, "a--b", ("a", "b"), "any", 60.0)


@pytest.mark.parametrize(("probe", "claim"), [
    ("node", Claim()), ("mooncake", Claim(efa=1)), ("nixl", Claim(efa=1)), ("nccl", Claim(efa=1, gpu=1)),
    ("uccl-ep", Claim(efa=16, gpu=4))])
def test_a_worker_gets_what_its_pod_says_and_all_means_what_the_smaller_node_has(probe: str, claim: Claim) -> None:
    assert claim_of(run(probe), [node("a", efa=16, gpu=8), node("b", efa=32, gpu=4)], settings()) == claim


def test_devices_of_dynamic_allocation_are_claimed() -> None:
    claim = claim_of(run("mooncake"), [node("a", source="dra"), node("b", source="dra")], settings())
    assert claim == Claim(efa=1, efa_by_claim=True)
    assert not claim_of(run("node"), [node("a", source="dra")], settings()).by_claim


def test_one_job_cannot_ask_in_two_ways() -> None:
    with pytest.raises(ManifestError, match="different ways"):
        claim_of(run("mooncake"), [node("a", source="dra"), node("b")], settings())


def test_all_of_nothing_is_refused() -> None:
    with pytest.raises(ManifestError, match="all GPUs"):
        claim_of(run("uccl-ep"), [node("a"), node("b", gpu=0)], settings())
    with pytest.raises(ManifestError, match="all GPUs"):
        claim_of(run("uccl-ep"), [node("a", gpu=None)], settings())


def test_a_shared_pod_takes_nothing_from_whoever_holds_the_devices() -> None:
    shared = settings(pods={"mooncake": {"placement": "shared", "hugepages": "1GiB"}})
    assert claim_of(run("mooncake"), [node("a"), node("b")], shared) == Claim()
    needs = needs_of(shared.pods)["mooncake"]
    assert (needs.efa, needs.gpu, needs.hugepages) == (0, 0, 0)
    admin = settings(pods={"mooncake": {"placement": "shared"}}, dra={"admin_access": True})
    assert claim_of(run("mooncake"), [node("a", source="dra"), node("b", source="dra")], admin) == Claim(
        efa=1, efa_by_claim=True, admin=True)


def test_gates_look_for_the_room_that_the_pod_asks_for() -> None:
    needs = needs_of(settings(pods={"image": "probe:1", "nixl": {"image": "nixl:2", "memory": "3GiB", "cpu": 500}}).pods)
    assert set(needs) == {"node", "mooncake", "nixl", "nccl", "uccl-ep"}
    assert (needs["nixl"].memory, needs["nixl"].cpu, needs["nixl"].image) == (3 << 30, 500, "nixl:2")
    assert needs["mooncake"].image == "probe:1"
    assert needs["node"].efa == 0
    assert needs["uccl-ep"].efa is None
    assert needs["uccl-ep"].gpu is None
