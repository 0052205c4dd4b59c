"""Running probes from the command line: start, show that something goes on, judge, return the verdict."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import yaml
from rich.console import Console
from rich.status import Status

from exporter.cli.exits import UsageError
from exporter.config.thresholds import Floor
from exporter.judge.judge import judge
from exporter.judge.verdict import Verdict
from exporter.launch.local import LocalLauncher
from exporter.runs import Run, RunSpec

SLACK_SECONDS = 30.0


class Runner(AbstractContextManager["Runner"]):
    """Runs one spec after another on this machine. Leaves nothing behind when it is closed or interrupted."""

    def __init__(self, console: Console, *, namespaces: bool = False, floors: tuple[Floor, ...] = ()) -> None:
        self._finished: queue.Queue[Run] = queue.Queue()
        self._launcher = LocalLauncher(self._finished.put, namespaces=namespaces)
        self._console = console
        self._floors = floors

    def __exit__(self, *_: object) -> None:
        self._launcher.close(0)

    def run(self, spec: RunSpec) -> Verdict:
        """One run from start to verdict. A cancelled run comes back as such when the user interrupts."""
        self._launcher.start(spec)
        started = time.monotonic()
        what = f"{spec.probe} {spec.target}"
        status: AbstractContextManager[Status | None] = (
            self._console.status(what) if self._console.is_terminal else nullcontext())
        with status as shown:
            while True:
                try:
                    run = self._finished.get(timeout=0.2)
                    return judge(run, floors=self._floors)
                except queue.Empty:
                    passed = time.monotonic() - started
                    if passed > spec.deadline + SLACK_SECONDS:
                        raise RuntimeError(f"run {spec.run_id} did not come back") from None
                    if shown is not None:
                        shown.update(f"{what}: {passed:.0f} s of at most {spec.deadline:.0f} s")


def settings(assignments: list[str]) -> dict[str, Any]:
    """`KEY=VALUE` options as parameters; the value is YAML, so `sizes=[64KiB, 1MiB]` is a list. Raises UsageError."""
    found: dict[str, Any] = {}
    for assignment in assignments:
        key, sep, value = assignment.partition("=")
        if not sep or not key:
            raise UsageError(f"--set {assignment}: KEY=VALUE is needed, for example --set iterations=50")
        try:
            found[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UsageError(f"--set {assignment}: the value is not YAML: {str(error).splitlines()[0]}") from None
    return found


def drop_unset(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given."""
    return {key: value for key, value in values.items() if value is not None}
