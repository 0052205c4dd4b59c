"""One life of an archiving process for `test_archive_outage`: real archive, ledger and journal, and time that runs fast; to be killed.

    python archiving_child.py WORK ENDPOINT SPEED BEGAN UNTIL

`WORK/jobs` stands for the cluster: one file per finished Job that nobody deleted, which outlives this process as Jobs do. Every run that
ends is written there first, as a pod's status is; a Job is deleted when the ledger says that its run is durable. Prints one line a second
of real time: time, pending results, and why the archive is in trouble.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import verdicts

from exporter.archive.archive import Archive
from exporter.config.archive import Archive as Settings
from exporter.ledger import Ledger
from exporter.plan.journal import Journal, flush
from exporter.plan.store import FileStore

EVERY_SECONDS = 20.0
"""A run ends so often, in the time that runs fast."""


def main(work: Path, endpoint: str, speed: float, began: float, until: float) -> None:
    """See the module."""
    real = time.time()

    def clock() -> float:
        return began + (time.time() - real) * speed

    jobs = work / "jobs"
    jobs.mkdir(exist_ok=True)
    store = FileStore(work / "journal.json")
    journal = Journal.loaded(store.load())
    ledger = Ledger(journal, keep=1e9, archiving=True)
    settings = Settings.model_validate({"cluster": "east", "s3": {"bucket": "results", "endpoint": endpoint, "region": "us-west-2",
                                                                  "timeout": 1}})
    archive = Archive(settings, folder=work / "archive", hold=20, clock=clock).start()
    for job in sorted(jobs.iterdir()):  # what the launcher adopts and reports again
        if ledger.settled(job.name):
            job.unlink()
        else:
            take(job.name, float(job.read_text()), ledger, archive, clock())
    number = sum(1 for _ in (work / "all").open()) if (work / "all").exists() else 0
    next_run = clock()
    said = 0.0
    while clock() < until or archive.pending:
        if clock() >= next_run and clock() < until:
            next_run += EVERY_SECONDS
            run_id = f"mooncake-{number:05d}"
            number += 1
            (jobs / run_id).write_text(str(clock()))
            with (work / "all").open("a") as file:
                file.write(run_id + "\n")
            take(run_id, clock(), ledger, archive, clock())
        for run_id in archive.settled():
            ledger.archived(run_id)
        flush(journal, store, clock())
        for run_id in ledger.durable(clock()):
            (jobs / run_id).unlink(missing_ok=True)
        if time.time() - said >= 1:
            said = time.time()
            print(f"{clock():.0f} {archive.pending} {archive.trouble or '-'}", flush=True)
        time.sleep(0.01)
    archive.close()
    for run_id in archive.settled():
        ledger.archived(run_id)
    flush(journal, store, clock(), everything=True)
    for run_id in ledger.durable(clock()):
        (jobs / run_id).unlink(missing_ok=True)
    print("the end", flush=True)


def take(run_id: str, at: float, ledger: Ledger, archive: Archive, now: float) -> None:
    """As the control loop takes in a run that has ended."""
    ledger.finished(run_id, now)
    archive.offer(verdicts.pair(run_id, at=at))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]))
