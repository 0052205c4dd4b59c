"""What a simulated endpoint does with one request: a plan of writes, made before the first of them is due."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from probes.canary.anchors import make_code

SERVER = "efa-pulse-simulated-pd"
MODEL = "simulated-pd"

# Some words take several bytes a character, so that splitting a write can cut one.
_WORDS = ("alpha ", "bravo ", "naïve ", "delta ", "日本 ", "foxtrot ", "façade ", "hôtel ", "🙂 ", "juliett ")


class Fault(str, Enum):
    """What goes wrong. `at` of the scenario says after how many tokens, where that matters."""

    NONE = "none"
    ERROR_IN_STREAM = "error_in_stream"
    CUT = "cut"
    CUT_CLEAN = "cut_clean"
    RESET = "reset"
    NO_ANSWER = "no_answer"
    STALL = "stall"
    DRIP = "drip"
    SLOW_HEAD = "slow_head"
    DRIP_HEAD = "drip_head"
    NO_TAIL = "no_tail"
    EMPTY = "empty"
    SHORT = "short"
    LONG = "long"
    FINISH_ABORT = "finish_abort"
    FINISH_ERROR = "finish_error"
    GARBAGE = "garbage"
    NOT_UTF8 = "not_utf8"
    HUGE_LINE = "huge_line"
    HUGE_HEAD = "huge_head"
    NOT_HTTP = "not_http"
    JSON_ANSWER = "json_answer"
    JSON_ERROR = "json_error"
    GZIP = "gzip"
    REDIRECT = "redirect"
    GARBLED = "garbled"
    CROSSTALK = "crosstalk"
    HTTP_400 = "http_400"
    HTTP_401 = "http_401"
    HTTP_404 = "http_404"
    HTTP_429 = "http_429"
    HTTP_500 = "http_500"
    HTTP_502 = "http_502"
    HTTP_503 = "http_503"
    HTTP_503_RETRY = "http_503_retry"
    HTTP_503_DROPPED = "http_503_dropped"
    HTTP_503_NO_ENDPOINTS = "http_503_no_endpoints"


class Scenario(BaseModel):
    """How a request is answered. Times in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    ttft: float = Field(default=0.2, ge=0, description="from the request to the first token")
    ttft_per_prompt_token: float = Field(default=0.0, ge=0, description="added to ttft for each token of the prompt, as prefill does")
    gap: float = Field(default=0.02, ge=0, description="between two tokens")
    gaps: list[float] = Field(default_factory=list, description="gaps in turn, instead of gap")
    jitter: float = Field(default=0.0, ge=0, lt=1, description="each time varies by up to this share of itself")
    fault: Fault = Fault.NONE
    at: int = Field(default=3, ge=0, description="tokens before the fault")
    hold: float = Field(default=3600.0, ge=0, description="how long a silence or a drip lasts")
    early_head: bool = Field(default=True, description="send the head at once, as vLLM does, instead of with the first token")
    bundle: int = Field(default=1, ge=1, description="token events in one HTTP chunk, as Ray Serve sends them")
    coalesce: int = Field(default=1, ge=1, description="HTTP chunks in one write, as a busy proxy sends them")
    split: int = Field(default=0, ge=0, description="cut every write into pieces of this many bytes")
    tokens_per_event: int = Field(default=1, ge=1, description="tokens in one event, as speculative decoding gives them")
    keep_alive: bool = Field(default=False, description="a comment before every event")
    reasoning: int = Field(default=0, ge=0, description="events at the start that are reasoning")
    usage: bool = True
    framing: Literal["chunked", "length", "close"] = "chunked"


@dataclass(frozen=True)
class Step:
    """One write, due `at` seconds after the request; no data means that nothing is written before the time has passed.

    `tokens` numbers the token events in it. `then` ends the connection after it: `close` or `reset`.
    """

    at: float
    data: bytes
    tokens: tuple[int, ...] = ()
    then: Literal["close", "reset", ""] = ""


