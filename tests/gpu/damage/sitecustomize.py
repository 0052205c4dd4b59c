"""Put on PYTHONPATH by the test of the value check: damages received data in one lane, on the GPU, between its arrival and its check."""

import os
import sys


def _damage() -> None:
    from probes.nccl.bench import Bench

    rank, elements = (int(part) for part in os.environ["EFA_PULSE_TEST_DAMAGE"].split(":"))
    undamaged = Bench._run

    def run(self, what, shape, *arguments):  # type: ignore[no-untyped-def]
        if what == "check" and self._rank == rank:
            self._gpu.fill_bytes(arguments[0].value, 0x7E, 4 * elements)
        undamaged(self, what, shape, *arguments)

    Bench._run = run  # type: ignore[method-assign]


if "EFA_PULSE_TEST_DAMAGE" in os.environ and "EFA_PULSE_LANE_JOB" in os.environ and "-c" not in sys.argv:
    _damage()
