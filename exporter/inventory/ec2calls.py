"""The three calls of EC2, each with plain values in and out, paged, and never failing for one instance that is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exporter.config.ec2 import Ec2

CONNECT_SECONDS = 5.0
GBIT = 1e9 / 8
Answers = Mapping[str, Any]


@dataclass(frozen=True)
class TypeFacts:
    """What EC2 says of an instance type: EFA devices at most, network cards, bytes per second of all cards in one direction."""

    efa: int
    cards: int
    line_rate: float | None


class Calls:
    """The EC2 API of one region over a boto3 client. Every method raises what boto3 raises."""

    AT_ONCE = 100
    """Most subjects of one call: DescribeInstanceTopology takes no more, the filters of the others 200."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def types(self, names: Sequence[str]) -> Answers:
        """`TypeFacts` by instance type. Types that EC2 does not know in this region are left out."""
        found = {}
        for one in self._pages("describe_instance_types", "InstanceTypes", Filters=[{"Name": "instance-type", "Values": list(names)}]):
            network = one.get("NetworkInfo") or {}
            cards = network.get("NetworkCards") or []
            rates = [card.get("PeakBandwidthInGbps") or card.get("BaselineBandwidthInGbps") for card in cards]
            efa = (network.get("EfaInfo") or {}).get("MaximumEfaInterfaces") or 0
            rate = sum(rates) * GBIT if rates and all(rates) else None
            found[str(one["InstanceType"])] = TypeFacts(int(efa), len(cards), rate)
        return found

    def placements(self, ids: Sequence[str]) -> Answers:
        """Placement group and capacity reservation by instance id."""
        found = {}
        for one in self._pages("describe_instances", "Reservations", Filters=[{"Name": "instance-id", "Values": list(ids)}]):
            for instance in one.get("Instances") or []:
                group = (instance.get("Placement") or {}).get("GroupName") or None
                found[str(instance["InstanceId"])] = (group, instance.get("CapacityReservationId") or None)
        return found

    def topology(self, ids: Sequence[str], types: Iterable[str]) -> Answers:
        """Ids of the network nodes above each instance, top first. Instances of types without topology are left out."""
        from botocore.exceptions import ClientError

        wanted = set(ids)
        try:
            pages = list(self._pages("describe_instance_topology", "Instances", InstanceIds=list(ids)))
        except ClientError as error:
            if not str((error.response.get("Error") or {}).get("Code")).startswith("InvalidInstanceID"):
                raise
            # One of them is gone, and the call refuses all: ask for everything of these types instead.
            pages = list(self._pages("describe_instance_topology", "Instances",
                                     Filters=[{"Name": "instance-type", "Values": sorted(types)}]))
        return {str(one["InstanceId"]): tuple(str(node) for node in one.get("NetworkNodes") or []) for one in pages
                if one.get("InstanceId") in wanted}

    def _pages(self, method: str, key: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        token: str | None = None
        while True:
            page = getattr(self._client, method)(**arguments, **({"NextToken": token} if token else {}))
            yield from page.get(key) or []
            token = page.get("NextToken") or None
            if token is None:
                return


CallsOf = Callable[[str | None], Calls]
"""The calls of a region, None for that of the environment."""


def connected(config: Ec2, region: str | None) -> Calls:
    """The EC2 API of a region, with the credentials of the environment."""
    import boto3
    from botocore.config import Config

    limits = Config(connect_timeout=min(CONNECT_SECONDS, config.timeout), read_timeout=config.timeout,
                    retries={"total_max_attempts": 2, "mode": "standard"}, user_agent_extra="efa-pulse")
    return Calls(boto3.session.Session().client("ec2", region_name=region, endpoint_url=config.endpoint, config=limits))
