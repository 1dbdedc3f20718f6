"""Large frames, and the buffer that a reader keeps for the next one."""

from __future__ import annotations

import pytest

from replication.network.framing import SHARED_BYTES, FrameReader

LARGE = 3 * SHARED_BYTES


def read(reader: FrameReader, body: bytes) -> memoryview:
    """Give a frame with this body to a reader, a piece at a time; what comes out."""
    shared = memoryview(bytearray(SHARED_BYTES))
    left = memoryview(len(body).to_bytes(4) + body)
    while True:
        if reader.growth:
            reader.grow()
        window = reader.window(shared)
        count = min(len(window), len(left), 50_000)
        window[:count] = left[:count]
        del window
        left = left[count:]
        reader.received(count)
        frame = reader.next_frame()
        if frame is not None:
            assert not left
            return frame
        if reader.large_header() is not None:
            reader.begin_large()


def test_the_next_large_frame_has_the_buffer_of_the_last_one() -> None:
    reader = FrameReader(LARGE, keeps_buffer=True)
    first = read(reader, b"a" * LARGE)
    buffer = first.obj
    first.release()
    for size in (LARGE, 2 * SHARED_BYTES, LARGE):
        frame = read(reader, b"b" * size)
        assert bytes(frame) == b"b" * size
        assert frame.obj is buffer
        frame.release()


def test_a_frame_that_somebody_holds_stays_as_it_is() -> None:
    reader = FrameReader(LARGE, keeps_buffer=True)
    held = read(reader, b"a" * LARGE)[LARGE - 10 :]
    frame = read(reader, b"b" * LARGE)
    assert bytes(held) == b"a" * 10
    assert bytes(frame) == b"b" * LARGE


def test_a_larger_frame_grows_the_buffer() -> None:
    reader = FrameReader(2 * LARGE, keeps_buffer=True)
    read(reader, b"a" * LARGE).release()
    assert bytes(read(reader, b"b" * 2 * LARGE)) == b"b" * 2 * LARGE


@pytest.mark.parametrize("keeps_buffer", [False, True])
def test_after_a_small_frame_no_buffer_is_kept(keeps_buffer: bool) -> None:
    reader = FrameReader(LARGE, keeps_buffer=keeps_buffer)
    buffer = read(reader, b"a" * LARGE).obj
    if keeps_buffer:
        assert bytes(read(reader, b"small")) == b"small"
    assert read(reader, b"b" * LARGE).obj is not buffer
