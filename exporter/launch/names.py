"""Names and labels of what the launcher makes in a cluster: derived from the run, the same whoever derives them."""

from __future__ import annotations

import hashlib
import re

from exporter.runs import RunSpec

PREFIX = "efa-pulse.io/"
FENCE, FENCE_VALUE = f"{PREFIX}fence", "probe"
"""Every probe pod of every installation carries this label: what the anti-affinity keeps apart."""
INSTALL = f"{PREFIX}install"
LAUNCHED_BY = f"{PREFIX}launched-by"
PROBE = f"{PREFIX}probe"
RUN = f"{PREFIX}run"
RECORD = f"{PREFIX}spec"
"""Annotation of a Job that holds its run, so that whoever comes later can go on with it."""
IMAGE = "image"
"""Label of a `RunSpec`: `serving` runs it in the serving image."""
INDEX = "batch.kubernetes.io/job-completion-index"
JOB = "batch.kubernetes.io/job-name"
MPI_JOB, MPI_ROLE, MPI_INDEX = (f"training.kubeflow.org/{name}" for name in ("job-name", "job-role", "replica-index"))
"""The MPI operator's labels of its pods."""
NAME_LIMIT = 52
LABEL_LIMIT = 63


def job_name(spec: RunSpec) -> str:
    """The Job's name, at most 52 characters (a pod's host name adds the rank), from the run id and the image.

    The planner's run ids derive from round and pair: two leaders that plan the same run derive the same name, and it is launched once.
    """
    digest = hashlib.sha256("\0".join([spec.run_id, spec.labels.get(IMAGE, "")]).encode()).hexdigest()[:20]
    probe = re.sub(r"[^a-z0-9]+", "-", spec.probe.lower())[:NAME_LIMIT - 31].strip("-")
    return f"efa-pulse-{probe}-{digest}"


def label(text: str) -> str:
    """`text` as a label value (at most 63 characters); what cannot stand there is cut or replaced, and then a digest keeps it unique."""
    clean = re.sub(r"[^A-Za-z0-9_.-]", "-", text)
    trimmed = clean.strip("-_.")[:LABEL_LIMIT].strip("-_.")
    if trimmed == text:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return f"{trimmed[:LABEL_LIMIT - 11].strip('-_.')}-{digest}" if trimmed else digest
