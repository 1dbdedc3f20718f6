"""Room to unpack small batches into: making and zeroing it anew would cost as much as unpacking."""

from __future__ import annotations

SCRATCH_BYTES = 128 << 10

_free: list[memoryview] = []  # one for each thread that ever was at it together with the others


def borrow() -> memoryview:
    """``SCRATCH_BYTES`` to write to. Room that is not given back, as after an error, is freed."""
    try:
        return _free.pop()
    except IndexError:
        return memoryview(bytearray(SCRATCH_BYTES))


def give_back(room: memoryview, size: int) -> bytes:
    """A copy of the first ``size`` bytes, which the next borrower overwrites."""
    content = bytes(room[:size])
    _free.append(room)
    return content
