"""The cluster: where it is, what a probe pod looks like, how long each step of a launch may take."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from exporter.config.base import FilePath, Line, Model
from exporter.config.semantic import Found, refuse
from probes.units import Duration, Size

ObjectName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
"""The name of a Kubernetes object that is also a DNS label."""
_PART = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
LabelKey = Annotated[str, Field(min_length=1, max_length=317, pattern=rf"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{_PART}$")]
LabelValue = Annotated[str, Field(max_length=63, pattern=rf"^({_PART})?$")]
Image = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\s]+$")]
Devices = Annotated[int, Field(ge=0, le=1024)] | Literal["all"]
"""A number of devices, or `all` that the smaller of the run's nodes has."""
Millicores = Annotated[int, Field(ge=10, le=1_000_000)]


class Pod(Model):
    """The pods of one probe."""

    image: Image | None = None
    """Image with the probe and its engine; default: `pods.image`."""
    serving_image: Image | None = None
    """The image of the inference service: runs marked for it use its engine, with the probe's code copied in by an init container."""
    serving_python: Line = "python3"
    """The Python of the serving image, 3.10 to 3.13."""
    efa: Devices
    gpu: Devices
    cpu: Millicores
    memory: Size
    hugepages: Size = 0
    """2 MiB huge pages: libfabric's EFA provider takes them for its buffers when it finds them."""
    shm: Size = 64 << 20
    """Size of /dev/shm, part of `memory`."""
    placement: Literal["exclusive", "shared"] = "exclusive"
    """`exclusive`: devices are asked for and held. `shared`: a privileged pod beside a workload that holds them; host memory only."""
    env: dict[Line, str] = Field(default_factory=dict)
    """Further environment variables, such as `NCCL_DEBUG`. They cannot change the worker's own (`EFA_PULSE_*`)."""

    @model_validator(mode="after")
    def _consistent(self) -> Pod:
        found: list[Found] = [(("env", name), "EFA_PULSE_* variables belong to the launcher")
                              for name in self.env if name.startswith("EFA_PULSE_")]
        if self.placement == "shared" and self.gpu != 0:
            found.append((("placement",), "a shared pod uses host memory only: set gpu to 0"))
        if self.shm > self.memory:
            found.append((("shm",), "shared memory is part of the pod's memory and cannot be larger"))
        refuse(type(self).__name__, found)
        return self


_GIB = 1 << 30


class NodePod(Pod):
    """Pods of the preflight."""

    efa: Devices = 0
    """EFA devices of one worker. The preflight holds none."""
    gpu: Devices = 0
    """GPUs of one worker."""
    cpu: Millicores = 200
    """Thousandths of a CPU, requested and limited."""
    memory: Size = _GIB // 2
    """Memory, requested and limited."""


class KvPod(Pod):
    """Pods of a KV probe."""

    efa: Devices = 1
    """EFA devices of one worker."""
    gpu: Devices = 0
    """GPUs of one worker."""
    cpu: Millicores = 2000
    """Thousandths of a CPU, requested and limited."""
    memory: Size = 2 * _GIB
    """Memory, requested and limited."""


class NcclPod(Pod):
    """Pods of the NCCL probe."""

    efa: Devices = 1
    """EFA devices of one worker."""
    gpu: Devices = 1
    """GPUs of one worker."""
    cpu: Millicores = 2000
    """Thousandths of a CPU, requested and limited."""
    memory: Size = 4 * _GIB
    """Memory, requested and limited."""
    shm: Size = _GIB
    """Size of /dev/shm, part of `memory`."""


class UcclEpPod(Pod):
    """Pods of the UCCL-EP probe: whole nodes."""

    efa: Devices = "all"
    """EFA devices of one worker."""
    gpu: Devices = "all"
    """GPUs of one worker."""
    cpu: Millicores = 8000
    """Thousandths of a CPU, requested and limited."""
    memory: Size = 32 * _GIB
    """Memory, requested and limited."""
    shm: Size = 8 * _GIB
    """Size of /dev/shm, part of `memory`."""


