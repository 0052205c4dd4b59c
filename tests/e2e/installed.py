"""An installation of the product in a test's cluster, and observers of what must never happen there."""

from __future__ import annotations

import itertools
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from e2e import objects
from e2e.controlplane import ControlPlane, eventually

from exporter.config.kubernetes import Kubernetes
from exporter.kube.api import Api, configuration
from exporter.kube.watch import Change, Watch
from exporter.launch.kubernetes import SERVICE, KubernetesLauncher
from exporter.launch.manifest import Claim
from exporter.launch.names import FENCE
from exporter.runs import Run, RunSpec

Json = dict[str, Any]
_numbers = itertools.count()


class Installation:
    """Namespaces, objects and nodes of one test. Everything is removed at the end."""

    def __init__(self, cluster: ControlPlane, **settings: Any) -> None:
        self.cluster = cluster
        name = f"t{next(_numbers)}"
        pods = {"priority_class": f"{name}-probe", **settings.pop("pods", {})}
        self.config = Kubernetes.model_validate({"install": name, "namespace": name, "probe_namespace": f"{name}-probes", "pods": pods,
                                                 **settings})
        self.api = Api(configuration(cluster.kubeconfig))
        self.probes = f"/api/v1/namespaces/{self.config.probe_namespace}"
        self.jobs_path = f"/apis/batch/v1/namespaces/{self.config.probe_namespace}/jobs"
        self._nodes: list[str] = []
        self._ends: list[Callable[[], None]] = []
        cluster.apply(*objects.namespaces(self.config), *objects.installation(self.config))
        eventually(lambda: cluster.items(f"{self.probes}/serviceaccounts"), what="the namespace has its ServiceAccounts")

    def nodes(self, count: int, prefix: str | None = None, **more: Any) -> list[str]:
        """Add fake nodes and wait until they are ready."""
        made = [f"{prefix or self.config.install}-n{index}" for index in range(len(self._nodes), len(self._nodes) + count)]
        self.cluster.create(*(objects.node(name, **more) for name in made))
        self._nodes += made
        eventually(lambda: not [node for node in self.cluster.items("/api/v1/nodes")
                                if node["metadata"]["name"] in made and node["spec"].get("taints")], what="the nodes are ready")
        return made

    def launcher(self, *, launched_by: str = SERVICE, adopt: Callable[[str], bool] | None = lambda _: False, api: Api | None = None,
                 claim: Claim | None = None) -> Launched:
        """A launcher that is closed at the end."""
        one = Launched(api or self.api, self.config, launched_by, claim or Claim(efa=1), adopt)
        self._ends.append(lambda: one.close())
        return one

    def fence(self) -> Fence:
        """An observer of the nodes' probe pods, from now on."""
        one = Fence(self.api)
        self._ends.append(one.close)
        return one

    def pods(self) -> list[Json]:
        """Every probe pod there is."""
        return self.cluster.items(f"{self.probes}/pods")

    def jobs(self) -> list[Json]:
        """Every Job there is."""
        return self.cluster.items(self.jobs_path)

    def remove(self) -> None:
        """Remove all of it."""
        for end in reversed(self._ends):
            end()
        for path in (self.jobs_path, f"{self.probes}/pods"):
            self.cluster.delete(path)
        for name in self._nodes:
            self.cluster.delete(f"/api/v1/nodes/{name}")
        for space in (self.config.namespace, self.config.probe_namespace):
            self.cluster.delete(f"/api/v1/namespaces/{space}")
        self.cluster.delete(f"/apis/scheduling.k8s.io/v1/priorityclasses/{self.config.pods.priority_class}")
        self.api.close()


