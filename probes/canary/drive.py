"""Sends the legs of a plan, in their order, and reads until the visible one has its verdict or a deadline passed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from probes.canary.answer import AnswerReader
from probes.canary.clock import Moment, Stopwatch
from probes.canary.dial import Connection
from probes.canary.legs import SLICE, Companion, PrefillRequest
from probes.canary.params import CanaryParams
from probes.canary.stacks.base import HandoverError, Leg, Plan
from probes.canary.status import Status
from probes.canary.transport import DeadlinePassed

PREFILL_GRACE = 5.0
"""Seconds a concurrent prefill leg may take to end after a good answer, before it is cut off."""
_ERROR_BODY_SECONDS = 2.0


@dataclass
class Legs:
    """Drives the legs of one plan."""

    params: CanaryParams
    plan: Plan
    visible: Leg
    stopwatch: Stopwatch
    reader: AnswerReader
    decode_written: Moment | None = None
    handover: Literal["given", "missing"] | None = None
    handover_problem: str = ""

    def mark(self) -> None:
        """The visible leg is about to be written."""
        self.decode_written = self.stopwatch.now()

    def first_prefill(self, prefill: PrefillRequest) -> None:
        """Send the prefill leg, wait for its reply, and put its hand-over into the visible leg."""
        until = time.monotonic() + min(self.params.first_token_timeout, self.params.total_timeout)
        prefill.send(until, self.stopwatch.start)
        prefill.drain(until)
        if prefill.failed:
            self.fail_by(prefill)
            return
        try:
            fields = self.plan.handover(prefill.reader.reply) if self.plan.handover is not None else {}
            self.handover = "given"
        except HandoverError as error:
            fields = {}
            self.handover, self.handover_problem = "missing", str(error)
        self.visible = Leg(self.visible.url, self.visible.body | fields, self.visible.headers)

    def beside_prefill(self, prefill: PrefillRequest, connection: Connection, request: bytes) -> None:
        """Send both legs at once and read both."""
        until = time.monotonic() + self.params.total_timeout
        prefill.stopwatch.start()
        prefill.send(until, self.stopwatch.start)
        with Companion(prefill, until) as companion:
            self.converse(connection, request, self.mark, companion)
            if self.reader.status is Status.OK:
                companion.wait(PREFILL_GRACE)

    def converse(self, connection: Connection, request: bytes, before_write: Callable[[], None],
                 companion: Companion | None = None) -> None:
        """Send and read until the reader has its verdict or a deadline passed."""
        if self.reader.status is not None:
            return
        deadlines = _Deadlines(self.params, self.reader, self.stopwatch)
        try:
            connection.link.send(request, time.monotonic() + min(self.params.total_timeout, self.params.head_timeout), before_write)
        except DeadlinePassed:
            self.reader.fail(Status.TIMEOUT_HEADER, "the peer did not take the request in time")
        while self.reader.status is None:
            seconds, status, message = deadlines.next()
            until = self.stopwatch.started_user / 1e9 + seconds
            slice_ends = min(until, time.monotonic() + SLICE) if companion is not None else until
            try:
                arrival = connection.link.receive(slice_ends)
            except DeadlinePassed:
                if time.monotonic() >= until:
                    deadlines.passed(status, message)
                elif companion is not None and companion.request.failed and not self.reader.tokens:
                    self.fail_by(companion.request)
                continue
            if self.stopwatch.seconds(arrival.at) > seconds:
                deadlines.passed(status, message)
            elif arrival.data:
                self.reader.feed(arrival.data, arrival.at)
            else:
                self.reader.close(arrival.at, why=arrival.why)

    def fail_by(self, prefill: PrefillRequest) -> None:
        """The prefill leg failed, so there will be no answer."""
        self.reader.fail(prefill.reader.status or Status.PROTOCOL_ERROR, f"prefill leg: {prefill.reader.message}")


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
