"""`efa-pulse baseline` over the journal of a cluster: read while a service leads, written only while none does, one node at any time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from e2e.controlplane import eventually
from e2e.installed import Installation
from usual import T, book, ended, fleet, tell

from exporter.cli import run
from exporter.fleet import RESET, keep
from exporter.inventory.kubernetes import KubernetesInventory
from exporter.kube.journal import ConfigMapJournal
from exporter.leader import Election
from exporter.plan.journal import Journal, flush

Install = Callable[..., Installation]


class Here:
    """An installation whose journal knows baselines, and the configuration that a person at a terminal has."""

    def __init__(self, install: Install, folder: Path) -> None:
        self.at = install()
        kube = self.at.config
        self.config = folder / "config.yaml"
        self.config.write_text(yaml.safe_dump({
            "inventory": {"mode": "kubernetes"},
            "kubernetes": {"kubeconfig": str(self.at.cluster.kubeconfig), "install": kube.install, "namespace": kube.namespace,
                           "probe_namespace": kube.probe_namespace, "leader": {"duration": "6s", "renew_deadline": "4s"}}}))
        nodes, made, journal = fleet(), book(), Journal()
        for index in range(30):
            tell(made, nodes, ended(("n0", "n1"), {"write": 6e10}, T + index))
        keep(made, journal)
        flush(journal, self.store(), 0.0, everything=True)

    def store(self) -> ConfigMapJournal:
        one = ConfigMapJournal(self.at.api, namespace=self.at.config.namespace, name=f"{self.at.config.install}-journal")
        one.load()
        return one

    def records(self) -> dict[str, object]:
        return dict(Journal.loaded(self.store().load()).records)

    def ask(self, *arguments: str) -> int:
        return run(["baseline", *arguments, "--config", str(self.config)])


@pytest.fixture
def here(install: Install, tmp_path: Path) -> Here:
    return Here(install, tmp_path)


def test_what_the_journal_knows_is_shown_and_carried_elsewhere(here: Here, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert here.ask("show", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["bandwidth"] for one in document["baselines"]] == [pytest.approx(6e10, rel=0.01)]
    assert here.ask("export", str(tmp_path / "out.json")) == 0
    assert here.ask("reset", "--all") == 0
    assert here.records() == {}
    assert here.ask("show") == 0
    assert here.ask("import", str(tmp_path / "out.json")) == 0
    assert {key.partition("/")[0] for key in here.records()} == {"baseline", "norm"}


def test_nothing_is_written_while_somebody_leads(here: Here, capsys: pytest.CaptureFixture[str]) -> None:
    leader = Election(here.at.api, here.at.config.leader, namespace=here.at.config.namespace, identity="pod-a")
    leader.turn()
    before = here.records()
    assert here.ask("reset", "--all") == 64
    assert "pod-a leads and would write over this: scale the deployment to 0 first" in capsys.readouterr().err
    assert here.records() == before
    assert here.ask("show") == 0
    assert here.ask("reset", "--probe", "mooncake", "--stopped") == 0, "somebody who knows better"
    leader.close()


def test_one_node_begins_anew_in_the_service_that_leads(here: Here, capsys: pytest.CaptureFixture[str]) -> None:
    name = here.at.nodes(1)[0]
    inventory = KubernetesInventory(here.at.api, here.at.config)
    inventory.start()
    try:
        assert inventory.wait(30)
        assert here.ask("reset", "--node", name) == 0
        assert "its baseline begins anew in the service that leads" in capsys.readouterr().out
        told = eventually(lambda: (node := inventory.snapshot().named(name)) is not None and node.annotations.get(RESET),
                          what="the inventory has the annotation")
        assert str(told).startswith(time.strftime("%Y-%m-%dT%H", time.gmtime(here.at.api.now())))
    finally:
        inventory.close()


def test_a_node_that_is_not_there_and_a_journal_that_is_empty(here: Here, install: Install, tmp_path: Path,
                                                              capsys: pytest.CaptureFixture[str]) -> None:
    assert here.ask("reset", "--node", "nobody") == 64
    assert "there is no node 'nobody'" in capsys.readouterr().err
    empty = yaml.safe_load(here.config.read_text())
    empty["kubernetes"]["install"] = "other"
    here.config.write_text(yaml.safe_dump(empty))
    assert here.ask("show") == 2
    assert "is empty: is efa-pulse installed there" in capsys.readouterr().err
