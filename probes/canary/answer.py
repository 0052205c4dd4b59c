"""The answer of one request without I/O: bytes with their arrival times in, a status and a recording out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from probes.canary.clock import Moment
from probes.canary.events import DONE, EventError, StreamEvent, Usage, error_in, parse_event, printable
from probes.canary.http1 import Body, End, Head, HttpError, HttpExchange
from probes.canary.sse import SseDecoder, SseError, SseEvent
from probes.canary.stacks.base import Refusal
from probes.canary.status import DROPPED_REASON, Status, http_verdict, says_shed
from probes.canary.timing import TokenEvent

BODY_LIMIT = 16 << 20
"""The largest answer that is read, bytes; a canary's own is thousands of times smaller."""

ERROR_BODY_LIMIT = 64 * 1024
GOOD_ENDS = frozenset({"stop", "length", "tool_calls", "function_call"})
ABORTS = frozenset({"abort", "aborted", "cancelled", "canceled"})

_STATUS_LINE = b"HTTP/1."

Explain = Callable[[int, Mapping[str, str], str], Refusal | None]
Waiting = Literal["head", "first_token", "token", "end", "error_body"]


@dataclass
class Answer:
    """What the model said. It stays in the process: results carry its hash only."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[str, float]] = field(default_factory=list)
    tool_calls: int = 0

    def sha256(self) -> str | None:
        """Hash over reasoning, a NUL and content, in UTF-8. None for an answer without text."""
        text = "".join(self.reasoning) + "\0" + "".join(self.content)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() if len(text) > 1 else None


class AnswerReader:
    """Reads one response. Ends with `status` set; until then `waiting` says for what, so that the caller knows which deadline holds."""

    def __init__(self, exchange: HttpExchange, explain: Explain = lambda _code, _headers, _body: None) -> None:
        self._explain = explain
        self.status: Status | None = None
        self.message = ""
        self.waiting: Waiting = "head"
        self.head: Head | None = None
        self.answer = Answer()
        self.tokens: list[TokenEvent] = []
        self.trailed: set[int] = set()
        self.usage: Usage | None = None
        self.finish: str | None = None
        self.response_id: str | None = None
        self.first_byte: Moment | None = None
        self.last_event: Moment | None = None
        self.ended: Moment | None = None
        self.keep_alives = 0
        self._exchange = exchange
        self._sse = SseDecoder()
        self._reads = 0
        self._fresh = False
        self._size = 0
        self._total: int | None = 0
        self._opening = b""
        self._error_body = bytearray()

    def feed(self, data: bytes, at: Moment) -> None:
        """Take what one read brought."""
        if self.status is not None or not data:
            return
        self._reads += 1
        self.first_byte = self.first_byte or at
        if self.waiting == "head" and not self._is_http(data):
            return
        self._size += len(data)
        self._fresh = self.waiting != "head"
        if self._size > BODY_LIMIT:
            self._fail(Status.PROTOCOL_ERROR, f"an answer of more than {BODY_LIMIT} bytes")
            return
        try:
            self._consume(self._exchange.feed(data), at)
        except HttpError as error:
            self._fail(Status.PROTOCOL_ERROR, f"not a proper HTTP/1.1 response: {error}")

    def close(self, at: Moment, *, why: str = "the peer closed the connection") -> None:
        """The connection ended."""
        if self.status is not None:
            return
        try:
            self._consume(self._exchange.close(), at)
        except HttpError:
            if self.waiting == "error_body":
                self._judge_error()
            elif self.waiting == "head":
                self._fail(Status.TRUNCATED, f"{why} {'inside the response head' if self.first_byte else 'without any answer'}")
            else:
                self._fail(Status.TRUNCATED, f"{why} after {len(self.tokens)} token events, before the end of the answer")

    def expire(self) -> None:
        """The time for the error body is over: judge by what has come."""
        if self.status is None:
            self._judge_error()

    def fail(self, status: Status, message: str) -> None:
        """End for a reason that lies outside the answer, a deadline for instance."""
        if self.status is None:
            self._fail(status, message)

    def _consume(self, parts: Iterator[Head | Body | End], at: Moment) -> None:
        for part in parts:
            if isinstance(part, Head):
                self._on_head(part)
            elif isinstance(part, Body):
                self._on_body(part, at)
            else:
                self._on_end(part, at)
            if self.status is not None:
                return

    def _is_http(self, data: bytes) -> bool:
        """Whether the first bytes begin a response; says so at once, since a peer of another kind may wait for ever."""
        missing = len(_STATUS_LINE) - len(self._opening)
        if missing <= 0:
            return True
        self._opening += data[:missing]
        if _STATUS_LINE.startswith(self._opening):
            return True
        hint = ": it speaks TLS, use https://" if self._opening[:1] == b"\x15" else ""
        self._fail(Status.PROTOCOL_ERROR, f"the peer does not speak HTTP/1.x{hint}")
        return False

    def _on_head(self, head: Head) -> None:
        self.head = head
        self.response_id = printable(head.get("x-request-id") or "", 128) or None
        encoding = (head.get("content-encoding") or "identity").strip().lower()
        if encoding not in ("identity", ""):
            self._fail(Status.PROTOCOL_ERROR, f"the answer is encoded as {printable(encoding, 40)} though only identity was accepted")
        elif head.code != 200 or self._content_type() != "text/event-stream":
            self.waiting = "error_body"
        else:
            self.waiting = "first_token"

    def _on_body(self, body: Body, at: Moment) -> None:
        if self.waiting == "error_body":
            self._error_body += body.data
            if len(self._error_body) > ERROR_BODY_LIMIT:
                self._judge_error()
            return
        try:
            self._events(self._sse.feed(body.data), body.chunk, at)
        except SseError as error:
            self._fail(Status.PROTOCOL_ERROR, f"not an event stream: {error}")

    def _on_end(self, end: End, at: Moment) -> None:
        if self.waiting == "error_body":
            self._judge_error()
            return
        try:
            # Where only the close of the connection ends the body, what is left may be half an event; all but the end mark is dropped.
            self._events((event for event in self._sse.finish() if end.framed or event.data.strip() == DONE), None, at)
        except SseError as error:
            self._fail(Status.PROTOCOL_ERROR, f"not an event stream: {error}")
        if self.status is None:
            self.ended = at
            if self.finish is not None and self.usage is not None:
                self._complete()
            elif self.tokens or self.finish is not None:
                missing = "a finish reason" if self.finish is None else "[DONE] or token counts"
                self._fail(Status.TRUNCATED, f"the answer ended after {len(self.tokens)} token events without {missing}")
            else:
                self._fail(Status.EMPTY_ANSWER, "a 200 answer ended without a single event that counts")

    def _events(self, events: Iterator[SseEvent], chunk: int | None, at: Moment) -> None:
        for raw in events:
            if self._sse.undecodable:
                self._fail(Status.PROTOCOL_ERROR, "an event with bytes that are not UTF-8")
                return
            try:
                event = parse_event(raw)
            except EventError as error:
                self._fail(Status.PROTOCOL_ERROR, str(error))
                return
            self._on_event(event, chunk, at)
            self._fresh = False
            if self.status is not None:
                break
        self.keep_alives = self._sse.comments

    def _on_event(self, event: StreamEvent, chunk: int | None, at: Moment) -> None:
        self.response_id = event.id or self.response_id
        last = self.tokens[-1] if self.tokens else None
        if last is not None and last.read == self._reads and (chunk is None or last.chunk != chunk) and not event.is_token:
            self.trailed.add(self._reads)
        if event.error is not None:
            shed = not self.tokens and (event.error_code == 429 or (event.error_code == 503 and says_shed(event.error)))
            self._fail(Status.SHED if shed else Status.ERROR_IN_STREAM, f"after {len(self.tokens)} token events: {event.error}")
            return
        if event.done:
            self.ended = at
            self._on_done()
            return
        self.usage = event.usage or self.usage
        if event.is_token:
            self._keep(event, chunk, at)
        if event.finish is not None:
            self._on_finish(event, at)

    def _keep(self, event: StreamEvent, chunk: int | None, at: Moment) -> None:
        self.waiting = "token"
        self.last_event = at
        self.tokens.append(TokenEvent(self._reads, chunk, at, event.tokens or self._counted(event.usage), event.is_output,
                                      self._fresh))
        self.answer.content.append(event.content)
        self.answer.reasoning.append(event.reasoning)
        self.answer.token_ids += event.token_ids
        self.answer.logprobs += event.logprobs
        self.answer.tool_calls += event.tool_call

    def _counted(self, usage: Usage | None) -> int | None:
        """Tokens of an event by running totals. A total on a lone event is the whole answer's and says nothing about the event."""
        before, self._total = self._total, usage.completion if usage is not None else None
        return self._total - before if self._total is not None and before is not None and self._total > before else None

    def _on_finish(self, event: StreamEvent, at: Moment) -> None:
        self.finish = event.finish
        self.last_event = at
        tail = f": {event.finish_text}" if event.finish_text else ""
        if event.finish in ABORTS:
            self._fail(Status.FINISH_ABORT, f"the engine ended the answer with finish_reason {event.finish}{tail}")
        elif event.finish not in GOOD_ENDS:
            self._fail(Status.FINISH_ERROR, f"the engine ended the answer with finish_reason {event.finish}{tail}")
        else:
            self.waiting = "end"

    def _on_done(self) -> None:
        if not self.tokens:
            self._fail(Status.EMPTY_ANSWER, "a 200 answer with its end mark but without a single token")
        elif self.finish is None:
            self._fail(Status.TRUNCATED, f"[DONE] came after {len(self.tokens)} token events without a finish reason")
        else:
            self._complete()

    def _complete(self) -> None:
        if self.tokens:
            self.status = Status.OK
        else:
            self._fail(Status.EMPTY_ANSWER, "a 200 answer without a single token")

    def _judge_error(self) -> None:
        head = self.head
        if head is None:
            self._fail(Status.PROTOCOL_ERROR, "no response head")
            return
        body = self._error_body.decode(errors="replace")
        found = error_in(body)
        said = found.error if found is not None and found.error else printable(body, 200)
        dropped = head.get(DROPPED_REASON)
        details = [part for part in (f"{DROPPED_REASON}: {printable(dropped, 60)}" if dropped else "", said) if part]
        if head.code == 200:
            if found is not None:
                self._fail(Status.ERROR_IN_STREAM, f"an error object instead of a stream: {said}")
            else:
                self._fail(Status.PROTOCOL_ERROR, f"content type {self._content_type() or '(none)'} where text/event-stream was asked for")
        elif 300 <= head.code < 400:
            where = printable(head.get("location") or "(no location)", 200)
            self._fail(Status.PROTOCOL_ERROR, f"HTTP {head.code}: redirect to {where}, which is not followed: configure that address")
        else:
            means = self._explain(head.code, head.as_dict(), body)
            who = f"{means.who}: " if means is not None else ""
            status = means.status if means is not None and means.status is not None else http_verdict(head.code, head.as_dict(), body)
            self._fail(status, f"{who}HTTP {head.code}" + (": " + "; ".join(details) if details else ""))

    def _content_type(self) -> str:
        value = (self.head.get("content-type") or "") if self.head else ""
        return printable(value.partition(";")[0].strip().lower(), 60)

    def _fail(self, status: Status, message: str) -> None:
        self.status = status
        self.message = message
