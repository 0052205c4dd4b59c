"""One pod from its binding to its deletion, in a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.hollow import process
from e2e.hollow.network import Names, Network
from e2e.hollow.probing import Probing
from e2e.hollow.settings import Settings
from e2e.hollow.volumes import NotReadyError, Volumes

from exporter.kube.api import Api, ApiError

Json = dict[str, Any]
TURN_SECONDS = 0.05
REFRESH_SECONDS = 2.0
RETRY_SECONDS = 1.0
BACKOFF = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
MESSAGE_LIMIT = 4096

log = logging.getLogger(__name__)


@dataclass
class Box:
    """One container and where it stands."""

    spec: Json
    init: bool
    running: process.Process | None = None
    waiting: Json = field(default_factory=lambda: {"reason": "ContainerCreating"})
    terminated: Json | None = None
    last: Json | None = None
    restarts: int = 0
    not_before: float = 0.0
    ready: bool = False
    probing: Probing | None = None
    told: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.spec["name"])

    def state(self) -> Json:
        """Its state as in a pod's status."""
        if self.running is not None:
            return {"running": {"startedAt": stamp(self.running.started)}}
        return {"terminated": self.terminated} if self.terminated is not None else {"waiting": self.waiting}


class PodWorker:
    """Runs one pod. `update` hands over its newest object; the thread ends when the pod is no more."""

    def __init__(self, api: Api, settings: Settings, network: Network, names: Names, pulled: dict[tuple[str, str], float], pod: Json,
                 node_address: str) -> None:
        self._api, self._settings, self._network, self._names, self._pulled = api, settings, network, names, pulled
        self._pod, self._node_address = pod, node_address
        self.uid = str(pod["metadata"]["uid"])
        self._namespace = f"{Path(settings.work).name}-{self.uid[:13]}"
        self._folder = Path(settings.work) / "pods" / self.uid
        self._hosts, self._boot_id = self._folder / "hosts", self._folder / "boot_id"
        spec = pod["spec"]
        self._inits = [Box(one, True) for one in spec.get("initContainers") or []]
        self._boxes = [Box(one, False) for one in spec["containers"]]
        self._address = ""
        self._started = time.time()
        self._deleting: float | None = None
        self._overdue = False
        self._stop_by = 0.0
        self._status: Json = {}
        self._wake = threading.Event()
        self._ends: tuple[str, str, str] | None = None
        self.done = threading.Event()
        self._volumes = Volumes(api, pod, self._folder / "volumes", settings.host_paths.get(spec["nodeName"], {}))
        self._folders: dict[str, Path] = {}
        self._thread = threading.Thread(target=self._run, name=f"pod {pod['metadata']['name']}", daemon=True)
        self._thread.start()

    def update(self, pod: Json) -> None:
        """The pod's object changed."""
        self._pod = pod
        if pod["metadata"].get("deletionTimestamp") and self._deleting is None:
            self._deleting = time.monotonic() + float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
        self._wake.set()

    def vanish(self) -> None:
        """The pod's object no longer exists: end at once."""
        self._deleting = 0.0
        self._wake.set()

    def _run(self) -> None:
        try:
            self._play()
        except Exception:
            log.exception("pod %s", self._pod["metadata"]["name"])
            self._ends = ("Failed", "HollowError", "see the hollow kubelet's log")
            self._tell()
        finally:
            for box in self._all():
                if box.running is not None:
                    box.running.kill()
                    box.running.reap()
            self._network.leave(self._namespace)
            self._names.drop_pod(self.uid)
            self._names.drop_file(self._hosts)
            self._remove()
            shutil.rmtree(self._folder / "volumes", ignore_errors=True)
            self.done.set()

    def _play(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        rate = (self._pod["metadata"].get("annotations") or {}).get("hollow.test/rate") or self._node_rate()
        self._address = self._network.join(self._namespace, rate)
        self._boot_id.write_text(f"{uuid.uuid5(uuid.NAMESPACE_DNS, self._pod['spec']['nodeName'])}\n")
        self._names.add_file(self._hosts)
        self._names.add_pod(self._pod, self._address)
        self._tell()
        if not self._prepare():
            return
        refreshed = time.monotonic()
        while not self._finished():
            self._step()
            self._tell()
            if time.monotonic() - refreshed > REFRESH_SECONDS:
                self._volumes.refresh()
                refreshed = time.monotonic()
            self._wake.wait(TURN_SECONDS)
            self._wake.clear()
        self._tell()
        while self._deleting is None and not self._wake.wait(60.0):
            continue  # a finished pod keeps its status until somebody deletes it

    def _prepare(self) -> bool:
        """Volumes. False when the pod is deleted before they are there."""
        while self._deleting is None:
            try:
                self._folders = self._volumes.prepare()
            except (NotReadyError, ApiError) as error:
                log.info("pod %s: %s", self._pod["metadata"]["name"], error)
                self._check_deadline()
                if self._ends is not None:
                    return True
                self._wake.wait(RETRY_SECONDS)
                self._wake.clear()
            else:
                return True
        return False

    def _step(self) -> None:
        """Look at every container once."""
        self._check_deadline()
        stopping = self._deleting is not None or self._overdue
        for box in self._all():
            self._look_at(box)
        if stopping:
            self._stop()
            return
        for box in self._inits:
            if box.terminated is None or box.terminated["exitCode"] != 0:
                self._start(box)
                return
        for box in self._boxes:
            self._start(box)

    def _look_at(self, box: Box) -> None:
        if box.running is None:
            return
        box.running.watch_memory()
        code = box.running.poll()
        if code is None:
            if box.probing is None and not box.init:
                box.probing = Probing(box.spec, self._address, self._namespace)
            if box.probing is not None:
                box.ready = box.probing.ready()
                if box.probing.dead():
                    box.running.terminate()
            return
        message = (self._box_folder(box) / "termination").read_bytes()[:MESSAGE_LIMIT].decode(errors="replace")
        reason = "OOMKilled" if box.running.oom else "Completed" if code == 0 else "Error"
        box.terminated = {"exitCode": code, "reason": reason, "startedAt": stamp(box.running.started), "finishedAt": stamp(time.time()),
                          **({"message": message} if message else {})}
        box.running.reap()
        box.running, box.ready, box.probing = None, False, None

    def _start(self, box: Box) -> None:
        if box.running is not None or time.monotonic() < box.not_before:
            return
        if box.terminated is not None:
            if not self._restarts(box):
                return
            box.last, box.terminated, box.restarts = box.terminated, None, box.restarts + 1
        image = self._settings.image(box.spec["image"])
        if image is None:
            again = box.waiting.get("reason") == "ErrImagePull"
            box.waiting = {"reason": "ImagePullBackOff" if again else "ErrImagePull",
                           "message": f"failed to pull and unpack image {box.spec['image']!r}: not found"}
            box.not_before = time.monotonic() + RETRY_SECONDS
            return
        here = (self._pod["spec"]["nodeName"], box.spec["image"])
        there_at = self._pulled.setdefault(here, time.monotonic() + image.pull_seconds)
        if time.monotonic() < there_at:
            return
        try:
            base = {"KUBERNETES_SERVICE_HOST": self._settings.gateway, "KUBERNETES_SERVICE_PORT": str(self._settings.api_port), **image.env}
            env = process.environment(self._api, self._pod, box.spec, address=self._address, node_address=self._node_address, base=base)
            box.running = process.start(
                container=box.spec, namespace=self._namespace, folder=self._box_folder(box), volumes=self._folders, hosts=self._hosts,
                boot_id=self._boot_id,
                env=env, search=":".join([*image.path, "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"]), default=list(image.command),
                needed=list(self._settings.needed), hostname=self._pod["spec"].get("hostname") or self._pod["metadata"]["name"],
                pod_user=int((self._pod["spec"].get("securityContext") or {}).get("runAsUser") or 0), users=self._settings.users)
        except (NotReadyError, ApiError) as error:
            box.waiting = {"reason": "CreateContainerConfigError", "message": str(error)}
            box.not_before = time.monotonic() + RETRY_SECONDS
        except OSError as error:
            box.terminated = {"exitCode": 128, "reason": "StartError", "message": str(error), "startedAt": stamp(0),
                              "finishedAt": stamp(time.time())}

    def _restarts(self, box: Box) -> bool:
        """Whether an ended container begins again now; if later, it waits in CrashLoopBackOff."""
        assert box.terminated is not None
        policy = self._pod["spec"].get("restartPolicy", "Always")
        failed = box.terminated["exitCode"] != 0
        if policy == "Never" or (not failed and (policy == "OnFailure" or box.init)):
            return False
        if box.not_before == 0.0 and box.restarts:
            wait = BACKOFF[min(box.restarts, len(BACKOFF) - 1)]
            box.last, box.terminated = box.terminated, None
            box.waiting = {"reason": "CrashLoopBackOff", "message": f"back-off {wait:g}s restarting failed container={box.name}"}
            box.not_before, box.restarts = time.monotonic() + wait, box.restarts + 1
            return False
        box.not_before = 0.0
        return True

    def _check_deadline(self) -> None:
        limit = self._pod["spec"].get("activeDeadlineSeconds")
        if limit and time.time() - self._started > limit and not self._overdue and self._deleting is None:
            self._overdue = True
            self._stop_by = time.monotonic() + float(self._pod["spec"].get("terminationGracePeriodSeconds", 30))
            self._ends = ("Failed", "DeadlineExceeded", "Pod was active on the node longer than the specified deadline")

    def _stop(self) -> None:
        by = self._deleting if self._deleting is not None else self._stop_by
        for box in self._all():
            if box.running is None:
                continue
            if not box.told:
                box.told = True
                box.running.terminate()
            if time.monotonic() >= by:
                box.running.kill()

    def _finished(self) -> bool:
        if any(box.running is not None for box in self._all()):
            return False
        if self._deleting is not None or self._overdue:
            return True
        if self._pod["spec"].get("restartPolicy", "Always") == "Always":
            return False
        if any(box.terminated is not None and box.terminated["exitCode"] != 0 and not self._restarts(box) for box in self._inits):
            return True
        return all(box.terminated is not None and not self._restarts(box) for box in self._boxes)

    def _phase(self) -> str:
        if self._ends is not None and not any(box.running for box in self._all()):
            return self._ends[0]
        never = self._pod["spec"].get("restartPolicy", "Always") != "Always"
        ended = [box.terminated for box in self._boxes]
        if never and any(box.terminated and box.terminated["exitCode"] for box in self._inits):
            return "Failed"
        if (never or self._deleting is not None) and all(one is not None for one in ended):
            return "Succeeded" if all(one and one["exitCode"] == 0 for one in ended) else "Failed"
        begun = all(box.terminated is not None for box in self._inits) and any(box.running or box.terminated for box in self._boxes)
        return "Running" if begun else "Pending"

    def _tell(self) -> None:
        """Write the status where it changed."""
        ready = bool(self._boxes) and all(box.ready for box in self._boxes)
        done_init = all(box.terminated is not None and box.terminated["exitCode"] == 0 for box in self._inits)
        status: Json = {
            "phase": self._phase(), "podIP": self._address, "podIPs": [{"ip": self._address}] if self._address else [],
            "hostIP": self._node_address, "startTime": stamp(self._started),
            "conditions": [{"type": "Initialized", "status": str(done_init)}, {"type": "Ready", "status": str(ready)},
                           {"type": "ContainersReady", "status": str(ready)}, {"type": "PodScheduled", "status": "True"}],
            "initContainerStatuses": [self._container_status(box) for box in self._inits],
            "containerStatuses": [self._container_status(box) for box in self._boxes],
        }
        if self._ends is not None and status["phase"] == self._ends[0]:
            status |= {"reason": self._ends[1], "message": self._ends[2]}
        if status == self._status:
            return
        meta = self._pod["metadata"]
        try:
            self._api.request("PATCH", f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status",
                              body={"metadata": {"uid": self.uid}, "status": status},
                              content_type="application/strategic-merge-patch+json")
            self._status = status
        except ApiError as error:
            if error.not_found or error.conflict:
                self.vanish()
            else:
                log.info("status of pod %s: %s", meta["name"], error)

    def _container_status(self, box: Box) -> Json:
        last = {"lastState": {"terminated": box.last}} if box.last else {}
        ready = box.ready or (box.init and box.terminated is not None and box.terminated["exitCode"] == 0)
        return {"name": box.name, "image": box.spec["image"], "imageID": f"hollow://{box.spec['image']}", "ready": ready,
                "started": box.running is not None, "restartCount": box.restarts, "state": box.state(), **last}

    def _remove(self) -> None:
        """A pod that was to be deleted is removed once nothing of it runs."""
        meta = self._pod["metadata"]
        if not meta.get("deletionTimestamp"):
            return
        with contextlib.suppress(ApiError):
            self._api.request("DELETE", f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}",
                              body={"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}})

    def _node_rate(self) -> str | None:
        with contextlib.suppress(ApiError):
            node = self._api.get(f"/api/v1/nodes/{self._pod['spec']['nodeName']}")
            return (node["metadata"].get("annotations") or {}).get("hollow.test/rate")
        return None

    def _box_folder(self, box: Box) -> Path:
        return self._folder / f"{box.name}-{box.restarts}"

    def _all(self) -> list[Box]:
        return [*self._inits, *self._boxes]


def stamp(seconds: float) -> str:
    """A Kubernetes time."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
