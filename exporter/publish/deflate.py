"""Compressed text that is joined, not compressed again.

A gzip stream is made of segments that were deflated one by one when their text changed. Each segment starts with an empty window and
ends on a byte boundary (Z_FULL_FLUSH), so segments can be put one behind the other and closed with an empty last block. The result is
one gzip member: several members would be legal as well, but curl refuses and browsers cut them. The checksum of the whole comes from
those of the segments: CRC-32 is linear over GF(2), so crc(A + B) = crc(A) * x^(8 * len(B)) + crc(B) modulo the CRC polynomial, the
method of zlib's crc32_combine.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

LEVEL = 6
_POLYNOMIAL = 0xEDB88320
_ONE = 0x80000000
"""x^0: in a reflected CRC the highest bit is the lowest power."""

GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_LAST_BLOCK = b"\x03\x00"


class Segment(NamedTuple):
    """A text, its deflated form, its CRC-32, and `shift`, which is x^(8 * length) modulo the CRC polynomial."""

    text: bytes
    deflated: bytes
    crc: int
    shift: int


class Sums(NamedTuple):
    """Length of a text in bytes, of its deflated form, and the text's CRC-32."""

    size: int
    deflated: int
    crc: int


NOTHING = Sums(0, 0, 0)
"""The sums of no segment at all."""


def segment(text: bytes, level: int = LEVEL) -> Segment:
    """Deflate one text."""
    deflater = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS, 9)
    deflated = deflater.compress(text) + deflater.flush(zlib.Z_FULL_FLUSH)
    return Segment(text, deflated, zlib.crc32(text), _shift(len(text)))


def add(sums: Sums, segments: Iterable[Segment]) -> Sums:
    """The sums after more segments."""
    size, deflated, crc = sums
    for part in segments:
        size += len(part.text)
        deflated += len(part.deflated)
        crc = _multiply(part.shift, crc) ^ part.crc
    return Sums(size, deflated, crc)


def gzip_trailer(sums: Sums) -> bytes:
    """What closes the gzip member: an empty last block, CRC-32 and length."""
    return _LAST_BLOCK + struct.pack("<II", sums.crc, sums.size & 0xFFFFFFFF)


def gzip_length(sums: Sums) -> int:
    """Bytes of the whole gzip member."""
    return len(GZIP_HEADER) + sums.deflated + len(_LAST_BLOCK) + 8


def _multiply(a: int, b: int) -> int:
    """a * b modulo the CRC polynomial, both reflected."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


def _powers() -> list[int]:
    """x^(8 * 2^k) for k = 0..31."""
    table = [_ONE >> 8]
    while len(table) < 32:
        table.append(_multiply(table[-1], table[-1]))
    return table


_POWERS = _powers()


def _shift(length: int) -> int:
    """x^(8 * length)."""
    shift, k = _ONE, 0
    while length:
        if length & 1:
            shift = _multiply(_POWERS[k], shift)
        length >>= 1
        k += 1
    return shift
