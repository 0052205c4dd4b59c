"""What each of the three witnesses of a run says, with its figures. `exporter.judge.transport` makes one verdict of it.

Thresholds and formulas: payload that leaves a node is `send_bytes + rdma_write_bytes + rdma_read_resp_bytes`, payload that arrives is
`recv_bytes + rdma_read_bytes + rdma_write_recv_bytes` (differences over the window, all EFA devices of the node), so a push shows in the
write counters and a pull in the read counters of the right side; `tx_bytes` and `rx_bytes` hold everything on the wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from probes.efa.counters import DATA_IN, DATA_OUT, RDMA_IN, RDMA_OUT
from probes.efa.window import CounterWindow, NoAnswer, WitnessAnswer
from probes.result import Result

MIN_PAYLOAD = 1 << 20
"""Bytes a run must move before shares of it mean anything."""
RISE = 0.8
"""Share of the payload that a counter must have risen by to have carried it."""
FLAT = 0.1
"""Share of the payload below which a witness says: it did not go here."""
BACKGROUND = 5.0
"""The payload must be so many times the background of an equal window before and after."""
EXCESS = 4.0
"""A rise beyond so many times the payload is somebody else's burst (warm-up and the second's grain of the witness explain less)."""
RAIL_SHARE = 0.1
"""A rail that carried less than this share of its fair part carried little."""
RAIL_BYTES = 16 << 20
"""Fair part of a rail below which shares of rails say nothing."""
GRAIN = 1e-3
"""Seconds by which times may differ for being written down in fewer digits."""
DECIDING = frozenset({"tcp", "efa", "other", "intra_node", "efa_no_rdma", "efa_partial"})

CounterSays = Literal["rdma", "send", "flat", "part", "background", "supports", "unknown", "idle"]
Answers = Mapping[str, WitnessAnswer | NoAnswer | None]
"""By node: what its witness answered for the run's window, why it did not, or None when there is no witness."""
TcpSays = Literal["payload", "some", "none", "unknown"]


@dataclass(frozen=True)
class Statement:
    """What one witness says of one node or rank, in words and figures (bytes)."""

    witness: Literal["counters", "tcp", "markers", "engine"]
    where: str
    says: str
    text: str
    numbers: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Load:
    """Payload of all ranks on one node: bytes sent and received, whether every rank told, and from when to when they moved it.

    `start` and `end` are Unix seconds of the node, those of the longest window; None where no rank had one.
    """

    node: str
    sent: int
    received: int
    complete: bool
    start: float | None = None
    end: float | None = None


def loads(results: Sequence[Result]) -> list[Load]:
    """The payload of each node, in order of node name. A rank that did not tell makes its node incomplete."""
    nodes: dict[str, list[Result]] = {}
    for result in results:
        nodes.setdefault(result.node, []).append(result)
    return [_load(node, ranks) for node, ranks in sorted(nodes.items())]


def _load(node: str, ranks: Sequence[Result]) -> Load:
    told = [rank.evidence.payload_bytes if rank.evidence else None for rank in ranks]
    windows = [rank.measure for rank in ranks if rank.measure is not None]
    return Load(node, sum(pair[0] for pair in told if pair), sum(pair[1] for pair in told if pair), None not in told,
                min((window.start for window in windows), default=None), max((window.end for window in windows), default=None))


def mismatch(nodes: Sequence[Load]) -> str | None:
    """Why the payloads that the nodes of a run tell do not fit together, or None. A node that tells none has not been witnessed."""
    idle = next((load.node for load in nodes if max(load.sent, load.received) < MIN_PAYLOAD), None)
    if idle is not None:
        return f"the ranks on {idle} tell no payload of their own"
    sent, received = sum(load.sent for load in nodes), sum(load.received for load in nodes)
    if min(sent, received) < RISE * max(sent, received):
        return f"the ranks tell that {size(sent)} were sent and {size(received)} received"
    return None


