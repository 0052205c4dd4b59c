"""A candidate in a process of its own, which a test kills, stops and wakes: `python -m e2e.standing KUBECONFIG NAMESPACE NAME OUT`.

It writes `<monotonic seconds> <0|1>` for every look at `leading`, 50 a second.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from exporter.config.kubernetes import Leader
from exporter.kube.api import Api, configuration
from exporter.leader import Election


def main() -> None:
    kubeconfig, namespace, name, out = sys.argv[1:]
    election = Election(Api(configuration(Path(kubeconfig))), Leader(), namespace=namespace, identity=name)
    election.start()
    with Path(out).open("w", buffering=1) as file:
        while True:
            leads = election.leading
            file.write(f"{time.monotonic():.3f} {int(leads)}\n")
            time.sleep(0.02)


if __name__ == "__main__":
    main()
