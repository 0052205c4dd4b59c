"""What EC2 knows of the nodes and Kubernetes does not: network layers, placement group, capacity reservation, and what a type has.

A thread of its own asks, in batches, and keeps the answers; whoever makes an inventory reads what is known by then. Every call is optional:
one that is refused costs the facts behind it, which is told, and is asked again later, ever more seldom.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from exporter import log
from exporter.aws import Trouble, trouble_of
from exporter.config.ec2 import Ec2
from exporter.inventory.ec2calls import Answers, Calls, CallsOf, TypeFacts, connected

INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")
TICK_SECONDS = 5.0
PAUSE_SECONDS = 0.2
"""Between two calls, so that a large fleet does not use up the account's request rate."""
FIRST_RETRY, LONGEST_RETRY = 30.0, 1800.0
LOST = {
    "DescribeInstanceTypes": "what types that are not in the built-in table should have",
    "DescribeInstances": "placement groups and capacity reservations",
    "DescribeInstanceTopology": "distances between nodes that carry no topology.k8s.aws labels",
}
"""What is lost without each call."""


@dataclass(frozen=True)
class Wanted:
    """A node that is asked about."""

    instance_id: str
    instance_type: str | None
    region: str | None


@dataclass(frozen=True)
class InstanceFacts:
    """What EC2 says of an instance. None and empty: it has none, or it is not known. See `Node` for the meanings."""

    network_nodes: tuple[str, ...] = ()
    placement_group: str | None = None
    capacity_reservation: str | None = None


@dataclass
class _Asked:
    """One call: when each subject was answered (monotonic seconds), and how it fails."""

    answered: dict[str, float] = field(default_factory=dict)
    requests: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    trouble: Trouble | None = None
    retry_at: float = 0.0
    wait: float = FIRST_RETRY