class Pods(Model):
    """Probe pods."""

    image: Image = "ghcr.io/efa-pulse/probe:latest"
    """Image of every probe that names none of its own."""
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """When the kubelet pulls it."""
    pull_secrets: Annotated[tuple[ObjectName, ...], Field(max_length=16)] = ()
    """Secrets of the probe namespace for the registry."""
    python: Line = "python3"
    """The Python of the probe image."""
    service_account: ObjectName = "efa-pulse-probe"
    """ServiceAccount of the pods; it has no rights and its token is not mounted."""
    priority_class: ObjectName | None = "efa-pulse-probe"
    """PriorityClass: -1000 and `preemptionPolicy: Never`, so that production evicts probes and probes evict nobody."""
    runtime_class: ObjectName | None = None
    """RuntimeClass, where GPUs need one."""
    scheduler: Line | None = None
    """Name of the scheduler; default: the cluster's."""
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=64)] = Field(default_factory=dict)
    """Further labels of the pods."""
    annotations: Annotated[dict[LabelKey, str], Field(max_length=64)] = Field(default_factory=dict)
    """Further annotations of the pods."""
    node: NodePod = NodePod()
    """Pods of the preflight. It holds no device."""
    mooncake: KvPod = KvPod()
    """Pods of the Mooncake probe."""
    nixl: KvPod = KvPod()
    """Pods of the NIXL probe."""
    nccl: NcclPod = NcclPod()
    """Pods of the NCCL probe."""
    uccl_ep: UcclEpPod = Field(default=UcclEpPod(), alias="uccl-ep")
    """Pods of the UCCL-EP probe."""

    def of(self, probe: str) -> Pod:
        """The pods of a probe by its name. Raises KeyError for one that does not run in pods."""
        pods: dict[str, Pod] = {"node": self.node, "mooncake": self.mooncake, "nixl": self.nixl, "nccl": self.nccl, "uccl-ep": self.uccl_ep}
        return pods[probe]


class Dra(Model):
    """Dynamic resource allocation: used on nodes whose devices are listed in ResourceSlices."""

    efa_drivers: Annotated[tuple[Line, ...], Field(max_length=8)] = ("dra.net", "dra.networking.k8s.aws")
    """Drivers whose devices with RDMA are EFA devices."""
    efa_class: Line = "efa.networking.k8s.aws"
    """DeviceClass by which EFA devices are asked for."""
    gpu_drivers: Annotated[tuple[Line, ...], Field(max_length=8)] = ("gpu.nvidia.com",)
    """Drivers whose devices are GPUs."""
    gpu_class: Line = "gpu.nvidia.com"
    """DeviceClass by which GPUs are asked for."""
    admin_access: bool = False
    """Reach devices that others hold (placement `shared`) by a claim with `adminAccess`; the probe namespace needs the label for it."""


class Leader(Model):
    """One replica plans; the others wait."""

    enabled: bool = True
    """Whether replicas elect a leader. Without it there must be one replica."""
    lease: ObjectName = "efa-pulse"
    """Name of the Lease."""
    duration: Annotated[Duration, Field(ge=3, le=300)] = 15.0
    """A leader that was not seen to renew for so long is replaced."""
    renew_deadline: Annotated[Duration, Field(ge=1, le=300)] = 10.0
    """A leader that could not renew for so long no longer thinks it is one."""
    retry: Annotated[Duration, Field(ge=0.1, le=60)] = 2.0
    """Time between two looks at the Lease."""

    @model_validator(mode="after")
    def _consistent(self) -> Leader:
        found: list[Found] = []
        if self.renew_deadline >= self.duration:
            found.append((("renew_deadline",), "must be shorter than duration: else two replicas lead at the same time"))
        if self.retry >= self.renew_deadline:
            found.append((("retry",), "must be shorter than renew_deadline"))
        refuse("Leader", found)
        return self


