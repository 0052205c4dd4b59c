"""The status document: everything at a glance, for people and scripts. Schema `efa-pulse/status/v1`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from exporter.status.board import Snapshot
from exporter.status.records import Brief, Entry

SCHEMA = "efa-pulse/status/v1"
STALE_SECONDS = 60.0
"""A snapshot that is older than this comes from a control loop that does not turn."""
RECENT = 20
GATES = 2000
NOTABLE = 500
"""Nodes and probes that a notable document lists at most, the worst first."""
STATES = ("named", "group", "bad", "explained", "suspect", "unknown", "cleared", "held", "good")

BAD = frozenset({"bad", "named", "group", "explained"})

Json = dict[str, Any]


def status(snapshot: Snapshot, now: float, *, notable: bool = False) -> Json:
    """The document. With `notable` only nodes and canaries that are not simply good are listed; the counts are those of all."""
    looked = snapshot.looked
    rows = list(_rows(snapshot, now))
    canaries = [_canary(snapshot, key, now) for key in _canary_keys(snapshot)]
    states: dict[str, int] = {}
    for row in (*rows, *canaries):
        states[row["state"]] = states.get(row["state"], 0) + 1
    stale = now - snapshot.at > STALE_SECONDS
    gates = list(_gates(snapshot))
    shown = rows
    if notable:
        shown = sorted((row for row in rows if row["state"] != "good" or row["last"]["outcome"] != "ok"),
                       key=lambda row: STATES.index(row["state"]))
    more, shown = max(0, len(shown) - NOTABLE) if notable else 0, shown[:NOTABLE] if notable else shown
    return {
        "schema": SCHEMA, "at": snapshot.at, "now": now, "version": looked.version, "stale": stale,
        "health": _health(states, stale=stale, found=bool(snapshot.cases.findings)),
        "leading": looked.leading, "leader": looked.leader, "paused": looked.paused, "quiet": dict(looked.quiet),
        "troubles": list(looked.troubles), "config": {"ok": looked.config_ok, "error": looked.config_error, "at": looked.config_at},
        "counts": {"nodes": len({row["node"] for row in rows}), "states": states, "runs": snapshot.runs, "running": len(looked.running),
                   "closed_gates": len(gates)},
        "nodes": shown, "canaries": [row for row in canaries if not notable or row["state"] != "good"],
        "findings": list(snapshot.cases.findings), "suspects": [case for case in snapshot.cases.nodes if case["state"] == "suspect"],
        "paths": [case for case in snapshot.cases.pairs if case["finding"] is None],
        "gates": gates[:GATES], "running": list(looked.running), "waiting": list(looked.waiting),
        "next": sorted(({**job, "nodes": list(job["nodes"])} for job in looked.jobs if job["next"] is not None),
                       key=lambda job: (float(job["next"]), str(job["id"]))),
        "rounds": list(looked.rounds), "recent": [brief.to_json() for brief in snapshot.recent[:RECENT]],
        "changes": list(snapshot.changes[:RECENT]),
        "left_out": {"details": snapshot.details_dropped, "entries": snapshot.entries_dropped, "cases": snapshot.cases.left_out,
                     "gates": max(0, len(gates) - GATES), "nodes": more},
    }


def state_of(snapshot: Snapshot, node: str, probe: str) -> str:
    """How a node stands for a probe: `named`, `group`, `suspect`, `bad`, `explained` (its last run was bad, for what another probe found of
    it), `cleared` (its last run was bad, and it is not blamed), `good` or `unknown`.

    Localisation speaks first: a bad run of a pair is not yet a bad node. Without it (a static list of nodes) the runs speak for themselves.
    """
    found = snapshot.cases.findings_of(node, probe)
    kinds = {one["kind"] for one in found}
    if kinds & {"node", "nic"}:
        return "named"
    if "group" in kinds:
        return "group"
    if "pair" in kinds or snapshot.cases.of_node(node, probe) is not None:
        return "suspect"
    entry = snapshot.entries.get((node, probe))
    if entry is None or not entry.conclusive:
        return "unknown"
    if not entry.conclusive[0].bad:
        return "good"
    shown = entry.conclusive[0]
    if snapshot.cases.explaining(node, probe) is not None:
        return "explained"
    # Localisation judges pairs and, from the journal, what was before; runs of more than two nodes blame nobody there.
    return "cleared" if snapshot.looked.inventory is not None and (not shown.run_id or len(shown.nodes) == 2) else "bad"


def _rows(snapshot: Snapshot, now: float) -> Iterator[Json]:
    for node, probe in sorted(_keys(snapshot)):
        entry = snapshot.entries.get((node, probe))
        case = snapshot.cases.of_node(node, probe)
        lasting = [gate for gate in snapshot.looked.gates.get(node, {}).get(probe, ()) if gate["lasting"]]
        state = state_of(snapshot, node, probe)
        if state == "unknown" and lasting:
            state = "held"
        yield {"node": node, "probe": probe, "state": state, **_entry(entry, now), "suspicion": case["score"] if case is not None else 0.0}


def _keys(snapshot: Snapshot) -> set[tuple[str, str]]:
    """Every node and probe that has been or should be measured."""
    looked = snapshot.looked
    keys = set(snapshot.entries)
    keys |= {(node, job["probe"]) for job in looked.jobs if job["probe"] != "canary" for node in job["nodes"]}
    if looked.inventory is not None:
        keys |= {(node.name, probe) for node in looked.inventory for probe in looked.planned}
    return keys


def _canary_keys(snapshot: Snapshot) -> list[tuple[str, str]]:
    configured = {(job["target"], job.get("prompt") or "") for job in snapshot.looked.jobs if job["probe"] == "canary"}
    return sorted(configured | set(snapshot.canaries))


def _canary(snapshot: Snapshot, key: tuple[str, str], now: float) -> Json:
    entry = snapshot.canaries.get(key)
    state = "unknown" if entry is None or not entry.conclusive else "bad" if entry.conclusive[0].bad else "good"
    return {"target": key[0], "prompt": key[1], "state": state, **_entry(entry, now)}


def _entry(entry: Entry | None, now: float) -> Json:
    """What the entry says. `age` is that of the last conclusive run, seconds."""
    if entry is None:
        return {"last": None, "conclusive": None, "before": None, "since": None, "age": None, "unknowns": 0, "transport": None}
    shown = entry.conclusive[0] if entry.conclusive else None
    before = entry.conclusive[1] if len(entry.conclusive) > 1 else None
    return {"last": _short(entry.last), "conclusive": _short(shown), "before": _short(before),
            "since": entry.since, "age": now - shown.finished if shown is not None else None, "unknowns": entry.unknowns,
            "transport": (shown or entry.last).transport}


def _short(brief: Brief | None) -> Json | None:
    if brief is None:
        return None
    return {"run_id": brief.run_id, "target": brief.target, "outcome": brief.outcome, "reason": brief.reason, "message": brief.message,
            "finished": brief.finished, "transport": brief.transport}


def _gates(snapshot: Snapshot) -> Iterator[Json]:
    for node, by_probe in sorted(snapshot.looked.gates.items()):
        for probe, gates in sorted(by_probe.items()):
            for gate in gates:
                yield {"node": node, "probe": probe, **gate}


def _health(states: dict[str, int], *, stale: bool, found: bool) -> str:
    """`bad` when anything is, else `unknown` when anything is not known or nothing is there at all, else `ok`.

    A suspect is not known to be bad, and nobody may call it good.
    """
    if found or BAD & states.keys():
        return "bad"
    if stale or states.keys() & {"unknown", "suspect"} or not states.keys() & {"good", "cleared"}:
        return "unknown"
    return "ok"
