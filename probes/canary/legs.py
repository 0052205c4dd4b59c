"""The prefill leg of a canary that plays the router: sent, drained, timed and judged. And the one GET that some connectors need before.

Nothing of a reply is kept but its counts and what the decode worker needs.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from probes.canary.answer import ABORTS, GOOD_ENDS
from probes.canary.clock import Clocks, Moment, Stopwatch
from probes.canary.dial import Connection, Dialer
from probes.canary.events import EventError, StreamEvent, error_in, parse_event, printable
from probes.canary.http1 import Body, End, Head, HttpError, HttpExchange
from probes.canary.params import CanaryParams
from probes.canary.request import leg_request, plain_get
from probes.canary.sse import SseDecoder, SseError, SseEvent
from probes.canary.stacks.base import Json, Leg, Lookup
from probes.canary.status import DROPPED_REASON, Status, http_verdict
from probes.canary.transport import DeadlinePassed, TransportError
from probes.result import PrefillLeg

REPLY_LIMIT = 4 << 20
"""The largest reply of a prefill worker that is read, bytes."""
LOOKUP_SECONDS = 5.0
SLICE = 0.1
"""Seconds between two looks at whether the other leg has failed or ended."""

_PREFILL_ENDS = GOOD_ENDS | {"remote_decode"}


class ReplyReader:
    """Reads one whole reply, JSON or an event stream, without I/O. Ends with `status` set; `reply` is its JSON object."""

    def __init__(self, exchange: HttpExchange) -> None:
        self.status: Status | None = None
        self.message = ""
        self.head: Head | None = None
        self.reply: Json = {}
        self.first_byte: Moment | None = None
        self.ended: Moment | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self._exchange = exchange
        self._body = bytearray()

    def feed(self, data: bytes, at: Moment) -> None:
        """Take what one read brought."""
        if self.status is not None or not data:
            return
        self.first_byte = self.first_byte or at
        try:
            self._take(self._exchange.feed(data), at)
        except HttpError as error:
            self.fail(Status.PROTOCOL_ERROR, f"not a proper HTTP/1.1 response: {error}")

    def close(self, at: Moment, why: str) -> None:
        """The connection ended."""
        with contextlib.suppress(HttpError):
            self._take(self._exchange.close(), at)
        self.fail(Status.TRUNCATED, f"{why} before the end of the reply")

    def fail(self, status: Status, message: str) -> None:
        """End for a reason outside the reply."""
        if self.status is None:
            self.status, self.message = status, message

    def _take(self, parts: Iterator[Head | Body | End], at: Moment) -> None:
        for part in parts:
            if isinstance(part, Head):
                self.head = part
            elif isinstance(part, End):
                self.ended = at
                self._judge()
            else:
                self._body += part.data
                if len(self._body) > REPLY_LIMIT:
                    self.fail(Status.PROTOCOL_ERROR, f"a reply of more than {REPLY_LIMIT} bytes")
                    return

    def _judge(self) -> None:
        head = self.head
        if head is None:
            self.fail(Status.PROTOCOL_ERROR, "no response head")
            return
        text = self._body.decode(errors="replace")
        if head.code != 200:
            found = error_in(text)
            said = found.error if found is not None and found.error else printable(text, 200)
            dropped = head.get(DROPPED_REASON)
            details = "; ".join(part for part in (f"{DROPPED_REASON}: {printable(dropped, 60)}" if dropped else "", said) if part)
            self.fail(http_verdict(head.code, head.as_dict(), text), f"HTTP {head.code}" + (f": {details}" if details else ""))
        elif "text/event-stream" in (head.get("content-type") or "").lower():
            self._judge_stream(bytes(self._body))
        else:
            self._judge_json(text)

    def _judge_json(self, text: str) -> None:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            self.fail(Status.PROTOCOL_ERROR, f"a 200 reply of {len(text)} characters that is not a JSON object")
            return
        found = error_in(text)
        if found is not None:
            self.fail(Status.ERROR_IN_STREAM, f"an error object in a 200 reply: {found.error}")
            return
        self.reply = data
        with contextlib.suppress(EventError):
            self._note(parse_event(SseEvent(text)))  # a reply is read by the rules of an event
        self._good()

    def _judge_stream(self, raw: bytes) -> None:
        decoder = SseDecoder()
        try:
            for event in [*decoder.feed(raw), *decoder.finish()]:
                self._note(parse_event(event))
        except (SseError, EventError) as error:
            self.fail(Status.PROTOCOL_ERROR, f"not an event stream: {error}")
        self._good()

    def _note(self, event: StreamEvent) -> None:
        if event.error is not None:
            self.fail(Status.ERROR_IN_STREAM, event.error)
        if event.finish is not None and event.finish not in _PREFILL_ENDS:
            tail = f": {event.finish_text}" if event.finish_text else ""
            aborted = event.finish in ABORTS
            self.fail(Status.FINISH_ABORT if aborted else Status.FINISH_ERROR, f"finish_reason {event.finish}{tail}")
        if event.usage is not None:
            self.prompt_tokens = event.usage.prompt
            self.cached_tokens = event.usage.cached

    def _good(self) -> None:
        if self.status is None:
            self.status = Status.OK


@dataclass
class PrefillRequest:
    """One prefill leg over a connection of its own. `stopwatch` is shared with the visible leg when one thread drives both."""

    params: CanaryParams
    leg: Leg
    secret: list[tuple[str, str]]
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    reader: ReplyReader = field(init=False)
    written: Moment | None = field(default=None, init=False)
    _connection: Connection | None = field(default=None, init=False)
    _bytes: bytes = field(default=b"", init=False)
    _exchange: HttpExchange = field(default_factory=HttpExchange, init=False)

    def __post_init__(self) -> None:
        self.params = at_address(self.params, self.leg.url)
        self.reader = ReplyReader(self._exchange)

    def open(self) -> None:
        """Connect, and make the request ready. Raises TransportError, SetupError."""
        self._connection = Dialer(self.params).open(self.stopwatch)
        self._bytes = leg_request(self.params, self._exchange, self._connection, self.secret, self.leg)

    def send(self, until: float, before_write: Callable[[], None] | None = None) -> None:
        """Write the request. `until` is monotonic seconds; what is not taken until then is a `timeout_header`."""
        if self._connection is None:
            raise RuntimeError("the connection is not open")

        def mark() -> None:
            if before_write is not None:
                before_write()
            self.written = self.stopwatch.now()

        try:
            self._connection.link.send(self._bytes, until, mark)
        except DeadlinePassed:
            self.reader.fail(Status.TIMEOUT_HEADER, "the prefill worker did not take the request in time")

    def drain(self, until: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Read the reply to its end, at most until `until`, or until `stop` says so."""
        if self._connection is None:
            raise RuntimeError("the connection is not open")
        while self.reader.status is None:
            try:
                arrival = self._connection.link.receive(min(until, time.monotonic() + SLICE))
            except DeadlinePassed:
                if stop():
                    self.reader.fail(Status.TIMEOUT_TOTAL, "the reply was not waited for: the other leg had ended")
                elif time.monotonic() >= until:
                    what = "no reply" if self.reader.head is None else "the reply was not complete"
                    self.reader.fail(Status.TIMEOUT_FIRST_TOKEN, f"{what} in time")
                continue
            if arrival.data:
                self.reader.feed(arrival.data, arrival.at)
            else:
                self.reader.close(arrival.at, arrival.why)

    def close(self) -> None:
        """Close the connection; a worker that has not answered yet aborts."""
        if self._connection is not None:
            self._connection.link.close()

    @property
    def failed(self) -> bool:
        """Whether it has ended badly."""
        return self.reader.status not in (None, Status.OK)

    def report(self, zero: int | None = None) -> PrefillLeg:
        """What goes into the result. `zero` is the first write of the canary, CLOCK_MONOTONIC nanoseconds."""
        reader, written = self.reader, self.written
        return PrefillLeg(
            status=(reader.status or Status.TIMEOUT_TOTAL).value,
            http_status=reader.head.code if reader.head is not None else None,
            start=round(max(0.0, (written.user - zero) / 1e9), 6) if written is not None and zero is not None else None,
            ttfb=self._since_write(reader.first_byte),
            seconds=self._since_write(reader.ended),
            prompt_tokens=reader.prompt_tokens,
            cached_tokens=reader.cached_tokens,
            message="" if reader.status is Status.OK else reader.message[:300],
        )

    def _since_write(self, moment: Moment | None) -> float | None:
        if moment is None or self.written is None:
            return None
        return round(max(0.0, self.stopwatch.seconds(moment) - self.stopwatch.seconds(self.written)), 6)


