"""`python -m dashboards` writes the JSON of every board again; with `--check` it says whether what is there is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from dashboards.boards import BOARDS

JSON = Path(__file__).with_name("json")


def main(arguments: list[str]) -> int:
    """Write or check the files. Status 1: something is out of date."""
    wanted = {f"{board.slug}.json": board.text() for board in BOARDS}
    there = {path.name: path.read_text() for path in JSON.glob("*.json")}
    if arguments == ["--check"]:
        stale = sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))
        sys.stdout.write(f"out of date: {', '.join(stale)}: run python -m dashboards\n" if stale else "up to date\n")
        return 1 if stale else 0
    JSON.mkdir(exist_ok=True)
    for name in there.keys() - wanted.keys():
        (JSON / name).unlink()
    for name, text in wanted.items():
        (JSON / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
