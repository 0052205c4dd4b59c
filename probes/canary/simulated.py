"""A simulated prefill/decode endpoint: the OpenAI-compatible streaming API with no model behind it, for demos and tests.

It answers POST /v1/chat/completions and /v1/completions after an injectable time to first token with tokens at injectable gaps, fails in
every way of `Fault` on demand, and stamps its own sends, so that what a client measured can be compared with what was sent. A request may
override the scenario by the header `x-simulated`, a JSON object. GET /simulated/requests gives the stamps, GET and POST /simulated/scenario
the scenario. Every response says `server: efa-pulse-simulated-pd`.

    python -m probes.canary.simulated --listen 127.0.0.1:0 --ttft 0.2 --gap 0.02
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import select
import signal
import socket
import ssl
import struct
import sys
import threading
import time
import uuid
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import h11
from pydantic import ValidationError

from probes.canary.anchors import find_codes
from probes.canary.clock import Stopwatch
from probes.canary.scenario import MODEL, Fault, Request, Scenario, Step, json_response, plan
from probes.canary.transport import DeadlinePassed, Link, TcpLink, TlsLink, TransportError, ask_for_stamps

KEPT = 1000
"""How many of the last requests keep their stamps."""

_BODY_LIMIT = 8 << 20
_IDLE_SECONDS = 60.0
_CONNECTIONS = 128


@dataclass(frozen=True)
class Sent:
    """One write: CLOCK_REALTIME nanoseconds before and after it, and the numbers of the token events in it."""

    before: int
    after: int
    tokens: list[int]


@dataclass
class Served:
    """One request as the endpoint saw it. `received` is the kernel's arrival time of its last byte, CLOCK_REALTIME nanoseconds."""

    id: str
    path: str
    received: int
    body: dict[str, Any]
    sends: list[Sent] = field(default_factory=list)
    left: bool = False

    def token_sends(self) -> list[int]:
        """When each token event was sent, by number."""
        return [sent.before for sent in self.sends for _ in sent.tokens]


