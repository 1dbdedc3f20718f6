"""Digests of ranges of offsets: the same whatever segments and windows a log is cut into."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import mmh3
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verify_logs import LOG_DIR, names, patch

from logstore.common.config import LogConfig
from logstore.format.header import parse_header
from logstore.kernels import crc32c
from logstore.log import PartitionLog
from logstore.storage.memory import MemoryStorage
from logstore.testing import ManualClock
from logstore.verify.common.digests import _K, _R, RangeDigest
from logstore.verify.segment import scan
from logstore.verify.segment.scan import (
    CompareSpec,
    SegmentJob,
    SegmentResult,
    VerifyOptions,
    verify_segment,
)

ALL = CompareSpec(0, 2**63 - 1, 50)
BATCHES_ONLY = VerifyOptions(deep=False, fingerprint=False)


def written(
    sizes: Sequence[int], segment_bytes: int, epochs: Sequence[int] = (3,)
) -> MemoryStorage:
    """A partition with batches of so many records each, and the epochs spread over them."""
    storage, clock = MemoryStorage(), ManualClock()
    config = LogConfig(segment_bytes=segment_bytes, segment_index_bytes=4096)
    log = PartitionLog.open(f"{LOG_DIR}/orders-0", config, storage=storage, clock=clock)
    rng = random.Random(9)
    for number, count in enumerate(sizes):
        epoch = epochs[number * len(epochs) // len(sizes)]
        if epoch > log.epochs.latest:
            log.epochs.assign(epoch)
        records = [(b"key", rng.randbytes(20), 1000 + number) for _ in range(count)]
        log.append(records, leader_epoch=epoch)
    log.close()
    return storage


def segments(
    storage: MemoryStorage, compare: CompareSpec | None, options: VerifyOptions = BATCHES_ONLY
) -> list[SegmentResult]:
    directory = f"{LOG_DIR}/orders-0"
    bases = [int(name.rsplit("/", 1)[-1][:-4]) for name in names(storage, ".log", directory)]
    return [
        verify_segment(storage, SegmentJob(directory, base, following, compare=compare), options)
        for base, following in zip(bases, [*bases[1:], -1], strict=True)
    ]


def digests(storage: MemoryStorage, compare: CompareSpec) -> list[RangeDigest]:
    return joined_parts(segments(storage, compare))


def joined_parts(results: Iterable[SegmentResult]) -> list[RangeDigest]:
    """A range that crosses a segment boundary has a part in each."""
    found: dict[int, RangeDigest] = {}
    for part in (part for result in results for part in result.ranges):
        before = found.get(part.number)
        found[part.number] = before.joined(part) if before else part
    return list(found.values())


def by_definition(storage: MemoryStorage, compare: CompareSpec) -> list[tuple[int, ...]]:
    """Number, offsets, batches, bytes, and value of each range, batch by batch, by headers."""
    found: dict[int, tuple[int, ...]] = {}
    for name in names(storage, ".log", f"{LOG_DIR}/orders-0"):
        data = storage.read_file(name, 1 << 30)
        while data:
            header = parse_header(data)
            base, end = header.base_offset, header.last_offset + 1
            content = mmh3.mmh3_x64_128_uintdigest(data[17:61])
            data = data[header.size :]
            if base < compare.start or end > compare.end:
                continue
            number = base // compare.span
            _, first, _, batches, size, value = found.get(number, (number, base, 0, 0, 0, 0))
            value = (value * _R + content + base * _K) % 2**128
            found[number] = (number, first, end, batches + 1, size + header.size, value)
    return list(found.values())


def shown(ranges: Sequence[RangeDigest]) -> list[tuple[int, ...]]:
    return [
        (r.number, r.first_offset, r.end_offset, r.batches, r.bytes, r.fingerprint.value)
        for r in ranges
    ]


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=25),
    segment_bytes=st.sampled_from([1200, 3000, 1 << 20]),
    start=st.integers(0, 200),
    length=st.integers(0, 300),
    span=st.sampled_from([1, 7, 50, 10_000]),
)
def test_ranges_are_their_definition(
    sizes: list[int], segment_bytes: int, start: int, length: int, span: int
) -> None:
    """A batch lies in the range of its first offset; one that is not all inside is left out."""
    storage = written(sizes, segment_bytes)
    compare = CompareSpec(start, start + length, span)
    found = digests(storage, compare)
    assert shown(found) == by_definition(storage, compare)
    scales = [pow(_R, r.batches, 2**128) for r in found]
    assert [r.fingerprint.scale for r in found] == scales


def test_segments_windows_and_epochs_do_not_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [1, 5, 40, 3, 60, 2, 2, 2, 90, 1] * 4
    one = digests(written(sizes, 1 << 20), ALL)
    assert len(one) > 10
    assert shown(digests(written(sizes, 3500, (1, 2, 7)), ALL)) == shown(one)
    monkeypatch.setattr(scan, "WINDOW", 5000)
    monkeypatch.setattr(scan, "_BLOCK", 300)
    assert shown(digests(written(sizes, 1 << 20), ALL)) == shown(one)


def test_where_a_range_begins() -> None:
    """Position and epoch are those of its first batch, in the segment where that lies."""
    storage = written([20] * 12, 2500, (3, 8))
    results = segments(storage, ALL)
    assert len(results) > 2
    for result in results:
        data = storage.read_file(f"{LOG_DIR}/orders-0/{result.base:020}.log", 1 << 30)
        for digest in result.ranges:
            header = parse_header(memoryview(data)[digest.position :])
            assert header.base_offset == digest.first_offset
            assert header.leader_epoch == digest.epoch
    assert {digest.epoch for result in results for digest in result.ranges} == {3, 8}


def test_the_whole_fingerprint_is_that_of_all_ranges() -> None:
    storage = written([5, 40, 3, 60, 2, 90], 3500)
    both = VerifyOptions(deep=False, fingerprint=True)
    results = segments(storage, ALL, both)
    assert results == segments(storage, ALL, both)
    plain = segments(storage, None, both)
    assert [r.fingerprint for r in results] == [r.fingerprint for r in plain]
    assert not any(r.ranges for r in plain)
    outside = segments(storage, CompareSpec(40, 50, 5), both)
    assert [r.fingerprint for r in outside] == [r.fingerprint for r in plain]
    joined = results[0].fingerprint
    for result in results[1:]:
        joined = joined.joined(result.fingerprint)
    pieces = [digest.fingerprint for digest in joined_parts(results)]
    folded = pieces[0]
    for piece in pieces[1:]:
        folded = folded.joined(piece)
    assert folded == joined


def test_one_changed_batch_changes_one_range() -> None:
    storage = written([10] * 30, 1 << 20)
    before = digests(storage, ALL)
    (path,) = names(storage, ".log", f"{LOG_DIR}/orders-0")
    data = storage.read_file(path, 1 << 30)
    position = 0
    while parse_header(data[position:]).base_offset < 120:
        position += parse_header(data[position:]).size
    size = parse_header(data[position:]).size
    patch(storage, path, position + 12, (9).to_bytes(4, "big"))
    assert shown(digests(storage, ALL)) == shown(before)  # the leader epoch does not count
    changed = bytearray(data[position : position + size])
    changed[-2] ^= 1
    changed[17:21] = crc32c(changed[21:]).to_bytes(4, "big")
    patch(storage, path, position, bytes(changed))
    after = digests(storage, ALL)
    differing = [a.number for a, b in zip(before, after, strict=True) if a != b]
    assert differing == [120 // ALL.span]


@pytest.mark.parametrize("fingerprint", [False, True])
def test_a_batch_hashed_in_pieces_counts_the_same(
    monkeypatch: pytest.MonkeyPatch, fingerprint: bool
) -> None:
    storage = written([5, 400, 3], 1 << 20)
    options = VerifyOptions(deep=False, fingerprint=fingerprint)
    whole = segments(storage, ALL, options)
    monkeypatch.setattr(scan, "WINDOW", 2000)
    monkeypatch.setattr(scan, "WHOLE_BATCH_MAX", 2000)
    (result,) = segments(storage, ALL, options)
    assert [result] == whole
    (deep,) = segments(storage, ALL, VerifyOptions())
    assert [problem.rule for problem in deep.problems[".log"]] == ["not-checked"]


def test_timestamps_of_a_segment() -> None:
    results = segments(written([3] * 20, 1000), None)
    assert len(results) > 2
    assert results[0].min_timestamp == 1000
    assert [r.min_timestamp for r in results[1:]] == [r.max_timestamp + 1 for r in results[:-1]]
    assert results[-1].max_timestamp == 1019


def test_an_empty_range_of_offsets() -> None:
    storage = written([5, 5], 1 << 20)
    assert digests(storage, CompareSpec(3, 3, 10)) == []
    assert digests(storage, CompareSpec(1, 9, 10)) == []
    with pytest.raises(ValueError, match="0 offsets"):
        CompareSpec(0, 5, 0)
