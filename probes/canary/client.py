"""One canary request from end to end."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from probes.canary.answer import Answer, AnswerReader
from probes.canary.clock import Clocks, Moment, Stopwatch
from probes.canary.dial import Connection, Dialer, SetupError, read_key
from probes.canary.drive import Legs
from probes.canary.events import printable
from probes.canary.http1 import HttpExchange
from probes.canary.legs import PrefillRequest, look_up
from probes.canary.params import CanaryParams
from probes.canary.prompt import NONCE_BYTES, Prompt, compose, fit
from probes.canary.redact import redact
from probes.canary.request import completion_body, leg_request
from probes.canary.served import served_context
from probes.canary.stacks import STACKS, Ask, HandoverError, Leg, Plan
from probes.canary.stacks.base import Json
from probes.canary.stacks.signs import path_signs
from probes.canary.status import REASON_OF, Status, retry_after
from probes.canary.timing import Timing, evaluate
from probes.canary.transport import TransportError, stamping
from probes.reasons import Reason
from probes.result import PrefillLeg, Stream

Entropy = Callable[[int], bytes]


@dataclass
class CanaryRun:
    """What one request gave. `answer` never leaves the process; `stream` is what a result carries.

    `started` is the write of the request and `arrivals` the kernel's arrival time of each token event, both CLOCK_REALTIME nanoseconds;
    an arrival is None where the read brought no stamp. `handover` says whether a prefill worker gave what the decode worker needs, None
    where the canary did not play the router. `headers` are those of the visible leg's response, repeated ones repeated.
    """

    stream: Stream
    reason: Reason
    message: str = ""
    answer: Answer = field(default_factory=Answer)
    prompt: Prompt = field(default_factory=Prompt)
    started: int | None = None
    arrivals: list[int | None] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    headers: tuple[tuple[str, str], ...] = ()
    prefill: PrefillLeg | None = None
    handover: Literal["given", "missing"] | None = None
    handover_problem: str = ""
    ttft_has_prefill: bool = True

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt as it was made, tokens, about."""
        return self.prompt.tokens

    @property
    def path_signs(self) -> tuple[str, ...]:
        """What the answer shows of its way, in words. No proof of anything."""
        return path_signs(self.headers, self.stream.request_id)

    @property
    def nonce(self) -> bytes:
        """What makes the prompt's first block new."""
        return self.prompt.nonce


@dataclass
class Prefilled:
    """What a prefill leg alone gave. `fields` go into the body of a decode leg; None when the worker offered no KV."""

    leg: PrefillLeg
    reason: Reason
    message: str = ""
    fields: Json | None = None


def run_canary(params: CanaryParams, *, clocks: Clocks | None = None, entropy: Entropy = secrets.token_bytes) -> Stream:
    """Send one request and give its measurements. Every way it can fail is a `status`; raises SetupError for unusable parameters only."""
    return measure(params, clocks=clocks, entropy=entropy).stream


def measure(params: CanaryParams, *, clocks: Clocks | None = None, entropy: Entropy = secrets.token_bytes,
            before_request: Callable[[], None] | None = None, prompt: Prompt | None = None, given: Json | None = None) -> CanaryRun:
    """As `run_canary`, with everything that was learned.

    `before_request` is called once the connections are open. `prompt` replaces the canary's own. `given` is the hand-over of another
    request's prefill (`prefill_only`): then only the visible leg is sent, with it.
    """
    dialer = Dialer(params)
    secret = read_key(params)
    if prompt is None:
        prompt = compose(_prompt_length(params, dialer, secret), entropy(NONCE_BYTES), params.wanted_anchors)
    plan = _plan(params, prompt, entropy, given)
    stopwatch = Stopwatch(clocks)
    run = CanaryRun(Stream(status=Status.OK.value), Reason.OK, prompt=prompt, ttft_has_prefill=plan.ttft_has_prefill)
    with contextlib.ExitStack() as held:
        held.enter_context(stamping())
        try:
            found = look_up(params, plan.lookup, secret, clocks) if plan.lookup is not None else ({}, {})
            connection = dialer.open(stopwatch)
            held.callback(lambda: connection.link.close())
            prefill = _open_prefill(params, plan, found[0], secret, stopwatch if plan.order == "serial" else Stopwatch(clocks), held)
        except TransportError as error:
            return _redacted(_without_answer(run, error.status, str(error)), secret)
        except HandoverError as error:
            # The lookup is the only way to the prefill worker: without it there is nothing to send.
            return _redacted(_without_answer(run, Status.PROTOCOL_ERROR, str(error)), secret)
        if before_request is not None:
            before_request()
        exchange = HttpExchange()
        reader = AnswerReader(exchange, STACKS[params.stack].refusal)
        visible = Leg(plan.visible.url, plan.visible.body | found[1], plan.visible.headers)
        legs = Legs(params, plan, visible, stopwatch, reader)
        if prefill is None:
            legs.converse(connection, leg_request(params, exchange, connection, secret, visible), stopwatch.start)
        elif plan.order == "serial":
            legs.first_prefill(prefill)
            if reader.status is None:
                if connection.link.spent():
                    connection = _again(dialer, connection, stopwatch, reader)
                legs.converse(connection, leg_request(params, exchange, connection, secret, legs.visible), legs.mark)
        else:
            legs.beside_prefill(prefill, connection, leg_request(params, exchange, connection, secret, visible))
        if prefill is not None:
            run.prefill = prefill.report(stopwatch.started_user)
            run.handover, run.handover_problem = legs.handover, legs.handover_problem
    return _redacted(_summary(params, connection, reader, stopwatch, run, legs.decode_written), secret)