@dataclass(frozen=True)
class Request:
    """What the plan needs to know of a request."""

    chat: bool
    model: str
    max_tokens: int
    prompt_tokens: int
    wants_usage: bool
    continuous: bool
    id: str
    codes: tuple[str, ...] = ()


def plan(request: Request, scenario: Scenario, rng: random.Random) -> Iterator[Step]:
    """The writes that answer `request`. Every one of them is a function of its arguments."""
    made = _BEFORE_THE_STREAM.get(scenario.fault)
    if made is not None:
        yield from made(request, scenario)
        return
    writer = _Writer(request, scenario, rng)
    yield from writer.steps()


class _Writer:
    """Writes one event stream."""

    def __init__(self, request: Request, scenario: Scenario, rng: random.Random) -> None:
        self._request = request
        self._scenario = scenario
        self._rng = rng
        self._words = itertools.chain(self._copied(), itertools.cycle(_WORDS))
        self._sent = 0

    def _copied(self) -> Iterator[str]:
        """The words of the codes in the prompt, as a model copies them; by fault the last one is lost, or another canary's."""
        codes = list(self._request.codes)
        if codes and self._scenario.fault is Fault.GARBLED:
            codes.pop()
        if codes and self._scenario.fault is Fault.CROSSTALK:
            codes[-1] = make_code(b"another canary", 0)
        return (f"{word} " for code in codes for word in code.split())

    def steps(self) -> Iterator[Step]:
        scenario = self._scenario
        if scenario.framing == "length":
            yield from self._whole()
            return
        head = response_head(200, {"content-type": "text/event-stream; charset=utf-8"}, scenario.framing)
        if scenario.fault is Fault.SLOW_HEAD:
            yield Step(scenario.hold, b"")
        if scenario.early_head:
            yield Step(0.0, head)
            head = b""
        for step in self._body():
            yield Step(step.at, head + step.data, step.tokens, step.then)
            head = b""

    def _whole(self) -> Iterator[Step]:
        """Everything at once, behind a content length."""
        steps = list(self._body())
        body = b"".join(step.data for step in steps)
        head = response_head(200, {"content-type": "text/event-stream", "content-length": str(len(body))}, "length")
        tokens = tuple(number for step in steps for number in step.tokens)
        yield Step(steps[-1].at, head + body, tokens, "close")

    def _body(self) -> Iterator[Step]:
        scenario, request = self._scenario, self._request
        at = self._vary(scenario.ttft + scenario.ttft_per_prompt_token * request.prompt_tokens)
        events = self._event_count()
        gaps = itertools.cycle(scenario.gaps or [scenario.gap])
        pending = self._frame(self._role()) if request.chat else b""
        number, sent_at = 0, at
        while number < events:
            strike = self._strike(number, at)
            if strike is not None:
                yield from strike
                return
            chunks: list[bytes] = []
            tokens: list[int] = []
            for _ in range(scenario.coalesce):
                bundle = [self._token(n, last=n + 1 == events) for n in range(number, min(number + scenario.bundle, events))]
                tokens += range(number, number + len(bundle))
                number += len(bundle)
                chunks += [self._frame(b"".join(bundle))] if bundle else []
            yield Step(at, pending + b"".join(chunks), tuple(tokens))
            pending = b""
            sent_at = at
            at += self._vary(next(gaps))
        strike = self._strike(number, at)
        if strike is not None:
            yield from strike
            return
        yield from self._tail(sent_at, pending)

    def _event_count(self) -> int:
        tokens = self._request.max_tokens
        if self._scenario.fault is Fault.EMPTY:
            return 0
        if self._scenario.fault is Fault.SHORT:
            tokens = max(1, tokens // 2)
        if self._scenario.fault is Fault.LONG:
            tokens = tokens * 2
        return -(-tokens // self._scenario.tokens_per_event)

    def _tail(self, at: float, pending: bytes) -> Iterator[Step]:
        if pending:
            yield Step(at, pending)
        if self._scenario.fault is Fault.NO_TAIL:
            yield Step(at + self._scenario.hold, b"", then="close")
            return
        if self._request.wants_usage and self._scenario.usage:
            yield Step(at, self._frame(self._event({"choices": [], "usage": self._usage()})))
        yield Step(at, self._frame(b"data: [DONE]\n\n") + self._last_chunk(), then="close" if self._scenario.framing != "chunked" else "")

    def _strike(self, number: int, at: float) -> list[Step] | None:
        """The fault in place of token event `number`, None when it does not strike there."""
        scenario = self._scenario
        if number < min(scenario.at, self._event_count()):
            return None
        gone = at + scenario.hold
        error = {"error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}}
        done = self._frame(b"data: [DONE]\n\n") + self._last_chunk()
        steps: dict[Fault, Callable[[], list[Step]]] = {
            Fault.ERROR_IN_STREAM: lambda: [Step(at, self._frame(_sse(error)) + done)],
            Fault.CUT: lambda: [Step(at, b"", then="close")],
            Fault.CUT_CLEAN: lambda: [Step(at, self._last_chunk(), then="close")],
            Fault.RESET: lambda: [Step(at, b"", then="reset")],
            Fault.STALL: lambda: [Step(gone, b"", then="close")],
            Fault.DRIP: lambda: [Step(at + 0.05 * beat, self._frame(b": keep-alive\n\n")) for beat in range(int(scenario.hold / 0.05))],
            Fault.FINISH_ABORT: lambda: [Step(at, self._frame(self._finish("abort")) + done)],
            Fault.FINISH_ERROR: lambda: [Step(at, self._frame(self._finish("error")) + done)],
            Fault.GARBAGE: lambda: [Step(at, self._frame(b"data: {\x00\x01 this is not JSON\n\n") + done)],
            Fault.NOT_UTF8: lambda: [Step(at, self._frame(b'data: {"choices":[{"delta":{"content":"\xff\xfe"}}]}\n\n') + done)],
            Fault.HUGE_LINE: lambda: [Step(at, self._frame(b"data: " + b"x" * (1 << 16))), *[Step(at, self._frame(b"x" * (1 << 16)))] * 40],
        }
        made = steps.get(scenario.fault)
        return made() if made is not None else None

    def _role(self) -> bytes:
        return self._event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})

    def _token(self, number: int, *, last: bool) -> bytes:
        self._sent = min(self._sent + self._scenario.tokens_per_event, 2 * self._request.max_tokens)
        text = "".join(next(self._words) for _ in range(self._scenario.tokens_per_event))
        finish = "length" if last else None
        if self._request.chat:
            key = "reasoning_content" if number < self._scenario.reasoning else "content"
            choice: dict[str, Any] = {"index": 0, "delta": {key: text}, "finish_reason": finish}
        else:
            choice = {"index": 0, "text": text, "finish_reason": finish}
        fields: dict[str, Any] = {"choices": [choice]}
        if self._request.continuous:
            fields["usage"] = self._usage()
        comment = b": keep-alive\n\n" if self._scenario.keep_alive else b""
        return comment + self._event(fields)

    def _finish(self, reason: str) -> bytes:
        empty: dict[str, Any] = {"delta": {}} if self._request.chat else {"text": ""}
        choice = {"index": 0, "finish_reason": reason, **empty}
        return self._event({"choices": [choice]})

    def _usage(self) -> dict[str, Any]:
        prompt = self._request.prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": self._sent, "total_tokens": prompt + self._sent,
                "prompt_tokens_details": {"cached_tokens": 0}}

    def _event(self, fields: dict[str, Any]) -> bytes:
        kind = "chat.completion.chunk" if self._request.chat else "text_completion"
        return _sse({"id": self._request.id, "object": kind, "created": 0, "model": self._request.model, **fields})

    def _frame(self, data: bytes) -> bytes:
        return chunk(data) if self._scenario.framing == "chunked" else data

    def _last_chunk(self) -> bytes:
        return b"0\r\nx-simulated-trailer: 1\r\n\r\n" if self._scenario.framing == "chunked" else b""

    def _vary(self, seconds: float) -> float:
        return seconds * (1 + self._scenario.jitter * self._rng.uniform(-1, 1))


