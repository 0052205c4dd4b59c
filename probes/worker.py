"""The child process of a worker: it runs one probe, and only it touches native code.

Its supervisor owns the result document and hears of every phase before it begins; see `probes.supervisor`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from probes import rendezvous
from probes.contract import ContractError, WorkerEnv
from probes.reasons import Reason
from probes.registry import PROBES, exists, load
from probes.rendezvous import Rendezvous, RendezvousError
from probes.result import Evidence, Finding, Measurement, Pd, Phase, Stream

CHANNEL_FD = "EFA_PULSE_CHANNEL_FD"
ENDS_AT = "EFA_PULSE_ENDS_AT"
"""When the supervisor ends this process, on the clock that all processes of a machine share: the start-up is part of the deadline."""
RENDEZVOUS_SECONDS = 60.0
FINISH_RESERVE_SECONDS = 1.0
ACK_SECONDS = 10.0

ParamsT = TypeVar("ParamsT", bound=BaseModel)


class ProbeFailure(Exception):  # noqa: N818 - it is a verdict, not a programming error
    """Ends a run with a reason of the closed list; the text says what happened and what to do."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass
class Report:
    """What a probe found. The supervisor adds times, TCP bytes, markers and throttling to make a result of it."""

    reason: Reason = Reason.OK
    message: str = ""
    measurements: list[Measurement] = field(default_factory=list)
    stream: Stream | None = None
    pd: Pd | None = None
    findings: list[Finding] = field(default_factory=list)
    evidence: Evidence | None = None
    versions: dict[str, str] = field(default_factory=dict)
    shape: dict[str, int | float | str] = field(default_factory=dict)
    role: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The report as plain data, for the channel to the supervisor."""
        return {
            "reason": self.reason.value,
            "message": self.message,
            "measurements": [m.model_dump(mode="json") for m in self.measurements],
            "stream": self.stream.model_dump(mode="json") if self.stream else None,
            "pd": self.pd.model_dump(mode="json", exclude_defaults=True) if self.pd else None,
            "findings": [f.model_dump(mode="json") for f in self.findings],
            "evidence": self.evidence.model_dump(mode="json") if self.evidence else None,
            "versions": self.versions,
            "shape": self.shape,
            "role": self.role,
        }


class Probe(Protocol):
    """One kind of measurement."""

    def run(self, ctx: Context) -> Report:
        """Measure and report, or raise ProbeFailure."""
        ...


class Channel:
    """The child's end of the pipe to its supervisor: one JSON object a line, each answered by one line."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._link.settimeout(ACK_SECONDS)

    def tell(self, message: dict[str, Any]) -> None:
        """Send and wait for the answer. Raises OSError when the supervisor is gone."""
        self._link.sendall(json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n")
        if self._link.recv(1) == b"":
            raise ConnectionResetError("the supervisor is gone")


class Context:
    """What a probe gets: its environment, its phases, its peers and its time."""

    def __init__(self, env: WorkerEnv, channel: Channel, log_path: Path, ends_at: float) -> None:
        self.env = env
        self.log_path = log_path
        self._channel = channel
        self._ends_at = ends_at
        self._rendezvous: Rendezvous | None = None

    def parse(self, model: type[ParamsT]) -> ParamsT:
        """The spec as the probe's own parameters. Raises ProbeFailure (`bad_spec`) naming the key."""
        try:
            return model.model_validate(self.env.spec)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "spec"
            raise ProbeFailure(Reason.BAD_SPEC, f"{self.env.probe}: {where}: {first['msg']}") from None

    def phase(self, phase: Phase) -> None:
        """Enter a phase. Returns after the supervisor wrote its mark and took its snapshots."""
        self._channel.tell({"phase": phase.value})

    def note(self, text: str) -> None:
        """Leave word of what is being done now: the last note is shown when the engine hangs or dies."""
        self._channel.tell({"note": text[:300]})

    def meet(self) -> Rendezvous:
        """Enter phase `rendezvous` and join the other ranks of the run. Raises ProbeFailure naming the missing rank."""
        self.phase(Phase.RENDEZVOUS)
        env = self.env
        try:
            token = env.token() if env.world_size > 1 else b""
            until = time.monotonic() + min(RENDEZVOUS_SECONDS, max(0.1, self.remaining()))
            met = rendezvous.join(endpoint=env.rendezvous or "127.0.0.1:1", rank=env.rank, world_size=env.world_size, run_id=env.run_id,
                                  token=token, address=env.address, deadline=until)
        except ContractError as error:
            raise ProbeFailure(Reason.BAD_SPEC, str(error)) from None
        except RendezvousError as error:
            raise ProbeFailure(error.reason, str(error)) from None
        met.extend(time.monotonic() + self.remaining())
        self._rendezvous = met
        return met

    def remaining(self) -> float:
        """Seconds left for measuring: the hard deadline less a reserve for the report. Never negative."""
        return max(0.0, self._ends_at - FINISH_RESERVE_SECONDS - time.monotonic())

    def leave(self, why: str | None) -> None:
        """Close the connections to the peers; `why` tells them that this rank failed."""
        if self._rendezvous is not None:
            if why is not None:
                self._rendezvous.abort(why)
            self._rendezvous.close()
            self._rendezvous = None


def main() -> None:
    """Entry of the child process. Ends by `_exit`, so that an unclean teardown of native code cannot spoil a result already told."""
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link = socket.socket(fileno=int(os.environ.pop(CHANNEL_FD)))
    link.set_inheritable(False)  # a program that an engine starts must not hold the channel
    channel = Channel(link)
    env = WorkerEnv.read(os.environ)
    log_path = env.log_path or Path(os.devnull)
    ctx = Context(env, channel, log_path, float(os.environ.pop(ENDS_AT)))
    report = _run(ctx)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    code = 0
    try:
        channel.tell({"report": report.to_json()})
    except (OSError, ValueError) as error:
        code = 70
        sys.stderr.write(f"the report could not be told: {error}\n")
        sys.stderr.flush()
    os._exit(code)


def _run(ctx: Context) -> Report:
    name = ctx.env.probe
    if not exists(name):
        return Report(Reason.BAD_SPEC, f"there is no probe {name!r}; there are {', '.join(sorted(PROBES))}")
    try:
        report = load(name).run(ctx)
    except ProbeFailure as failure:
        ctx.leave(f"{failure.reason.value}: {failure.message}")
        return Report(failure.reason, failure.message)
    except RendezvousError as error:
        ctx.leave(str(error))
        return Report(error.reason, str(error))
    except MemoryError:
        ctx.leave("out of memory")
        return Report(Reason.OOM_KILLED, f"{name}: out of memory")
    except Exception as error:  # noqa: BLE001 - whatever a probe or an engine raises must become a result
        faulthandler.dump_traceback()
        ctx.leave(f"{type(error).__name__}: {error}")
        return Report(Reason.INTERNAL_ERROR, f"{name}: {type(error).__name__}: {error}")
    ctx.leave(None)
    return report
