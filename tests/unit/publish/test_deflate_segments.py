"""Segments deflated one by one and joined are one valid gzip member of the joined text."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.publish.deflate import GZIP_HEADER, NOTHING, Segment, add, gzip_length, gzip_trailer, segment

TEXTS = st.lists(st.binary(max_size=300) | st.binary(min_size=1, max_size=3).map(lambda piece: piece * 500), max_size=8)


def member(segments: list[Segment]) -> bytes:
    return GZIP_HEADER + b"".join(part.deflated for part in segments) + gzip_trailer(add(NOTHING, segments))


@given(TEXTS)
def test_any_segments_are_one_gzip_member_of_the_joined_text(texts: list[bytes]) -> None:
    segments = [segment(text) for text in texts]
    inflater = zlib.decompressobj(31)  # one gzip member, its CRC and length checked
    assert inflater.decompress(member(segments)) == b"".join(texts)
    assert inflater.eof
    assert inflater.unused_data == b""


@given(TEXTS)
def test_the_checksum_of_the_whole_comes_from_those_of_the_segments(texts: list[bytes]) -> None:
    assert add(NOTHING, [segment(text) for text in texts]).crc == zlib.crc32(b"".join(texts))


@given(TEXTS, st.integers(0, 8))
def test_sums_can_be_continued(texts: list[bytes], cut: int) -> None:
    segments = [segment(text) for text in texts]
    assert add(add(NOTHING, segments[:cut]), segments[cut:]) == add(NOTHING, segments)


@given(TEXTS)
def test_the_length_is_known_before_the_stream_is_made(texts: list[bytes]) -> None:
    segments = [segment(text) for text in texts]
    assert gzip_length(add(NOTHING, segments)) == len(member(segments))


@pytest.mark.parametrize("length", [0, 1, 255, 256, 65535, 65536, 3_000_001])
def test_lengths_around_powers_of_two(length: int) -> None:
    segments = [segment(b"x"), segment(b"ab" * (length // 2) + b"c" * (length % 2)), segment(b"y")]
    assert gzip.decompress(member(segments)) == b"".join(part.text for part in segments)


def test_the_standard_library_and_its_incremental_reader_agree() -> None:
    segments = [segment(f"line {i}\n".encode() * 100) for i in range(50)]
    whole = member(segments)
    assert gzip.decompress(whole) == b"".join(part.text for part in segments)
    inflater = zlib.decompressobj(31)
    assert b"".join(inflater.decompress(whole[i : i + 7]) for i in range(0, len(whole), 7)) == gzip.decompress(whole)


def test_a_wrong_byte_is_noticed() -> None:
    broken = bytearray(member([segment(b"efapulse_up 1\n" * 1000)]))
    broken[-6] ^= 1
    with pytest.raises((gzip.BadGzipFile, zlib.error)):
        gzip.decompress(bytes(broken))


def test_small_pieces_in_one_segment_compress_nearly_as_well_as_the_whole() -> None:
    lines = [f'efapulse_node_bandwidth_bytes_per_second{{node="node-{i}"}} {i * 7919 % 10007}\n'.encode() for i in range(3000)]
    whole = len(gzip.compress(b"".join(lines)))
    chunks = [segment(b"".join(lines[i : i + 600])) for i in range(0, 3000, 600)]
    alone = [segment(line) for line in lines]
    assert gzip_length(add(NOTHING, chunks)) < 1.15 * whole
    assert gzip_length(add(NOTHING, alone)) > 5 * whole
