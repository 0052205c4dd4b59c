"""What the status page shows, made from a snapshot: rows and cells with words and colours, nothing that a template has to work out.

Pure. Everything is bounded: a page of a fleet of ten thousand nodes is not larger than one of a few hundred.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from exporter.status.board import Snapshot
from exporter.status.document import BAD, STATES, status
from exporter.status.records import Brief
from exporter.status.trails import Sample
from exporter.status.words import ago, ahead, clock_time, grouped

ROWS = 200
"""Rows of a table at most; the worst come first."""
SQUARES = 2000
"""Nodes that get a square in the overview."""
MATRIX = 48
"""Nodes of a pair heat map: those with something bad first."""
EVIDENCE = 8
WIDTH, HEIGHT = 160.0, 28.0
"""A sparkline in its own units."""

Json = dict[str, Any]


def view(snapshot: Snapshot, now: float) -> Json:
    """Everything for the template."""
    document = status(snapshot, now)
    notable = [row for row in document["nodes"] if row["state"] != "good" or (row["last"] and row["last"]["outcome"] != "ok")]
    notable.sort(key=lambda row: STATES.index(row["state"]))
    gates = sorted(grouped(document["gates"]).items(), key=lambda item: -len(item[1]))
    return {
        "health": document["health"], "version": document["version"], "at": clock_time(document["at"]) if document["at"] else "not yet",
        "counts": document["counts"], "states": [(state, document["counts"]["states"][state]) for state in STATES
                                                 if state in document["counts"]["states"]],
        "notes": list(_notes(document)),
        "findings": [_finding(one, now) for one in document["findings"][:ROWS]],
        "suspects": [_suspect(one, now) for one in document["suspects"][:ROWS]],
        "squares": _squares(document["nodes"]), "nodes": [_node(row, now) for row in notable[:ROWS]],
        "nodes_more": max(0, len(notable) - ROWS),
        "matrices": list(_matrices(snapshot, document)),
        "canaries": [_canary(row, snapshot, now) for row in document["canaries"][:ROWS]],
        "gates": [{"gate": gate, "why": why, "nodes": ", ".join(nodes[:3]), "more": max(0, len(nodes) - 3)}
                  for (gate, why), nodes in gates[:ROWS]],
        "next": [{"what": job["id"], "when": ahead(job["next"] - now)} for job in document["next"][:12]],
        "rounds": [_round(one, now) for one in document["rounds"][:40]],
        "running": [{"what": f"{one['probe']} {one['target']}", "why": one["why"]} for one in document["running"][:20]],
        "recent": [_recent(one, now) for one in document["recent"]],
        "width": WIDTH, "height": HEIGHT,
    }


def _notes(document: Json) -> Iterator[str]:
    if document["stale"]:
        yield f"The control loop last told of itself {ago(document['now'] - document['at'])} ago: this is not what is now."
    if document["leading"] is False:
        yield f"This replica does not lead, {document['leader'] or 'nobody'} does: ask that one for nodes."
    if document["paused"] is not None:
        yield f"Paused: {document['paused']}"
    yield from (f"Quiet window of {probe}: {why}" for probe, why in sorted(document["quiet"].items()))
    yield from document["troubles"]
    if not document["config"]["ok"]:
        first = str(document["config"]["error"] or "no reason told").splitlines()[0]
        yield f"The last configuration was refused and the one before is in use: {first}"
    if document["counts"]["nodes"] == 0 and not document["canaries"]:
        yield "Nothing is measured yet, and nothing is planned that is known here."


def _finding(one: Json, now: float) -> Json:
    return {"what": f"{one['kind']} {' '.join(one['subjects'])}", "subjects": one["subjects"], "probe": one["probe"],
            "since": ago(now - one["since"]), "score": f"{one['score']:.3f}", "reason": one["reason"], "says": one["says"],
            "partners": one["partners"][:EVIDENCE], "runs": one["runs"], "explained_by": one["explained_by"]}


def _suspect(one: Json, now: float) -> Json:
    failures = [f"{failed['reason']} with {failed['partner']} ({failed['partner_state']}), {ago(now - failed['at'])} ago"
                for failed in one["failures"][:EVIDENCE]]
    return {"node": one["node"], "probe": one["probe"], "since": ago(now - one["since"]), "score": f"{one['score']:.3f}",
            "good": f"{len(one['agree'])} of {one['needed']}", "failures": failures,
            "why": one["explained_by"] or "; ".join(one["holds_back"]) or "waits for another partner"}


def _squares(rows: list[Json]) -> Json:
    """One square a node in the colour of its worst state."""
    worst: dict[str, tuple[int, str]] = {}
    for row in rows:
        place = STATES.index(row["state"])
        if row["node"] not in worst or place < worst[row["node"]][0]:
            worst[row["node"]] = (place, row["probe"])
    shown = [{"node": node, "state": STATES[place], "colour": colour(STATES[place]), "probe": probe}
             for node, (place, probe) in sorted(worst.items())]
    return {"shown": shown[:SQUARES], "more": max(0, len(shown) - SQUARES)}


def _node(row: Json, now: float) -> Json:
    return {"node": row["node"], "probe": row["probe"], "state": row["state"], "colour": colour(row["state"]),
            "transport": row["transport"] or "-", "since": ago(now - row["since"]) if row["since"] else "-",
            "measured": f"{ago(row['age'])} ago" if row["age"] is not None else "never", "said": _said(row)}


def _canary(row: Json, snapshot: Snapshot, now: float) -> Json:
    samples = snapshot.seen.canaries.get((row["target"], row["prompt"]), ())
    last = next((one.ttft for one in reversed(samples) if one.ttft is not None), None)
    return {"target": row["target"], "prompt": row["prompt"], "state": row["state"], "colour": colour(row["state"]),
            "since": ago(now - row["since"]) if row["since"] else "-", "said": _said(row),
            "measured": f"{ago(row['age'])} ago" if row["age"] is not None else "never",
            "ttft": f"{last * 1e3:.0f} ms" if last is not None else "-", "spark": sparkline(samples)}


def sparkline(samples: Iterable[Sample]) -> Json | None:
    """TTFT of the samples as a line from the oldest to the newest, with a mark where a request was not ok. None without samples.

    The line breaks where a request gave no figure. `top` is the largest TTFT, seconds.
    """
    kept = list(samples)
    if not kept:
        return None
    top = max((one.ttft for one in kept if one.ttft is not None), default=0.0)
    step = WIDTH / max(len(kept) - 1, 1)
    lines: list[list[str]] = [[]]
    marks: list[Json] = []
    for index, one in enumerate(kept):
        x = index * step
        if one.ttft is None:
            lines.append([])
        else:
            y = HEIGHT - 2 - (HEIGHT - 4) * (one.ttft / top if top else 0.0)
            lines[-1].append(f"{x:.1f},{y:.1f}")
        if one.outcome != "ok":
            marks.append({"x": f"{x:.1f}", "colour": "bad" if one.outcome in ("failed", "degraded") else "unknown", "reason": one.reason})
    return {"lines": [" ".join(line) for line in lines if line], "marks": marks, "top": f"{top * 1e3:.0f} ms", "count": len(kept)}


def _matrices(snapshot: Snapshot, document: Json) -> Iterator[Json]:
    """A heat map of pairs for each probe that measures pairs."""
    by_probe: dict[str, dict[tuple[str, str], Brief]] = {}
    for (probe, one, other), brief in snapshot.seen.pairs.items():
        by_probe.setdefault(probe, {})[one, other] = brief
    blamed = {(row["probe"], row["node"]) for row in document["nodes"] if row["state"] in BAD or row["state"] == "suspect"}
    for probe, pairs in sorted(by_probe.items()):
        nodes = sorted({node for pair in pairs for node in pair})
        failing = {node for pair, brief in pairs.items() if brief.bad for node in pair}
        first = sorted(nodes, key=lambda node: ((probe, node) not in blamed, node not in failing, node))
        shown = sorted(first[:MATRIX])
        place = {node: index for index, node in enumerate(shown)}
        cells = [{"x": place[b], "y": place[a], "bad": brief.bad, "title": f"{one} and {other}: {brief.reason}"}
                 for (one, other), brief in pairs.items() if one in place and other in place
                 for a, b in ((one, other), (other, one))]
        yield {"probe": probe, "nodes": shown, "more": len(nodes) - len(shown), "cells": cells, "measured": len(pairs),
               "bad": sum(brief.bad for brief in pairs.values()), "side": len(shown)}


def _round(one: Json, now: float) -> Json:
    stand = f"round {one['number']} ({one['kind']}), {one['launched']} of {one['total']} runs started" if one["started"] else "not begun"
    return {"what": f"{one['probe']} {one['group'] or ''}".strip(), "when": ahead(one["next"] - now) if one["next"] is not None else "-",
            "stand": stand}


def _recent(one: Json, now: float) -> Json:
    state = {"ok": "good", "unknown": "unknown"}.get(one["outcome"], "bad")
    return {"probe": one["probe"], "target": one["target"], "outcome": one["outcome"], "reason": one["reason"], "colour": colour(state),
            "ago": ago(now - one["finished"]), "message": one["message"], "run_id": one["run_id"]}


def _said(row: Json) -> str:
    last, shown = row["last"], row["conclusive"]
    if last is None:
        return "none yet"
    told = str(last["reason"]) + (f": {last['message']}" if last["outcome"] != "ok" and last["message"] else "")
    return told + (f" (before that {shown['reason']})" if shown is not None and shown["run_id"] != last["run_id"] else "")


def colour(state: str) -> str:
    """The class of a state: how it is coloured."""
    return ("bad" if state in BAD and state != "explained" else
            {"explained": "explained", "suspect": "suspect", "unknown": "unknown", "held": "held"}.get(state, "good"))