def tcp_statements(results: Sequence[Result]) -> tuple[TcpSays, list[Statement]]:
    """Witness 2: the ranks' own TCP bytes against their payload. One rank whose payload was TCP speaks for the run."""
    statements: list[Statement] = []
    for result in results:
        where = f"rank {result.rank} on {result.node}"
        evidence = result.evidence
        if evidence is None or evidence.payload_bytes is None or evidence.tcp_bytes is None:
            missing = "payload" if evidence is None or evidence.payload_bytes is None else "TCP bytes"
            statements.append(Statement("tcp", where, "unknown", f"its {missing} is not known"))
            continue
        (sent, received), (tcp_sent, tcp_received) = evidence.payload_bytes, evidence.tcp_bytes
        shares = [tcp / payload for tcp, payload in ((tcp_sent, sent), (tcp_received, received)) if payload >= MIN_PAYLOAD]
        numbers = {"payload_sent": sent, "payload_received": received, "tcp_sent": tcp_sent, "tcp_received": tcp_received}
        says = "idle" if not shares else "payload" if max(shares) >= RISE else "none" if max(shares) <= FLAT else "some"
        text = f"{size(tcp_sent)} sent and {size(tcp_received)} received by TCP for a payload of {size(sent)} and {size(received)}"
        statements.append(Statement("tcp", where, says, text, numbers))
    return _tcp_of_run({statement.says for statement in statements}), statements


def _tcp_of_run(said: set[str]) -> TcpSays:
    if "payload" in said:
        return "payload"
    if "some" in said:
        return "some"
    return "none" if said and "unknown" not in said and said != {"idle"} else "unknown"


def counter_statements(nodes: Iterable[Load], answers: Answers) -> tuple[CounterSays, list[Statement]]:
    """Witness 1: the EFA counters of every node against its payload. Nodes agree, or the weakest speaks; a flat one is conclusive."""
    statements = [_node_statement(load, answers.get(load.node)) for load in nodes]
    said = [statement.says for statement in statements if statement.says != "idle"]
    order: tuple[CounterSays, ...] = ("flat", "unknown", "background", "supports", "part", "send", "rdma")
    return next((says for says in order if says in said), "unknown"), statements


def _node_statement(load: Load, answer: WitnessAnswer | NoAnswer | None) -> Statement:
    if isinstance(answer, NoAnswer) or answer is None:
        return Statement("counters", load.node, "unknown", "no witness" if answer is None else answer.reason)
    if answer.node != load.node:
        return Statement("counters", load.node, "unknown", f"the witness that answered is of node {answer.node}")
    if not load.complete:
        return Statement("counters", load.node, "unknown", "the payload of a rank there is not known")
    window = answer.window
    if load.start is not None and load.end is not None and not window.start - GRAIN <= load.start <= load.end <= window.end + GRAIN:
        missed = max(window.start - load.start, 0.0) + max(load.end - window.end, 0.0)
        return Statement("counters", load.node, "unknown", f"the witness did not watch {missed:.3g} s of the measured time")
    if not window.devices:
        return Statement("counters", load.node, "unknown", "the witness sees no EFA device")
    disturbed = sorted(name for name, device in window.devices.items() if device.resets or device.coverage < 1.0)
    if disturbed:
        return Statement("counters", load.node, "unknown", f"counters of {', '.join(disturbed)} were reset or not there all the time")
    sides = [_side(answer, "out", load.sent), _side(answer, "in", load.received)]
    spoken = [side for side in sides if side.says != "idle"]
    order = ("flat", "unknown", "background", "supports", "part", "send", "rdma", "idle")
    says = min((side.says for side in spoken or sides), key=order.index)
    numbers = {f"{key}_{side.name}": value for side in sides for key, value in side.numbers.items()}
    return Statement("counters", load.node, says, "; ".join(side.text for side in spoken) or "its ranks moved nothing", numbers)


@dataclass(frozen=True)
class _Side:
    name: str
    says: CounterSays
    text: str
    numbers: Mapping[str, float | None]


def _side(answer: WitnessAnswer, name: Literal["in", "out"], expected: int) -> _Side:
    """One direction of one node: how the counters of the window stand to the payload."""
    data_names, rdma_names, wire_name = (DATA_OUT, RDMA_OUT, "tx_bytes") if name == "out" else (DATA_IN, RDMA_IN, "rx_bytes")
    known = [each for each in data_names if total(answer.window, each) is not None]
    data = sum(total(answer.window, each) or 0 for each in known)
    rdma = sum(total(answer.window, each) or 0 for each in known if each in rdma_names)
    wire = total(answer.window, wire_name)
    backgrounds = [_scaled(side, known, answer.window) for side in (answer.before, answer.after)]
    background = None if None in backgrounds else max(value for value in backgrounds if value is not None)
    numbers: dict[str, float | None] = {"payload": expected, "data": data if known else None, "rdma": rdma if known else None, "wire": wire,
                                        "background": background}
    if expected < MIN_PAYLOAD:
        return _Side(name, "idle", "", numbers)
    says = _says(answer.window, expected, (data, rdma, wire, background), complete=len(known) == len(data_names), any_known=bool(known))
    rest = "background not known" if background is None else f"background {size(background)}"
    counted = f"{size(data)} counted, {size(rdma)} of it RDMA, {rest}" if known else "no data counter"
    return _Side(name, says, f"{size(expected)} {'sent' if name == 'out' else 'received'}: {counted}", numbers)


