"""What the KV benchmarks share: our probe as two real workers on this machine, and rows that compare it with a peer."""

from __future__ import annotations

import queue
import statistics
from typing import Any

from exporter.launch.local import LocalLauncher
from exporter.runs import Run, RunSpec, new_run_id
from probes.reasons import Reason
from probes.result import Result

GOAL = 0.9
ROUNDS = 7


def probe_result(probe: str, spec: dict[str, Any], deadline: float = 60.0) -> Result:
    """The initiator's result of one run over loopback. Raises RuntimeError when it did not end well."""
    finished: queue.Queue[Run] = queue.Queue()
    launcher = LocalLauncher(finished.put)
    try:
        launcher.start(RunSpec(new_run_id(probe), probe, "a--b", ("a", "b"), "any", deadline, spec))
        result = finished.get(timeout=deadline + 30).results[0]
    finally:
        launcher.close(0)
    if result.reason is not Reason.OK:
        raise RuntimeError(f"{probe}: {result.reason.value}: {result.message}")
    return result


def rate_of(result: Result) -> float:
    """The only bandwidth of a run of one size and one operation, bytes per second."""
    (measurement,) = result.measurements
    (rate,) = measurement.bandwidth
    if rate is None:
        raise RuntimeError("no bandwidth in the result")
    return rate


def row(name: str, what: str, ours: list[float], peer: str, theirs: list[float], versions: dict[str, str]) -> dict[str, Any]:
    """One line of the benchmark: medians of interleaved rounds and their ratio."""
    value, peer_value = statistics.median(ours), statistics.median(theirs)
    ratio = value / peer_value
    return {"name": name, "what": what, "value": value, "unit": "B/s", "peer": peer, "peer_value": peer_value, "ratio": ratio,
            "goal": f"ratio >= {GOAL}", "holds": ratio >= GOAL, "versions": versions}