class SimulatedEndpoint:
    """The endpoint on a thread of its own. A context manager; `url` is its address once it is started."""

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, scenario: Scenario | None = None, model: str = MODEL,
                 context_length: int = 32768, tls: ssl.SSLContext | None = None, fault_every: int = 1, seed: int = 0) -> None:
        self.scenario = scenario or Scenario()
        self.served: deque[Served] = deque(maxlen=KEPT)
        self._model = model
        self._context_length = context_length
        self._tls = tls
        self._fault_every = fault_every
        self._count = 0
        self._rng = random.Random(seed)  # noqa: S311 - jitter, not a secret
        self._open: set[socket.socket] = set()
        self._stopping = threading.Event()
        self._slots = threading.BoundedSemaphore(_CONNECTIONS)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=_CONNECTIONS)
        self._listener.settimeout(0.2)
        ask_for_stamps(self._listener)
        self._thread = threading.Thread(target=self._accept, daemon=True, name="simulated-pd")

    @property
    def url(self) -> str:
        """Base address."""
        host, port = self._listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self._tls else 'http'}://{shown}:{port}"

    def __enter__(self) -> SimulatedEndpoint:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop listening and end every connection."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(2.0)
        self._listener.close()
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            if not self._slots.acquire(blocking=False):
                sock.close()
                continue
            threading.Thread(target=self._guarded, args=(sock,), daemon=True, name="simulated-pd-connection").start()

    def _guarded(self, sock: socket.socket) -> None:
        self._open.add(sock)
        try:
            sock.setblocking(False)
            with contextlib.closing(TcpLink(sock, Stopwatch())) as tcp, contextlib.suppress(OSError, DeadlinePassed, TransportError):
                self._serve(sock, tcp)
        finally:
            self._open.discard(sock)
            self._slots.release()

    def _serve(self, sock: socket.socket, tcp: TcpLink) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link: Link = tcp if self._tls is None else TlsLink(tcp, self._tls, None, time.monotonic() + 10)
        http = h11.Connection(h11.SERVER)
        while not self._stopping.is_set():
            got = _read_request(link, http)
            if got is None or not self._answer(sock, link, *got):
                return
            http.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            http.send(h11.EndOfMessage())
            if http.states[h11.CLIENT] is not h11.DONE:
                return
            http.start_next_cycle()

    def _answer(self, sock: socket.socket, link: Link, head: h11.Request, body: bytes, received: int) -> bool:
        """Answer one request. False when the connection is to be closed."""
        path = head.target.decode("latin-1").partition("?")[0]
        method = head.method.decode("latin-1")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        until = time.monotonic() + _IDLE_SECONDS
        if path.endswith("/completions") and method == "POST":
            return self._complete(sock, link, path, headers, body, received)
        link.send(self._plain(method, path, body), until)
        return True

    def _plain(self, method: str, path: str, body: bytes) -> bytes:
        if path.endswith("/models"):
            entry = {"id": self._model, "object": "model", "owned_by": "simulated", "max_model_len": self._context_length}
            return json_response(200, {"object": "list", "data": [entry]})
        if path == "/health":
            return json_response(200, {"simulated": True})
        if path == "/simulated/requests":
            return json_response(200, [{**asdict(served), "body": None} for served in list(self.served)])
        if path == "/simulated/scenario":
            if method == "POST":
                try:
                    self.scenario = _changed(self.scenario, body)
                except ValueError as error:
                    return _refusal(400, str(error))
            return json_response(200, self.scenario.model_dump(mode="json"))
        return _refusal(404, f"no such path: {path[:100]}")

    def _complete(self, sock: socket.socket, link: Link, path: str, headers: dict[str, str], body: bytes, received: int) -> bool:
        until = time.monotonic() + _IDLE_SECONDS
        scenario = self.scenario
        self._count += 1
        if self._count % self._fault_every:
            scenario = scenario.model_copy(update={"fault": Fault.NONE})
        chat = path.endswith("/chat/completions")
        try:
            fields = json.loads(body)
            request = _request_of(fields, chat, f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4()}")
            scenario = _changed(scenario, headers["x-simulated"].encode()) if "x-simulated" in headers else scenario
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            link.send(_refusal(400, f"bad request: {error}"), until)
            return True
        if request.model != self._model:
            link.send(_refusal(404, f"The model {request.model[:100]!r} does not exist."), until)
            return True
        if request.prompt_tokens + request.max_tokens > self._context_length:
            link.send(_refusal(400, f"This model's maximum context length is {self._context_length} tokens."), until)
            return True
        served = Served(request.id, path, received, fields)
        self.served.append(served)
        started = time.monotonic()
        return all(self._step(sock, link, step, started, scenario, served) for step in plan(request, scenario, self._rng))

    def _step(self, sock: socket.socket, link: Link, step: Step, started: float, scenario: Scenario, served: Served) -> bool:
        """Do one step when it is due. False when the connection is over."""
        if not self._wait(sock, started + step.at):
            served.left = not self._stopping.is_set()
            return False
        data = step.data
        size = scenario.split or len(data) or 1
        stamps: list[int] = []
        for start in range(0, len(data), size):
            link.send(data[start : start + size], time.monotonic() + _IDLE_SECONDS, lambda: stamps.append(time.time_ns()))
            last = start + size >= len(data)
            served.sends.append(Sent(stamps[-1], time.time_ns(), list(step.tokens) if last else []))
        if step.then == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return not step.then

    def _wait(self, sock: socket.socket, until: float) -> bool:
        """Sleep until then. False when the client left or the endpoint stops."""
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        while (left := until - time.monotonic()) > 0:
            if self._stopping.is_set():
                return False
            # Poll rounds up to milliseconds, so the last of them is slept.
            if left < 0.002:
                time.sleep(left)
            elif poll.poll(int(min(left - 0.001, 0.2) * 1000)) and not _still_there(sock):
                return False
        return not self._stopping.is_set()


def _still_there(sock: socket.socket) -> bool:
    """Whether the client is connected: it has nothing to say while it is answered, so anything readable but data is its end."""
    try:
        gone = sock.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    if not gone:
        time.sleep(0.001)  # a pipelined request waits; do not spin on it
    return not gone