class Ec2Facts:
    """See the module. `on_change` is called from its thread when more is known than before; it must only take note."""

    def __init__(self, config: Ec2, *, on_change: Callable[[], None] = lambda: None, calls_of: CallsOf | None = None,
                 clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time) -> None:
        self._config, self._on_change, self._clock, self._now = config, on_change, clock, now
        self._calls_of = calls_of or (lambda region: connected(config, region))
        self._regions: dict[str, Calls] = {}
        self._wanted: dict[str, Wanted] = {}
        self._topology: dict[str, tuple[str, ...]] = {}
        self._placed: dict[str, tuple[str | None, str | None]] = {}
        self._types: dict[str, TypeFacts] = {}
        self._asked = {name: _Asked() for name in LOST}
        self._complete_at: float | None = None
        self._lock = threading.Lock()
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="ec2", daemon=True)

    def start(self) -> Ec2Facts:
        """Begin to ask."""
        self._thread.start()
        return self

    def close(self) -> None:
        """End; an answer on its way is not waited for."""
        self._stop.set()
        self._wake.set()

    def want(self, nodes: Iterable[Wanted]) -> None:
        """These are the nodes now. Those that are no EC2 instances are never asked about."""
        wanted = {one.instance_id: one for one in nodes if INSTANCE.fullmatch(one.instance_id)}
        with self._lock:
            if wanted == self._wanted:
                return
            self._wanted = wanted
        self._wake.set()

    def instance(self, instance_id: str) -> InstanceFacts:
        """What is known of an instance."""
        group, reservation = self._placed.get(instance_id, (None, None))
        return InstanceFacts(self._topology.get(instance_id, ()), group, reservation)

    def type(self, name: str | None) -> TypeFacts | None:
        """What is known of an instance type."""
        return self._types.get(name) if name is not None else None

    @property
    def troubles(self) -> list[str]:
        """What is lost now and why, one sentence a call."""
        return [f"{asked.trouble}; lost: {LOST[name]}" for name, asked in self._asked.items() if asked.trouble is not None]

    @property
    def known(self) -> dict[str, bool]:
        """Whether each kind of fact is known, by name; nothing when there is no EC2 instance to ask about."""
        if not self._wanted:
            return {}
        answered = {name: bool(asked.answered) for name, asked in self._asked.items()}
        return {"instance_types": answered["DescribeInstanceTypes"], "topology": answered["DescribeInstanceTopology"],
                "placement_group": answered["DescribeInstances"], "capacity_reservation": answered["DescribeInstances"]}

    @property
    def requests(self) -> Mapping[str, int]:
        """Calls so far."""
        return {name: asked.requests for name, asked in self._asked.items()}

    @property
    def failures(self) -> Mapping[tuple[str, str], int]:
        """Failed calls so far, by call and kind of trouble."""
        return {(name, kind): count for name, asked in self._asked.items() for kind, count in list(asked.failures.items())}

    @property
    def complete_at(self) -> float | None:
        """When everything that was asked had last been answered, Unix seconds."""
        return self._complete_at

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(TICK_SECONDS)
            self._wake.clear()
            if not self._stop.is_set():
                self.turn()

    def turn(self) -> None:
        """Ask everything that is due. Belongs to the thread."""
        with self._lock:
            wanted = dict(self._wanted)
        if not wanted:
            return
        self._forget(wanted)
        changed = False
        by_region: dict[str, list[Wanted]] = defaultdict(list)
        for one in wanted.values():
            by_region[self._config.region or one.region or ""].append(one)
        for region, mine in sorted(by_region.items()):
            types = {one.instance_type for one in mine if one.instance_type is not None}
            ids = {one.instance_id for one in mine}
            changed |= self._ask("DescribeInstanceTypes", region, types, lambda calls, names: calls.types(names), self._types)
            changed |= self._ask("DescribeInstances", region, ids, lambda calls, names: calls.placements(names), self._placed)
            changed |= self._ask("DescribeInstanceTopology", region, ids, lambda calls, names, types=types: calls.topology(names, types),
                                 self._topology)
        if all(asked.trouble is None for asked in self._asked.values()):
            self._complete_at = self._now()
        if changed:
            self._on_change()

    def _ask(self, name: str, region: str, subjects: set[Any], call: Callable[..., Answers], into: dict[str, Any]) -> bool:
        """Ask one call about the subjects that are due; returns whether anything new came of it."""
        asked = self._asked[name]
        now = self._clock()
        if now < asked.retry_at:
            return False
        due = sorted(one for one in subjects if now - asked.answered.get(one, -1e18) >= self._config.refresh)
        changed = False
        for first in range(0, len(due), Calls.AT_ONCE):
            if self._stop.is_set():
                return changed
            part = due[first:first + Calls.AT_ONCE]
            asked.requests += 1
            try:
                if region not in self._regions:
                    self._regions[region] = self._calls_of(region or None)
                answers = call(self._regions[region], part)
            except Exception as error:  # noqa: BLE001 - whatever boto3 raises costs these facts and nothing else
                self._failed(name, asked, trouble_of(error, name))
                return changed
            changed |= any(into.get(key) != value for key, value in answers.items())
            into.update(answers)
            # An instance that EC2 says nothing of is answered, too: its type has no topology, or it is gone.
            asked.answered.update(dict.fromkeys(part, self._clock()))
            if asked.trouble is not None:
                log.get().info("EC2 answers again", call=name)
            asked.trouble, asked.retry_at, asked.wait = None, 0.0, FIRST_RETRY
            self._stop.wait(PAUSE_SECONDS if first + Calls.AT_ONCE < len(due) else 0.0)
        return changed

    def _failed(self, name: str, asked: _Asked, trouble: Trouble) -> None:
        asked.failures[trouble.kind] = asked.failures.get(trouble.kind, 0) + 1
        if asked.trouble is None or asked.trouble.kind != trouble.kind:
            log.get().warning("EC2 does not tell", call=name, trouble=trouble.kind, error=trouble.says, lost=LOST[name])
        asked.trouble = trouble
        asked.retry_at = self._clock() + asked.wait * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
        asked.wait = min(LONGEST_RETRY, 2 * asked.wait)

    def _forget(self, wanted: Mapping[str, Wanted]) -> None:
        for known in (self._topology, self._placed, self._asked["DescribeInstances"].answered,
                      self._asked["DescribeInstanceTopology"].answered):
            for gone in known.keys() - wanted.keys():
                del known[gone]
