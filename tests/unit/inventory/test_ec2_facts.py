"""Facts from EC2: against moto where it has the call, with botocore's Stubber where it has not; and what is told without an answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError
from botocore.stub import Stubber
from moto import mock_aws

from exporter.config.ec2 import Ec2
from exporter.inventory.ec2 import FIRST_RETRY, Ec2Facts, Wanted
from exporter.inventory.ec2calls import Calls, TypeFacts
from exporter.publish import families_archive as f
from exporter.publish.ec2facts import readings

ID, OTHER = "i-0123456789abcdef0", "i-0123456789abcdef1"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Answering(Calls):
    """Answers from a table, or raises what it is told to. It stands for EC2 where only our behaviour is looked at."""

    def __init__(self) -> None:
        super().__init__(None)
        self.errors: dict[str, Exception] = {}
        self.asked: list[tuple[str, int]] = []

    def types(self, names: Any) -> Any:
        return self._answer("types", {name: TypeFacts(32, 32, 4e11) for name in names}, names)

    def placements(self, ids: Any) -> Any:
        return self._answer("placements", dict.fromkeys(ids, ("group", None)), ids)

    def topology(self, ids: Any, types: Any) -> Any:
        return self._answer("topology", dict.fromkeys(ids, ("nn-1", "nn-2", "nn-3")), ids)

    def _answer(self, name: str, answers: dict[str, Any], subjects: Any) -> dict[str, Any]:
        self.asked.append((name, len(subjects)))
        if name in self.errors:
            raise self.errors[name]
        return answers


def refused(code: str, status: int = 400) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "not so"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "x")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("exporter.inventory.ec2.PAUSE_SECONDS", 0.0)


@pytest.fixture
def moto() -> Iterator[Any]:
    with mock_aws():
        yield boto3.session.Session().client("ec2", region_name="us-west-2")


def facts_over(calls: Calls, clock: Clock, *ids: str, kind: str | None = "p5.48xlarge", **more: Any) -> Ec2Facts:
    facts = Ec2Facts(Ec2(), calls_of=lambda region: calls, clock=clock, now=lambda: 7.0, **more)
    facts.want(Wanted(one, kind, "us-west-2") for one in ids)
    return facts


def test_what_types_have_comes_from_ec2(moto: Any) -> None:
    found = Calls(moto).types(["p5.48xlarge", "p4d.24xlarge", "t3.micro", "p99.huge"])
    assert {name: one.efa for name, one in found.items()} == {"p5.48xlarge": 32, "p4d.24xlarge": 4, "t3.micro": 0}
    assert found["p5.48xlarge"].cards == 32


def stubbed() -> tuple[Any, Stubber]:
    client = boto3.session.Session().client("ec2", region_name="us-west-2")
    return client, Stubber(client)


def test_network_nodes_come_from_ec2_over_several_pages() -> None:
    client, stub = stubbed()
    layers = [["nn-a", "nn-b", "nn-c"], ["nn-a", "nn-b", "nn-d"]]
    for number, one in enumerate((ID, OTHER)):
        answer: dict[str, Any] = {"Instances": [{"InstanceId": one, "InstanceType": "p5.48xlarge", "NetworkNodes": layers[number]}]}
        expected: dict[str, Any] = {"InstanceIds": [ID, OTHER]}
        if number == 0:
            answer["NextToken"] = "more"
        else:
            expected["NextToken"] = "more"
        stub.add_response("describe_instance_topology", answer, expected)
    with stub:
        found = Calls(client).topology([ID, OTHER], {"p5.48xlarge"})
    assert found == {ID: tuple(layers[0]), OTHER: tuple(layers[1])}
    stub.assert_no_pending_responses()


def test_placement_groups_and_reservations_come_from_ec2_and_instances_that_are_gone_are_left_out() -> None:
    """moto knows no placement groups."""
    client, stub = stubbed()
    placed = [{"InstanceId": ID, "Placement": {"GroupName": "ml"}, "CapacityReservationId": "cr-1"},
              {"InstanceId": OTHER, "Placement": {"GroupName": ""}}]
    stub.add_response("describe_instances", {"Reservations": [{"Instances": [one]} for one in placed]},
                      {"Filters": [{"Name": "instance-id", "Values": [ID, OTHER, "i-0aaaaaaaaaaaaaaaa"]}]})
    with stub:
        assert Calls(client).placements([ID, OTHER, "i-0aaaaaaaaaaaaaaaa"]) == {ID: ("ml", "cr-1"), OTHER: (None, None)}


def test_instances_that_moto_runs_are_found(moto: Any) -> None:
    image = moto.describe_images()["Images"][0]["ImageId"]
    run = moto.run_instances(ImageId=image, MinCount=2, MaxCount=2, InstanceType="p4d.24xlarge")
    ids = [one["InstanceId"] for one in run["Instances"]]
    assert Calls(moto).placements([*ids, ID]) == dict.fromkeys(ids, (None, None))


def test_an_instance_that_is_gone_makes_topology_be_asked_by_type() -> None:
    client, stub = stubbed()
    stub.add_client_error("describe_instance_topology", "InvalidInstanceID.NotFound", http_status_code=400,
                          expected_params={"InstanceIds": [ID, OTHER]})
    stub.add_response("describe_instance_topology",
                      {"Instances": [{"InstanceId": ID, "NetworkNodes": ["nn-1"]},
                                     {"InstanceId": "i-0aaaaaaaaaaaaaaaa", "NetworkNodes": ["nn-2"]}]},
                      {"Filters": [{"Name": "instance-type", "Values": ["p5.48xlarge"]}]})
    with stub:
        assert Calls(client).topology([ID, OTHER], {"p5.48xlarge"}) == {ID: ("nn-1",)}


def test_nodes_that_are_no_instances_are_never_asked_about(clock: Clock) -> None:
    calls = Answering()
    facts = facts_over(calls, clock, "kind-worker", "ip-10-0-0-1")
    facts.turn()
    assert calls.asked == []
    assert facts.known == {}


def test_answers_are_kept_and_new_nodes_asked_about_at_once(clock: Clock) -> None:
    calls = Answering()
    changes: list[int] = []
    facts = facts_over(calls, clock, ID, on_change=lambda: changes.append(1))
    facts.turn()
    assert facts.instance(ID).network_nodes == ("nn-1", "nn-2", "nn-3")
    assert facts.instance(ID).placement_group == "group"
    assert facts.type("p5.48xlarge") == TypeFacts(32, 32, 4e11)
    assert len(calls.asked) == 3
    facts.turn()
    assert (len(calls.asked), len(changes)) == (3, 1)
    facts.want([Wanted(ID, "p5.48xlarge", "us-west-2"), Wanted(OTHER, "p5.48xlarge", "us-west-2")])
    facts.turn()
    assert calls.asked[3:] == [("placements", 1), ("topology", 1)]
    clock.now += Ec2().refresh
    facts.turn()
    assert calls.asked[5:] == [("types", 1), ("placements", 2), ("topology", 2)]
    assert len(changes) == 2, "the same answers are no change"
    facts.want([Wanted(OTHER, "p5.48xlarge", "us-west-2")])
    facts.turn()
    assert facts.instance(ID).network_nodes == ()


def test_a_large_fleet_is_asked_about_in_parts(clock: Clock) -> None:
    calls = Answering()
    facts = facts_over(calls, clock, *(f"i-{number:017x}" for number in range(250)))
    facts.turn()
    assert [count for name, count in calls.asked if name == "topology"] == [100, 100, 50]


@pytest.mark.parametrize(("error", "kind"), [
    (refused("UnauthorizedOperation", 403), "denied"), (refused("RequestLimitExceeded", 503), "throttled"),
    (NoCredentialsError(), "no_credentials"), (EndpointConnectionError(endpoint_url="https://ec2.nowhere"), "unreachable"),
    (refused("AuthFailure", 401), "no_credentials"), (RuntimeError("a bug"), "other"),
])
def test_one_call_that_fails_costs_its_facts_alone_is_told_and_asked_again_ever_later(clock: Clock, error: Exception, kind: str,
                                                                                    capsys: pytest.CaptureFixture[str]) -> None:
    calls = Answering()
    calls.errors["topology"] = error
    facts = facts_over(calls, clock, ID)
    facts.turn()
    assert facts.known == {"instance_types": True, "topology": False, "placement_group": True, "capacity_reservation": True}
    assert facts.instance(ID).placement_group == "group"
    assert facts.failures == {("DescribeInstanceTopology", kind): 1}
    assert "lost: distances between nodes" in facts.troubles[0]
    facts.turn()
    assert len(calls.asked) == 3, "not at once"
    said = capsys.readouterr().out
    assert said.count("EC2 does not tell") == 1
    clock.now += FIRST_RETRY * 1.3
    facts.turn()
    clock.now += FIRST_RETRY * 1.3
    facts.turn()
    assert facts.failures == {("DescribeInstanceTopology", kind): 2}, "the second wait is longer"
    calls.errors.clear()
    clock.now += 10 * FIRST_RETRY
    facts.turn()
    assert facts.troubles == []
    assert facts.known["topology"]
    assert facts.complete_at == 7.0
    told = {family.name: samples for family, samples in readings(facts)}
    assert told[f.EC2_FACTS.name]["topology",] == 1.0
    assert told[f.EC2_FAILURES.name] == {("DescribeInstanceTopology", kind): 2.0}


def test_without_region_and_credentials_the_client_itself_fails_and_that_is_told(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    for region, kind in ((None, "wrong_region"), ("us-west-2", "no_credentials")):
        facts = Ec2Facts(Ec2(), clock=clock)
        facts.want([Wanted(ID, "p5.48xlarge", region)])
        facts.turn()
        assert set(facts.failures.values()) == {1}
        assert {kind for _, kind in facts.failures} == {kind}
        assert len(facts.troubles) == 3