def response_head(code: int, headers: dict[str, str], framing: str) -> bytes:
    """A response head. Every one says that it is simulated."""
    version = "1.0" if framing == "close" else "1.1"
    lines = [f"HTTP/{version} {code} Simulated", f"server: {SERVER}", "x-simulated: no model and no KV cache behind this",
             *[f"{name}: {value}" for name, value in headers.items()]]
    if framing == "chunked":
        lines.append("transfer-encoding: chunked")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def json_response(code: int, value: Any, headers: dict[str, str] | None = None) -> bytes:
    """A whole response with a JSON body."""
    body = json.dumps(value).encode()
    return response_head(code, {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}, "length") + body


def _sse(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def _error(code: int, message: str, headers: dict[str, str] | None = None) -> Callable[[Request, Scenario], list[Step]]:
    body = {"error": {"message": message, "type": "SimulatedError", "param": None, "code": code}}
    return lambda _request, _scenario: [Step(0.0, json_response(code, body, headers))]


def _raw(data: bytes, then: Literal["close", "reset", ""] = "close") -> Callable[[Request, Scenario], list[Step]]:
    return lambda _request, _scenario: [Step(0.0, data, then=then)]


def _drip_head(_request: Request, scenario: Scenario) -> list[Step]:
    beats = range(int(scenario.hold / 0.05))
    return [Step(0.0, b"HTTP/1.1 200 OK\r\nx-drip: "), *[Step(0.05 * beat, b"x") for beat in beats]]


def _json_answer(request: Request, _scenario: Scenario) -> list[Step]:
    message = {"role": "assistant", "content": "alpha bravo"}
    return [Step(0.0, json_response(200, {"id": request.id, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}))]


_BEFORE_THE_STREAM: dict[Fault, Callable[[Request, Scenario], list[Step]]] = {
    Fault.NO_ANSWER: _raw(b""),
    Fault.NOT_HTTP: _raw(b"SSH-2.0-OpenSSH_9.2\r\n"),
    Fault.HUGE_HEAD: _raw(b"HTTP/1.1 200 OK\r\n" + b"x-filler: y\r\n" * 10_000),
    Fault.DRIP_HEAD: _drip_head,
    Fault.JSON_ANSWER: _json_answer,
    Fault.JSON_ERROR: lambda _r, _s: [Step(0.0, json_response(200, {"object": "error", "message": "no KV", "type": "KVTransferError"}))],
    Fault.GZIP: _raw(response_head(200, {"content-type": "text/event-stream", "content-encoding": "gzip"}, "close") + b"\x1f\x8b\x08"),
    Fault.REDIRECT: _raw(response_head(307, {"location": "http://127.0.0.1:1/elsewhere", "content-length": "0"}, "length"), ""),
    Fault.HTTP_400: _error(400, "simulated bad request"),
    Fault.HTTP_401: _error(401, "simulated: no key"),
    Fault.HTTP_404: _error(404, "simulated: no such model"),
    Fault.HTTP_429: _error(429, "simulated rate limit"),
    Fault.HTTP_500: _error(500, "simulated failure"),
    Fault.HTTP_502: _raw(response_head(502, {"content-length": "0"}, "length"), ""),
    Fault.HTTP_503: _error(503, "upstream connect error or disconnect/reset before headers"),
    Fault.HTTP_503_RETRY: _error(503, "simulated overload", {"retry-after": "7"}),
    Fault.HTTP_503_DROPPED: _error(503, "simulated", {"x-llm-d-request-dropped-reason": "rejected-saturated"}),
    Fault.HTTP_503_NO_ENDPOINTS: _error(503, "simulated", {"x-llm-d-request-dropped-reason": "rejected-no-endpoints"}),
}
