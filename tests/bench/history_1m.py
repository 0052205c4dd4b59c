"""How long does it take to find the runs of one node among a million archived results?

The peer is a scan of the same files by `grep` for the node's name (fixed string, one core), which is what one does without an index; both
run in the same turn, interleaved, with the files in the page cache. Ours is the whole of `efa-pulse history` but for the start of Python:
opening the folder, asking, reading nothing else.
"""

from __future__ import annotations

import json
import os
import platform
import random
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import verdicts
from bench.report import Skipped

import probes
from exporter.archive.folder import Folder
from exporter.archive.index import Query
from exporter.archive.record import record_of
from exporter.archive.search import Local
from exporter.archive.segments import Name, day

RESULTS = int(os.environ.get("EFA_PULSE_BENCH_RESULTS", "1000000"))
NODES = 1000
SEGMENTS = 50
ROUNDS = 5
START = 1_790_000_000.0
GOAL_SECONDS = 1.0


def run() -> list[dict[str, Any]]:
    """Rows of a query by node, by pair and by node and day, and of building the index."""
    with tempfile.TemporaryDirectory(prefix="efa-pulse-history-") as name:
        folder = Path(name)
        if os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize < 4 * RESULTS * 1024:
            raise Skipped(f"{RESULTS} results need {4 * RESULTS >> 20} MiB of disk")
        size = fill(folder)
        before = time.monotonic()
        owner = Folder(folder, "bench", keep=1 << 62, segment=1 << 62, upload=False, clock=lambda: START)
        built = time.monotonic() - before
        owner.close()
        node, other = "ip-10-0-3-77", "ip-10-0-1-5"
        asked = {"by node": (Query((node,)), f'"{node}"'),
                 "by node, the newest 50": (Query((node,), limit=50), f'"{node}"'),
                 "by pair": (Query((node, other)), f'"{node}"')}
        ours: dict[str, list[float]] = {what: [] for what in asked}
        theirs: dict[str, list[float]] = {what: [] for what in asked}
        for _ in range(ROUNDS):
            for what, (query, text) in asked.items():
                before = time.monotonic()
                with Local(folder) as local:
                    found = local.find(query)
                ours[what].append(time.monotonic() - before)
                before = time.monotonic()
                lines = scan(folder, text, query)
                theirs[what].append(time.monotonic() - before)
                if len(found) != len(lines):
                    raise RuntimeError(f"{what}: {len(found)} runs by the index, {len(lines)} by the scan")
        versions = {"efa-pulse": probes.__version__, "python": platform.python_version()}
        rows = []
        for what in asked:
            mine, peers = sorted(ours[what])[ROUNDS // 2], sorted(theirs[what])[ROUNDS // 2]
            told = f"{RESULTS} results ({size >> 20} MiB) of {NODES} nodes {what}, median of {ROUNDS}"
            rows.append({"name": "history_1m", "what": told, "value": mine, "unit": "s",
                         "peer": "grep and a JSON parser over the same files", "peer_value": peers, "ratio": peers / mine,
                         "goal": f"less than {GOAL_SECONDS:g} s", "holds": mine < GOAL_SECONDS, "versions": versions})
        rows.append({"name": "history_1m", "what": "building the whole index anew", "value": built, "unit": "s", "peer": None,
                     "peer_value": None, "ratio": None, "goal": None, "holds": None, "versions": versions})
        return rows


def fill(folder: Path) -> int:
    """Write the results as the archive lays them out; returns their bytes. One real record is the mould of all."""
    rng = random.Random(1)
    names = [f"ip-10-0-{number // 250}-{number % 250}" for number in range(NODES)]
    mould = record_of(verdicts.pair("RUN", ("NODE-A", "NODE-B"), at=START), cluster="bench", instance_ids=("i-1", "i-2"))
    text = json.dumps(mould, separators=(",", ":"))
    per = RESULTS // SEGMENTS
    size = 0
    for number in range(SEGMENTS):
        begun = START + number * 86400.0
        path = folder / str(Name.new("bench", day(begun), begun, "wbench", number))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            for index in range(per):
                one, other = rng.sample(names, 2)
                at = f"{begun + index * 86400.0 / per:.3f}"
                size += file.write(text.replace("NODE-A", one).replace("NODE-B", other).replace('"RUN"', f'"run-{number}-{index}"')
                                   .replace(f'"finished":{START}', f'"finished":{at}', 1) + "\n")
    return size


def scan(folder: Path, text: str, query: Query) -> list[str]:
    """The ids that a scan finds: lines with the text, newest first."""
    answer = subprocess.run(["grep", "-rhF", text, str(folder / "results")], stdout=subprocess.PIPE, check=True,
                            env={**os.environ, "LC_ALL": "C"}, timeout=300)
    records = [record for line in answer.stdout.splitlines() if query.takes(record := json.loads(line))]
    return [str(record["run_id"]) for record in sorted(records, key=lambda one: -float(one["finished"]))][:query.limit]
