"""Runs every case that needs real GPUs and writes what it saw. See README.md beside it.

    PYTHONPATH=.:tests python3 -m gpu.run_all OUT [case ...]

Writes OUT/results.json (one object per case) and OUT/logs.tar.xz. Ends with 0 when every claim holds.
"""

from __future__ import annotations

import json
import platform
import sys
import tarfile
import time
import traceback
from pathlib import Path
from typing import Any

from gpu import cases_kv, cases_nccl, cases_uccl

CASES = {**cases_nccl.CASES, **cases_uccl.CASES, **cases_kv.CASES}


def main(arguments: list[str]) -> int:
    out = Path(arguments[0])
    logs = out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    names = arguments[1:] or list(CASES)
    results: dict[str, Any] = {"machine": platform.node(), "python": platform.python_version(), "cases": {}}
    failed = 0
    for name in names:
        begin = time.monotonic()
        try:
            seen = CASES[name](logs)
        except Exception:  # noqa: BLE001 - the other cases still run
            seen = {"error": traceback.format_exc()[-3000:], "holds": [["the case ran", False]]}
        seen["seconds"] = round(time.monotonic() - begin, 1)
        results["cases"][name] = seen
        print(f"== {name}: {seen['seconds']} s", flush=True)
        if "error" in seen:
            print(seen["error"], flush=True)
        for claim, truth in seen["holds"]:
            failed += not truth
            print(f"   {'holds' if truth else 'FAILS'}  {claim}", flush=True)
        (out / "results.json").write_text(json.dumps(results, indent=1))
    with tarfile.open(out / "logs.tar.xz", "w:xz") as archive:
        archive.add(logs, arcname="logs")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
