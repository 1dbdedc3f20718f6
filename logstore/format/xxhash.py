"""xxHash32: header and block checksums of the LZ4 frame format.

Plain Python: Kafka hashes the 2 bytes of its frame header, and writes no block checksums.
"""

from __future__ import annotations

import struct

from logstore.types import Buffer

_P1, _P2, _P3, _P4, _P5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
_MASK = 0xFFFFFFFF


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK


def xxh32(data: Buffer, seed: int = 0) -> int:
    view = memoryview(data)
    size = len(view)
    striped = size & ~15
    if striped:
        lanes = [seed + _P1 + _P2, seed + _P2, seed, seed - _P1]
        for words in struct.iter_unpack("<4I", view[:striped]):
            lanes = [
                _rotate((lane + word * _P2) & _MASK, 13) * _P1 & _MASK
                for lane, word in zip(lanes, words, strict=True)
            ]
        state = sum(map(_rotate, lanes, (1, 7, 12, 18)))
    else:
        state = seed + _P5
    state = (state + size) & _MASK
    worded = striped + (size - striped & ~3)
    for (word,) in struct.iter_unpack("<I", view[striped:worded]):
        state = _rotate((state + word * _P3) & _MASK, 17) * _P4 & _MASK
    for byte in view[worded:]:
        state = _rotate((state + byte * _P5) & _MASK, 11) * _P1 & _MASK
    state = (state ^ state >> 15) * _P2 & _MASK
    state = (state ^ state >> 13) * _P3 & _MASK
    return state ^ state >> 16
