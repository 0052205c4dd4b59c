"""`efa-pulse explain`: why a verdict is what it is, laid out for a person."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from exporter.cli import render
from exporter.cli.exits import Exit
from exporter.cli.remote import (
    CaOption,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    PasswordOption,
    Remote,
    ServiceOption,
    TokenOption,
    UrlOption,
    UserOption,
)
from exporter.cli.status import CODES, STATES, ago, ahead, clock_time
from exporter.judge.witnesses import size
from exporter.status.explain import SCHEMA
from probes.reasons import Outcome

WITNESSES = {"counters": "EFA counters", "tcp": "TCP sockets", "markers": "log", "engine": "engine"}
MARKERS = 6
Json = dict[str, Any]


def explain(
    what: Annotated[str, typer.Argument(help="A run id, a node, a pair a--b, or a canary target.")],
    url: UrlOption = None,
    token_file: TokenOption = None,
    user: UserOption = None,
    password_file: PasswordOption = None,
    ca_file: CaOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    service: ServiceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the document as JSON.")] = False,
) -> int:
    """Lay out why a verdict is what it is: proofs, witnesses with their numbers, thresholds, partners, and what would change it."""
    remote = Remote(url, token_file, user, password_file, ca_file, kubeconfig, context, namespace, service)
    document = remote.get("/api/explain", {"what": what}, SCHEMA)
    if as_json:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        show(document, render.console())
    return CODES.get(str(document["outcome"]), Exit.UNKNOWN)


def show(document: Json, out: Console) -> None:
    """Print an explanation for people."""
    text = Text()
    text.append(f"{document['kind']} {document['what']}", "bold")
    text.append(f": {document['outcome']}", {"ok": "bold green", "bad": "bold red"}.get(document["outcome"], "bold magenta"))
    out.print(text)
    for node in document["nodes"]:
        facts = [f"{name.replace('_', ' ')} {node[name]}" for name in ("instance_id", "instance_type", "zone", "leaf") if node.get(name)]
        if facts:
            out.print(f"  {node['node']}: {', '.join(facts)}", style="dim", markup=False)
    if document["stale"]:
        out.print(f"  the control loop last told of itself {ago(document['now'] - document['at'])} ago", style="bold magenta")
    if document["paused"]:
        out.print(f"  paused: {document['paused']}", markup=False)
    for section in document["sections"]:
        out.print()
        _section(out, section, float(document["now"]))


def _section(out: Console, section: Json, now: float) -> None:
    out.print(_title(section, now))
    for line in _run(section, now):
        _line(out, line)
    for name, table in (("proofs", _proofs(section)), ("witnesses", _witnesses(section)), ("thresholds", _thresholds(section)),
                        ("ranks", _ranks(section)), ("partners", _partners(section, now)), ("hypotheses", _hypotheses(section))):
        if table.row_count:
            out.print(Padding(_label(name), (0, 0, 0, 2)))
            out.print(Padding(table, (0, 0, 0, 4)))
    for title, lines in (("localisation", list(_localisation(section, now))), ("concluded", list(_history(section, now))),
                         ("next", list(_place(section, now))), ("what would change it", section["would_change"])):
        if lines:
            out.print(Padding(_label(title), (0, 0, 0, 2)))
            for line in lines:
                _line(out, line, 4, bullet=True)


def _label(text: str) -> Text:
    return Text(text, "bold dim")


def _line(out: Console, text: str, indent: int = 2, *, bullet: bool = False) -> None:
    grid = Table.grid(padding=(0, 1, 0, 0))
    if bullet:
        grid.add_row("-", Text(text))
    else:
        grid.add_row(Text(text))
    out.print(Padding(grid, (0, 0, 0, indent)))


def _title(section: Json, now: float) -> Text:
    text = Text()
    states = {one["state"] for one in section["standing"]}
    text.append(section["probe"], "bold")
    if len(section["standing"]) == 1:
        state = states.pop()
        text.append(f"  {state}", STATES.get(state, ""))
    run = section["run"]
    if run is None:
        text.append("  never measured", "bold magenta")
        return text
    text.append(f"  {run['outcome']}", render.STYLES[Outcome(run["outcome"])])
    text.append(f"  {run['target']}" + (f", transport {run['transport']}" if run["transport"] else ""))
    held = section["held"]
    since = f", so since {ago(now - held['since'])}" if held is not None else ""
    text.append(f"  measured {ago(section['age'])} ago{since}", "dim")
    return text


def _run(section: Json, now: float) -> Iterator[str]:
    run = section["run"]
    if run is None:
        return
    if run["outcome"] != Outcome.OK.value or run["message"]:
        yield f"{run['reason']}: {run['message']}" if run["message"] else str(run["reason"])
    if run["run_id"]:
        labels = run["labels"]
        origin = [f"{name} {labels[name]}" for name in ("job", "round", "why", "stratum", "prompt") if name in labels]
        took = f"{run['finished'] - run['started']:.1f} s"
        yield f"run {run['run_id']}, ended {clock_time(run['finished'])} after {took}, transport {run['mode']} asked for" + (
            f" ({', '.join(origin)})" if origin else "")
    held = section["held"]
    if held is not None and held["last"] is not None:
        last = held["last"]
        yield (f"the last run could not measure: {last['run_id']}, {ago(now - last['finished'])} ago, {last['reason']}"
               f"{': ' + last['message'] if last['message'] else ''}")
    if held is not None and held["before"] is not None:
        before = held["before"]
        yield f"before that: {before['outcome']} ({before['reason']}) with {before['target']}, {ago(now - before['finished'])} ago"


def _proofs(section: Json) -> Table:
    table = _table()
    for proof in section.get("proofs", []):
        mark, style = render.MARKS[proof["holds"]]
        says = str(proof["says"])
        if proof["name"] == "transport" and section["witnesses"]:
            says = ": ".join(says.split(": ")[:2])  # the figures of the witnesses follow it, and stand below with all others
        table.add_row(f"right {proof['name']}", Text(mark, style), Text(says))
    return table


def _witnesses(section: Json) -> Table:
    table = _table()
    shown = 0
    rows = section.get("witnesses", [])
    for one in rows:
        if one["witness"] == "markers":
            shown += 1
            if shown > MARKERS:
                continue
        table.add_row(WITNESSES.get(one["witness"], one["witness"]), one["where"], Text(one["says"], "bold"), Text(_figures(one)))
    if shown > MARKERS:
        table.add_row("log", "", "", f"and {shown - MARKERS} more lines")
    return table


def _figures(one: Json) -> str:
    """The statement with the numbers that its sentence leaves out."""
    extra = [f"{name.replace('_', ' ')} {size(value)}" for name, value in one["numbers"].items()
             if value is not None and name.startswith("wire")]
    return f"{one['text']} ({', '.join(extra)})" if extra else str(one["text"])


def _thresholds(section: Json) -> Table:
    table = _table()
    for one in section.get("thresholds", []):
        share = Text(f"{one['share']:.0%}", "bold red" if one["share"] < 1 else "green")
        table.add_row(one["node"], share, Text(one["says"]))
    more = section.get("compared", 0) - len(section.get("thresholds", []))
    if more > 0:
        table.add_row("", "", f"and {more} more figures, all further from their floors")
    return table


def _ranks(section: Json) -> Table:
    table = _table()
    for rank in section.get("ranks", []):
        told = f"{rank['reason']}{': ' + rank['message'] if rank['message'] else ''}"
        facts = [f"{rank[name]} {what}" for name, what in (("nics_seen", "NICs seen"), ("nics_allocated", "allocated")) if name in rank]
        facts += [f"{name} {rank[name]}" for name in ("stack", "provider") if name in rank]
        if "window" in rank:
            facts.append(f"window {rank['window']:.2f} s")
        if "stream" in rank:
            stream = rank["stream"]
            facts += [f"{name} {render.duration(stream[key])}" for name, key in (("TTFT", "ttft"), ("TPOT", "tpot"), ("max gap", "max_gap"))
                      if stream[key] is not None]
        table.add_row(f"rank {rank['rank']} on {rank['node']}", Text(told), Text(", ".join(facts), "dim"))
        for check in rank.get("checks", []):
            table.add_row("", Text(f"{check['check']}: seen {check['seen']}, expected {check['expected']}", "red"),
                          Text(check["remedy"] or "", "dim"))
    return table


def _partners(section: Json, now: float) -> Table:
    table = _table()
    for one in section["partners"]:
        partners = ", ".join(f"{partner['node']} ({partner['state']} now)" for partner in one["partners"])
        origin = [f"{name} {one[name]}" for name in ("round", "why", "stratum") if one[name]]
        outcome = Text(one["outcome"], render.STYLES[Outcome(one["outcome"])])
        table.add_row(f"{ago(now - one['finished'])} ago", partners, outcome, one["reason"] if one["outcome"] != Outcome.OK.value else "",
                      Text(", ".join(origin), "dim"), Text(one["run_id"], "dim"))
    return table


def _hypotheses(section: Json) -> Table:
    table = _table()
    for standing in section["standing"]:
        for one in standing["hypotheses"]:
            table.add_row(f"{one['kind']} {one['subject']}", f"{one['score']:.4f}", Text(one["says"]))
    return table


def _localisation(section: Json, now: float) -> Iterator[str]:
    for standing in section["standing"]:
        case = standing["case"]
        if len(section["standing"]) > 1 or case is not None:
            yield f"{standing['node']} is {standing['state']}, probability that it is bad {standing['suspicion']:.3f}"
        for found in standing["findings"]:
            partners = f", agreed by {', '.join(found['partners'][:8])}" if found["partners"] and found["kind"] != "group" else ""
            runs = f"{found['runs']} re-pairing{'' if found['runs'] == 1 else 's'}"
            yield (f"found: {found['kind']} {' '.join(found['subjects'])}, {ago(now - found['found'])} ago after {runs}{partners}: "
                   f"{found['says']}")
        if case is None:
            continue
        for failure in case["failures"]:
            side = f"; {failure['side']}" if failure["side"] else ""
            weak = f"; weak there: {', '.join(failure['weak'])}" if failure["weak"] else ""
            yield (f"failed with {failure['partner']} ({failure['partner_state']} now) {ago(now - failure['at'])} ago in "
                   f"{failure['run_id']}: {failure['reason']}{side}{weak}")
        if case["passed_with"]:
            yield f"passed since with {', '.join(case['passed_with'])}"
        if case["history"]["of"]:
            yield f"{case['history']['failed']} of its last {case['history']['of']} conclusive runs failed"


def _history(section: Json, now: float) -> Iterator[str]:
    for one in section["history"]:
        who = one["node"] or (" ".join(one["finding"]["subjects"]) if one["finding"] else "")
        yield f"{ago(now - one['at'])} ago: {one['what']} {who}: {one['says']}"


def _place(section: Json, now: float) -> Iterator[str]:
    place = section["place"]
    if place["quiet"]:
        yield f"quiet now: {place['quiet']}"
    for gate in place["gates"]:
        lasting = ", and that does not pass by itself" if gate["lasting"] else ""
        yield f"gate {gate['gate']} of {gate['node']} is closed: {gate['why']}{lasting}"
    for node, why in place["alone"].items():
        yield f"{node} has no partner in this round: {why}"
    if place["next"] is not None:
        yield f"{place['next']['job']} {ahead(place['next']['at'] - now)}"
    for one in place["rounds"]:
        if one["started"] is not None:
            when = f", the next run {ahead(one['next'] - now)}" if one["next"] is not None else ""
            yield (f"round {one['number']} ({one['kind']}) of {one['group']}, begun {ago(now - one['started'])} ago: "
                   f"{one['launched']} of {one['total']} runs started{when}")


def _table() -> Table:
    return Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