class Witness(Model):
    """The DaemonSet that reads the hosts' EFA counters."""

    enabled: bool = True
    """Ask the witnesses of both nodes for the counters of a run's window. Without them no transport can be proven to be EFA."""
    selector: Annotated[dict[LabelKey, LabelValue], Field(min_length=1, max_length=16)] = Field(
        default={"app.kubernetes.io/name": "efa-pulse", "app.kubernetes.io/component": "witness"})
    """Labels of its pods, in the probe namespace."""
    port: Annotated[int, Field(ge=1, le=65535)] = 9479
    """Its port."""
    timeout: Annotated[Duration, Field(ge=0.1, le=60)] = 5.0
    """Longest time of one question."""


class Kubernetes(Model):
    """The cluster and the launching of probes in it."""

    kubeconfig: FilePath | None = None
    """Default: the pod's ServiceAccount, else the user's own kubeconfig."""
    context: Line | None = None
    """Context of the kubeconfig; default: its current one."""
    install: ObjectName = "efa-pulse"
    """Name of this installation. Two in one cluster need two names; the fence holds between them all the same."""
    namespace: ObjectName = "efa-pulse"
    """Namespace of the service: its Lease and journal."""
    probe_namespace: ObjectName = "efa-pulse-probes"
    """Namespace of probe pods and witnesses."""
    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=16)] = Field(default_factory=dict)
    """Only nodes with these labels are looked at; default: every node that lists EFA devices."""
    efa_resource: LabelKey = "vpc.amazonaws.com/efa"
    """Resource name of EFA devices."""
    gpu_resource: LabelKey = "nvidia.com/gpu"
    """Resource name of GPUs."""
    owner: ObjectName | None = None
    """ConfigMap of `namespace` that owns the Lease and the journal, so that removing the installation removes them."""
    anchor: ObjectName = "efa-pulse-anchor"
    """ConfigMap of the probe namespace that owns every Job, so that removing the installation removes them."""
    service: ObjectName = "efa-pulse-runs"
    """Headless Service of the probe namespace by which ranks find each other."""
    port: Annotated[int, Field(ge=1024, le=65535)] = 29400
    """Port on which rank 0 of a run listens."""
    secret: ObjectName = "efa-pulse-rendezvous"  # noqa: S105 - the name of one
    """Secret of the probe namespace from which every run's token is derived."""
    secret_key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")] = "secret"  # noqa: S105
    """Key in that Secret."""
    max_jobs: Annotated[int, Field(ge=1, le=4096)] = 64
    """Most Jobs of this installation at any time, whatever happens."""
    bind_limit: Annotated[Duration, Field(ge=5, le=3600)] = 60.0
    """A run whose ranks do not all have a node after this time is given up."""
    pull_limit: Annotated[Duration, Field(ge=5, le=7200)] = 600.0
    """Time from a node to the start of the worker: image pull, and waiting for the other ranks' pull."""
    keep: Annotated[Duration, Field(ge=3600, le=604800)] = 3600.0
    """A finished Job that nobody deleted is deleted by Kubernetes after this time."""
    pods: Pods = Pods()
    """What probe pods look like."""
    dra: Dra = Dra()
    """Devices by dynamic resource allocation."""
    leader: Leader = Leader()
    """Who plans, where there are several replicas."""
    witness: Witness = Witness()
    """Counters of the hosts."""

    @model_validator(mode="after")
    def _consistent(self) -> Kubernetes:
        found: list[Found] = []
        if self.probe_namespace == self.namespace:
            found.append((("probe_namespace",), "must differ from namespace: probe pods need rights that the service must not have"))
        if self.context is not None and self.kubeconfig is None:
            found.append((("context",), "a context needs kubeconfig"))
        refuse("Kubernetes", found)
        return self