class Launched:
    """A launcher with what it reported."""

    def __init__(self, api: Api, config: Kubernetes, launched_by: str, claim: Claim, adopt: Callable[[str], bool] | None) -> None:
        self.finished: queue.Queue[Run] = queue.Queue()
        self.progress: dict[str, list[dict[int, str]]] = defaultdict(list)
        self.launcher = KubernetesLauncher(api, config, self.finished.put, claims=lambda _: claim, launched_by=launched_by,
                                           on_progress=lambda run, said: self.progress[run].append(said))
        if adopt is not None and launched_by == SERVICE:
            self.launcher.adopt(adopt)
        self._closed = False

    def run(self, spec: RunSpec, seconds: float = 60.0) -> Run:
        """Start one run, wait for its end, say that its result is durable."""
        self.launcher.start(spec)
        return self.next(seconds)

    def next(self, seconds: float = 60.0) -> Run:
        """The next run that ends, released."""
        run = self.finished.get(timeout=seconds)
        self.launcher.release(run.spec.run_id)
        return run

    def until(self, run_id: str, step: str, seconds: float = 30.0) -> None:
        """Wait until some rank of the run is at this step."""
        eventually(lambda: any(words.startswith(step) for said in list(self.progress[run_id]) for words in said.values()), seconds=seconds,
                   every=0.02, what=f"{run_id} is {step}")

    def idle(self, seconds: float = 60.0) -> None:
        """Wait until no Job is left."""
        eventually(lambda: self.launcher.jobs == 0, seconds=seconds, what="no Job is left")

    def close(self) -> None:
        """End it. The service's Jobs stay."""
        if not self._closed:
            self._closed = True
            self.launcher.close(0)


class Fence:
    """Watches every probe pod of the cluster: `broken` are the moments in which a node had two that had not ended."""

    def __init__(self, api: Api) -> None:
        self.broken: list[str] = []
        self.most = 0
        self.seen: set[str] = set()
        self._places: dict[str, tuple[str, str]] = {}
        self._lock = threading.Lock()
        self._watch: Watch[tuple[str, str, bool]] = Watch(api, "/api/v1/pods", _place, query={"labelSelector": FENCE}, on_change=self._look)
        self._watch.start()
        assert self._watch.wait(20)

    def close(self) -> None:
        """Stop watching."""
        self._watch.close()

    def _look(self, changes: list[Change[tuple[str, str, bool]]]) -> None:
        for change in changes:
            name, node, active = change.value
            if change.gone or not active or not node:
                self._places.pop(change.key, None)
                continue
            self.seen.add(node)
            self._places[change.key] = (node, name)
            here = [other for key, (where, other) in self._places.items() if where == node]
            if len(here) > 1:
                self.broken.append(f"{node}: {sorted(here)}")
            self.most = max(self.most, len(self._places))


class JobCount:
    """Watches the Jobs of one namespace: `most` is the largest number that ever existed together."""

    def __init__(self, api: Api, path: str) -> None:
        self.most = 0
        self.names: set[str] = set()
        self._there: set[str] = set()
        self._watch: Watch[str] = Watch(api, path, lambda one: str(one["metadata"]["name"]), on_change=self._look)
        self._watch.start()
        assert self._watch.wait(20)

    def close(self) -> None:
        """Stop watching."""
        self._watch.close()

    def _look(self, changes: list[Change[str]]) -> None:
        for change in changes:
            if change.gone:
                self._there.discard(change.key)
            else:
                self._there.add(change.key)
                self.names.add(change.value)
            self.most = max(self.most, len(self._there))


def pairs(nodes: list[str], round_: str, probe: str = "mooncake", **more: Any) -> list[RunSpec]:
    """One round over the nodes: neighbours in the list meet. Whoever derives it gets the same run ids."""
    found = []
    for index in range(0, len(nodes) - 1, 2):
        pair = (nodes[index], nodes[index + 1])
        found.append(spec(pair, round_, probe, **more))
    return found


def spec(nodes: tuple[str, ...], round_: str, probe: str = "mooncake", *, deadline: float = 30.0, params: Mapping[str, Any] | None = None,
         run_id: str | None = None) -> RunSpec:
    """One run of a round."""
    name = run_id or f"{probe.partition(':')[0].replace('_', '-')}-{round_}-{'-'.join(nodes)}"[:120]
    return RunSpec(name, probe, "--".join(nodes), nodes, "any", deadline, dict(params or {}), {"round": round_})


def _place(pod: Json) -> tuple[str, str, bool]:
    phase = (pod.get("status") or {}).get("phase")
    return str(pod["metadata"]["name"]), str(pod["spec"].get("nodeName") or ""), phase not in {"Succeeded", "Failed"}


