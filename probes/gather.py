"""`python -m probes.gather`: wait until every rank of a run is here, then end.

In a pod it runs as an init container of the worker's image: one rank may start at once where another still pulls for minutes, and the time
for that is none of the worker's. It reads the environment of a worker (probes/contract.py); EFA_PULSE_DEADLINE bounds the wait. On failure
it leaves a result document in the termination file and ends with status 1.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
import time
from collections.abc import Mapping

from probes.contract import ContractError, WorkerEnv
from probes.reasons import Reason
from probes.rendezvous import RendezvousError, join
from probes.result import Result
from probes.supervisor import write_mark


def main(environ: Mapping[str, str]) -> int:
    """Wait. Returns the exit status: 0 all are here, 1 not in time, 64 for a wrong environment."""
    started = time.time()
    try:
        env = WorkerEnv.read(environ)
        if env.world_size == 1:
            return 0
        token = env.token()
    except ContractError as error:
        sys.stderr.write(f"efa-pulse gather: {error}\n")
        return 64
    try:
        join(endpoint=str(env.rendezvous), rank=env.rank, world_size=env.world_size, run_id=env.run_id, token=token, address=env.address,
             deadline=time.monotonic() + env.deadline)
    except RendezvousError as error:
        _leave(env, started, error.reason, f"waiting for the other ranks: {error}")
        sys.stderr.write(f"efa-pulse gather: {error}\n")
        return 1
    return 0


def _leave(env: WorkerEnv, started: float, reason: Reason, message: str) -> None:
    result = Result.model_validate({"run_id": env.run_id, "probe": env.probe, "target": env.target, "rank": env.rank,
                                    "world_size": env.world_size, "node": env.node or platform.node(), "started": round(started, 6),
                                    "finished": round(time.time(), 6), "reason": reason, "message": message})
    write_mark(env.result_path, result)


if __name__ == "__main__":
    # As the first process of a container it would not be ended by SIGTERM without a handler of its own.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    sys.exit(main(os.environ))
