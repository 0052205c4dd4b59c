"""The side index of an archive folder: where each run lies, by node, pair, probe and time. One SQLite file, rebuilt whenever it is lost.

It holds nothing that the segments do not hold, but for what was uploaded; that can be asked again of S3.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from exporter.archive.record import Record
from exporter.archive.segments import Name

FILE = "index.sqlite"
VERSION = 1
BUSY_SECONDS = 10.0
_TABLES = """
CREATE TABLE IF NOT EXISTS segments (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, size INTEGER NOT NULL DEFAULT 0,
  uploaded INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS runs (id INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, segment INTEGER NOT NULL, offset INTEGER NOT NULL,
  length INTEGER NOT NULL, finished REAL NOT NULL, probe INTEGER NOT NULL, target TEXT NOT NULL, outcome TEXT NOT NULL,
  reason TEXT NOT NULL, transport TEXT, figure TEXT, value REAL, unit TEXT, message TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS places (node INTEGER NOT NULL, finished REAL NOT NULL, run INTEGER NOT NULL, PRIMARY KEY (node, finished, run))
  WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS runs_by_time ON runs (finished);
CREATE INDEX IF NOT EXISTS runs_by_segment ON runs (segment);
"""


@dataclass(frozen=True, slots=True)
class Row:
    """What a list shows of a run, and where its record lies. `finished` is Unix seconds, `value` in `unit`."""

    run_id: str
    finished: float
    probe: str
    target: str
    outcome: str
    reason: str
    transport: str | None
    figure: str | None
    value: float | None
    unit: str | None
    message: str
    segment: str = ""
    offset: int = 0
    length: int = 0


@dataclass(frozen=True, slots=True)
class Kept:
    """A segment as the index knows it: how many of its bytes are indexed, and whether S3 holds it."""

    name: Name
    size: int
    uploaded: bool


@dataclass(frozen=True)
class Query:
    """What is asked for. `nodes`: runs on all of them (two: the pair, in any order); times are Unix seconds, both included."""

    nodes: tuple[str, ...] = ()
    probe: str | None = None
    target: str | None = None
    outcome: str | None = None
    since: float | None = None
    until: float | None = None
    limit: int | None = None

    def takes(self, record: Record) -> bool:
        """Whether a record is asked for."""
        nodes = record.get("nodes") or []
        if any(node not in nodes for node in self.nodes):
            return False
        told = ((self.probe, "probe"), (self.target, "target"), (self.outcome, "outcome"))
        at = float(record["finished"])
        return (all(wish is None or record.get(key) == wish for wish, key in told)
                and (self.since is None or at >= self.since) and (self.until is None or at <= self.until))


def row_of(record: Record, segment: str = "", offset: int = 0, length: int = 0) -> Row:
    """The row of a record."""
    value = record.get("value")
    return Row(str(record["run_id"]), float(record["finished"]), str(record.get("probe")), str(record.get("target")),
               str(record.get("outcome")), str(record.get("reason")), record.get("transport"), record.get("figure"),
               float(value) if isinstance(value, (int, float)) else None, record.get("unit"), str(record.get("message") or ""),
               segment, offset, length)


class Index:
    """See the module. One connection, one thread at a time; other processes may read at the same time.

    Raises sqlite3.DatabaseError for a file that is no index: the owner of the folder then begins a new one.
    """

    def __init__(self, path: Path | None, *, read_only: bool = False) -> None:
        where = ":memory:" if path is None else f"file:{quote(str(path))}{'?mode=ro' if read_only else ''}"
        self._db = sqlite3.connect(where, uri=path is not None, timeout=BUSY_SECONDS, check_same_thread=False, isolation_level=None)
        try:
            version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
            if version not in (0, VERSION) or (read_only and version == 0):
                raise sqlite3.DatabaseError(f"the index has version {version}, this one reads {VERSION}")
            if not read_only:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=NORMAL")
                self._db.executescript(_TABLES + f"PRAGMA user_version={VERSION};")
        except BaseException:
            self._db.close()
            raise
        self._ids: dict[str, int] = {}

    def close(self) -> None:
        """Close it."""
        self._db.close()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Changes within take effect together or not at all."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._ids.clear()
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # writing

    def add(self, name: Name, found: Iterable[tuple[int, int, Record]], size: int) -> None:
        """Take in records of a segment, `size` of whose bytes are then indexed. A run that is known already keeps its place."""
        segment = self._segment(name)
        for offset, length, record in found:
            row = row_of(record)
            made = self._db.execute(
                "INSERT OR IGNORE INTO runs (run_id, segment, offset, length, finished, probe, target, outcome, reason, transport, figure,"
                " value, unit, message) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                (row.run_id, segment, offset, length, row.finished, self._name(row.probe), row.target, row.outcome, row.reason,
                 row.transport, row.figure, row.value, row.unit, row.message[:200]))
            if made.rowcount == 1:
                self._db.executemany("INSERT OR IGNORE INTO places VALUES (?,?,?)", [
                    (self._name(str(node)), row.finished, made.lastrowid) for node in dict.fromkeys(record.get("nodes") or ())])
        self._db.execute("UPDATE segments SET size = max(size, ?) WHERE id = ?", (size, segment))

    def forget(self, name: Name, *, runs: Sequence[str] | None = None) -> None:
        """Drop a segment with its runs; with `runs` only those of its runs."""
        segment = self._segment(name)
        which, values = "segment = ?", [segment]
        if runs is not None:
            self._db.execute("CREATE TEMP TABLE IF NOT EXISTS leaving (run_id TEXT PRIMARY KEY)")
            self._db.execute("DELETE FROM leaving")
            self._db.executemany("INSERT OR IGNORE INTO leaving VALUES (?)", [(run,) for run in runs])
            which += " AND run_id IN (SELECT run_id FROM leaving)"
        places = self._db.execute(f"SELECT id, finished FROM runs WHERE {which}", values).fetchall()  # noqa: S608 - fixed text
        # The key of `places` begins with the node, which is not known here: one pass over them.
        if places:
            self._db.execute("CREATE TEMP TABLE IF NOT EXISTS going (run INTEGER PRIMARY KEY)")
            self._db.execute("DELETE FROM going")
            self._db.executemany("INSERT INTO going VALUES (?)", [(run,) for run, _ in places])
            self._db.execute("DELETE FROM places WHERE run IN (SELECT run FROM going)")
            self._db.execute(f"DELETE FROM runs WHERE {which}", values)  # noqa: S608 - fixed text
        if runs is None:
            self._db.execute("DELETE FROM segments WHERE id = ?", (segment,))

    def uploaded(self, name: Name) -> None:
        """S3 holds this segment."""
        self._db.execute("UPDATE segments SET uploaded = 1 WHERE id = ?", (self._segment(name),))

    # reading

    def knows(self, run_id: str) -> bool:
        """Whether a run is archived."""
        return self._db.execute("SELECT 1 FROM runs WHERE run_id = ?", (run_id,)).fetchone() is not None

    def place_of(self, run_id: str) -> str | None:
        """The name of the segment that holds a run."""
        row = self._db.execute("SELECT s.name FROM runs r JOIN segments s ON s.id = r.segment WHERE r.run_id = ?", (run_id,)).fetchone()
        return str(row[0]) if row else None

    def segments(self) -> list[Kept]:
        """Every segment, in order."""
        found = self._db.execute("SELECT name, size, uploaded FROM segments").fetchall()
        kept = [Kept(name, int(size), bool(uploaded)) for text, size, uploaded in found if (name := Name.parse(text)) is not None]
        return sorted(kept, key=lambda one: one.name)

    def runs_of(self, name: Name) -> list[str]:
        """The ids of the runs of a segment, in its order."""
        return [str(row[0]) for row in self._db.execute(
            "SELECT r.run_id FROM runs r JOIN segments s ON s.id = r.segment WHERE s.name = ? ORDER BY r.offset", (str(name),))]

    def count(self) -> int:
        """How many runs are indexed."""
        return int(self._db.execute("SELECT count(*) FROM runs").fetchone()[0])

    def find(self, query: Query) -> list[Row]:
        """The runs that are asked for, newest first."""
        source, at, where = "runs r", "r.finished", ["1"]
        values: list[str | float | int] = []
        node = "(SELECT id FROM names WHERE name = ?)"
        if query.nodes:
            source, at = "places p CROSS JOIN runs r ON r.id = p.run", "p.finished"
            where.append(f"p.node = {node}")
            values.append(query.nodes[0])
        for other in query.nodes[1:]:
            where.append(f"EXISTS (SELECT 1 FROM places q WHERE q.node = {node} AND q.finished = r.finished AND q.run = r.id)")  # noqa: S608
            values.append(other)
        # The time is asked of the index that is walked, so that only the wanted span of it is read.
        asked: tuple[tuple[str, str | float | None], ...] = (
            (f"{at} >= ?", query.since), (f"{at} <= ?", query.until), ("r.target = ?", query.target), ("r.outcome = ?", query.outcome),
            (f"r.probe = {node}", query.probe))
        for text, value in asked:
            if value is not None:
                where.append(text)
                values.append(value)
        if query.limit is not None:
            values.append(query.limit)
        found = self._db.execute(
            "SELECT r.run_id, r.finished, n.name, r.target, r.outcome, r.reason, r.transport, r.figure, r.value, r.unit, r.message, s.name,"  # noqa: S608
            f" r.offset, r.length FROM {source} JOIN names n ON n.id = r.probe JOIN segments s ON s.id = r.segment"
            f" WHERE {' AND '.join(where)} ORDER BY {at} DESC{' LIMIT ?' if query.limit is not None else ''}", values)
        return [Row(*row) for row in found]

    def _segment(self, name: Name) -> int:
        self._db.execute("INSERT OR IGNORE INTO segments (name) VALUES (?)", (str(name),))
        return int(self._db.execute("SELECT id FROM segments WHERE name = ?", (str(name),)).fetchone()[0])

    def _name(self, text: str) -> int:
        found = self._ids.get(text)
        if found is None:
            self._db.execute("INSERT OR IGNORE INTO names (name) VALUES (?)", (text,))
            found = self._ids[text] = int(self._db.execute("SELECT id FROM names WHERE name = ?", (text,)).fetchone()[0])
            if len(self._ids) > 100_000:
                self._ids.clear()
        return found
