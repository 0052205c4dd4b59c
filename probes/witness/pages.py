"""What the witness answers: the window query as JSON and the metrics page as Prometheus text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from probes.witness.history import History, NoWindowError, Window

SCHEMA = "efa-pulse/witness/v1"
PREFIX = "efapulse_witness_"
LONGEST_TEXT = 200
TIMES = ("from", "to", "started", "ended")

HELP = {
    "tx_bytes": "Bytes sent on the wire, headers and retransmits included.",
    "rx_bytes": "Bytes received from the wire, headers included.",
    "tx_pkts": "Packets sent.",
    "rx_pkts": "Packets received.",
    "rx_drops": "Packets received and dropped.",
    "send_bytes": "Bytes of two-sided sends.",
    "send_wrs": "Two-sided send requests.",
    "recv_bytes": "Bytes of two-sided receives.",
    "recv_wrs": "Two-sided receive requests.",
    "rdma_read_wrs": "RDMA reads this node began.",
    "rdma_read_bytes": "Bytes that arrived by RDMA reads this node began.",
    "rdma_read_wr_err": "RDMA reads of this node that failed.",
    "rdma_read_resp_bytes": "Bytes this node sent in answer to RDMA reads of its peers.",
    "rdma_write_wrs": "RDMA writes this node began.",
    "rdma_write_bytes": "Bytes that left by RDMA writes this node began.",
    "rdma_write_wr_err": "RDMA writes of this node that failed.",
    "rdma_write_recv_bytes": "Bytes that arrived by RDMA writes of peers.",
    "retrans_bytes": "Bytes sent again.",
    "retrans_pkts": "Packets sent again.",
    "retrans_timeout_events": "Retransmit timeouts that changed the path.",
    "unresponsive_remote_events": "Times a remote node did not answer.",
    "impaired_remote_conn_events": "Times a connection was rate-limited because of its remote end.",
}


class BadQueryError(ValueError):
    """The query of a request is wrong. The text names the parameter."""


def window_json(history: History, node: str, query: str, lifespan: float) -> tuple[int, bytes]:
    """Status and body of `GET /window?query`: 200 with the answer, 400 for a wrong query, 404 when there is no such window (yet).

    `before` and `after` are backgrounds of as many looks as the window has; null with a reason when there is none (yet).
    """
    try:
        times = _times(query)
    except BadQueryError as error:
        return 400, _dump({"schema": SCHEMA, "node": node, "error": str(error)})
    span = history.span
    answer: dict[str, Any] = {"schema": SCHEMA, "node": node, "history": None if span is None else [round(span[0], 6), round(span[1], 6)]}
    try:
        low, high = history.bounds(times["from"], times["to"], lifespan)
        answer["window"] = _window(history.window(low, high))
    except NoWindowError as error:
        return 404, _dump({**answer, "error": str(error), "pending": error.pending})
    pending = False
    for side in ("before", "after"):
        try:
            window = (history.before(min(times["from"], times["started"]), high - low) if side == "before"
                      else history.after(max(times["to"], times["ended"]) + lifespan, high - low))
            answer[side] = _window(window)
        except NoWindowError as error:
            answer[side] = None
            answer[f"{side}_error"] = str(error)
            pending = pending or error.pending
    answer["pending"] = pending
    return 200, _dump(answer)


def metrics(history: History, node: str, own: Mapping[str, tuple[str, str, float]], version: str) -> bytes:
    """The metrics page. `own` are the witness's own metrics: name without prefix -> (type, help, value)."""
    label = f'node="{escape(node)}"'
    lines: list[str] = []
    _family(lines, "build_info", "gauge", "Version of the witness.", [(f'{label},version="{escape(version)}"', 1)])
    for name, (kind, text, value) in own.items():
        _family(lines, name, kind, text, [(label, value)])
    _family(lines, "device_resets_total", "counter", "Counters of a device that were seen to fall.",
            [(f'{label},device="{escape(device)}"', count) for device, count in sorted(history.resets.items())])
    latest = history.latest()
    names = sorted({name for counters in latest.values() for name in counters})
    for name in names:
        rows = [(f'{label},device="{escape(device)}"', counters[name]) for device, counters in latest.items() if name in counters]
        _family(lines, f"efa_{name}_total", "counter", HELP.get(name, f"EFA counter {name} of the driver."), rows)
    return ("\n".join(lines) + "\n").encode()


def escape(value: str) -> str:
    """A label value as Prometheus text wants it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _family(lines: list[str], name: str, kind: str, text: str, rows: Sequence[tuple[str, float]]) -> None:
    if rows:
        lines += [f"# HELP {PREFIX}{name} {text}", f"# TYPE {PREFIX}{name} {kind}"]
        lines += [f"{PREFIX}{name}{{{labels}}} {value!r}" for labels, value in rows]


def _window(window: Window) -> dict[str, Any]:
    devices = {name: {"counters": device.counters, "resets": device.resets, "coverage": round(device.coverage, 4)}
               for name, device in window.devices.items()}
    return {"from": round(window.start, 6), "to": round(window.end, 6), "looks": window.looks, "devices": devices}


def _times(query: str) -> dict[str, float]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=8)
    except ValueError:
        raise BadQueryError("the query is not a list of name=value") from None
    values: dict[str, float] = {}
    for name, text in pairs:
        if name not in TIMES or name in values:
            raise BadQueryError(f"{name[:LONGEST_TEXT]!r}: {' '.join(TIMES)} are known, each once")
        try:
            values[name] = float(text)
        except ValueError:
            values[name] = math.nan
        if not math.isfinite(values[name]):
            raise BadQueryError(f"{name}: Unix seconds are needed, got {text[:LONGEST_TEXT]!r}")
    for name in ("from", "to"):
        if name not in values:
            raise BadQueryError(f"{name}: is needed, Unix seconds of this node's clock")
    if values["to"] < values["from"]:
        raise BadQueryError("to: lies before from")
    return {"started": values["from"], "ended": values["to"], **values}


def _dump(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode() + b"\n"
