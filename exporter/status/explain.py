"""Why a verdict is what it is: for a run, a node, a pair or a canary target. Pure, over a snapshot of the board.

Schema `efa-pulse/explain/v1`: one section for each probe, with the run whose verdict holds, its three proofs, every witness with its
numbers, thresholds with their source, partners and rounds, what localisation thinks, and what would change it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

from exporter.layers import LAYERS
from exporter.status import changes
from exporter.status.board import Snapshot
from exporter.status.document import BAD, STALE_SECONDS, state_of
from exporter.status.records import Brief, Entry, unpack

SCHEMA = "efa-pulse/explain/v1"
PARTNERS = 8
HISTORY = 8
NEAR = 5
PAIR = "--"

Json = dict[str, Any]


class UnknownSubject(Exception):  # noqa: N818 - a question about something that is not there
    """Nothing is known under this name. `near` has known names that look like it."""

    def __init__(self, what: str, near: list[str]) -> None:
        super().__init__(f"nothing is known of {what!r}" + (f"; there is {', '.join(near)}" if near else ""))
        self.what, self.near = what, near


def explain(snapshot: Snapshot, what: str, now: float) -> Json:
    """The explanation of a run id, a node, a pair `a--b`, a canary target, or a job as `status` names it. Raises UnknownSubject."""
    what = next((str(job["target"]) for job in snapshot.looked.jobs if job["id"] == what), what)
    nodes = _nodes(snapshot)
    one, sep, other = what.partition(PAIR)
    if what in nodes:
        sections = list(_of_node(snapshot, what, now))
        return _document(snapshot, what, "node", (what,), sections, _node_outcome(sections), now)
    brief = _run(snapshot, what)
    if brief is not None:
        section = _section(snapshot, brief, None, now, brief.nodes if brief.probe != "canary" else ())
        return _document(snapshot, what, "run", brief.nodes, [section], _outcome(brief), now)
    targets = [key for key in snapshot.canaries if key[0] == what]
    if targets:
        sections = [_section(snapshot, snapshot.canaries[key].shown, snapshot.canaries[key], now, ()) for key in sorted(targets)]
        return _document(snapshot, what, "target", (), sections, _worst(_outcome(snapshot.canaries[key].shown) for key in targets), now)
    if sep and one in nodes and other in nodes:
        found = list(_of_pair(snapshot, (one, other)))
        if not found:
            raise UnknownSubject(what, _pairs_of(snapshot, {one, other}))
        sections = [_section(snapshot, brief, None, now, (one, other), pair=True) for brief in found]
        return _document(snapshot, what, "pair", (one, other), sections, _worst(_outcome(brief) for brief in found), now)
    raise UnknownSubject(what, _near(snapshot, what, nodes))


def _document(snapshot: Snapshot, what: str, kind: str, nodes: tuple[str, ...], sections: list[Json], outcome: str, now: float) -> Json:
    return {"schema": SCHEMA, "what": what, "kind": kind, "at": snapshot.at, "now": now, "stale": now - snapshot.at > STALE_SECONDS,
            "outcome": outcome, "nodes": [_node(snapshot, node) for node in dict.fromkeys(nodes)], "sections": sections,
            "paused": snapshot.looked.paused}


def _section(snapshot: Snapshot, brief: Brief, entry: Entry | None, now: float, nodes: tuple[str, ...], *, pair: bool = False) -> Json:
    """One run laid out, with how its `nodes` stand. `entry` is that of the node or canary it is shown for."""
    packed = snapshot.details.get(brief.run_id)
    detail = unpack(packed) if packed is not None else None
    path = snapshot.cases.of_pair(brief.nodes, brief.probe) if len(set(brief.nodes)) == 2 else None
    standing = [_standing(snapshot, node, brief.probe) for node in dict.fromkeys(nodes)]
    told: list[str] = [*changes.of_run(brief, detail), *(changes.of_entry(entry) if entry is not None else ())]
    seen: list[str] = []
    for node in dict.fromkeys(nodes):
        case = snapshot.cases.of_node(node, brief.probe)
        groups = [found for found in snapshot.cases.findings_of(node, brief.probe)
                  if found["kind"] == "group" and found["says"] not in seen]
        seen += [found["says"] for found in groups]
        told += changes.of_case(case, None, groups)
    told += changes.of_case(None, path, [])
    for one in standing:
        others = [f"{node} is {state_of(snapshot, node, brief.probe)}" for node in dict.fromkeys(brief.nodes) if node != one["node"]]
        below = snapshot.cases.explaining(one["node"], brief.probe) if one["state"] == "explained" else None
        if below is not None:
            told.append(f"First of all the finding of {below['probe']} on {one['node']} ({below['says']}): it explains what is seen here, "
                        "and until it is over nothing is concluded here.")
        elif one["state"] == "cleared" and brief.bad and others:
            told.append(f"Nothing about {one['node']}: it is not blamed for this run ({', '.join(others)}).")
    if detail is None:
        told.append("The details of this run are no longer kept (the board's memory is bounded): its next run shows them.")
    return {"probe": brief.probe, "run": brief.to_json(), "age": now - brief.finished, "held": _held(entry) if entry is not None else None,
            "detail_kept": detail is not None, **(detail or {}), "standing": standing, "path": path,
            "partners": list(_partners(snapshot, nodes, brief, pair=pair)), "history": _history(snapshot, nodes, brief.probe),
            "place": _place(snapshot, nodes, brief), "would_change": list(dict.fromkeys(told))}


def _of_node(snapshot: Snapshot, node: str, now: float) -> Iterator[Json]:
    looked = snapshot.looked
    probes = {probe for name, probe in snapshot.entries if name == node}
    planned = {job["probe"] for job in looked.jobs if node in job["nodes"] and job["probe"] != "canary"}
    if looked.inventory is not None and looked.inventory.named(node) is not None:
        planned |= set(looked.planned)
    for probe in sorted(probes | planned, key=lambda name: (LAYERS.get(name, len(LAYERS)), name)):
        entry = snapshot.entries.get((node, probe))
        if entry is not None:
            yield _section(snapshot, entry.shown, entry, now, (node,))
            continue
        place = _place(snapshot, (node,), None, probe)
        told = ["Its first run: there has been none yet."]
        told += [f"That gate {gate['gate']} opens: {gate['why']}." for gate in place["gates"]]
        yield {"probe": probe, "run": None, "age": None, "held": None, "detail_kept": False, "standing": [_standing(snapshot, node, probe)],
               "path": None, "partners": [], "history": _history(snapshot, (node,), probe), "place": place, "would_change": told}


def _of_pair(snapshot: Snapshot, nodes: tuple[str, str]) -> list[Brief]:
    """The newest run of the pair for each probe, in either order."""
    newest: dict[str, Brief] = {}
    for brief in _briefs(snapshot):
        if set(brief.nodes) == set(nodes) and len(brief.nodes) >= 2 and brief.probe != "canary":
            known = newest.get(brief.probe)
            if known is None or (brief.conclusive, brief.finished) > (known.conclusive, known.finished):
                newest[brief.probe] = brief
    return sorted(newest.values(), key=lambda brief: (LAYERS.get(brief.probe, len(LAYERS)), brief.probe))


def _standing(snapshot: Snapshot, node: str, probe: str) -> Json:
    """How a node stands for a probe, with every hypothesis that explains what is seen of it and its score (a probability)."""
    case = snapshot.cases.of_node(node, probe)
    found = snapshot.cases.findings_of(node, probe)
    hypotheses: list[Json] = []
    if case is not None:
        device = case["device"]
        hypotheses.append({"kind": "node", "subject": node, "score": case["score"],
                           "says": f"partners that failed with it: {len(case['failures'])}, of them known good: {len(case['agree'])}"})
        if device is not None:
            hypotheses.append({"kind": "nic", "subject": f"{node} {device}", "score": case["score"],
                               "says": "this one device carried too little in its failures with every good partner"})
        hypotheses += [{"kind": "partner", "subject": failure["partner"], "score": failure["partner_score"],
                        "says": f"{failure['partner']} would be the bad one; it is {failure['partner_state']} now"}
                       for failure in case["failures"]]
    hypotheses += [{"kind": "path", "subject": PAIR.join(path["nodes"]), "score": path["score"],
                    "says": f"failed {path['failed']}, passed {path['passed']} times since, and both pass with others"}
                   for path in snapshot.cases.pairs if path["probe"] == probe and node in path["nodes"]]
    hypotheses += [{"kind": "group", "subject": " ".join(one["subjects"]), "score": one["score"], "says": one["says"]}
                   for one in found if one["kind"] == "group"]
    return {"node": node, "state": state_of(snapshot, node, probe), "suspicion": case["score"] if case is not None else 0.0, "case": case,
            "findings": found, "hypotheses": sorted(hypotheses, key=lambda one: -float(one["score"]))}


def _partners(snapshot: Snapshot, nodes: tuple[str, ...], brief: Brief, *, pair: bool) -> Iterator[Json]:
    """The last runs of the nodes with others, the newest first: which agreed, which cleared, in which round."""
    found: dict[str, Brief] = {}
    for one in _briefs(snapshot):
        if one.probe == brief.probe and len(one.nodes) > 1 and set(one.nodes) & set(nodes):
            found[one.run_id] = one
    if pair:
        found = {key: one for key, one in found.items() if set(one.nodes) == set(nodes)} | {
            key: one for key, one in found.items() if set(one.nodes) != set(nodes)}
    for one in sorted(found.values(), key=lambda run: -run.finished)[:PARTNERS]:
        others = [node for node in dict.fromkeys(one.nodes) if node not in nodes] or list(dict.fromkeys(one.nodes))
        yield {"run_id": one.run_id, "nodes": list(one.nodes), "partners": [
            {"node": node, "state": state_of(snapshot, node, one.probe)} for node in others],
            "outcome": one.outcome, "reason": one.reason, "finished": one.finished, "round": one.label("round"), "why": one.label("why"),
            "stratum": one.label("stratum")}


def _history(snapshot: Snapshot, nodes: tuple[str, ...], probe: str) -> list[Json]:
    """What localisation concluded of the nodes, and of the partners they failed with, the newest first."""
    of = set(nodes)
    for node in nodes:
        case = snapshot.cases.of_node(node, probe)
        of |= {failure["partner"] for failure in case["failures"]} if case is not None else set()
        of |= {one for found in snapshot.cases.findings_of(node, probe) if found["kind"] in ("node", "nic") for one in found["partners"]}
    return [change for change in snapshot.changes if change["probe"] == probe and (
        change["node"] in of or (change["finding"] is not None and of & set(change["finding"]["members"])))][:HISTORY]


def _place(snapshot: Snapshot, nodes: tuple[str, ...], brief: Brief | None, probe: str = "") -> Json:
    """When and where the next run is: the jobs, the rounds, the closed gates."""
    looked = snapshot.looked
    probe = brief.probe if brief is not None else probe
    jobs = [job for job in looked.jobs if job["probe"] == probe and (
        set(job["nodes"]) & set(nodes) or (brief is not None and probe == "canary" and job["target"] == brief.target
                                           and (job.get("prompt") or None) == brief.label("prompt")))]
    due = sorted((job for job in jobs if job["next"] is not None), key=lambda job: float(job["next"]))
    gates = [{"node": node, **gate} for node in dict.fromkeys(nodes) for gate in looked.gates.get(node, {}).get(probe, ())]
    alone = {node: why for node in nodes if (why := looked.alone.get(probe, {}).get(node)) is not None}
    return {"next": {"at": due[0]["next"], "job": due[0]["id"]} if due else None, "gates": gates, "alone": alone,
            "rounds": [one for one in looked.rounds if one["probe"] == probe], "quiet": looked.quiet.get(probe)}


def _held(entry: Entry) -> Json:
    """Which verdict is shown and which runs it stands against."""
    before = entry.conclusive[1] if len(entry.conclusive) > 1 else None
    return {"since": entry.since, "unknowns": entry.unknowns, "last": entry.last.to_json() if entry.last is not entry.shown else None,
            "before": before.to_json() if before is not None else None}


def _node(snapshot: Snapshot, name: str) -> Json:
    node = snapshot.looked.inventory.named(name) if snapshot.looked.inventory is not None else None
    if node is None:
        return {"node": name}
    return {"node": name, "instance_id": node.instance_id, "instance_type": node.instance_type, "zone": node.zone, "leaf": node.leaf}


def _node_outcome(sections: list[Json]) -> str:
    """`bad`, `unknown` or `ok` by how the node stands for each probe. Nothing measured at all is unknown."""
    states = {standing["state"] for section in sections for standing in section["standing"]}
    if states & BAD:
        return "bad"
    return "ok" if states and states <= {"good", "cleared"} else "unknown"


def _outcome(brief: Brief) -> str:
    return "bad" if brief.bad else "ok" if brief.conclusive else "unknown"


def _worst(outcomes: Iterable[str]) -> str:
    seen = set(outcomes)
    return next((outcome for outcome in ("bad", "unknown") if outcome in seen), "ok")


def _nodes(snapshot: Snapshot) -> set[str]:
    looked = snapshot.looked
    names = {node for node, _ in snapshot.entries} | {node for job in looked.jobs if job["probe"] != "canary" for node in job["nodes"]}
    return names | ({node.name for node in looked.inventory} if looked.inventory is not None else set())


def _briefs(snapshot: Snapshot) -> Iterator[Brief]:
    """Every run that is known."""
    yield from snapshot.recent
    for entry in (*snapshot.entries.values(), *snapshot.canaries.values()):
        yield entry.last
        yield from entry.conclusive


def _run(snapshot: Snapshot, run_id: str) -> Brief | None:
    return next((brief for brief in _briefs(snapshot) if brief.run_id == run_id), None)


def _pairs_of(snapshot: Snapshot, nodes: set[str]) -> list[str]:
    found = (brief.target for brief in _briefs(snapshot) if set(brief.nodes) & nodes and len(set(brief.nodes)) == 2)
    return list(dict.fromkeys(found))[:NEAR]


def _near(snapshot: Snapshot, what: str, nodes: set[str]) -> list[str]:
    briefs = list(_briefs(snapshot))
    known = dict.fromkeys([*sorted(nodes), *(key[0] for key in snapshot.canaries), *(brief.target for brief in briefs),
                           *(brief.run_id for brief in briefs)])
    close = difflib.get_close_matches(what, known, n=NEAR, cutoff=0.5) if len(known) < 20_000 else []
    inside = [name for name in known if what and (what in name or name in what)]
    return list(dict.fromkeys([*close, *inside]))[:NEAR] or list(known)[:NEAR]
