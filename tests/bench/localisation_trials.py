"""What the localisation benchmarks share: many seeded trials, spread over the cores of this machine."""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
from dataclasses import dataclass

from exporter.launch.fabric import Fabric, Layout, make_inventory, random_faults
from exporter.launch.faults import PERSISTENT, Fault, FaultKind
from exporter.simulation.scenario import START, default_config
from exporter.simulation.trial import Trial

TYPE = "p6-b200.48xlarge"
FEWEST, MOST = 64, 1024
MOST_FAULTS = 3
ROUNDS = 2


@dataclass(frozen=True)
class Weather:
    """What disturbs healthy runs: the share that could not be measured, and the share that was slow by chance."""

    unknown: float
    chance: float


QUIET = Weather(0.0, 0.0)
USUAL = Weather(0.01, 0.001)
"""One run in a hundred is preempted, starved or without a place, one in a thousand slow without a fault of its nodes."""


@dataclass(frozen=True)
class Outcome:
    """One trial. `late` are bad nodes that were named, but in more rounds than allowed."""

    nodes: int
    bad: int
    named: int
    late: int
    innocent: int
    runs: int
    extra: int
    peer_named: int
    peer_innocent: int
    peer_runs: int
    peer_extra: int


def trial(weather: Weather, seed: int) -> Outcome:
    """One fabric of 64 to 1,024 nodes with 0 to 3 bad nodes, localised by our scheme and by the peer's."""
    rng = random.Random(seed)
    nodes = rng.randint(FEWEST, MOST)
    inventory = make_inventory(Layout(nodes, TYPE, unequal=True), seed, START)
    faults = random_faults(inventory, rng.randint(0, MOST_FAULTS), rng, PERSISTENT)
    bad = {fault.where for fault in faults}
    if weather.unknown:
        faults.append(Fault(FaultKind.UNKNOWN, "all", severity=weather.unknown))
    one = Trial(Fabric(inventory, seed, faults, weather.chance), default_config())
    ours, peer = one.ours(ROUNDS), one.two_pass(rng)
    late = 0
    for name in bad & ours.names:
        partners = ours.partners[name]
        late += len(partners) > ROUNDS + bool(bad.intersection(partners))
    return Outcome(nodes, len(bad), len(bad & ours.names), late, len(ours.names - bad), ours.runs, ours.extra, len(bad & peer.names),
                   len(peer.names - bad), peer.runs, peer.extra)


def trials(count: int, weather: Weather) -> list[Outcome]:
    """Trials 0 to `count` - 1, on every core."""
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        return pool.map(functools.partial(trial, weather), range(count), chunksize=4)
