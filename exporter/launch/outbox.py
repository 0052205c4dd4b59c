"""Requests on their way: each is sent from a thread of its own pool and its answer comes back as an event to the thread that decides."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from exporter.kube.api import ApiError

SENDERS = 4

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """Something that happened: `value` is what it is about, `more` an answer or an exception."""

    kind: str
    value: Any = None
    more: Any = None


class Outbox:
    """Sends requests; `inbox` gets the answers."""

    def __init__(self, inbox: queue.SimpleQueue[Event], expected: type[Exception]) -> None:
        self._inbox = inbox
        self._expected = (ApiError, expected)
        self._senders = ThreadPoolExecutor(SENDERS, thread_name_prefix="kube-send")

    def send(self, kind: str, about: Any, request: Callable[[], Any]) -> None:
        """Send a request; the event of its answer is of `kind`. An exception that is not expected becomes an ApiError."""
        self._senders.submit(self._sent, kind, about, request)

    def close(self) -> None:
        """Send nothing more. What is on its way is not waited for."""
        self._senders.shutdown(wait=False, cancel_futures=True)

    def _sent(self, kind: str, about: Any, request: Callable[[], Any]) -> None:
        try:
            answer = request()
        except self._expected as error:
            answer = error
        except Exception as error:
            log.exception("request %s", kind)
            answer = ApiError(0, f"{type(error).__name__}: {error}")
        self._inbox.put(Event(kind, about, answer))
