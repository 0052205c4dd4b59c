"""Which two GPUs exchange with each other, and in which turn: rails between partner nodes, and every GPU with every other.

Ranks are numbered worker by worker. A meeting is (lower rank, higher rank, name); the meetings of one turn share no GPU.
"""

from __future__ import annotations

from typing import Literal

from probes.circle import round_of

Meeting = tuple[int, int, str]
Way = Literal["off", "together", "each"]
RAIL, PAIR = "rail", "pair"


def turns(*, gpus: int, workers: int, rails: Way, pairs: Way) -> list[list[Meeting]]:
    """Every turn of a run with `gpus` a worker, in order.

    Rails: GPU i of a worker with GPU i of its partner (workers 0 and 1, 2 and 3, ...). Pairs: all of them once, by the circle method in
    ranks - 1 turns (`together`), or one pair a turn (`each`).
    """
    found: list[list[Meeting]] = []
    if rails != "off" and workers > 1:
        firsts = [worker * gpus for worker in range(0, workers - 1, 2)]
        each = [[(first + gpu, first + gpus + gpu, f"{RAIL}{gpu}") for first in firsts] for gpu in range(gpus)]
        found += each if rails == "each" else [[meeting for turn in each for meeting in turn]]
    if pairs != "off":
        rounds = circle(gpus * workers)
        found += rounds if pairs == "together" else [[meeting] for one in rounds for meeting in one]
    return found


def circle(ranks: int) -> list[list[Meeting]]:
    """Rounds of disjoint pairs that hold every two ranks once (circle method); with an odd number one rank rests in each."""
    places = ranks + ranks % 2
    return [[(one, other, f"{PAIR}{one}-{other}") for one, other in round_of(places, number) if other < ranks]
            for number in range(places - 1)]


def ranks_of(variant: str) -> tuple[int, int] | None:
    """The ranks of a pair's name, None for any other variant."""
    one, _, other = variant.removeprefix(PAIR).partition("-")
    return (int(one), int(other)) if variant.startswith(PAIR) and one.isdecimal() and other.isdecimal() else None
