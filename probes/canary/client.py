"""One canary request from end to end."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from probes.canary.answer import Answer, AnswerReader
from probes.canary.clock import Clocks, Stopwatch
from probes.canary.dial import Connection, Dialer, SetupError, read_key
from probes.canary.events import printable
from probes.canary.http1 import HttpExchange
from probes.canary.params import CanaryParams
from probes.canary.prompt import NONCE_BYTES, fit, make_prompt
from probes.canary.redact import redact
from probes.canary.request import completion_request
from probes.canary.served import served_context
from probes.canary.status import REASON_OF, Status, retry_after
from probes.canary.timing import Timing, evaluate
from probes.canary.transport import DeadlinePassed, TransportError, stamping
from probes.reasons import Reason
from probes.result import Stream

_ERROR_BODY_SECONDS = 2.0


@dataclass
class CanaryRun:
    """What one request gave. `answer` never leaves the process; `stream` is what a result carries.

    `started` is the write of the request and `arrivals` the kernel's arrival time of each token event, both CLOCK_REALTIME nanoseconds;
    an arrival is None where the read brought no stamp.
    """

    stream: Stream
    reason: Reason
    message: str = ""
    answer: Answer = field(default_factory=Answer)
    prompt_tokens: int = 0
    nonce: bytes = b""
    started: int | None = None
    arrivals: list[int | None] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)


def run_canary(params: CanaryParams, *, clocks: Clocks | None = None, entropy: Callable[[int], bytes] = secrets.token_bytes) -> Stream:
    """Send one request and give its measurements. Every way it can fail is a `status`; raises SetupError for unusable parameters only."""
    return measure(params, clocks=clocks, entropy=entropy).stream


def measure(params: CanaryParams, *, clocks: Clocks | None = None, entropy: Callable[[int], bytes] = secrets.token_bytes,
            before_request: Callable[[], None] | None = None) -> CanaryRun:
    """As `run_canary`, with everything that was learned. `before_request` is called once the connection is open."""
    dialer = Dialer(params)
    secret = read_key(params)
    tokens = _prompt_length(params, dialer, secret)
    nonce = entropy(NONCE_BYTES)
    stopwatch = Stopwatch(clocks)
    with stamping():
        try:
            connection = dialer.open(stopwatch)
        except TransportError as error:
            return _without_answer(error, tokens, nonce)
        with contextlib.closing(connection.link):
            if before_request is not None:
                before_request()
            exchange = HttpExchange()
            request = completion_request(params, exchange, connection, secret, make_prompt(tokens, nonce))
            reader = AnswerReader(exchange)
            _converse(params, connection, request, reader, stopwatch)
    return _redacted(_summary(params, connection, reader, stopwatch, tokens, nonce), secret)


def _converse(params: CanaryParams, connection: Connection, request: bytes, reader: AnswerReader, stopwatch: Stopwatch) -> None:
    """Send and read until the reader has its verdict or a deadline passed."""
    deadlines = _Deadlines(params, reader, stopwatch)
    try:
        connection.link.send(request, time.monotonic() + min(params.total_timeout, params.head_timeout), stopwatch.start)
        while reader.status is None:
            seconds, status, message = deadlines.next()
            try:
                arrival = connection.link.receive(stopwatch.started_user / 1e9 + seconds)
            except DeadlinePassed:
                deadlines.passed(status, message)
                return
            if stopwatch.seconds(arrival.at) > seconds:
                deadlines.passed(status, message)
            elif arrival.data:
                reader.feed(arrival.data, arrival.at)
            else:
                reader.close(arrival.at, why=arrival.why)
    except DeadlinePassed:
        reader.fail(Status.TIMEOUT_HEADER, "the peer did not take the request in time")


@dataclass
class _Deadlines:
    """Which deadline comes next, in seconds from the start."""

    params: CanaryParams
    reader: AnswerReader
    stopwatch: Stopwatch
    _error_until: float | None = None

    def next(self) -> tuple[float, Status, str]:
        """Seconds, the status when they pass, and what was waited for."""
        params, reader = self.params, self.reader
        due = [(params.total_timeout, Status.TIMEOUT_TOTAL,
                f"the answer was not complete after {params.total_timeout:g} s, {len(reader.tokens)} token events came")]
        if reader.waiting == "head":
            due.append((params.head_timeout, Status.TIMEOUT_HEADER, f"no response head after {params.head_timeout:g} s"))
        if reader.waiting in ("head", "first_token"):
            due.append((params.first_token_timeout, Status.TIMEOUT_FIRST_TOKEN, f"no token after {params.first_token_timeout:g} s"))
        elif reader.waiting == "error_body":
            if self._error_until is None:
                self._error_until = (time.monotonic_ns() - self.stopwatch.started_user) / 1e9 + _ERROR_BODY_SECONDS
            due.append((self._error_until, Status.PROTOCOL_ERROR, ""))
        elif reader.last_event is not None:
            what = "end mark" if reader.waiting == "end" else "token"
            due.append((self.stopwatch.seconds(reader.last_event) + params.stall_timeout, Status.TIMEOUT_STALL,
                        f"no {what} for {params.stall_timeout:g} s after {len(reader.tokens)} token events"))
        seconds, status, message = min(due, key=lambda item: item[0])
        if reader.keep_alives and status is not Status.TIMEOUT_TOTAL:
            message += f", though {reader.keep_alives} keep-alives came"
        return seconds, status, message

    def passed(self, status: Status, message: str) -> None:
        """The deadline of `next` is over."""
        if self.reader.waiting == "error_body":
            self.reader.expire()
        else:
            self.reader.fail(status, message)


def _prompt_length(params: CanaryParams, dialer: Dialer, secret: list[tuple[str, str]]) -> int:
    """The wanted length, fitted to the served context. Raises SetupError when nothing fits."""
    wanted = params.wanted_prompt_tokens
    context = params.context_length
    if context is None and params.needs_lookup:
        context = served_context(params, dialer, secret)
    try:
        return fit(wanted, params.max_tokens, context)
    except ValueError as error:
        raise SetupError(str(error)) from None


def _without_answer(error: TransportError, tokens: int, nonce: bytes) -> CanaryRun:
    return CanaryRun(Stream(status=error.status.value), REASON_OF[error.status], str(error), prompt_tokens=tokens, nonce=nonce)


def _summary(params: CanaryParams, connection: Connection, reader: AnswerReader, stopwatch: Stopwatch, tokens: int,
             nonce: bytes) -> CanaryRun:
    usage = reader.usage
    counted = usage.completion if usage is not None else None
    timing = evaluate(reader.tokens, counted, stopwatch.seconds, reader.trailed)
    status, message = _verdict(params, reader, counted, timing)
    head = reader.head
    ids = len(reader.answer.token_ids)
    stream = Stream(
        status=status.value,
        http_status=head.code if head is not None else None,
        clock=stopwatch.clock,
        resolve=_round(connection.resolve),
        connect=_round(connection.connect),
        tls=_round(connection.tls),
        ttfb=_round(stopwatch.seconds(reader.first_byte)) if reader.first_byte is not None else None,
        ttft=_round(timing.ttft),
        ttfo=_round(timing.ttfo),
        tpot=_round(timing.tpot, 9),
        max_gap=_round(timing.max_gap),
        e2e=_round(timing.e2e),
        stream_close=_round(stopwatch.seconds(reader.ended)) if reader.ended is not None else None,
        output_tokens_per_second=_round(1 / timing.tpot, 3) if timing.tpot else None,
        itl=[round(gap, 6) for gap in timing.itl],
        prompt_tokens=usage.prompt if usage is not None else None,
        output_tokens=counted if counted is not None else (ids or len(reader.tokens) or None),
        cached_tokens=usage.cached if usage is not None else None,
        token_count_source=("usage" if counted is not None else "client") if reader.tokens else None,
        token_events=len(reader.tokens),
        unresolved_events=timing.unresolved,
        disturbed=timing.disturbed,
        clock_lag=_round(stopwatch.lag),
        finish_reason=reader.finish,
        retry_after=retry_after(head.get("retry-after"), time.time()) if head is not None else None,
        request_id=reader.response_id,
        answer_sha256=reader.answer.sha256(),
    )
    server = head.get("server") if head is not None else None
    versions = {name: printable(value, 60) for name, value in (("tls", connection.tls_version), ("server", server)) if value}
    return CanaryRun(stream, REASON_OF[status], message, reader.answer, tokens, nonce, stopwatch.started_real,
                     [event.at.kernel for event in reader.tokens], versions)


def _redacted(run: CanaryRun, secret: list[tuple[str, str]]) -> CanaryRun:
    """`run` without the key in any text that came from the peer."""
    if not secret:
        return run
    key = secret[0][1].removeprefix("Bearer ")
    said = {name: redact(value, key) for name in ("finish_reason", "request_id") if (value := getattr(run.stream, name))}
    return replace(run, stream=run.stream.model_copy(update=said), message=redact(run.message, key),
                   versions={name: redact(value, key) for name, value in run.versions.items()})


def _verdict(params: CanaryParams, reader: AnswerReader, counted: int | None, timing: Timing) -> tuple[Status, str]:
    status = reader.status or Status.PROTOCOL_ERROR
    if status is not Status.OK:
        return status, reader.message
    if timing.ttft is not None and timing.ttft <= 0:
        return Status.PROTOCOL_ERROR, "the answer came before the request"
    too_long = counted is not None and counted > params.max_tokens
    too_short = counted is not None and counted < params.max_tokens and params.ignore_eos
    if params.check_length and (too_long or too_short):
        return Status.WRONG_LENGTH, f"{counted} tokens where {params.max_tokens} were asked for (finish_reason {reader.finish})"
    if timing.disturbed:
        return Status.DISTURBED, "the first token shares a read with a later one: this process got too little CPU to time it"
    return Status.OK, ""


def _round(value: float | None, digits: int = 6) -> float | None:
    return None if value is None else round(value, digits)
