"""The objects by which a run becomes pods: one Indexed Job, and claims for its devices where they come by dynamic allocation.

Each rule here has a reason that was tried or reported:

* `backoffLimitPerIndex: 0`: with plain `backoffLimit: 0` one failed rank deletes its partner and its message.
* a required anti-affinity on the host name against one label that every probe pod of every installation carries: the scheduler is the
  fence, so no node ever hosts two probe pods, whoever launched them.
* deadlines nest: worker < pod < Job. The pod's covers the image pull, the worker's does not: ranks gather in an init container first.
* priority below zero and `preemptionPolicy: Never` (in the PriorityClass): production evicts probes, probes evict nobody.
* the owner is a ConfigMap of the probe namespace: an owner in another namespace makes the garbage collector delete the Job in seconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from exporter.config.kubernetes import Kubernetes, Pod
from exporter.config.planning import Toleration
from exporter.launch import names
from exporter.runs import RunSpec
from probes.contract import PREFIX, WorkerEnv

Json = dict[str, Any]

WORKER = "worker"
GATHER = "gather"
BRING = "bring-probes"
SECRET_FOLDER = "/etc/efa-pulse"  # noqa: S105 - a folder
CODE_FOLDER = "/efa-pulse"
GRACE_SECONDS = 10
POD_MARGIN = 30.0
JOB_MARGIN = 60.0
EXCLUSIVE, SHARED = "exclusive", "shared"


@dataclass(frozen=True)
class Claim:
    """Devices of one worker, counted, and where they come from."""

    efa: int = 0
    gpu: int = 0
    efa_by_claim: bool = False
    gpu_by_claim: bool = False
    admin: bool = False
    """Reach all devices of the node beside whoever holds them."""

    @property
    def by_claim(self) -> bool:
        """Whether a ResourceClaimTemplate is needed."""
        return bool((self.efa and self.efa_by_claim) or (self.gpu and self.gpu_by_claim))


@dataclass(frozen=True)
class Owner:
    """The ConfigMap that owns the Jobs."""

    name: str
    uid: str


class ManifestError(ValueError):
    """A run that cannot be written as a Job. The text says why."""


def job(spec: RunSpec, config: Kubernetes, claim: Claim, owner: Owner, *, launched_by: str,
        tolerations: Sequence[Toleration] = ()) -> Json:
    """The Job of a run. Raises ManifestError for a probe that does not run in pods."""
    pod = pod_of(spec, config)
    return {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": names.job_name(spec), "namespace": config.probe_namespace, "labels": labels(spec, config, launched_by),
                     "annotations": {names.RECORD: json.dumps(record(spec), separators=(",", ":"))},
                     "ownerReferences": [owner_reference(owner)]},
        "spec": {
            "completionMode": "Indexed", "completions": spec.world_size, "parallelism": spec.world_size, "backoffLimitPerIndex": 0,
            "podReplacementPolicy": "Failed", "activeDeadlineSeconds": job_deadline(spec, config),
            "ttlSecondsAfterFinished": math.ceil(config.keep),
            "template": {
                "metadata": {"labels": {**config.pods.labels, **labels(spec, config, launched_by), "sidecar.istio.io/inject": "false"},
                             "annotations": {"linkerd.io/inject": "disabled", "sidecar.istio.io/inject": "false",
                                             **config.pods.annotations}},
                "spec": _pod(spec, config, pod, claim, tolerations),
            },
        },
    }


def claim_template(spec: RunSpec, config: Kubernetes, claim: Claim, job_uid: str, *, launched_by: str) -> Json:
    """The ResourceClaimTemplate that a Job's pods name, where devices come by dynamic allocation. The Job owns it."""
    requests: list[Json] = []
    for name, count, wanted, kind in (("efa", claim.efa, claim.efa_by_claim, config.dra.efa_class),
                                      ("gpu", claim.gpu, claim.gpu_by_claim, config.dra.gpu_class)):
        if count and wanted:
            exactly: Json = {"deviceClassName": kind, "allocationMode": "ExactCount", "count": count}
            if claim.admin:
                exactly = {"deviceClassName": kind, "allocationMode": "All", "adminAccess": True}
            requests.append({"name": name, "exactly": exactly})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": names.job_name(spec), "uid": job_uid}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": names.job_name(spec), "namespace": config.probe_namespace, "labels": labels(spec, config, launched_by),
                         "ownerReferences": [owner]},
            "spec": {"spec": {"devices": {"requests": requests}}}}


def pod_of(spec: RunSpec, config: Kubernetes) -> Pod:
    """The pod settings of a run's probe. Raises ManifestError."""
    try:
        return config.pods.of(spec.probe)
    except KeyError:
        raise ManifestError(f"probe {spec.probe} does not run in pods") from None


