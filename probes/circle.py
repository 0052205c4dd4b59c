"""The circle method: rounds of disjoint pairs of places that together hold every two places once.

The last place stands still, the others turn: in round r, place i meets place (2r - i) mod (m - 1), and the place that would meet itself
meets the last one.
"""

from __future__ import annotations


def round_of(places: int, number: int) -> list[tuple[int, int]]:
    """The pairs of round `number` over an even number of `places`, lower place first, in order of it; after m - 1 rounds they repeat."""
    turn = places - 1
    if turn < 1:
        return []
    found: list[tuple[int, int]] = []
    for low in range(turn):
        high = (2 * number - low) % turn
        if low == high:
            high = turn
        if low < high:
            found.append((low, high))
    return found