class Companion:
    """A prefill leg that is drained in a thread beside the visible leg. Leave it as a context manager: the thread ends, at once."""

    def __init__(self, request: PrefillRequest, until: float) -> None:
        self.request = request
        self._until = until
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._drain, name="prefill-leg", daemon=True)

    def __enter__(self) -> Companion:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10 * SLICE)
        self.request.close()

    def wait(self, seconds: float) -> None:
        """Wait for the end of the leg, at most `seconds`: a prefill worker that is cut off counts an abort."""
        self._thread.join(max(0.0, seconds))

    def _drain(self) -> None:
        self.request.drain(self._until, self._stop.is_set)


def look_up(params: CanaryParams, lookup: Lookup, secret: list[tuple[str, str]], clocks: Clocks | None = None) -> tuple[Json, Json]:
    """What `lookup` gives for the prefill and the visible body. Raises TransportError when the peer does not answer with JSON,
    HandoverError when the JSON does not hold what is needed."""
    until = time.monotonic() + LOOKUP_SECONDS
    scheme, _, rest = lookup.url.partition("://")
    authority, _, path = rest.partition("/")
    there = at_address(params, f"{scheme}://{authority}")
    exchange = HttpExchange()
    reader = ReplyReader(exchange)
    stopwatch = Stopwatch(clocks)
    connection = Dialer(there).open(stopwatch, until)
    with contextlib.closing(connection.link):
        try:
            connection.link.send(plain_get(there, exchange, connection, secret, f"/{path}"), until)
            while reader.status is None:
                arrival = connection.link.receive(until)
                if arrival.data:
                    reader.feed(arrival.data, arrival.at)
                else:
                    reader.close(arrival.at, arrival.why)
        except DeadlinePassed:
            reader.fail(Status.TIMEOUT_HEADER, f"no answer in {LOOKUP_SECONDS:g} s")
    if reader.status is not Status.OK:
        raise TransportError(reader.status or Status.PROTOCOL_ERROR, f"GET /{path}: {reader.message}")
    return lookup.fields(reader.reply)


def at_address(params: CanaryParams, url: str) -> CanaryParams:
    """`params` for another worker of the same stack: its certificate is checked for its own name."""
    return params.model_copy(update={"url": url, "server_name": None if url != params.url else params.server_name})
