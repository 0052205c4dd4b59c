"""Pods as real components left them, kept as fixtures of the unit tests. They are written only when `EFA_PULSE_RECORD` is set."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "fixtures" / "pods"


def record(name: str, pod: dict[str, Any]) -> None:
    """Keep a pod under this name, without what is of no use to a reader."""
    if not pod or not os.environ.get("EFA_PULSE_RECORD"):
        return
    kept = json.loads(json.dumps(pod))
    for noise in ("managedFields", "resourceVersion", "generateName", "selfLink"):
        kept["metadata"].pop(noise, None)
    spec = kept["spec"]
    kept["spec"] = {key: spec[key] for key in ("nodeName", "activeDeadlineSeconds", "priority", "restartPolicy") if key in spec}
    kept["spec"]["containers"] = [{"name": one["name"], "image": one["image"]} for one in spec["containers"]]
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
