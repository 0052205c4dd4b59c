"""The parts that only a cluster has, as one: inventory, Jobs, witnesses, election, journal. Every wait is bounded; nothing here plans.

    Lease ─> Leading ─> the control loop makes its fleet from the journal and adopts what runs
    nodes, pods ─> Inventoried        Job ends ─> witnesses are asked ─> Finished
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from exporter import log
from exporter.config import Config
from exporter.fleet import Fleet
from exporter.inventory.kubernetes import KubernetesInventory
from exporter.inventory.model import Inventory
from exporter.judge.witnesses import Answers
from exporter.kube.api import Api, configuration
from exporter.kube.journal import ConfigMapJournal
from exporter.kube.pause import PauseSwitch
from exporter.launch.claims import claim_of
from exporter.launch.kubernetes import KubernetesLauncher
from exporter.launch.manifest import Claim
from exporter.launch.podlogs import logs_of
from exporter.leader import Election
from exporter.plan.needs import needs_of
from exporter.runs import Run, RunSpec
from exporter.witness import Witnesses, witnessed

SYNC_SECONDS = 120.0
LOOK_SECONDS = 1.0
TELL_SECONDS = 15.0
BACKGROUND_SECONDS = 30.0
ASKERS = 8


class ClusterUnavailableError(Exception):
    """The cluster could not be read at the start. The text says why and what to do."""


class Cluster:
    """See the module. `on_finished` gets every run that ended, after its witnesses were asked; `on_inventory` every new snapshot;
    `on_leading` whether this replica leads. All three are called from threads of this part and must only take note."""

    def __init__(self, config: Config, *, on_finished: Callable[[Run], None], on_inventory: Callable[[Inventory], None],
                 on_leading: Callable[[bool], None], identity: str | None = None) -> None:
        kube = config.kubernetes
        self._config = config
        self._on_finished, self._on_inventory = on_finished, on_inventory
        self.api = Api(configuration(kube.kubeconfig, kube.context))
        self._changed = threading.Event()
        images = {image for name in ("node", "mooncake", "nixl", "nccl", "uccl-ep") for image in (kube.pods.of(name).image, kube.pods.image)
                  if image}
        self.inventory = KubernetesInventory(self.api, kube, images=sorted(images), on_change=self._changed.set, ec2=config.ec2)
        self.witnesses = Witnesses(self.api, kube) if kube.witness.enabled else None
        self._switch = PauseSwitch(self.api, kube.namespace)
        self.launcher = KubernetesLauncher(self.api, kube, self._ended, claims=self._claim, tolerations=config.planning.gates.tolerations)
        self.identity = identity or f"{os.environ.get('HOSTNAME') or socket.gethostname()}-{os.getpid()}"
        self._on_leading = on_leading
        self.election = (Election(self.api, kube.leader, namespace=kube.namespace, identity=self.identity, on_change=on_leading,
                                  owner=kube.owner)
                         if kube.leader.enabled else None)
        self._askers = ThreadPoolExecutor(ASKERS, thread_name_prefix="ask")
        self._answers: dict[str, Answers] = {}
        self._background: dict[str, float] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._follow, name="inventory", daemon=True)]
        if self.witnesses is not None:
            self._threads.append(threading.Thread(target=self._listen_to_the_wire, name="background", daemon=True))

    def start(self, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Read the cluster once, then stand for election. False when `give_up` said so first; raises ClusterUnavailableError."""
        self.inventory.start()
        self._switch.start()
        if self.witnesses is not None:
            self.witnesses.start()
        until = time.monotonic() + SYNC_SECONDS
        tell_at = time.monotonic() + LOOK_SECONDS
        while not (self.inventory.wait(LOOK_SECONDS) and self.launcher.wait(LOOK_SECONDS)):
            if give_up():
                return False
            if time.monotonic() >= tell_at:
                tell_at = time.monotonic() + TELL_SECONDS
                log.get().warning("the cluster cannot be read yet", trouble=self.inventory.trouble or self.launcher.trouble or "no answer")
            if time.monotonic() > until:
                trouble = self.inventory.trouble or self.launcher.trouble or "no answer"
                raise ClusterUnavailableError(f"the cluster could not be read within {SYNC_SECONDS:g} s: {trouble}; check the address, "
                                              "the ServiceAccount's rights and the network policy")
        self._changed.set()
        for thread in self._threads:
            thread.start()
        if self.election is not None:
            self.election.start()
        else:
            self._on_leading(True)
        return True

    def close(self) -> None:
        """Give the Lease back and stop. The Jobs of runs go on: their results wait for whoever leads next."""
        self._stop.set()
        self._changed.set()
        if self.election is not None:
            self.election.close()
        self._askers.shutdown(wait=False, cancel_futures=True)
        if self.witnesses is not None:
            self.witnesses.close()
        self._switch.close()
        self.inventory.close()
        self.api.close()

    @property
    def leading(self) -> bool:
        """Whether this replica may launch at this very moment."""
        return self.election is None or self.election.leading

    @property
    def other_leads(self) -> bool:
        """Whether another replica was last seen to hold the Lease."""
        return self.election is not None and not self.leading and self.election.holder not in ("", self.identity)

    @property
    def paused(self) -> str | None:
        """Why an operator paused all probes, None when nobody did."""
        return self._switch.paused

    @property
    def trouble(self) -> str:
        """Why the cluster cannot be followed now; empty when it can."""
        return self.inventory.trouble or self.launcher.trouble or (self.election.trouble if self.election is not None else "")

    @property
    def inventory_age(self) -> float:
        """Seconds since every node and pod was last known to be seen; infinite before the first time."""
        return self.inventory.age

    def requests(self) -> Mapping[str, int]:
        """Requests sent to the API server so far, by method."""
        return self.api.requests_by_method()

    def fleet(self, config: Config) -> Fleet:
        """The fleet as the journal knows it. Raises OSError when the journal cannot be read."""
        kube = config.kubernetes
        store = ConfigMapJournal(self.api, namespace=kube.namespace, name=f"{kube.install}-journal", owner=kube.owner)
        return Fleet(config, store, self.inventory.snapshot(), needs=needs_of(kube.pods))

    def answers(self, run: Run) -> Answers:
        """What the witnesses said of a run that was reported, once."""
        with self._lock:
            return self._answers.pop(run.spec.run_id, {})

    def logs(self, run: Run) -> Mapping[int, str]:
        """The end of each rank's log of a run. Raises OSError when it cannot be read, or must not be."""
        return logs_of(self.api, self._config.kubernetes.probe_namespace, run, self._config.archive.log_bytes)

    def background(self) -> Mapping[str, float]:
        """Bytes per second of other traffic on each node's EFA devices, by instance id, as last heard."""
        return self._background

    def canary_ended(self, run: Run) -> None:
        """A canary of the local launcher ended: where its KV is known to have moved between two nodes, their witnesses are asked first."""
        if any(witnessed(result) for result in run.results):
            self._ended(run)
        else:
            self._on_finished(run)

    def _ended(self, run: Run) -> None:
        if self.witnesses is None or not any(result.measure is not None for result in run.results):
            self._on_finished(run)
            return
        try:
            self._askers.submit(self._ask, run)
        except RuntimeError:  # closing: the Job stays, and the next leader asks
            log.get().info("a run ended while the service stops; it is left to the next leader", run_id=run.spec.run_id)

    def _ask(self, run: Run) -> None:
        try:
            found = self.witnesses.answers(run) if self.witnesses is not None else {}
        except Exception as error:  # noqa: BLE001 - a witness that cannot be asked must not lose the run
            log.get().warning("the witnesses of a run could not be asked", run_id=run.spec.run_id, error=str(error))
            found = {}
        with self._lock:
            self._answers[run.spec.run_id] = found
        self._on_finished(run)

    def _follow(self) -> None:
        """Pass on a new snapshot when something changed, at most once in `LOOK_SECONDS`."""
        last: Inventory | None = None
        while not self._stop.is_set():
            self._changed.wait(LOOK_SECONDS * 10)
            self._changed.clear()
            if self._stop.is_set():
                return
            try:
                snapshot = self.inventory.snapshot()
            except Exception as error:  # noqa: BLE001 - the next change is looked at all the same
                log.get().error("the inventory could not be made", error=str(error))
            else:
                if snapshot is not last:
                    last = snapshot
                    self._on_inventory(snapshot)
            self._stop.wait(LOOK_SECONDS)

    def _listen_to_the_wire(self) -> None:
        while not self._stop.wait(BACKGROUND_SECONDS):
            if self.witnesses is None or not self.leading:
                continue
            nodes = {node.name: node.instance_id for node in self.inventory.snapshot()}
            try:
                rates = self.witnesses.background(nodes)
            except Exception as error:  # noqa: BLE001 - without an answer the gate stays open, as without a witness
                log.get().warning("the witnesses could not be asked for background traffic", error=str(error))
                rates = {}
            self._background = {nodes[name]: rate for name, rate in rates.items()}

    def _claim(self, spec: RunSpec) -> Claim:
        """The devices of a run's workers, by its pods' configuration and what its nodes have."""
        snapshot = self.inventory.snapshot()
        nodes = [node for name in dict.fromkeys(spec.nodes) if (node := snapshot.named(name)) is not None]
        return claim_of(spec, nodes, self._config.kubernetes)
