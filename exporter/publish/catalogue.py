"""The catalogue page `exporter/publish/catalogue.md`, made from the declarations.

`python -m exporter.publish.catalogue` writes it again; a test fails when the page in the repository differs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from exporter.publish import families as f
from exporter.publish.family import FORBIDDEN_LABELS, Cardinality, Family, Kind
from exporter.publish.render import number

PATH = Path(__file__).with_name("catalogue.md")

_GROWTH = {
    Cardinality.FIXED: "bounded by the configuration",
    Cardinality.PER_NODE: "grows with nodes",
    Cardinality.PER_PAIR: "grows with pairs, capped",
    Cardinality.PER_TARGET: "grows with canary targets",
}


def catalogue() -> str:
    """The page as Markdown."""
    dropped = sorted((family for family in f.FAMILIES if family.drop), key=lambda family: family.drop)
    conventions = (
        "Names end with their base unit. In OpenMetrics a counter's family has no `_total` and an info no `_info`; samples are the same in "
        "both formats, and exemplars (label `run_id`) come in OpenMetrics only. A state set shows the present state as 1 and the one "
        f"before as 0, no other. No family has one of the labels {', '.join(f'`{label}`' for label in sorted(FORBIDDEN_LABELS))}."
    )
    cap = (
        "Above `metrics.max_series` whole families are left out in this order until the rest fits, and come back below 95 % of it. "
        f"`{f.SERIES_DROPPED.name}` counts their series, each once when it goes; `{f.SERIES.name}` shows how many are out now. "
        "All other families are always shown."
    )
    parts = [
        "# Metrics of efa-pulse",
        "Made from `exporter/publish/families.py` by `python -m exporter.publish.catalogue`. Do not edit.",
        conventions,
        "The page also has `process_*` and `python_*` of the exporter's own process, from prometheus_client.",
        "## Families",
        *(_family(family) for family in f.FAMILIES),
        "## Labels",
        _table(("label", "meaning"), [(f"`{name}`", text) for name, text in sorted(f.LABELS.items())]),
        "## What goes first",
        cap,
        "\n".join(f"{i}. `{family.name}`" for i, family in enumerate(dropped, 1)),
    ]
    return "\n\n".join(parts) + "\n"


def _family(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels) or "none"
    rows = [
        ("type", family.kind.value + (" (gauge in the text)" if family.kind in {Kind.STATE_SET, Kind.INFO} else "")),
        ("unit", (family.unit or "none").replace("_", " ")),
        ("labels", labels),
        ("speaks about", family.attribution.value),
        ("series", f"{family.cardinality.value}: {_GROWTH[family.cardinality]}"),
    ]
    if family.buckets:
        rows.append(("buckets", ", ".join(number(bound) for bound in family.buckets)))
    return f"### `{family.name}`\n\n{family.help}\n\n" + "\n".join(f"- {name}: {value}" for name, value in rows)


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    lines = [head, ("---", "---"), *rows]
    return "\n".join(f"| {left} | {right} |" for left, right in lines)


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` say whether it is up to date."""
    if arguments == ["--check"]:
        fresh = PATH.read_text() == catalogue() if PATH.exists() else False
        sys.stdout.write(f"{PATH.name} is {'up to date' if fresh else 'out of date: run python -m exporter.publish.catalogue'}\n")
        return 0 if fresh else 1
    PATH.write_text(catalogue())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
