"""The logs of a run's pods, where the installation may read them (`get` on `pods/log` in the probe namespace)."""

from __future__ import annotations

import time

from exporter.kube.api import Api, ApiError
from exporter.launch import names
from exporter.runs import Run

SECONDS = 10.0
INDEX = "batch.kubernetes.io/job-completion-index"


def logs_of(api: Api, namespace: str, run: Run, most: int) -> dict[int, str]:
    """The last `most` bytes of each rank's log, by rank. Ranks whose pod is gone are left out. Raises OSError when it is not allowed."""
    until = time.monotonic() + SECONDS
    try:
        mine = {"labelSelector": f"{names.JOB}={names.job_name(run.spec)}"}
        pods = api.get(f"/api/v1/namespaces/{namespace}/pods", mine, timeout=SECONDS)
        found: dict[int, str] = {}
        for pod in pods.get("items") or []:
            meta = pod["metadata"]
            rank = str((meta.get("labels") or {}).get(INDEX) or (meta.get("annotations") or {}).get(INDEX) or "")
            if rank.isdigit() and time.monotonic() < until:
                found[int(rank)] = _log(api, f"/api/v1/namespaces/{namespace}/pods/{meta['name']}/log", most, until)
    except ApiError as error:
        raise OSError(f"the logs of {run.spec.run_id} cannot be read: {error}"
                      + ("; archive.logs needs get on pods/log in the probe namespace" if error.status == 403 else "")) from None
    return found


def _log(api: Api, path: str, most: int, until: float) -> str:
    # The server cuts at the beginning with limitBytes, so the end is asked for by lines and cut here.
    try:
        with api.open("GET", path, query={"tailLines": 400, "limitBytes": max(most * 16, 1 << 20)}, timeout=SECONDS) as answer:
            return answer.read_all(until)[-most:].decode(errors="replace")
    except ApiError as error:
        if error.status in {400, 404}:  # its container never began, or the pod is gone
            return ""
        raise