def _says(window: CounterWindow, expected: int, figures: tuple[float, float, float | None, float | None], *, complete: bool,
          any_known: bool) -> CounterSays:
    data, rdma, wire, background = figures
    if wire is not None and wire < FLAT * expected:
        return "flat"
    # Which way rdma_read_resp_bytes counts is worded differently in AWS's own pages, so only both directions together are called flat.
    every = [total(window, name) for name in (*DATA_OUT, *DATA_IN)]
    if complete and None not in every and sum(value for value in every if value is not None) < FLAT * expected:
        return "flat"
    if not any_known:
        return "unknown"
    if background is not None and (background * BACKGROUND > expected or data > EXCESS * expected + background):
        return "background"
    net = background or 0.0
    if data - net < RISE * expected:
        return "part" if background is not None else "unknown"
    if background is None:
        return "supports"
    return "rdma" if rdma - net >= RISE * expected else "send"


def total(window: CounterWindow, name: str) -> int | None:
    """A counter over all devices of a window; None when any device has no figure for it."""
    values = [device.counters.get(name) for device in window.devices.values()]
    return None if not values or None in values else sum(value for value in values if value is not None)


def _scaled(background: CounterWindow | None, names: Sequence[str], window: CounterWindow) -> float | None:
    """Data bytes of a background window, scaled to the length of the run's window. None when it is not fully known."""
    if background is None or not names or background.devices.keys() != window.devices.keys():
        return None
    if any(device.resets or device.coverage < 1.0 for device in background.devices.values()):
        return None
    totals = [total(background, name) for name in names]
    if None in totals:
        return None
    return sum(value for value in totals if value is not None) * (window.end - window.start) / (background.end - background.start)


def marker_statements(results: Sequence[Result]) -> tuple[frozenset[str], list[Statement]]:
    """Witness 3: what known log lines of all ranks say. The set holds only what decides a transport."""
    statements = [Statement("markers", f"rank {result.rank} on {result.node}", marker.says, f"{marker.id}: {marker.text}")
                  for result in results if result.evidence for marker in result.evidence.markers]
    return frozenset(statement.says for statement in statements) & DECIDING, statements


def shortage_statements(results: Sequence[Result], answers: Answers) -> list[Statement]:
    """Signs that not every allocated NIC carried its part: the engine's own count, log lines, and rails that carried little."""
    found: list[Statement] = []
    for result in results:
        evidence = result.evidence
        if evidence is None:
            continue
        where = f"rank {result.rank} on {result.node}"
        seen, allocated = evidence.nics_seen, evidence.nics_allocated
        if seen is not None and allocated is not None and seen < allocated:
            found.append(Statement("engine", where, "efa_partial", f"{seen} of {allocated} allocated NICs are used",
                                   {"nics_seen": seen, "nics_allocated": allocated}))
        found += [Statement("markers", where, "efa_partial", f"{marker.id}: {marker.text}")
                  for marker in evidence.markers if marker.says == "efa_partial"]
        answer = answers.get(result.node)
        if isinstance(answer, WitnessAnswer):
            found += _weak_rails(where, evidence.devices, answer.window)
    return found


def _weak_rails(where: str, devices: Sequence[str], window: CounterWindow) -> list[Statement]:
    carried = {name: sum(window.devices[name].counters.get(each, 0) for each in (*DATA_OUT, *DATA_IN))
               for name in devices if name in window.devices}
    if len(carried) < 2 or sum(carried.values()) < RAIL_BYTES * len(carried):
        return []
    fair = sum(carried.values()) / len(carried)
    return [Statement("counters", where, "efa_partial", f"{name} carried {size(value)}, its fair part is {size(fair)}",
                      {"carried": value, "fair": fair}) for name, value in sorted(carried.items()) if value < RAIL_SHARE * fair]


def size(value: float) -> str:
    """Bytes for people: `335.5 MB`."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:.0f} B"
