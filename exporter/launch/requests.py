"""The requests that launching a run costs: one to create its Job, one to delete it; up to two more only before a run is given up.

Each can be sent again without harm: a Job's name derives from its run, and a deletion names the uid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from exporter.config.kubernetes import Kubernetes
from exporter.config.planning import Toleration
from exporter.kube.api import Api, ApiError
from exporter.launch import names
from exporter.launch.anchor import Anchor
from exporter.launch.flight import Flight, JobView, job_view
from exporter.launch.manifest import Claim, claim_template, job
from exporter.launch.podstate import PodView, view
from exporter.runs import RunSpec

Json = dict[str, Any]
ClaimOf = Callable[[RunSpec], Claim]

EVENTS = 50
PODS = 4096


@dataclass(frozen=True)
class Checked:
    """A Job's pods as the server has them, and the last words of the Job controller on pods that it could not make."""

    pods: list[PodView]
    said: str


class JobRequests:
    """Creates, deletes and explains Jobs in the probe namespace. Safe to use from several threads."""

    RESOURCE: ClassVar[tuple[str, str]] = ("batch/v1", "jobs")
    PODS: ClassVar[str] = f"{names.FENCE}={names.FENCE_VALUE},!{names.MPI_JOB}"
    """Which pods of the installation belong to such Jobs."""
    NAME_LABEL: ClassVar[str] = names.JOB
    FLIGHT: ClassVar[type[Flight]] = Flight

    def __init__(self, api: Api, config: Kubernetes, claims: ClaimOf, tolerations: Sequence[Toleration], launched_by: str) -> None:
        self._api, self._config, self._claims = api, config, claims
        self._tolerations, self._launched_by = tuple(tolerations), launched_by
        self._space = config.probe_namespace
        self.path = f"/apis/{self.RESOURCE[0]}/namespaces/{self._space}/{self.RESOURCE[1]}"
        self.anchor = Anchor(api, config)

    def create(self, spec: RunSpec) -> JobView:
        """The Job of a run, made now or before. Raises ApiError, and ManifestError for a run that cannot be written as one."""
        claim = self._claims(spec)
        body = self._manifest(spec, claim)
        try:
            made = self._api.create(self.path, body)
        except ApiError as error:
            if not error.exists:
                raise
            made = self._api.get(f"{self.path}/{body['metadata']['name']}")
        found = job_view(made)
        if found.deleting:
            raise ApiError(503, f"an older Job {found.name} is still being deleted")
        if claim.by_claim:
            # The Job owns it, so it comes second; until then its pods wait unscheduled.
            self._create_template(claim_template(spec, self._config, claim, found.uid, launched_by=self._launched_by))
        return found

    def delete(self, name: str, uid: str | None) -> bool:
        """Delete a Job with its pods; with a uid only that very one. Returns whether it was there. Raises ApiError."""
        return self._api.delete(f"{self.path}/{name}", uid=uid)

    def check(self, name: str, *, explain: bool) -> Checked:
        """The pods of a Job as they are now; with `explain` what the Job controller says of those it could not make. Raises ApiError."""
        query: dict[str, str | int | bool] = {"labelSelector": f"{self.NAME_LABEL}={name}", "limit": PODS}
        pods = [view(one) for one in self._api.get(f"/api/v1/namespaces/{self._space}/pods", query).get("items") or []]
        return Checked(pods, self._explain(name) if explain else "")

    def _manifest(self, spec: RunSpec, claim: Claim) -> Json:
        return job(spec, self._config, claim, self.anchor.owner(), launched_by=self._launched_by, tolerations=self._tolerations)

    def _explain(self, name: str) -> str:
        selector = f"involvedObject.name={name},type=Warning"
        events = self._api.get(f"/api/v1/namespaces/{self._space}/events", {"fieldSelector": selector, "limit": EVENTS})
        said = [one for one in events.get("items") or [] if one.get("reason") == "FailedCreate"]
        said.sort(key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""))
        return str(said[-1].get("message")) if said else ""

    def _create_template(self, template: Json) -> None:
        try:
            self._api.create(f"/apis/resource.k8s.io/v1/namespaces/{self._space}/resourceclaimtemplates", template)
        except ApiError as error:
            if not error.exists:
                raise
