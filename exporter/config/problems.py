"""What is wrong with a configuration, and where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

Loc = tuple[str | int, ...]
"""Where in the document: keys and positions from the root."""


def dotted(loc: Loc) -> str:
    """The place as people write it: `canary.targets[0].url`; empty for the whole document."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. `line` and `column` count from 1, 0 when the whole file is meant; `path` is dotted.

    `todo` says what to do; it is empty where `what` says it already.
    """

    file: str
    line: int
    column: int
    path: str
    what: str
    todo: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return ": ".join(part for part in (where, self.path, self.what, self.todo) if part)


class ConfigError(ValueError):
    """A configuration that cannot be used. `problems` holds everything that was found, in the order of the file; `str` is one line each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems), key=lambda problem: (problem.line, problem.column, problem.path, problem.what)))
        super().__init__("\n".join(str(problem) for problem in self.problems))

    @classmethod
    def about_file(cls, file: Path | str, what: str, todo: str = "") -> ConfigError:
        """An error about the file as a whole."""
        return cls([Problem(str(file), 0, 0, "", what, todo)])