def pod_deadline(spec: RunSpec, config: Kubernetes) -> int:
    """Seconds from the start of a pod, image pull included, after which the kubelet ends it."""
    return math.ceil(config.pull_limit + spec.deadline + POD_MARGIN)


def job_deadline(spec: RunSpec, config: Kubernetes) -> int:
    """Seconds from the start of a Job after which the Job controller ends it: the last resort."""
    return math.ceil(config.bind_limit + pod_deadline(spec, config) + JOB_MARGIN)


def labels(spec: RunSpec, config: Kubernetes, launched_by: str) -> dict[str, str]:
    """The labels of everything that belongs to a run."""
    return {"app.kubernetes.io/name": "efa-pulse", "app.kubernetes.io/component": "probe", "app.kubernetes.io/managed-by": "efa-pulse",
            names.FENCE: names.FENCE_VALUE, names.INSTALL: config.install, names.LAUNCHED_BY: launched_by,
            names.PROBE: names.label(spec.probe), names.RUN: names.label(spec.run_id)}


def record(spec: RunSpec) -> Json:
    """A run as JSON; `from_record` reads it."""
    return {"version": 1, **asdict(spec), "nodes": list(spec.nodes)}


def from_record(text: str) -> RunSpec:
    """The run that a Job's annotation describes. Raises ManifestError for one that this version does not understand."""
    try:
        data = json.loads(text)
        if data.pop("version") != 1:
            raise ManifestError("written by another version")
        spec = RunSpec(**{**data, "nodes": tuple(data["nodes"])})
        if not spec.nodes or not isinstance(spec.spec, dict) or not isinstance(spec.labels, dict) or not float(spec.deadline) > 0:
            raise ManifestError("a run needs nodes, parameters and a deadline")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ManifestError(f"not the record of a run: {error}") from None
    return spec


def owner_reference(owner: Owner) -> Json:
    """What makes an object go with the installation."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": owner.name, "uid": owner.uid}


def worker_env(spec: RunSpec, config: Kubernetes, deadline: float) -> list[Json]:
    """The worker's environment: the same contract as for local processes; the rank comes from the Job, the node from the pod."""
    endpoint = f"{names.job_name(spec)}-0.{config.service}.{config.probe_namespace}.svc:{config.port}"
    several = spec.world_size > 1
    env = WorkerEnv(run_id=spec.run_id, probe=spec.probe, target=spec.target, world_size=spec.world_size,
                    rendezvous=endpoint if several else None, secret_file=f"{SECRET_FOLDER}/{config.secret_key}" if several else None,
                    node="node", transport=spec.transport, deadline=deadline, spec=spec.spec)
    told = {PREFIX + name for name in ("NODE", "RANK", "ADDRESS")}
    fixed = [{"name": name, "value": value} for name, value in env.to_environ().items() if name not in told]
    fields = {"NODE": "spec.nodeName", "ADDRESS": "status.podIP", "RANK": f"metadata.annotations['{names.INDEX}']"}
    return [*fixed, *({"name": PREFIX + name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items())]


def _pod(spec: RunSpec, config: Kubernetes, pod: Pod, claim: Claim, tolerations: Sequence[Toleration]) -> Json:
    pods = config.pods
    shared = pod.placement == SHARED
    body: Json = {
        "restartPolicy": "Never", "activeDeadlineSeconds": pod_deadline(spec, config), "terminationGracePeriodSeconds": GRACE_SECONDS,
        "serviceAccountName": pods.service_account, "automountServiceAccountToken": False, "enableServiceLinks": False,
        "subdomain": config.service, "affinity": _affinity(spec),
        "tolerations": [toleration.model_dump(exclude_none=True, exclude_defaults=False) for toleration in tolerations],
        "initContainers": _init_containers(spec, config, pod), "containers": [_worker(spec, config, pod, claim)],
        "volumes": _volumes(spec, config, pod),
    }
    optional = {"priorityClassName": pods.priority_class, "runtimeClassName": pods.runtime_class, "schedulerName": pods.scheduler,
                "imagePullSecrets": [{"name": name} for name in pods.pull_secrets]}
    body |= {key: value for key, value in optional.items() if value}
    if shared and not config.dra.admin_access:
        body |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if claim.by_claim:
        body["resourceClaims"] = [{"name": "devices", "resourceClaimTemplateName": names.job_name(spec)}]
    return body


def _affinity(spec: RunSpec) -> Json:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in dict.fromkeys(spec.nodes)]
    fence = {"labelSelector": {"matchLabels": {names.FENCE: names.FENCE_VALUE}}, "namespaceSelector": {},
             "topologyKey": "kubernetes.io/hostname"}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}},
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [fence]}}


