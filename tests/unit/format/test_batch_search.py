"""The search for whole batches behind damage: what it finds, and what it costs at most."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from logstore.common.config import LogConfig
from logstore.format import batch_search as resync
from logstore.format.batch_search import BatchSearch, find_batch
from logstore.kernels import crc32
from logstore.recovery.set_aside import survey_cut
from logstore.segments.segment import Segment
from logstore.storage.base import File
from logstore.testing import FaultyStorage, ManualClock
from tests.support.builders import batch

RANDOM = random.Random(3)


class Bytes:
    """As much of a file as the search needs."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read_at(self, position: int, size: int) -> bytes:
        return self.data[position : position + size]

    @contextmanager
    def view(self, position: int, size: int) -> Iterator[memoryview]:
        yield memoryview(self.data)[position : position + size]


def found(data: bytes, position: int = 0) -> tuple[list[tuple[int, int]], BatchSearch]:
    """Position and size of all that one search finds, and the search."""
    search = BatchSearch(Bytes(data), position, len(data))  # type: ignore[arg-type]
    places = []
    while (hit := search.next(position)) is not None:
        places.append((hit.position, hit.size))
        position = hit.end
    return places, search


def legacy(magic: int, key: bytes | None, value: bytes | None) -> bytes:
    def field(data: bytes | None) -> bytes:
        return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data

    body = struct.pack(">bb", magic, 0) + struct.pack(">q", 5) * magic + field(key) + field(value)
    data = struct.pack(">I", crc32(body)) + body
    return struct.pack(">qi", 7, len(data)) + data


@pytest.mark.parametrize("base", [0, 5, 2**31, 2**62, -1, -(2**63)])
def test_the_base_offset_does_not_matter(base: int) -> None:
    whole = batch(count=2)
    data = RANDOM.randbytes(333) + struct.pack(">q", base) + whole[8:] + RANDOM.randbytes(70)
    places, search = found(data)
    assert places == [(333, len(whole))]
    assert not search.gave_up


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches(codec: str) -> None:
    from logstore.log.writing.validation import CODECS

    whole = batch(count=500, value=RANDOM.randbytes(30), compression=CODECS[codec])
    assert found(b"\xff" * 99 + whole)[0] == [(99, len(whole))]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("key", [None, b"", b"key"])
def test_old_messages(magic: int, key: bytes | None) -> None:
    first, second = legacy(magic, key, b"v" * 40), legacy(magic, key, None)
    data = b"\x01" * 50 + first + second
    assert found(data)[0] == [(50, len(first)), (50 + len(first), len(second))]


def test_batches_at_the_ends_of_windows() -> None:
    whole = batch()
    for shift in range(-70, 20, 7):
        at = resync.FIRST_WINDOW + shift
        assert found(bytes(at) + whole)[0] == [(at, len(whole))], shift


def test_zeros_are_blank() -> None:
    places, search = found(bytes(3 << 20))
    assert (places, search.blank, search.gave_up) == ([], True, False)
    assert not found(bytes(1 << 20) + b"\1")[1].blank


@pytest.mark.slow
def test_a_large_batch_is_found_without_room_for_it() -> None:
    whole = batch(value=bytes(20 << 20))
    data = whole[:9] + b"\xff" + bytes(1000) + whole
    tracemalloc.start()
    try:
        assert found(data)[0] == [(1010, len(whole))]
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()


HOSTILE = {
    "headers": batch()[:61],
    "headers of all that follows": struct.pack(">qiibI", 0, 1 << 19, 0, 2, 7) + bytes(40),
    "ones": b"\x01",
    "twos": b"\x02\0\0\0\0\0\0\1",
    "old messages": legacy(0, b"", b"")[:12] + b"?" + legacy(0, b"", b"")[13:],
    "small numbers": b"".join(struct.pack(">i", n) for n in range(300)),
}


