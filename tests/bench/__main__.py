"""Runs the benchmarks: `python -m tests.bench [NAME ...]` from the root of the repository, or `make bench ARGS=NAME`.

This folder is imported as `bench`, with `tests` on the path, as pytest and mypy see it.

Every module of this folder that has `run() -> list of rows` is one; a row has the fields of `report.FIELDS`, machine excepted, which is
added here. `goal` says in words what `holds` tells. Each benchmark runs in a process of its own under a deadline, so that a crash of an
engine ends that one only. One that raises `report.Skipped` is listed by name, with its last recorded rows from `recorded/NAME.json` if
there are any. Rows go to `build/bench.json`: all of them for a full run; a named run replaces those of its names and keeps the others.

Exit status: 0, or 1 when a benchmark failed or a goal does not hold, or 2 for a name that does not exist.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from rich.console import Console

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
OUTPUT = ROOT / "build" / "bench.json"
RECORDED = FOLDER / "recorded"
SECONDS = 1200.0
CHILD = "--one"

sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from bench.report import FIELDS, Skipped, machine, table  # noqa: E402

Row = dict[str, Any]


def names() -> list[str]:
    """Every benchmark of this folder, found without importing it: an engine may be missing."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_") and _has_run(path))


def main(wanted: list[str]) -> int:
    """Run the named benchmarks, or all."""
    console = Console(width=None if sys.stdout.isatty() else 200)
    known = names()
    unknown = [name for name in wanted if name not in known]
    if unknown:
        console.print(f"there is no benchmark {', '.join(unknown)}; there is {', '.join(known)}")
        return 2
    here = machine()
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    failed: dict[str, str] = {}
    for name in wanted or known:
        console.print(f"{name} ...", highlight=False)
        answer = _in_child(name)
        rows += [{field: {**row, "machine": row.get("machine", here)}.get(field) for field in FIELDS} for row in answer.get("rows", [])]
        if "skipped" in answer:
            skipped[name] = answer["skipped"]
            rows += _recorded(name)
        if "error" in answer:
            failed[name] = answer["error"]
    _write(rows, None if not wanted else set(wanted))
    table(rows, console)
    for name, why in skipped.items():
        console.print(f"skipped: {name}: {why}", highlight=False)
    for name, why in failed.items():
        console.print(f"failed: {name}: {why}", highlight=False)
    missed = [row for row in rows if row["holds"] is False]
    for row in missed:
        console.print(f"goal missed: {row['name']}: {row['what']}: {row['goal']}", highlight=False)
    return 1 if failed or missed else 0


def _has_run(path: Path) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in ast.parse(path.read_text()).body)


def _in_child(name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="efa-pulse-bench-") as folder:
        answer = Path(folder, "answer.json")
        command = [sys.executable, "-m", "tests.bench", CHILD, name, str(answer)]
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return {"error": f"not finished after {SECONDS:.0f} s"}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if not answer.exists():
            return {"error": f"it ended with status {code} and left no rows"}
        data: dict[str, Any] = json.loads(answer.read_text())
        return data


def _one(name: str, answer: str) -> int:
    """In the child: run one benchmark and leave its rows, or why there are none."""
    document: dict[str, Any]
    try:
        document = {"rows": importlib.import_module(f"bench.{name}").run()}
    except Skipped as why:
        document = {"skipped": str(why)}
    except Exception as error:  # noqa: BLE001 - any failure of a benchmark is a line of the report
        traceback.print_exc()
        document = {"error": f"{type(error).__name__}: {error}"}
    Path(answer).write_text(json.dumps(document))
    return 0


def _recorded(name: str) -> list[Row]:
    path = RECORDED / f"{name}.json"
    if not path.exists():
        return []
    rows: list[Row] = json.loads(path.read_text())
    return [{**row, "what": f"{row['what']} (recorded)"} for row in rows]


def _write(rows: list[Row], wanted: set[str] | None) -> None:
    kept: list[Row] = []
    if wanted is not None and OUTPUT.exists():
        kept = [row for row in json.loads(OUTPUT.read_text()) if row["name"] not in wanted | {row["name"] for row in rows}]
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(kept + rows, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(_one(*sys.argv[2:]) if sys.argv[1:2] == [CHILD] else main(sys.argv[1:]))
