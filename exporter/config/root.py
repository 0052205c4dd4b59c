"""The whole configuration. An empty file is a valid one: this machine, its preflight and KV probes over what network there is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, model_validator

from exporter.config.archive import Archive
from exporter.config.base import Model, Secret
from exporter.config.baselines import Baselines
from exporter.config.canary import Canary
from exporter.config.conditions import Conditions
from exporter.config.ec2 import Ec2
from exporter.config.grafana import Grafana
from exporter.config.inventory import Inventory, host_name
from exporter.config.jobs import Job
from exporter.config.kubernetes import Kubernetes
from exporter.config.launch import Launch
from exporter.config.log import Logging
from exporter.config.metrics import Metrics
from exporter.config.planning import Planning
from exporter.config.probes import Probes
from exporter.config.problems import Loc
from exporter.config.schedule import Schedules
from exporter.config.semantic import Found, refuse
from exporter.config.server import Server
from exporter.config.thresholds import Thresholds


@dataclass(frozen=True)
class Reference:
    """Something outside the configuration file that it names at `loc`: a file (with `certificates` in PEM form) or a secret."""

    loc: Loc
    file: Path | None = None
    secret: Secret | None = None
    certificates: bool = False

    @property
    def watched(self) -> Path | None:
        """The file behind it; None for an environment variable."""
        return self.secret.file if self.secret is not None else self.file


class Config(Model):
    """The configuration of the service."""

    inventory: Inventory = Inventory()
    """Which nodes there are."""
    schedule: Schedules = Schedules()
    """What holds for every schedule that does not say otherwise."""
    probes: Probes = Probes()
    """Which probes run, how often, between which nodes."""
    canary: Canary = Canary()
    """Which endpoints get canary requests."""
    launch: Launch = Launch()
    """How runs are started and ended."""
    kubernetes: Kubernetes = Kubernetes()
    """The cluster, in inventory mode `kubernetes`."""
    planning: Planning = Planning()
    """Rounds over the nodes of a fleet: who is probed when, and what that may cost."""
    ec2: Ec2 = Ec2()
    """Facts of the nodes from the EC2 API."""
    conditions: Conditions = Conditions()
    """Node conditions and Events, in inventory mode `kubernetes`."""
    archive: Archive = Archive()
    """Where results are kept."""
    thresholds: Thresholds = Thresholds()
    """Floors for measured figures."""
    baselines: Baselines = Baselines()
    """What is learned of measured figures, and when a run is too slow for it."""
    metrics: Metrics = Metrics()
    """What is published, and how much of it."""
    server: Server = Server()
    """The metrics server."""
    grafana: Grafana = Grafana()
    """Annotations in Grafana."""
    logging: Logging = Field(default=Logging())
    """The service's own log."""

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        refuse("Config", unknown_nodes(self.inventory, self.probes))
        return self

    def jobs(self) -> list[Job]:
        """Every enabled job, in the order of the file. The same configuration gives the same ids."""
        return [*self._probe_jobs(), *self._canary_jobs()]

    def references(self) -> list[Reference]:
        """Every file and secret that the configuration names."""
        found = [Reference(("server", "web_config"), file=self.server.web_config),
                 Reference(("server", "bearer_token"), secret=self.server.bearer_token),
                 Reference(("kubernetes", "kubeconfig"), file=self.kubernetes.kubeconfig),
                 Reference(("grafana", "token"), secret=self.grafana.token),
                 Reference(("grafana", "ca_file"), file=self.grafana.ca_file, certificates=True)]
        for index, target in enumerate(self.canary.targets):
            found.append(Reference(("canary", "targets", index, "ca_file"), file=target.ca_file, certificates=True))
            found.append(Reference(("canary", "targets", index, "key"), secret=target.key))
        return [one for one in found if one.file is not None or one.secret is not None]

    def _probe_jobs(self) -> list[Job]:
        jobs: list[Job] = []
        types = {node.name: node.instance_type for node in self.inventory.members()}
        for name, probe in self.probes.items():
            if not probe.enabled:
                continue
            when = probe.schedule.when(self.schedule)
            for target in probe.chosen(self.inventory):
                lanes = tuple(f"node/{node}" for node in dict.fromkeys(target.nodes))
                jobs.append(Job(id=f"{name}/{target.label}", probe=name, target=target.label, nodes=target.nodes, transport=probe.transport,
                                deadline=probe.deadline, spec=probe.spec(target, types), when=when, lanes=lanes))
        return jobs

    def _canary_jobs(self) -> list[Job]:
        jobs: list[Job] = []
        for target in self.canary.targets:
            for kind, prompt in target.prompts.items():
                if target.enabled and prompt.enabled:
                    when = prompt.schedule.when(self.schedule)
                    jobs += [Job(id=f"canary/{target.name}/{kind}" + (f"/{route}" if route != "router" else ""), probe="canary",
                                 target=target.name, nodes=(self.here,), transport="any", deadline=target.deadline(kind, route), spec=spec,
                                 when=when, lanes=(f"canary/{target.name}",), key=target.key, labels={"route": route})
                             for route, spec in target.routes(kind).items()]
        return jobs

    @property
    def here(self) -> str:
        """The node that canaries are sent from."""
        members = self.inventory.members()
        return members[0].name if members else host_name()


def unknown_nodes(inventory: Inventory, probes: Probes) -> list[Found]:
    """Targets that name a node the inventory does not have. The nodes of a cluster come and go: nothing is checked there."""
    if inventory.mode == "kubernetes":
        return []
    known = dict.fromkeys(node.name for node in inventory.members())
    found: list[Found] = []
    for name, probe in probes.items():
        for index, target in enumerate(probe.targets):
            for rank, node in enumerate(target.nodes):
                if node not in known:
                    shown = ", ".join(list(known)[:5]) + (", ..." if len(known) > 5 else "")
                    found.append((("probes", name, "targets", index, "nodes", rank), f"node {node!r} is not in the inventory ({shown})"))
    return found
