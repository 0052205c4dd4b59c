"""The archive of a running service: a thread of its own that takes results from a bounded queue, puts them on disk, and uploads to S3.

    control loop ─> offer ─> queue ─> folder (synced) ─> [S3] ─> settled ─> the run's Job may go

Nothing here ever makes the control loop wait. A run counts as settled when the archive holds it: the folder, or S3 where that is
configured. Until then its Job stays, from which the next process reads the result again; a run that comes twice is kept once. While S3 is
away, Jobs beyond `hold` are let go all the same, oldest first, so that probing goes on: the synced spool then is the only copy, or memory
where the folder cannot be written either.
"""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from exporter import log
from exporter.archive import segments
from exporter.archive.folder import Folder, FullError, LockedError, read
from exporter.archive.index import Query
from exporter.archive.record import Record, RecordError, record_of, verdict_of
from exporter.archive.s3 import S3Store
from exporter.archive.segments import Name
from exporter.aws import AwsError
from exporter.config.archive import Archive as Settings
from exporter.judge.verdict import Verdict
from exporter.runs import Run
from probes.reasons import Outcome

TICK_SECONDS = 0.5
BATCH = 500
FIRST_RETRY, LONGEST_RETRY = 1.0, 60.0
LOOK_BACK_SECONDS = 24 * 3600.0
"""How far back S3 is read for runs that another replica or an earlier pod has archived: longer than a Job lives after its end, and enough
to know what was last said of most nodes."""
WARY_SECONDS = 900.0
"""So long after a start or a change of leader S3 is read before each upload: another replica may archive the same runs."""
CLOSE_SECONDS = 10.0
UPLOADS_AT_ONCE = 8
RECALLS_AT_ONCE = 200
RECALL_DEPTH = 10
LogsOf = Callable[[Run], Mapping[int, str]]
"""The logs of a run's ranks, for a run that was not ok. Called in the archive's thread; may raise OSError; must end in seconds."""


@dataclass(frozen=True)
class Offer:
    """A judged run on its way into the archive, with the identities and types of its nodes in rank order."""

    verdict: Verdict
    instance_ids: tuple[str | None, ...] = ()
    instance_types: tuple[str | None, ...] = ()


@dataclass
class Counts:
    """What the archive counts. Written by its thread, read by any."""

    results: dict[str, int] = field(default_factory=lambda: {"local": 0, "s3": 0})
    writes: dict[str, int] = field(default_factory=lambda: {"local": 0, "s3": 0})
    failures: dict[tuple[str, str], int] = field(default_factory=dict)
    success: dict[str, float] = field(default_factory=dict)
    trouble: dict[str, str] = field(default_factory=dict)
    dropped: int = 0
    size: int = 0


