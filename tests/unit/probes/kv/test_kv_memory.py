"""Content: known on both sides, different everywhere, counted byte by byte."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.kv.memory import HostRegion, fill, wrong_bytes
from probes.kv.pattern import TILE, Pattern, count_different

SIZE = 3 * TILE + 12_345


@pytest.fixture(scope="module")
def region() -> HostRegion:
    return HostRegion(SIZE)


def content(region: HostRegion, offset: int, length: int) -> bytes:
    return ctypes.string_at(region.address + offset, length)


def test_what_was_filled_is_right_and_what_was_poisoned_is_wrong_in_every_byte(region: HostRegion) -> None:
    pattern = Pattern("run", "write", 1)
    fill(region, 0, SIZE, pattern, 0)
    assert wrong_bytes(region, 0, SIZE, pattern, 0) == 0
    fill(region, 100, SIZE - 200, pattern, 100, poison=True)
    assert wrong_bytes(region, 0, SIZE, pattern, 0) == SIZE - 200


def test_equal_keys_give_equal_content_and_others_do_not(region: HostRegion) -> None:
    fill(region, 0, SIZE, Pattern("run", "write", 65536, "timed"), 0)
    assert wrong_bytes(region, 0, SIZE, Pattern("run", "write", 65536, "timed"), 0) == 0
    stale = wrong_bytes(region, 0, SIZE, Pattern("run", "write", 65536, "fresh"), 0)
    assert stale > 0.99 * SIZE


@pytest.mark.parametrize("distance", [1, 64, 4096, 65536, 1 << 20, 2 << 20, 3 << 20])
def test_a_block_in_the_place_of_another_is_wrong(region: HostRegion, distance: int) -> None:
    pattern = Pattern("run")
    fill(region, 0, 4096, pattern, distance)
    assert wrong_bytes(region, 0, 4096, pattern, 0) > 3900


@given(st.binary(max_size=300), st.data())
def test_the_count_of_wrong_bytes_is_that_of_a_plain_comparison(left: bytes, data: st.DataObject) -> None:
    right = data.draw(st.binary(min_size=len(left), max_size=len(left)))
    assert count_different(left, right) == sum(a != b for a, b in zip(left, right, strict=True))


@given(origin=st.integers(0, 3 * TILE), length=st.integers(0, 2 * TILE))
def test_the_pieces_of_a_pattern_are_the_endless_tile(origin: int, length: int) -> None:
    pattern = Pattern("key")
    (_, start, _), = pattern.pieces(0, TILE)
    tile = ctypes.string_at(start, TILE)
    seen = b"".join(ctypes.string_at(address, run) for _, address, run in pattern.pieces(origin, length))
    first = origin % TILE
    assert seen == (tile * 4)[first : first + length]


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, SIZE + 1), (SIZE, 1), (0, -1)])
def test_nothing_outside_of_the_region_is_touched(region: HostRegion, offset: int, length: int) -> None:
    source = ctypes.create_string_buffer(16)
    with pytest.raises(ValueError, match="outside of a region"):
        region.put(offset, ctypes.addressof(source), length)
    with pytest.raises(ValueError, match="outside of a region"):
        region.different(offset, ctypes.addressof(source), length)


def test_a_region_that_does_not_fit_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="host memory"):
        HostRegion(1 << 60)
