"""The kernels of the log cleaner: the native ones do what the ones in plain Python say."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import mmh3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.common.errors import CorruptBatchError
from logstore.format.batch import encode_batch
from logstore.format.codecs.compression import Compression
from logstore.format.header import parse_header
from logstore.format.reader import read_records
from logstore.kernels import RUN_END, RUN_FULL, RUN_SPECIAL
from tests.reference import compact as _compact_reference

native = pytest.importorskip("logstore.kernels._compact")

BOTH = pytest.mark.parametrize("kernels", [native, _compact_reference], ids=["native", "reference"])
NOW, RETENTION = 50_000, 1000


def a_batch(rng: random.Random, base: int) -> bytes:
    rows = [
        (
            rng.choice((None, b"", b"a", b"k" * 15, b"k" * 16, b"k" * 17, rng.randbytes(40))),
            rng.choice((None, b"", rng.randbytes(30))),
            rng.randrange(10**6),
            [("h", None), ("é", b"x")] if rng.random() < 0.2 else [],
        )
        for _ in range(rng.randrange(1, 40))
    ]
    append_time = rng.choice((None, None, 77))
    return bytes(encode_batch(rows, base_offset=base, log_append_time=append_time))


def sections(data: bytes) -> list[tuple[Any, bytes]]:
    found, position = [], 0
    while position < len(data):
        header = parse_header(data, position)
        found.append((header, data[header.payload_position : header.end_position]))
        position = header.end_position
    return found


def log_of(seed: int, count: int = 6) -> bytes:
    rng, data, base = random.Random(seed), b"", 0
    for _ in range(count):
        data += a_batch(rng, base)
        base = parse_header(data, len(data) - len(sections(data)[-1][1]) - 61).next_offset
        base += rng.randrange(3)
    return data


@BOTH
@given(keys=st.lists(st.binary(max_size=70), max_size=30))
def test_digests_are_those_of_mmh3(kernels: Any, keys: list[bytes]) -> None:
    """What the native map finds under a key is what Python's table of digests has."""
    offset_map = kernels.OffsetMap(24 * 64, 1.0)
    expected: dict[bytes, int] = {}
    for offset, key in enumerate(keys):
        assert offset_map.put(key, offset)
        expected[mmh3.mmh3_x64_128_digest(key)] = offset
    assert (len(offset_map), offset_map.latest_offset) == (len(expected), len(keys) - 1)
    for key in keys:
        assert offset_map.get(key) == expected[mmh3.mmh3_x64_128_digest(key)]
    assert offset_map.get(b"\x00" * 71) == -1


@BOTH
def test_a_key_takes_24_bytes_and_the_map_says_when_it_is_full(kernels: Any) -> None:
    offset_map = kernels.OffsetMap(24 * 100 + 23, 0.9)
    assert (offset_map.slots, offset_map.limit) == (100, 90)
    for n in range(90):
        assert not offset_map.full
        assert offset_map.put(b"%d" % n, n)
    assert offset_map.full
    assert not offset_map.put(b"0", 1000)  # as Kafka: a known key is not looked for any more
    assert (offset_map.get(b"0"), offset_map.latest_offset) == (0, 89)
    offset_map.clear()
    assert (len(offset_map), offset_map.latest_offset, offset_map.get(b"5")) == (0, -1, -1)
    for memory, factor in ((47, 0.9), (24 * 100, 0.0), (24 * 100, 1.5), (24 * 2, 0.1)):
        with pytest.raises(ValueError, match=r"bytes|factor"):
            kernels.OffsetMap(memory, factor)