class Archive:
    """See the module. `hold` is how many runs may keep their Jobs waiting for S3, None: there are no Jobs. `clock` is Unix seconds."""

    def __init__(self, settings: Settings, *, folder: Path | None = None, logs: LogsOf | None = None, hold: int | None = None,
                 clock: Callable[[], float] = time.time, store: S3Store | None = None) -> None:
        self.settings = settings
        self.counts = Counts()
        self._path = folder or settings.where()
        self._logs, self._hold, self._clock = logs, hold, clock
        self._store = store or (S3Store(settings.s3) if settings.s3 is not None else None)
        self._queue: queue.Queue[Offer] = queue.Queue(settings.queue)
        self._settled: deque[str] = deque()
        self._wanted: deque[tuple[str, str | None, str]] = deque()
        self._recalled: deque[tuple[str, Verdict]] = deque()
        self._folder: Folder | None = None
        self._batch: list[Record] = []
        self._spooled: dict[str, bool] = {}
        self._unwritten = 0
        self._retry_at: dict[str, float] = {}
        self._wait: dict[str, float] = {}
        self._wary_until = 0.0
        self._horizon: float | None = None
        self._seen: set[Name] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="archive", daemon=True)
        self._log = log.get()

    def start(self) -> Archive:
        """Begin to take results in."""
        self._wary_until = self._clock() + WARY_SECONDS
        self._thread.start()
        return self

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Write what waits, upload what can be uploaded within `seconds`, and end. What is left waits in the folder, or in its Job."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)

    # The control loop's side; never waits.

    def offer(self, verdict: Verdict, instance_ids: Sequence[str | None] = (), instance_types: Sequence[str | None] = ()) -> bool:
        """Take in a judged run. False when there is no room: it is then not archived, and its Job stays for the next process."""
        try:
            self._queue.put_nowait(Offer(verdict, tuple(instance_ids), tuple(instance_types)))
        except queue.Full:
            self.counts.dropped += 1
            return False
        return True

    def settled(self) -> list[str]:
        """The runs that the archive holds since the last call."""
        found = []
        while self._settled:
            found.append(self._settled.popleft())
        return found

    def leading(self, leading: bool) -> None:
        """Who leads has changed: the runs that are not uploaded yet may be archived by both, so S3 is read before the next uploads."""
        self._wary_until = self._clock() + WARY_SECONDS if leading else float("inf")

    def recall(self, wanted: Iterable[tuple[str, str | None, str]]) -> None:
        """Look for the last conclusive run of each of these: node, its instance id (None: any) and probe. `recalled` has what was found."""
        self._wanted.extend(sorted(wanted, key=str))

    def recalled(self) -> list[tuple[str, Verdict]]:
        """What was found since the last call of what `recall` asked for: the node and the verdict."""
        found = []
        while self._recalled:
            found.append(self._recalled.popleft())
        return found

    @property
    def pending(self) -> int:
        """Results taken in that the archive does not hold yet."""
        return self._queue.qsize() + len(self._batch) + len(self._spooled)

    @property
    def trouble(self) -> str:
        """Why results cannot be written now, in words; empty when they can."""
        return "; ".join(f"{store}: {why}" for store, why in sorted(self.counts.trouble.items()))

    # The archive's thread.

    def _run(self) -> None:
        until: float | None = None
        while True:
            stopping = self._stop.is_set()
            if stopping and until is None:
                until = time.monotonic() + CLOSE_SECONDS
                self._retry_at.clear()
            try:
                self.turn(stopping=stopping)
            except Exception as error:  # noqa: BLE001 - whatever one turn does, the next results are still to be kept
                self._failed("local", "other", f"{type(error).__name__}: {error}")
                self._log.exception("the archive could not do its turn", error=str(error))
                if isinstance(error, sqlite3.Error) and self._folder is not None:
                    # The index is damaged or cannot be written: the files are what counts, and it is built anew from them.
                    with contextlib.suppress(OSError, sqlite3.Error):
                        self._folder.close(discard_index=True)
                    self._folder = None
            if stopping and (not self._left() or (until is not None and time.monotonic() > until)):
                break
        if self._folder is not None:
            self._folder.close()

    def _left(self) -> bool:
        """Whether more can be done before the end. A store that is away at the end is not waited for."""
        here = (self._queue.qsize() or self._batch) and "local" not in self.counts.trouble
        return bool(here or (self._store is not None and self._spooled and not self.counts.trouble))

    def turn(self, *, stopping: bool = False) -> None:
        """One turn: take results, write, upload what is due. Waits at most `TICK_SECONDS`."""
        if len(self._batch) < BATCH:
            self._take(0.0 if stopping or self._batch else TICK_SECONDS)
        else:
            self._stop.wait(TICK_SECONDS)
        if self._ready("local", stopping) and (self._folder is not None or self._open()):
            self._write()
        self._let_go_unwritten()
        folder = self._folder
        if folder is None:
            self._stop.wait(TICK_SECONDS)
            return
        if self._store is not None:
            self._upload(folder, self._store, stopping=stopping)
        if folder.prune():
            self.counts.size = folder.size
        if self._wanted and not (self._store is not None and folder.fresh and "s3" not in self.counts.trouble):
            self._look_up(folder)

    def _look_up(self, folder: Folder) -> None:
        """Answer some of what `recall` asked for. A name may have been another instance's: that one's runs are not meant."""
        for _ in range(min(len(self._wanted), RECALLS_AT_ONCE)):
            node, instance_id, probe = self._wanted.popleft()
            for row in folder.index.find(Query((node,), probe, limit=RECALL_DEPTH)):
                if not Outcome(row.outcome).conclusive:
                    continue
                with contextlib.suppress(OSError, RecordError, ValueError):
                    record = read(folder.path, row)
                    known = dict(zip(record["nodes"], record.get("instance_ids") or (), strict=False))
                    if instance_id is None or known.get(node) == instance_id:
                        self._recalled.append((node, verdict_of(record)))
                        break

    def _take(self, seconds: float) -> None:
        """Move what waits in the queue into the batch; logs are fetched on the way."""
        try:
            self._batch.append(self._record(self._queue.get(timeout=seconds) if seconds else self._queue.get_nowait()))
            while len(self._batch) < BATCH:
                self._batch.append(self._record(self._queue.get_nowait()))
        except queue.Empty:
            return

    def _record(self, offer: Offer) -> Record:
        run, logs = offer.verdict.run, {}
        if self.settings.logs and offer.verdict.outcome is not Outcome.OK:
            logs = dict(run.logs)
            if self._logs is not None and not logs:
                try:
                    logs = dict(self._logs(run))
                except OSError as error:
                    self._log.warning("the logs of a run could not be read", run_id=run.spec.run_id, error=str(error))
        most = self.settings.log_bytes
        cut = {rank: text.encode()[-most:].decode(errors="replace") for rank, text in logs.items() if text}
        return record_of(offer.verdict, cluster=self.settings.cluster, instance_ids=offer.instance_ids,
                         instance_types=offer.instance_types, logs=cut)

    def _open(self) -> bool:
        settings = self.settings
        try:
            self._folder = Folder(self._path, settings.cluster, keep=settings.keep, segment=settings.segment,
                                  upload=self._store is not None, clock=self._clock)
        except LockedError as error:
            self._failed("local", "locked", str(error))
            return False
        except OSError as error:
            self._failed("local", "disk", f"the archive folder {self._path} cannot be used: {error}; set archive.folder")
            return False
        if self._folder.cut:
            self._log.warning("a torn line of a process that was killed was cut off", bytes=self._folder.cut)
        if self._store is not None:
            for name in self._folder.owed():
                self._spooled.update(dict.fromkeys(self._folder.index.runs_of(name), False))
        self._log.info("the archive is open", folder=str(self._path), runs=self._folder.index.count(), not_uploaded=len(self._spooled),
                       bucket=settings.s3.bucket if settings.s3 is not None else None)
        return True

    def _write(self) -> None:
        if self._folder is None:
            return
        if not self._batch:
            self._worked("local", write=False)
            return
        batch = self._batch
        try:
            new = self._folder.append(batch)
        except FullError as error:
            self._failed("local", "full", str(error))
            return
        except OSError as error:
            self._failed("local", "disk", f"the archive folder {self._path} cannot be written: {error}")
            return
        self._batch = []
        self.counts.results["local"] += len(new)
        self.counts.size = self._folder.size
        self._worked("local", write=bool(new))
        fresh = {str(one["run_id"]) for one in new}
        for run_id in dict.fromkeys(str(one["run_id"]) for one in batch):
            if self._store is None or (run_id not in fresh and run_id not in self._spooled):
                self._settled.append(run_id)
            else:
                self._spooled.setdefault(run_id, False)

    def _upload(self, folder: Folder, store: S3Store, *, stopping: bool) -> None:
        s3 = self.settings.s3
        interval = s3.interval if s3 is not None else 0.0
        if not self._ready("s3", stopping):
            self._let_go()
            return
        crowded = self._hold is not None and 2 * len(self._spooled) >= self._hold and "s3" not in self.counts.trouble
        folder.seal(older=None if stopping or crowded else self._clock() - interval)
        owed = folder.owed()
        if not owed and not folder.fresh:
            return
        try:
            if folder.fresh or self._clock() < self._wary_until:
                self._look_at_others(folder, store, owed)
                folder.fresh = False
                owed = folder.owed()
            for name in owed[:UPLOADS_AT_ONCE]:
                data = folder.read(name)
                runs = folder.index.runs_of(name)
                if data:
                    store.put(f"{name}.gz", segments.packed(data))
                    self._worked("s3")
                    self.counts.results["s3"] += len(runs)
                with folder.index.together():
                    folder.index.uploaded(name)
                self._settle(runs)
        except AwsError as error:
            self._failed("s3", error.trouble.kind, error.trouble.says)
            self._let_go()

    def _look_at_others(self, folder: Folder, store: S3Store, owed: Sequence[Name]) -> None:
        """Take in the segments that others wrote lately. Runs that they hold are not uploaded again; settled they are.

        A segment may appear long after its beginning, where its writer could not reach S3: what counts is that it was not seen yet.
        """
        now = self._clock()
        if self._horizon is None:
            self._horizon = min([now - LOOK_BACK_SECONDS, *(name.begun for name in owed)])
        here = {one.name: one.uploaded for one in folder.index.segments()}
        for date in segments.days(self._horizon, now):
            for text in store.names(f"{segments.partition(self.settings.cluster, date)}/"):
                name = Name.parse(text)
                if name is None or here.get(name) or name in self._seen or (name not in here and name.begun < self._horizon):
                    continue
                data = segments.unpacked(store.get(text))
                self._seen.add(name)
                if not data:
                    self._log.warning("an object of the archive is damaged and is passed over", key=text)
                    continue
                folder.adopt(name, data)
                self._settle(folder.index.runs_of(name))
        self.counts.size = folder.size

    def _settle(self, runs: Iterable[str]) -> None:
        for run_id in runs:
            if not self._spooled.pop(run_id, False):
                self._settled.append(run_id)

    def _let_go(self) -> None:
        """While S3 is away: beyond `hold`, runs that lie in the spool count as settled, the oldest first; they are still uploaded."""
        if self._hold is None:
            return
        for run_id in list(self._spooled)[:max(0, len(self._spooled) - self._hold)]:
            if not self._spooled[run_id]:
                self._spooled[run_id] = True
                self._settled.append(run_id)

    def _let_go_unwritten(self) -> None:
        """The same while the folder cannot be written: those that go wait in memory alone, until it can."""
        if self._hold is None or not self._batch:
            self._unwritten = 0
            return
        most = max(0, len(self._batch) - self._hold)
        self._settled.extend(str(one["run_id"]) for one in self._batch[self._unwritten:most])
        self._unwritten = max(self._unwritten, most)

    def _ready(self, store: str, stopping: bool) -> bool:
        return stopping or time.monotonic() >= self._retry_at.get(store, 0.0)

    def _worked(self, store: str, *, write: bool = True) -> None:
        self._wait.pop(store, None)
        self._retry_at.pop(store, None)
        if self.counts.trouble.pop(store, None) is not None:
            self._log.info("the archive can be written again", store=store)
        if write:
            self.counts.writes[store] += 1
            self.counts.success[store] = self._clock()

    def _failed(self, store: str, kind: str, says: str) -> None:
        key = (store, kind)
        self.counts.failures[key] = self.counts.failures.get(key, 0) + 1
        if self.counts.trouble.get(store) != says:
            self._log.error("the archive cannot be written, it is tried again", store=store, trouble=kind, error=says,
                            pending=self.pending)
        self.counts.trouble[store] = says
        wait = self._wait[store] = min(LONGEST_RETRY, 2 * self._wait.get(store, FIRST_RETRY / 2))
        self._retry_at[store] = time.monotonic() + wait
