"""`python -m probes`: the entry of a worker.

    python -m probes run          run the worker that the EFA_PULSE_* environment describes (see probes/contract.py)
    python -m probes list         the probes and whether their engines are here, with versions
    python -m probes selfcheck    whether this image is put together right (see probes/imagecheck.py)
    python -m probes schema       the JSON Schema of the result document
"""

from __future__ import annotations

import json
import os
import signal
import sys

USAGE = __doc__ or ""


def main(argv: list[str]) -> int:
    """Dispatch. Returns the exit status; 64 for wrong usage."""
    command = argv[0] if argv else ""
    if command == "child":
        from probes import processes
        from probes.supervisor import PARENT_PID
        from probes.worker import main as child

        if not os.environ.get(PARENT_PID, "").isdigit():
            sys.stderr.write("`python -m probes child` is started by `python -m probes run`\n")
            return 64
        processes.die_with_parent(signal.SIGKILL, int(os.environ.pop(PARENT_PID)))
        child()
    if command == "run" and len(argv) == 1:
        from probes.supervisor import main as run

        return run(os.environ)
    if command == "list" and len(argv) == 1:
        from probes.selfcheck import describe

        sys.stdout.write(json.dumps(describe(), indent=2) + "\n")
        return 0
    if command == "selfcheck":
        from probes.imagecheck import main as selfcheck

        return selfcheck(argv[1:])
    if command == "schema" and len(argv) == 1:
        from probes.result import json_schema

        sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")
        return 0
    sys.stderr.write(USAGE)
    return 64


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
