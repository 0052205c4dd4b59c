"""A process that launches a round, writes down each result durably, and is killed by a test: `python -m e2e.launching SETTINGS`."""

from __future__ import annotations

import json
import os
import queue
import sys
from pathlib import Path

from e2e.installed import pairs

from exporter.config.kubernetes import Kubernetes
from exporter.kube.api import Api, configuration
from exporter.launch.kubernetes import KubernetesLauncher
from exporter.launch.manifest import Claim
from exporter.runs import Run


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    out = Path(settings["out"])
    durable = set(out.read_text().split()) if out.exists() else set()
    finished: queue.Queue[Run] = queue.Queue()
    config = Kubernetes.model_validate(settings["config"])
    launcher = KubernetesLauncher(Api(configuration(Path(settings["kubeconfig"]))), config, finished.put, claims=lambda _: Claim(efa=1))
    launcher.adopt(durable.__contains__)
    for spec in pairs(settings["nodes"], settings["round"]):
        if spec.run_id not in durable:
            launcher.start(spec)
    while True:
        run = finished.get()
        if run.spec.run_id in durable or any(result.outcome.value != "ok" for result in run.results):
            continue
        with out.open("a") as file:
            file.write(run.spec.run_id + "\n")
            file.flush()
            os.fsync(file.fileno())
        durable.add(run.spec.run_id)
        launcher.release(run.spec.run_id)


if __name__ == "__main__":
    main()
