"""`python -m dashboards.rules` writes the generated files again; with `--check` it says whether what is there is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from dashboards.rules import reasons, render

HERE = Path(__file__).parent
OPEN = "# Made by python -m dashboards.rules: rules with open places, for the chart. Do not edit.\n"


def generated() -> dict[str, str]:
    """Every generated file by name."""
    return {
        "efa-pulse.rules.yaml": render.text(render.rule_groups()),
        "prometheusrule.yaml": render.text(render.prometheus_rule()),
        "template.yaml": render.text(render.template(), OPEN),
        "alerts.md": render.page(),
        "../runbooks/reasons.md": reasons.page(),
    }


def main(arguments: list[str]) -> int:
    """Write or check the files. Status 1: something is out of date."""
    wanted = generated()
    if arguments == ["--check"]:
        stale = [name for name, text in wanted.items() if not (HERE / name).is_file() or (HERE / name).read_text() != text]
        sys.stdout.write(f"out of date: {', '.join(stale)}: run python -m dashboards.rules\n" if stale else "up to date\n")
        return 1 if stale else 0
    for name, text in wanted.items():
        (HERE / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
