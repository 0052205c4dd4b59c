"""Starts a worker from a bundle with whatever Python another image has: `python3 FOLDER/start.py probes run`.

It needs nothing but the standard library and runs on any Python 3, so that one that cannot run the probes still says so: it leaves a result
document with reason `engine_incompatible` in the termination file. Copied by `probes.bundle`; never imported.
"""

import json
import os
import runpy
import sys
import time

OLDEST, NEWEST = (3, 10), (3, 13)


def main() -> None:
    """Put the bundle's folder first on the path, here and for every child, and become the module that was asked for."""
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - must run on any Python 3
    sys.path[0] = folder
    os.environ["PYTHONPATH"] = os.pathsep.join([folder] + [part for part in [os.environ.get("PYTHONPATH")] if part])
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    module = sys.argv[1]
    del sys.argv[1]
    try:
        if not OLDEST <= sys.version_info[:2] <= NEWEST:
            raise ImportError("Python %d.%d, the probes run on %d.%d to %d.%d" % (sys.version_info[:2] + OLDEST + NEWEST))  # noqa: UP031
        __import__("probes.supervisor")
    except Exception as error:
        leave("the serving image cannot run the probes: %s: %s" % (type(error).__name__, error))  # noqa: UP031
        raise
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def leave(message: str) -> None:
    """Write a result document without the package that knows how."""
    env = os.environ.get
    rank = env("EFA_PULSE_RANK") or env("JOB_COMPLETION_INDEX") or "0"
    now = round(time.time(), 3)
    result = {"schema": "efa-pulse/result/v1", "run_id": env("EFA_PULSE_RUN_ID", "unknown"), "probe": env("EFA_PULSE_PROBE", ""),
              "target": env("EFA_PULSE_TARGET", ""), "rank": int(rank), "world_size": int(env("EFA_PULSE_WORLD_SIZE", "1")),
              "node": env("EFA_PULSE_NODE", ""), "started": now, "finished": now, "outcome": "unknown", "reason": "engine_incompatible",
              "message": message[:600]}
    try:
        with open(env("EFA_PULSE_RESULT_PATH", "/dev/termination-log"), "w") as file:  # noqa: PTH123
            file.write(json.dumps(result) + "\n")
    except OSError as error:
        sys.stderr.write("%s\n" % error)  # noqa: UP031


if __name__ == "__main__":
    main()