def _init_containers(spec: RunSpec, config: Kubernetes, pod: Pod) -> list[Json]:
    found: list[Json] = []
    small = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}
    if _serving(spec, pod):
        found.append({"name": BRING, "image": pod.image or config.pods.image, "imagePullPolicy": config.pods.pull_policy,
                      "command": [config.pods.python, "-m", "probes.bundle", CODE_FOLDER], "resources": small,
                      "terminationMessagePolicy": "File", "volumeMounts": [{"name": "probes", "mountPath": CODE_FOLDER}],
                      "securityContext": _security(pod, plain=True)})
    if spec.world_size > 1:
        found.append({"name": GATHER, "image": _image(spec, config, pod), "imagePullPolicy": config.pods.pull_policy,
                      "command": _python(spec, config, pod, "probes.gather"), "resources": small, "terminationMessagePolicy": "File",
                      "env": worker_env(spec, config, config.pull_limit), "volumeMounts": _mounts(spec, pod, devices=False),
                      "securityContext": _security(pod, plain=True)})
    return found


def _worker(spec: RunSpec, config: Kubernetes, pod: Pod, claim: Claim) -> Json:
    env = [{"name": name, "value": value} for name, value in pod.env.items()]
    if pod.placement == SHARED:
        env.append({"name": "FI_EFA_USE_HUGE_PAGE", "value": "0"})
    # A privileged container sees every device of the host: those that are not EFA's are hidden from it first.
    hide = ["probes.private_dev"] if pod.placement == SHARED else []
    body: Json = {
        "name": WORKER, "image": _image(spec, config, pod), "imagePullPolicy": config.pods.pull_policy,
        "command": _python(spec, config, pod, *hide, "probes", "run"), "env": [*env, *worker_env(spec, config, spec.deadline)],
        "terminationMessagePolicy": "File", "resources": _resources(config, pod, claim), "volumeMounts": _mounts(spec, pod, devices=True),
        "securityContext": _security(pod),
    }
    if claim.by_claim:
        body["resources"]["claims"] = [{"name": "devices"}]
    return body


def _resources(config: Kubernetes, pod: Pod, claim: Claim) -> Json:
    wanted: dict[str, str] = {"cpu": f"{pod.cpu}m", "memory": str(pod.memory)}
    if pod.hugepages and pod.placement == EXCLUSIVE:
        wanted["hugepages-2Mi"] = str(pod.hugepages)
    if claim.efa and not claim.efa_by_claim:
        wanted[config.efa_resource] = str(claim.efa)
    if claim.gpu and not claim.gpu_by_claim:
        wanted[config.gpu_resource] = str(claim.gpu)
    return {"requests": dict(wanted), "limits": dict(wanted)}


def _security(pod: Pod, *, plain: bool = False) -> Json:
    if pod.placement == SHARED and not plain:
        return {"privileged": True, "runAsUser": 0}
    added = {} if plain else {"add": ["IPC_LOCK"]}
    return {"runAsUser": 0, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], **added}}


def _volumes(spec: RunSpec, config: Kubernetes, pod: Pod) -> list[Json]:
    volumes: list[Json] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(pod.shm)}}]
    if spec.world_size > 1:
        volumes.append({"name": "secret", "secret": {"secretName": config.secret, "defaultMode": 0o400}})
    if pod.hugepages and pod.placement == EXCLUSIVE:
        volumes.append({"name": "hugepages", "emptyDir": {"medium": "HugePages-2Mi"}})
    if _serving(spec, pod):
        volumes.append({"name": "probes", "emptyDir": {"sizeLimit": "512Mi"}})
    return volumes


def _mounts(spec: RunSpec, pod: Pod, *, devices: bool) -> list[Json]:
    mounts: list[Json] = []
    if spec.world_size > 1:
        mounts.append({"name": "secret", "mountPath": SECRET_FOLDER, "readOnly": True})
    if _serving(spec, pod):
        mounts.append({"name": "probes", "mountPath": CODE_FOLDER, "readOnly": True})
    if devices:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108 - that is where it is
        if pod.hugepages and pod.placement == EXCLUSIVE:
            mounts.append({"name": "hugepages", "mountPath": "/dev/hugepages"})
    return mounts


def _serving(spec: RunSpec, pod: Pod) -> bool:
    return spec.labels.get(names.IMAGE) == "serving" and pod.serving_image is not None


def _image(spec: RunSpec, config: Kubernetes, pod: Pod) -> str:
    return str(pod.serving_image) if _serving(spec, pod) else pod.image or config.pods.image


def _python(spec: RunSpec, config: Kubernetes, pod: Pod, module: str, *arguments: str) -> list[str]:
    if _serving(spec, pod):
        # The starter says what is wrong when this Python cannot run the probes at all.
        return [pod.serving_python, f"{CODE_FOLDER}/start.py", module, *arguments]
    return [config.pods.python, "-m", module, *arguments]
