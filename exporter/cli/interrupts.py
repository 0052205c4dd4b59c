"""A command that is asked to end leaves nothing behind, whichever way it is asked."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interruptible() -> Iterator[list[int]]:
    """SIGTERM and SIGHUP (a closed terminal) raise KeyboardInterrupt, as Ctrl-C does, so that processes, network namespaces and folders
    are cleared away. Only the first one counts; the list that is given then holds its number. A signal that is ignored, as under
    nohup, stays ignored. Nothing outside the main thread."""
    came: list[int] = []

    def end(number: int, _: object) -> None:
        for ending in ENDING:
            signal.signal(ending, signal.SIG_IGN)
        came.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = {number: signal.signal(number, end) for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