@pytest.mark.slow
@pytest.mark.parametrize("content", list(HOSTILE))
def test_bytes_that_look_like_headers_cost_no_more_than_their_number(content: str) -> None:
    """Work is counted, since time depends on the machine; what may be valid is never denied."""
    pattern = HOSTILE[content]
    data = pattern * ((1 << 20) // len(pattern))
    hashed = 0

    class Counting(Bytes):
        @contextmanager
        def view(self, position: int, size: int) -> Iterator[memoryview]:
            nonlocal hashed
            hashed += size
            yield memoryview(self.data)[position : position + size]

    whole = batch(3)
    search = BatchSearch(Counting(data + whole), 0, len(data) + len(whole))  # type: ignore[arg-type]
    hit = search.next(0)
    assert hit == (len(data), len(whole), 3) or (hit is None and search.gave_up)
    assert hashed <= resync._HASHED + resync._HASHED_PER_BYTE * len(data) + len(whole)


def test_a_search_that_gave_up_denies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resync, "_CANDIDATES", 200)
    places, search = found(b"\x01" * 9000 + batch())
    assert (places, search.gave_up) == ([], True)


@pytest.mark.parametrize("damage", [(8, b"\xff"), (9, b"\x01"), (11, b"\0"), (16, b"\x07")])
def test_a_batch_with_a_damaged_header_alone(damage: tuple[int, bytes]) -> None:
    at, value = damage
    whole = batch(count=3)
    data = b"x" * 30 + whole[:at] + value + whole[at + 1 :]
    search = BatchSearch(Bytes(data), 30, len(data))  # type: ignore[arg-type]
    assert search.is_whole_except_header(30, len(data))
    assert not search.is_whole_except_header(29, len(data))
    data += b"behind"
    assert BatchSearch(Bytes(data), 30, len(data)).is_whole_except_header(  # type: ignore[arg-type]
        30, len(data)
    ) == (at == 16)


def test_batches_of_other_offsets_are_passed_over() -> None:
    data = batch(2**40) + batch(3) + batch(900)
    size = len(data) // 3
    assert find_batch(Bytes(data), 0, len(data), 5) == (2 * size, 900)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [1 << 30, 4000, 61])
def test_what_is_read_to_take_stock_is_in_proportion_to_the_bytes(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many pieces there are, and however long the batch between two claims to be."""
    whole = batch()
    damaged = whole[:8] + struct.pack(">i", length) + whole[12:-1] + b"?"
    data = (whole * 99 + damaged) * 80 + whole * 400
    storage = FaultyStorage()
    storage.make_dir("/t-0")
    storage.write_file(f"/t-0/{0:020}.log", data)
    segment = Segment(storage, "/t-0", 0, LogConfig(), ManualClock(0), {".log": len(data)})
    kind, total = type(segment.log), 0
    read_at, view = kind.read_at, kind.view

    def counted_read(file: File, position: int, size: int) -> bytes:
        nonlocal total
        total += min(size, len(data) - position)
        return read_at(file, position, size)

    def counted_view(file: File, position: int, size: int) -> AbstractContextManager[memoryview]:
        nonlocal total
        total += min(size, len(data) - position)
        return view(file, position, size)

    monkeypatch.setattr(kind, "read_at", counted_read)
    monkeypatch.setattr(kind, "view", counted_view)
    stock = survey_cut(segment, 0)
    assert stock.valid_bytes == (99 * 80 + 400) * len(whole)
    assert stock.complete
    assert len(data) < total < 12 * len(data)
    segment.close()


def test_take_stock_of_batches_of_any_size() -> None:
    sizes = [10, 20_000, 16_384, 3, 100_000, 7, 70_000, 70_000, 2_000_000, 5]
    data = b"\xee" * 7 + b"".join(batch(at, value=bytes(size)) for at, size in enumerate(sizes))
    storage = FaultyStorage()
    storage.make_dir("/t-0")
    storage.write_file(f"/t-0/{0:020}.log", data + b"\xee" * 9)
    segment = Segment(storage, "/t-0", 0, LogConfig(), ManualClock(0), {".log": len(data) + 9})
    for start in (0, 7):
        assert survey_cut(segment, start) == (len(data) - 7, True, False)
    segment.close()
