"""The test data: exact sums, and an expectation that a plain reading of each collective confirms. The GPU itself is tested on a GPU."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import probes.nccl
from probes.nccl.params import Dtype, Operation
from probes.nccl.pattern import Shape, expected, mask_and_stride, shape, value

PACKAGE = Path(probes.nccl.__file__).parent
OPERATIONS: list[Operation] = ["all_reduce", "alltoall", "all_gather", "reduce_scatter", "sendrecv"]


def collective(what: Shape, sent: list[list[int]]) -> list[list[int]]:
    """What each rank holds after the operation, straight from the definition of each collective."""
    count, ranks = what.count, what.ranks
    if what.operation == "all_reduce":
        return [[sum(column) for column in zip(*sent, strict=True)]] * ranks
    if what.operation == "reduce_scatter":
        total = [sum(column) for column in zip(*sent, strict=True)]
        return [total[rank * count : (rank + 1) * count] for rank in range(ranks)]
    if what.operation == "all_gather":
        return [[element for part in sent for element in part]] * ranks
    if what.operation == "alltoall":
        return [[element for part in sent for element in part[rank * count : (rank + 1) * count]] for rank in range(ranks)]
    return [sent[(rank - 1) % ranks] for rank in range(ranks)]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(OPERATIONS), st.sampled_from(["float", "bf16"]), st.integers(2, 6), st.integers(0, 2**31), st.integers(1, 6))
def test_what_is_expected_is_what_the_collective_does(operation: Operation, dtype: Dtype, ranks: int, seed: int, units: int) -> None:
    what = shape(operation, ranks, 16 * ranks * units, dtype)
    mask, stride = mask_and_stride(dtype, ranks if operation in {"all_reduce", "reduce_scatter"} else 1)
    sent = [[value(seed, rank, index, mask, stride) for index in range(what.send)] for rank in range(ranks)]
    for rank, held in enumerate(collective(what, sent)):
        assert len(held) == what.receive
        for part in expected(what, rank, (rank - 1) % ranks):
            for offset in range(part.count):
                wanted = sum(value(seed, part.first_rank + r, part.index + offset, mask, stride) for r in range(part.ranks))
                assert held[part.at + offset] == wanted
        assert sum(part.count for part in expected(what, rank, (rank - 1) % ranks)) == what.receive


@pytest.mark.parametrize("ranks", [2, 8, 64, 128, 256, 257, 1000, 4096])
def test_bfloat16_sums_are_exact(ranks: int) -> None:
    mask, stride = mask_and_stride("bf16", ranks)
    largest = mask * -(-ranks // stride)
    assert mask >= 1
    assert largest <= 256
    for whole in range(largest + 1):
        bits = struct.unpack("<I", struct.pack("<f", float(whole)))[0]
        assert bits & 0xFFFF == 0


def test_float_sums_are_exact_for_any_number_of_ranks() -> None:
    mask, stride = mask_and_stride("float", 4096)
    assert (mask, stride) == (255, 1)
    assert 4096 * mask < 2**24


def test_ranks_indices_and_seeds_all_matter() -> None:
    base = [value(1, 0, index, 255, 1) for index in range(1000)]
    for other in ([value(1, 1, index, 255, 1) for index in range(1000)], [value(2, 0, index, 255, 1) for index in range(1000)],
                  [value(1, 0, index + 1, 255, 1) for index in range(1000)], [value(1, 0, index + 2**32, 255, 1) for index in range(1000)]):
        same = sum(one == two for one, two in zip(base, other, strict=True))
        assert same < 40


def test_values_are_spread_evenly() -> None:
    counts = [0] * 8
    for index in range(8000):
        counts[value(7, 3, index, 7, 1)] += 1
    assert max(counts) < 1150
    assert min(counts) > 850


def test_sizes_follow_nccl_tests() -> None:
    assert shape("alltoall", 2, 1 << 20, "float").bytes == 1 << 20
    assert shape("alltoall", 3, 1 << 20, "float").bytes == (1 << 20) // 48 * 48
    assert shape("all_gather", 8, 1 << 20, "bf16").count == (1 << 20) // 8 // 2
    assert shape("sendrecv", 8, 1000, "float").bytes == 1000
    with pytest.raises(ValueError, match="cannot be split over 16 ranks"):
        shape("alltoall", 16, 128, "float")


def test_the_compiled_kernels_belong_to_the_source() -> None:
    """Every kernel of kernels.cu is in kernels.ptx with as many parameters, for a driver of 2020 and any GPU since Volta."""
    source, ptx = ((PACKAGE / name).read_text() for name in ("kernels.cu", "kernels.ptx"))
    wanted = {name: text.count(",") + 1 for name, text in re.findall(r'extern "C" __global__ void (\w+)\(([^)]*)\)', source)}
    found = {name: text.count(".param") for name, text in re.findall(r"\.entry (\w+)\(([^)]*)\)", ptx)}
    assert found == wanted
    assert re.search(r"^\.version 7\.0$", ptx, re.MULTILINE)
    assert re.search(r"^\.target sm_70$", ptx, re.MULTILINE)
