"""The inventory: who a node is, how far apart two are, and that nothing unknown is taken for zero."""

from __future__ import annotations

import pytest

from exporter.config import Config
from exporter.inventory import Inventory, Node, Room, Stratum, group_of, stratum_of
from exporter.inventory.static import from_config


def node(name: str, *layers: str, **more: object) -> Node:
    return Node(instance_id=f"i-{name}", name=name, network_nodes=layers, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("one", "other", "stratum"), [
    (("t", "s1", "l1"), ("t", "s1", "l1"), Stratum.LEAF),
    (("t", "s1", "l1"), ("t", "s1", "l2"), Stratum.SPINE),
    (("t", "s1", "l1"), ("t", "s2", "l3"), Stratum.CROSS),
    (("t", "s1", "l1"), (), Stratum.UNKNOWN),
    (("l1",), ("l2",), Stratum.CROSS),
    (("l1",), ("l1",), Stratum.LEAF),
])
def test_distance_is_that_of_the_network_layers(one: tuple[str, ...], other: tuple[str, ...], stratum: Stratum) -> None:
    assert stratum_of(node("a", *one), node("b", *other)) is stratum
    assert stratum_of(node("b", *other), node("a", *one)) is stratum


def test_identity_is_the_instance_id_and_the_name_only_a_label() -> None:
    old, new = node("a"), Node(instance_id="i-2", name="a")
    inventory = Inventory((new,))
    assert old.instance_id not in inventory
    assert inventory.named("a") is new
    with pytest.raises(ValueError, match="2 nodes have 2 instance ids and 1 names"):
        Inventory((old, new))


def test_free_room_is_never_negative() -> None:
    assert Room(32, 8).free == 24
    assert Room(31, 32).free == 0  # a device vanished under a pod that holds it


def test_an_image_that_is_not_listed_is_missing_only_when_the_list_is_complete() -> None:
    assert node("a").has_image("probe:1") is None
    assert node("a", images={"probe:1": 10}, images_listed=1).has_image("probe:1") is True
    assert node("a", images={"other": 10}, images_listed=1).has_image("probe:1") is False
    assert node("a", images={"other": 10}, images_listed=50).has_image("probe:1") is None


def test_nodes_are_compared_only_with_their_like() -> None:
    p5 = node("a", instance_type="p5.48xlarge", zone="us-east-2a", efa=Room(32))
    assert group_of(p5) == group_of(node("b", instance_type="p5.48xlarge", zone="us-east-2a", efa=Room(0)))
    assert group_of(p5) != group_of(node("b", instance_type="p5.48xlarge", zone="us-east-2b", efa=Room(32)))
    assert group_of(p5) != group_of(node("b", instance_type="p5.48xlarge", zone="us-east-2a"))


def test_the_configured_nodes_are_an_inventory() -> None:
    nodes = [{"name": "b"}, {"name": "a", "instance_type": "p5.48xlarge"}]
    config = Config.model_validate({"inventory": {"mode": "static", "nodes": nodes}})
    inventory = from_config(config.inventory, 5.0)
    assert [(one.instance_id, one.instance_type, one.efa) for one in inventory] == [("a", "p5.48xlarge", None), ("b", None, None)]
    assert [(one.efa_expected, one.line_rate) for one in inventory] == [(32, 400e9), (None, None)]
