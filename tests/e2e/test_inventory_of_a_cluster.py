"""The inventory against the real API server: what it knows of nodes and pods, and that it goes on knowing through cuts and restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from e2e import objects
from e2e.controlplane import ControlPlane, eventually
from e2e.installed import Installation, spec

from exporter.inventory.kubernetes import KubernetesInventory
from exporter.inventory.model import Node, Stratum, Taint, stratum_of
from exporter.kube.api import Api, configuration
from exporter.kube.watch import Change, Watch
from exporter.launch.manifest import Claim

Install = Callable[..., Installation]
Json = dict[str, Any]


@pytest.fixture
def here(install: Install) -> Installation:
    return install()


@pytest.fixture
def inventory(here: Installation) -> Iterator[KubernetesInventory]:
    one = KubernetesInventory(here.api, here.config, images=["probe:1", "registry.example/serving:2"])
    one.start()
    assert one.wait(20)
    yield one
    one.close()


def node(inventory: KubernetesInventory, name: str) -> Node:
    found: Node = eventually(lambda: inventory.snapshot().named(name), what=f"node {name} is known")
    return found


def workload(here: Installation, name: str, on: str, *, efa: int = 0, gpu: int = 0, **more: Any) -> Json:
    room = {key: str(value) for key, value in ((objects.EFA, efa), (objects.GPU, gpu), ("cpu", "2"), ("memory", "1Gi")) if value}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": here.config.probe_namespace, **more},
            "spec": {"nodeName": on, "containers": [{"name": "c", "image": "x", "resources": {"limits": room}}]}}


def test_what_is_known_of_a_node(here: Installation, inventory: KubernetesInventory) -> None:
    layers = {f"topology.k8s.aws/network-node-layer-{number}": f"nn-{number}" for number in (1, 2, 3)}
    labels = {**layers, "eks.amazonaws.com/capacityType": "CAPACITY_BLOCK"}
    a, b = here.nodes(2, labels=labels, annotations={"efa-pulse.io/exclude": "moved"})
    found = node(inventory, a)
    assert found.instance_id.startswith("i-")
    assert (found.instance_type, found.zone, found.region, found.nodegroup) == ("p5.48xlarge", "us-west-2a", "us-west-2", "gpu")
    assert found.capacity_block == "capacity-block"
    assert found.network_nodes == ("nn-1", "nn-2", "nn-3")
    assert stratum_of(found, node(inventory, b)) is Stratum.LEAF
    assert (found.efa_source, found.efa_expected, found.line_rate) == ("device-plugin", 32, 32 * 100e9 / 8)
    assert found.efa is not None
    assert (found.efa.allocatable, found.efa.requested) == (32, 0)
    assert found.gpu is not None
    assert found.gpu.allocatable == 8
    assert found.cpu is not None
    assert found.cpu.allocatable == 192_000
    assert found.hugepages is not None
    assert found.hugepages.allocatable == 10 << 30
    assert found.ready
    assert found.schedulable
    assert found.annotations == {"efa-pulse.io/exclude": "moved"}


def test_nodes_without_efa_devices_are_not_in_it(here: Installation, inventory: KubernetesInventory) -> None:
    plain = objects.node(f"{here.config.install}-plain", instance_type="m5.large", efa=0, gpu=0)
    here.cluster.create(plain)
    (other,) = here.nodes(1)
    node(inventory, other)
    assert inventory.snapshot().named(plain["metadata"]["name"]) is None
    here.cluster.delete(f"/api/v1/nodes/{plain['metadata']['name']}")


def test_a_device_plugin_that_failed_leaves_a_node_with_none(here: Installation, inventory: KubernetesInventory) -> None:
    (name,) = here.nodes(1)
    node(inventory, name)
    here.cluster.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"allocatable": {objects.EFA: "0"}}})
    eventually(lambda: (efa := node(inventory, name).efa) is not None and efa.allocatable == 0)
    assert node(inventory, name).efa_expected == 32


def test_what_pods_take_and_who_holds_devices(here: Installation, inventory: KubernetesInventory) -> None:
    (name,) = here.nodes(1)
    here.cluster.create(workload(here, "server", name, efa=16, gpu=8), workload(here, "other", name))
    held = eventually(lambda: node(inventory, name).holders)
    server = f"{here.config.probe_namespace}/server"
    assert [(str(one), one.efa, one.gpu, one.ends, one.probe) for one in held] == [(server, 16, 8, False, False)]
    eventually(lambda: node(inventory, name).workload_pods == 2, what="both pods are seen")
    found = node(inventory, name)
    assert found.efa is not None
    assert found.efa.free == 16
    assert found.cpu is not None
    assert found.cpu.requested == 4000
    here.cluster.delete(f"{here.probes}/pods/server")
    eventually(lambda: node(inventory, name).holders == (), what="a pod that left holds nothing")


def test_probe_pods_are_seen_whoever_launched_them(here: Installation, inventory: KubernetesInventory) -> None:
    a, b = here.nodes(2)
    launched = here.launcher(claim=Claim(efa=2))
    launched.launcher.start(spec((a, b), "r"))
    eventually(lambda: node(inventory, a).probe_pods == 1)
    (holder,) = node(inventory, a).holders
    assert (holder.efa, holder.probe, holder.ends) == (2, True, True)
    assert node(inventory, a).workload_pods == 0


def test_conditions_taints_and_cordons(here: Installation, inventory: KubernetesInventory) -> None:
    (name,) = here.nodes(1)
    node(inventory, name)
    here.cluster.call("PATCH", f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True, "taints": [
        {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}, {"key": "team", "value": "a", "effect": "NoExecute"}]}})
    conditions = [{"type": "Ready", "status": "False", "reason": "x"}, {"type": "DiskPressure", "status": "True", "reason": "x"},
                  {"type": "PIDPressure", "status": "True", "reason": "x"}]
    here.cluster.call("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"annotations": {"efa-pulse.test/broken": "yes"}}})
    here.cluster.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"conditions": conditions}}, patch="strategic-merge")
    found = eventually(lambda: (one := node(inventory, name)) and not one.ready and one.taints and one)
    assert not found.schedulable
    assert found.disk_pressure
    assert found.pressures == ("PIDPressure",)
    assert {Taint("karpenter.sh/disrupted", "NoSchedule"), Taint("team", "NoExecute", "a")} <= set(found.taints)


def test_images_of_interest(here: Installation, inventory: KubernetesInventory) -> None:
    a, b = here.nodes(2)
    node(inventory, a)
    images = [{"names": ["docker.io/library/probe@sha256:0", "docker.io/library/probe:1"], "sizeBytes": 1000},
              {"names": ["registry.example/other:2"], "sizeBytes": 500}]
    here.cluster.call("PATCH", f"/api/v1/nodes/{a}/status", {"status": {"images": images}})
    found = eventually(lambda: (one := node(inventory, a)).images and one)
    assert found.has_image("probe:1") is True
    assert found.has_image("registry.example/serving:2") is False
    assert (found.images_listed, found.image_bytes) == (2, 1500)
    assert node(inventory, b).has_image("probe:1") is False


def test_a_name_that_comes_back_is_another_instance(here: Installation, inventory: KubernetesInventory) -> None:
    (name,) = here.nodes(1, instance="i-0aaaaaaaaaaaaaaaa")
    first = node(inventory, name)
    here.cluster.delete(f"/api/v1/nodes/{name}")
    eventually(lambda: inventory.snapshot().named(name) is None)
    here.cluster.create(objects.node(name, instance="i-0bbbbbbbbbbbbbbbb"))
    assert node(inventory, name).instance_id != first.instance_id
    assert first.instance_id not in inventory.snapshot().ids


def test_it_stays_true_through_cuts_and_restarts(here: Installation, inventory: KubernetesInventory, cluster: ControlPlane) -> None:
    (before,) = here.nodes(1, prefix="before")
    node(inventory, before)
    cluster.door.cut()
    cluster.kill("kube-apiserver")
    eventually(lambda: inventory.age > 0.5, what="it says that it does not know")
    assert inventory.trouble
    cluster.restart("kube-apiserver")
    cluster.await_api()
    (after,) = here.nodes(1, prefix="after")
    node(inventory, after)
    eventually(lambda: inventory.age == 0.0 and not inventory.trouble)
    cluster.delete(f"/api/v1/nodes/{before}")
    eventually(lambda: inventory.snapshot().named(before) is None)


def test_a_version_that_the_server_no_longer_has_is_listed_again(here: Installation, cluster: ControlPlane) -> None:
    path = f"{here.probes}/configmaps"
    old = cluster.call("POST", path, {"metadata": {"name": "first"}})["metadata"]
    cluster.call("POST", path, {"metadata": {"name": "second"}})
    cluster.kill("kube-apiserver")  # its memory of changes goes with it
    cluster.restart("kube-apiserver")
    cluster.await_api()
    events: list[Change[str]] = []
    watch: Watch[str] = Watch(here.api, path, lambda one: str(one["metadata"]["name"]), on_change=events.extend)
    watch._version, watch._items = old["resourceVersion"], {old["uid"]: "first", "vanished": "vanished"}
    watch.start()
    assert watch.wait(30)
    assert {"first", "second"} <= set(watch.items().values())
    assert watch.lists == 1
    assert [one.value for one in events if one.gone] == ["vanished"], "what went away unseen is reported as gone"
    assert "first" not in [one.value for one in events], "what did not change is not reported again"
    watch.close()


def test_devices_by_dynamic_allocation(install: Install, cluster: ControlPlane) -> None:
    here = install()
    a, b = here.nodes(2, efa=0, gpu=0)
    for name in (a, b):
        cluster.create(*_slices(name, efa=4, gpu=2))
    cluster.apply(*(_device_class(name, expression) for name, expression in (
        (here.config.dra.efa_class, 'device.driver == "dra.net" && device.attributes["dra.net"].rdma'),
        (here.config.dra.gpu_class, 'device.driver == "gpu.nvidia.com"'))))
    inventory = KubernetesInventory(here.api, here.config)
    inventory.start()
    try:
        found = node(inventory, a)
        assert (found.efa_source, found.efa and found.efa.allocatable, found.gpu and found.gpu.allocatable) == ("dra", 4, 2)
        launched = here.launcher(claim=Claim(efa=3, gpu=1, efa_by_claim=True, gpu_by_claim=True))
        wanted = spec((a, b), "dra")
        launched.launcher.start(wanted)
        launched.until(wanted.run_id, "running")
        eventually(lambda: (one := node(inventory, a)).efa is not None and one.efa.requested == 3 and one.gpu is not None
                   and one.gpu.requested == 1, what="the scheduler's allocation is seen")
        (holder,) = node(inventory, a).holders
        assert (holder.efa, holder.gpu, holder.probe) == (3, 1, True)
        launched.launcher.cancel(wanted.run_id)
        launched.next()
        launched.idle()
        eventually(lambda: node(inventory, a).holders == (), what="the claims go with the Job")
        templates = f"/apis/resource.k8s.io/v1/namespaces/{here.config.probe_namespace}/resourceclaimtemplates"
        eventually(lambda: cluster.items(templates) == [])
    finally:
        inventory.close()
        for name in (a, b):
            for driver in ("dra.net", "gpu.nvidia.com"):
                cluster.delete(f"/apis/resource.k8s.io/v1/resourceslices/{name}-{driver}")


def _slices(name: str, *, efa: int, gpu: int) -> list[Json]:
    nics = [{"name": f"pci-{number}", "attributes": {"dra.net/rdma": {"bool": True}, "dra.net/rdmaDevice": {"string": f"rdmap{number}s0"}}}
            for number in range(efa)] + [{"name": "eth0", "attributes": {"dra.net/rdma": {"bool": False}}}]
    gpus = [{"name": f"gpu-{number}", "attributes": {"type": {"string": "gpu"}}} for number in range(gpu)]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    return [{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"{name}-{driver}"},
             "spec": {"driver": driver, "nodeName": name, "pool": pool, "devices": devices}}
            for driver, devices in (("dra.net", nics), ("gpu.nvidia.com", gpus))]


def _device_class(name: str, expression: str) -> Json:
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": expression}}]}}


def test_requests_that_following_costs(here: Installation, cluster: ControlPlane) -> None:
    api = Api(configuration(cluster.kubeconfig))
    inventory = KubernetesInventory(api, here.config)
    inventory.start()
    assert inventory.wait(20)
    here.nodes(20)
    eventually(lambda: len(inventory.snapshot()) == 20)
    assert api.requests_by_method() == {"GET": 8}, "one list and one watch for each of nodes, pods, slices and claims"
    inventory.close()
