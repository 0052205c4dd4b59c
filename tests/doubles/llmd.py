"""A whole small llm-d of doubles: prefill engine, decode engine, bootstrap server and sidecar, and the faults of the recordings by name."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from doubles.engine import HANDLE, Engine
from doubles.sidecar import Flags, Sidecar
from doubles.town import House, Request, Town, respond

LEG_SECONDS = 5.0
RECORDED = Path(__file__).parent.parent / "fixtures" / "llm_d"


def recorded(name: str) -> dict[str, Any]:
    """One recording of the real sidecar."""
    found: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return found


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of a recorded table, each as a dictionary; cut rows are filled with None."""
    table = recorded(name)
    return [dict(zip(table["columns"], [*row, *[None] * (len(table["columns"]) - len(row))], strict=True)) for row in table["rows"]]


class Bootstrap:
    """Mooncake's bootstrap server of the prefill worker."""

    def __init__(self, town: Town) -> None:
        self.body: bytes = b'{"0":{"engine_id":"8e9eaa7a-380f-519a-89d4-2e638316111f"}}'
        self.status, self.hangs = 200, False
        self.house = House(town, self._answer)

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        await respond(writer, request, self.status, [("Content-Type", "application/json")], self.body)


class LlmD:
    """The pair and its sidecar."""

    def __init__(self, town: Town, flags: Flags) -> None:
        self.prefill, self.decode, self.bootstrap = Engine(town, "prefill-0"), Engine(town, "decode-0"), Bootstrap(town)
        for house in (self.prefill.house, self.decode.house, self.bootstrap.house):
            house.open()
        self.flags = replace(flags, bootstrap_port=self.bootstrap.house.port)
        self.sidecar = Sidecar(town, lambda: self.decode.house.port, self.flags)
        self.sidecar.house.open()

    @property
    def url(self) -> str:
        """The sidecar's address."""
        return self.sidecar.house.url

    @property
    def prefiller(self) -> str:
        """The prefill engine's host and port."""
        return f"127.0.0.1:{self.prefill.house.port}"

    def legs(self) -> tuple[list[int | None], list[int | None]]:
        """What the prefill and the decode requests were answered; of connectors that send both at once, the prefill may end last."""
        until = time.monotonic() + LEG_SECONDS
        while None in (*self.prefill.statuses, *self.decode.statuses) and time.monotonic() < until:
            time.sleep(0.01)
        return self.prefill.statuses, self.decode.statuses


@contextlib.contextmanager
def llm_d(connector: str = "nixlv2", **flags: Any) -> Iterator[LlmD]:
    """One of them, running."""
    with Town() as town:
        yield LlmD(town, Flags(connector=connector, **flags))


def _prefill(**changes: Any) -> Callable[[LlmD], None]:
    def change(there: LlmD) -> None:
        there.prefill.behaviour = replace(there.prefill.behaviour, **changes)
    return change


def _decode(**changes: Any) -> Callable[[LlmD], None]:
    def change(there: LlmD) -> None:
        there.decode.behaviour = replace(there.decode.behaviour, **changes)
    return change


def _says(status: int) -> Callable[[LlmD], None]:
    names = {400: "BadRequestError", 429: "RateLimitError", 500: "InternalServerError", 503: "ServiceUnavailableError"}
    body = json.dumps({"error": {"message": f"prefill says {status}", "type": names[status], "param": None, "code": status}}).encode()
    return _prefill(canned=(status, [("Content-Type", "application/json"), ("Retry-After", "7")], body))


def _bare(status: int, *, once: bool = False) -> Callable[[LlmD], None]:
    body = json.dumps({"error": {"message": "x", "type": "x", "param": None, "code": status}}).encode()
    return _prefill(canned=(status, [("Content-Type", "application/json")], body), canned_once=once)


def _boot(**changes: Any) -> Callable[[LlmD], None]:
    def change(there: LlmD) -> None:
        for name, value in changes.items():
            setattr(there.bootstrap, name, value)
    return change


def _sidecar(**changes: Any) -> Callable[[LlmD], None]:
    def change(there: LlmD) -> None:
        for name, value in changes.items():
            setattr(there.sidecar.flags, name, value)
    return change


def _both(*changes: Callable[[LlmD], None]) -> Callable[[LlmD], None]:
    def change(there: LlmD) -> None:
        for one in changes:
            one(there)
    return change


_EOF_BODY = json.dumps({"error": {"message": "EngineCore encountered an issue", "type": "InternalServerError", "code": 500}}).encode()
_OVERLOADED = json.dumps({"error": {"message": "The server is overloaded or not ready yet.", "type": "server_error", "code": 503}}).encode()
_JSON = [("Content-Type", "application/json")]
_RETRY = _sidecar(retries=2, backoff=0.02)

FAULTS: dict[str, Callable[[LlmD], None]] = {
    "prefill port closed": lambda there: there.prefill.house.close(),
    "prefill accepts, never answers; client leaves at 4 s": _prefill(fault="hang"),
    "prefill never answers; client leaves at 4 s": _prefill(fault="hang"),
    "prefill never answers": _prefill(fault="hang"),
    "prefill 500 (with Retry-After and x-inference-pod)": _says(500),
    "prefill 500": _says(500), "prefill 400": _says(400), "prefill 429": _says(429), "prefill 503": _says(503),
    "prefill 200 without kv_transfer_params": _prefill(drop_handle=True),
    "prefill 200, kv_transfer_params null": _prefill(handle=None),
    "prefill 200, kv_transfer_params {}": _prefill(handle={}),
    "prefill 200, do_remote_prefill false": _prefill(handle=HANDLE | {"do_remote_prefill": False}),
    "prefill 200, empty body": _prefill(canned=(200, _JSON, b"")),
    "prefill 200, html": _prefill(canned=(200, _JSON, b"<html></html>")),
    "prefill 302": _prefill(canned=(302, [("Location", "http://127.0.0.1:18100/x")], b"")),
    "decode port closed": lambda there: there.decode.house.close(),
    "decode accepts, never answers; client leaves at 3 s": _decode(fault="hang"),
    "decode 500": _decode(canned=(500, _JSON, _EOF_BODY)),
    "decode closes before the first byte": _decode(fault="close"),
    "decode FIN after 4 events": _decode(fault="cut"),
    "decode RST after 4 events": _decode(fault="reset"),
    "decode stalls after 4 events; client leaves at 3 s": _decode(fault="stall"),
    "error object inside a 200 stream": _decode(fault="error", at=1),
    "prefill 503, --prefill-max-retries 2 --prefill-retry-backoff 100ms": _both(_RETRY, _bare(503)),
    "same flags, 503 then 200": _both(_RETRY, _bare(503, once=True)),
    "same flags, prefill 500: no retry": _both(_RETRY, _bare(500)),
    "same flags, prefill port closed: 3 dials": _both(_RETRY, lambda there: there.prefill.house.close()),
    "prefill SYN never answered (full backlog)": _sidecar(swallow=0.3),
    "plain HTTP to a sidecar with --secure-proxy=true": _sidecar(secure=True),
    "sim failure injection on decode: server_error": _decode(canned=(503, _JSON, _OVERLOADED)),
    "bootstrap port closed": lambda there: there.bootstrap.house.close(),
    "bootstrap 500": _boot(status=500),
    "bootstrap without engine_id": _boot(body=b"{}"),
    "bootstrap never answers": _both(_boot(hangs=True), _sidecar(bootstrap_seconds=0.3)),
}
"""What to do to the pair, by the names of the recorded cases."""