def prefill_only(params: CanaryParams, prompt: Prompt, *, clocks: Clocks | None = None,
                 entropy: Entropy = secrets.token_bytes) -> Prefilled:
    """Send the prefill leg of `prompt` alone and keep its hand-over for another request. It holds blocks on the prefill worker until a
    decode worker fetches them or the lease ends. For the route pair of a stack with a serial connector; raises SetupError for others."""
    plan = _plan(params, prompt, entropy, None)
    if plan.prefill is None or plan.handover is None:
        raise SetupError(f"stack {params.stack} on route {params.route} has no prefill leg that can be sent alone")
    secret = read_key(params)
    request = PrefillRequest(params, plan.prefill, secret, Stopwatch(clocks))
    with stamping(), contextlib.closing(request):
        try:
            request.open()
        except TransportError as error:
            request.reader.fail(error.status, str(error))
        else:
            until = time.monotonic() + params.first_token_timeout
            request.send(until, request.stopwatch.start)
            request.drain(until)
    key = _key_of(secret)
    request.reader.message = redact(request.reader.message, key)
    status = request.reader.status or Status.PROTOCOL_ERROR
    if status is not Status.OK:
        return Prefilled(request.report(), REASON_OF[status], f"prefill leg: {request.reader.message}")
    try:
        return Prefilled(request.report(), Reason.OK, fields=plan.handover(request.reader.reply))
    except HandoverError as error:
        return Prefilled(request.report(), Reason.OK, str(error))


def _plan(params: CanaryParams, prompt: Prompt, entropy: Entropy, given: Json | None) -> Plan:
    body = completion_body(params, prompt.content, entropy(16).hex() if params.cache_salt else "")
    return STACKS[params.stack].plan(Ask(params, body, entropy, given))


def _open_prefill(params: CanaryParams, plan: Plan, more: Json, secret: list[tuple[str, str]], stopwatch: Stopwatch,
                  held: contextlib.ExitStack) -> PrefillRequest | None:
    """The prefill leg, connected. Raises TransportError that says which leg it was."""
    if plan.prefill is None:
        return None
    leg = Leg(plan.prefill.url, plan.prefill.body | more, plan.prefill.headers)
    request = PrefillRequest(params, leg, secret, stopwatch)
    held.callback(request.close)
    try:
        request.open()
    except TransportError as error:
        raise TransportError(error.status, f"prefill leg: {error}") from None
    return request


def _again(dialer: Dialer, connection: Connection, stopwatch: Stopwatch, reader: AnswerReader) -> Connection:
    """A new connection for one that the peer closed while the prefill leg ran."""
    connection.link.close()
    try:
        return dialer.open(stopwatch)
    except TransportError as error:
        reader.fail(error.status, str(error))
        return connection


def prompt_length(params: CanaryParams) -> int:
    """The length of the canary's own prompt, fitted to the served context. Raises SetupError when nothing fits."""
    return _prompt_length(params, Dialer(params), read_key(params))


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


def _without_answer(run: CanaryRun, status: Status, message: str) -> CanaryRun:
    return replace(run, stream=Stream(status=status.value), reason=REASON_OF[status], message=message)


def _summary(params: CanaryParams, connection: Connection, reader: AnswerReader, stopwatch: Stopwatch, run: CanaryRun,
             decode_written: Moment | None) -> CanaryRun:
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
        prefill=run.prefill,
        decode_ttft=_since(timing.ttft, decode_written, stopwatch),
        handover=run.handover,
    )
    server = head.get("server") if head is not None else None
    versions = {name: printable(value, 60) for name, value in (("tls", connection.tls_version), ("server", server)) if value}
    return replace(run, stream=stream, reason=REASON_OF[status], message=message, answer=reader.answer, started=stopwatch.started_real,
                   arrivals=[event.at.kernel for event in reader.tokens], versions=versions,
                   headers=reader.head.headers if reader.head is not None else ())


def _since(ttft: float | None, written: Moment | None, stopwatch: Stopwatch) -> float | None:
    """The time to the first token, from the write of the decode leg."""
    return None if ttft is None or written is None else _round(ttft - stopwatch.seconds(written))


def _key_of(secret: list[tuple[str, str]]) -> str:
    """The key itself, empty without one."""
    return secret[0][1].removeprefix("Bearer ") if secret else ""


def _redacted(run: CanaryRun, secret: list[tuple[str, str]]) -> CanaryRun:
    """`run` without the key in any text that came from the peer."""
    key = _key_of(secret)
    if not key:
        return run
    said: dict[str, object] = {name: redact(value, key) for name in ("finish_reason", "request_id") if (value := getattr(run.stream, name))}
    if run.stream.prefill is not None:
        said["prefill"] = run.stream.prefill.model_copy(update={"message": redact(run.stream.prefill.message, key)})
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