def _read_request(link: Link, http: h11.Connection) -> tuple[h11.Request, bytes, int] | None:
    """The next request with its body, and when its last byte arrived. None at the end of the connection."""
    head: h11.Request | None = None
    body = bytearray()
    received = time.time_ns()
    until = time.monotonic() + _IDLE_SECONDS
    while True:
        try:
            event = http.next_event()
        except h11.RemoteProtocolError:
            return None
        if event is h11.NEED_DATA:
            arrival = link.receive(until)
            received = arrival.at.kernel or time.time_ns()
            http.receive_data(arrival.data)
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            return head, bytes(body), received
        else:
            return None
        if len(body) > _BODY_LIMIT:
            return None


def _request_of(fields: dict[str, Any], chat: bool, request_id: str) -> Request:
    text = " ".join(str(message["content"]) for message in fields["messages"]) if chat else str(fields["prompt"])
    limit = int(fields.get("max_completion_tokens") or fields.get("max_tokens") or 16)
    options = fields.get("stream_options") or {}
    if not fields.get("stream"):
        raise ValueError("this simulated endpoint only streams: send stream true")
    if not 1 <= limit <= 4096:
        raise ValueError("max_tokens must be from 1 to 4096")
    return Request(chat=chat, model=str(fields["model"]), max_tokens=limit, prompt_tokens=len(text.split()) + (8 if chat else 0),
                   wants_usage=bool(options.get("include_usage")), continuous=bool(options.get("continuous_usage_stats")), id=request_id,
                   codes=tuple(find_codes(text)))


def _changed(scenario: Scenario, raw: bytes) -> Scenario:
    """`scenario` with the fields of a JSON object. Raises ValueError that names the field."""
    try:
        changes = json.loads(raw)
    except ValueError:
        raise ValueError("the scenario is not JSON") from None
    if not isinstance(changes, dict):
        raise ValueError("the scenario is not a JSON object")
    try:
        return Scenario.model_validate({**scenario.model_dump(), **changes})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"scenario: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None


def _refusal(code: int, message: str) -> bytes:
    return json_response(code, {"error": {"message": message, "type": "BadRequestError", "param": None, "code": code}})


def main(argv: list[str] | None = None) -> int:
    """The command line. Prints the address in one line and serves until SIGTERM or SIGINT; returns the exit code."""
    args = _parser().parse_args(argv)
    host, _, port = args.listen.rpartition(":")
    try:
        scenario = Scenario(ttft=args.ttft, ttft_per_prompt_token=args.ttft_per_prompt_token, gap=args.gap, jitter=args.jitter,
                            fault=args.fault, at=args.at)
        endpoint = SimulatedEndpoint(host=host.strip("[]") or "127.0.0.1", port=int(port), scenario=scenario, model=args.model,
                                     tls=_server_context(args.tls_cert, args.tls_key), fault_every=args.fault_every,
                                     context_length=args.context_length)
    except (OSError, ValueError, OverflowError) as error:
        sys.stderr.write(f"simulated endpoint: {args.listen}: {error}\n")
        return 64
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with endpoint:
        sys.stdout.write(f"simulated PD endpoint (no model, no KV cache) serving {args.model} on {endpoint.url}\n")
        sys.stdout.flush()
        stop.wait()
    return 0


def _server_context(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m probes.canary.simulated", description="A simulated prefill/decode endpoint.")
    defaults = Scenario()
    parser.add_argument("--listen", default="127.0.0.1:0", help="host:port, port 0 picks a free one")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--context-length", type=int, default=32768)
    parser.add_argument("--ttft", type=float, default=defaults.ttft, help="seconds")
    parser.add_argument("--ttft-per-prompt-token", type=float, default=0.0, help="seconds")
    parser.add_argument("--gap", type=float, default=defaults.gap, help="seconds between two tokens")
    parser.add_argument("--jitter", type=float, default=0.0, help="share by which each time varies")
    parser.add_argument("--fault", default=Fault.NONE.value, help="what goes wrong: " + ", ".join(fault.value for fault in Fault))
    parser.add_argument("--at", type=int, default=defaults.at, help="tokens before the fault")
    parser.add_argument("--fault-every", type=int, default=1, help="only every n-th request has the fault")
    parser.add_argument("--tls-cert", type=Path, help="certificate chain, PEM; makes it https")
    parser.add_argument("--tls-key", type=Path, help="private key, PEM, if not in the same file")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