@pytest.mark.parametrize("slots", [4096, 4097, 10_000, 40_000])
def test_a_map_that_grows_loses_no_key_and_is_full_at_its_limit(slots: int) -> None:
    """It begins with 4,096 slots, and has all from three quarters of them on, or of 32,768."""
    offset_map = native.OffsetMap(24 * slots, 0.9)
    keys = [b"%d" % n for n in range(offset_map.limit)]
    for at in range(0, len(keys), 500):
        data = encode_batch([(key, b"") for key in keys[at : at + 500]], base_offset=at)
        assert offset_map.add_run(data, 0, 0)[:2] == (len(data), RUN_END)
        assert offset_map.get(keys[at // 2]) == at // 2
    assert [offset_map.get(key) for key in keys] == list(range(len(keys)))
    assert len(offset_map) == offset_map.limit == int(0.9 * slots)
    more = encode_batch([(b"one more", b"")], base_offset=len(keys))
    assert offset_map.add_run(more, 0, 0)[:2] == (0, RUN_FULL)
    offset_map.clear()
    assert offset_map.get(keys[0]) == -1
    assert offset_map.put(keys[0], 7)


@pytest.mark.parametrize("slots", [4097, 32_768, 32_769, 65_535, 262_145])
def test_a_map_grows_to_its_size_at_once(slots: int) -> None:
    """The last table and the one before it are there together, and take half as much more at most:
    small ones do, and large ones an eighth.
    """
    offset_map = native.OffsetMap(24 * slots, 0.9)
    rooms = [offset_map.room]
    for n in range(offset_map.limit):
        offset_map.put(b"%d" % n, n)
        if offset_map.room != rooms[-1]:
            rooms.append(offset_map.room)
    assert rooms[-1] == slots
    assert all(2 * before <= after for before, after in pairwise(rooms) if before > 4096)


@given(seed=st.integers(0, 2**32), keys=st.integers(2, 40), start=st.integers(0, 60))
def test_a_run_maps_what_sections_map(seed: int, keys: int, start: int) -> None:
    data = log_of(seed)
    one, other = native.OffsetMap(24 * keys, 1.0), _compact_reference.OffsetMap(24 * keys, 1.0)
    position, status, _ = one.add_run(data, 0, start)
    full = False
    for header, section in sections(data):
        fields = header.base_offset, header.last_offset_delta, header.record_count, start
        if header.last_offset >= start:
            full = other.add_section(section, *fields)
            if full:
                assert position == header.position
                break
            other.update_latest_offset(header.last_offset)
    assert (status == RUN_FULL) == full
    assert (one.latest_offset, len(one)) == (other.latest_offset, len(other))
    for record in read_records(data):
        if record.key is not None:
            assert one.get(record.key) == other.get(record.key)


@given(seed=st.integers(0, 2**32), horizon=st.sampled_from((None, NOW, NOW + 1)))
def test_both_sift_the_same(seed: int, horizon: int | None) -> None:
    data = log_of(seed)
    made = []
    for kernels in (native, _compact_reference):
        offset_map = kernels.OffsetMap(24 * 1000, 1.0)
        for header, section in sections(data):
            fields = header.base_offset, header.last_offset_delta, header.record_count
            offset_map.add_section(section, *fields, 0)
        sieve = kernels.RecordSieve(offset_map, NOW, RETENTION, 10**6, ())
        found = []
        for header, section in sections(data):
            attributes, base = header.attributes, header.base_timestamp
            if horizon is not None:
                attributes, base = attributes | 0x40, horizon
            found.append(
                sieve.sift_section(
                    section,
                    header.base_offset,
                    header.last_offset_delta,
                    header.record_count,
                    attributes,
                    base,
                    header.max_timestamp,
                )
            )
        counts = sieve.records_read, sieve.records_kept, sieve.records_without_key
        made.append((found, counts, sieve.tombstones_kept))
    assert made[0] == made[1]


@given(seed=st.integers(0, 2**32))
def test_a_run_writes_the_newest_record_of_each_key(seed: int) -> None:
    data = log_of(seed)
    offset_map = native.OffsetMap(24 * 1000, 1.0)
    assert offset_map.add_run(data, 0, 0)[:2] == (len(data), RUN_END)
    sieve = native.RecordSieve(offset_map, NOW, RETENTION, 10**6, ())
    assert sieve.run(data, 0, 1 << 20) == (len(data), RUN_END)
    before = [r for r in read_records(data) if r.key is not None]
    newest = {record.key: record for record in before}
    assert read_records(bytes(sieve.view())) == sorted(newest.values())
    for header, _ in sections(bytes(sieve.view())):
        has_tombstone = any(
            r.value is None
            for r in newest.values()
            if header.base_offset <= r.offset <= header.last_offset
        )
        assert header.delete_horizon == (NOW + RETENTION if has_tombstone else None)
    with sieve.view(), pytest.raises(BufferError):
        sieve.reset()
    sieve.reset()
    assert sieve.pending == 0


@BOTH
def test_batches_that_need_the_caller_stop_a_run(kernels: Any) -> None:
    plain = bytes(encode_batch([(b"k", b"v", 1)]))
    for special in (
        encode_batch([(b"k", b"v", 1)], compression=Compression.LZ4),
        encode_batch(
            [(b"k", b"v", 1)], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
        ),
    ):
        offset_map = kernels.OffsetMap(240, 1.0)
        position, status, _ = offset_map.add_run(bytes(special) + plain, 0, 0)
        assert (position, status) == (0, RUN_SPECIAL)
        assert kernels.RecordSieve(offset_map, 0, 0, 9, ()).run(bytes(special), 0, 99) == (0, 1)
    assert kernels.OffsetMap(240, 1.0).add_run(plain[:-1], 0, 0)[:2] == (0, RUN_END)


@BOTH
@given(seed=st.integers(0, 2**32))
def test_damage_is_an_error_and_reads_nothing_outside(kernels: Any, seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(log_of(seed, 1))
    at = rng.randrange(17, len(data))
    data[at] ^= 1 << rng.randrange(8)
    offset_map = kernels.OffsetMap(24 * 1000, 1.0)
    sieve = kernels.RecordSieve(offset_map, NOW, RETENTION, 10**6, ())
    for work in (lambda p: offset_map.add_run(data, p, 0), lambda p: sieve.run(data, p, 1 << 20)):
        try:
            position, status = work(0)[:2]
            while status == RUN_SPECIAL and position < len(data):
                position = parse_header(data, position).end_position
                position, status = work(position)[:2]
        except CorruptBatchError:
            continue
        raise AssertionError(f"a flipped bit in byte {at} went unseen")
    for header, section in sections(log_of(seed, 1)):
        broken = bytearray(section)
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        for damaged in (bytes(broken), section[: rng.randrange(len(section))], section + b"\0"):
            outcome = []
            for module in (native, _compact_reference):
                try:
                    module.OffsetMap(2400, 1.0).add_section(
                        damaged, 0, header.last_offset_delta, header.record_count, 0
                    )
                    outcome.append(True)
                except CorruptBatchError:
                    outcome.append(False)
            assert outcome[0] == outcome[1]
