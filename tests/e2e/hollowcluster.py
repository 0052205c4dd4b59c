"""Hollow nodes in a test's cluster: the nodes' objects, the kubelet's process, the image that stands for this checkout."""

from __future__ import annotations

import itertools
import signal
import sys
import time
from pathlib import Path
from types import TracebackType

from e2e import objects
from e2e.controlplane import ControlPlane, eventually
from e2e.hollow.settings import Image, Settings

REPO = Path(__file__).resolve().parent.parent.parent
PROBE_IMAGE = "test/probe:1"
_blocks = itertools.count()


def this_checkout(name: str = PROBE_IMAGE, **more: float) -> Image:
    """An image with this interpreter and this checkout's packages."""
    path = ":".join(str(folder) for folder in (REPO, REPO / "tests", REPO / "tests" / "fixtures"))
    return Image(name, path=(str(Path(sys.executable).parent),), env={"PYTHONPATH": path}, **more)  # type: ignore[arg-type]


class HollowNodes:
    """A context manager: `count` nodes named `<prefix>-<i>` whose pods run for real. `rates` maps a node to its link, such as `200mbit`."""

    def __init__(self, cluster: ControlPlane, prefix: str, count: int, *, rates: dict[str, str] | None = None,
                 default_rate: str | None = None, images: tuple[Image, ...] = (),
                 host_paths: dict[str, dict[str, str]] | None = None) -> None:
        self._cluster, self.nodes = cluster, tuple(f"{prefix}-{index}" for index in range(count))
        self._rates = {node: (rates or {}).get(node) or default_rate for node in self.nodes}
        # A pod's file system is an overlay: its own files must lie on one that an overlay can lie on.
        self._settings = Settings(work=f"/run/hollow-{prefix}", block=1 + next(_blocks) % 90, nodes=self.nodes,
                                  host_paths=host_paths or {}, images=images or (this_checkout(),),
                                  needed=(str(REPO), sys.prefix, sys.base_prefix), users=_open_to_all())

    def __enter__(self) -> HollowNodes:
        for node in self.nodes:
            rate = self._rates[node]
            self._cluster.create(objects.node(node, fake=False, annotations={"hollow.test/rate": rate} if rate else None))
        settings = self._settings.write(self._cluster.work / f"hollow-{time.monotonic_ns()}.json")
        self._process = self._cluster.cell.start(
            "hollow", [sys.executable, "-m", "e2e.hollow", str(self._cluster.kubeconfig_inside), str(settings)],
            env={"PYTHONPATH": f"{REPO}:{REPO / 'tests'}"})
        for node in self.nodes:
            eventually(lambda node=node: self._ready(node), what=f"node {node} is ready")  # type: ignore[misc]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.stop()
        names = Path(self._settings.work).name
        self._cluster.cell.run("sh", "-c", f"for one in /run/netns/{names}-*; do ip netns delete $(basename $one); done", check=False)
        for node in self.nodes:
            self._cluster.delete(f"/api/v1/nodes/{node}")
        for pod in self._cluster.items("/api/v1/pods"):
            if pod["spec"].get("nodeName") in self.nodes:
                self._cluster.delete(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}")

    def kill(self) -> None:
        """The kubelet dies, and every pod with it; nobody says so to the API server."""
        self._process.stop(signal.SIGKILL)

    def log(self) -> str:
        """What the kubelet said."""
        return self._process.tail(100)

    def container_log(self, pod_uid: str, container: str) -> str:
        """What a container wrote."""
        path = f"{self._settings.work}/pods/{pod_uid}/{container}-0/log"
        return self._cluster.cell.run("cat", path, check=False)

    def _ready(self, node: str) -> bool:
        one = self._cluster.call("GET", f"/api/v1/nodes/{node}")
        taints = one["spec"].get("taints") or []
        return any(each["type"] == "Ready" and each["status"] == "True" for each in one["status"].get("conditions") or []) and not taints




def _open_to_all() -> bool:
    """Whether any user can reach this interpreter and this checkout."""
    starts = (Path(sys.base_prefix), Path(sys.prefix), REPO)
    return all(folder.stat().st_mode & 0o001 for start in starts for folder in (start, *start.parents))
