"""One suite for both kernels, native and plain Python, and properties which compare the two.

What Kafka wrote is read, recovered and written by the native ones in tests/golden.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import threading
from array import array
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.common.errors import CorruptBatchError, CorruptDataError, InvalidRecordError
from logstore.common.types import Record
from logstore.kernels import ReadBounds
from logstore.kernels import _constants as v
from tests.golden.test_golden_engine import damaged
from tests.reference import records as reference
from tests.support.cases import for_each
from tests.unit.format.test_format_batch import EMPTY, LOG_APPEND, LZ4, MARKERS
from tests.unit.format.test_format_legacy import MESSAGES

_scan = pytest.importorskip("logstore.kernels._scan")
_codec = pytest.importorskip("logstore.kernels._codec")

native = SimpleNamespace(**{**vars(_scan), **vars(_codec)})
GOLDEN = Path(__file__).parent.parent / "golden" / "data"
SEGMENTS = sorted(p.name for p in GOLDEN.glob("v?-*"))
END = 2**63 - 1
MARKER_BATCHES, LEGACY = b"".join(MARKERS), b"".join(MESSAGES)


@pytest.fixture(params=[native, reference], ids=["native", "reference"])
def kernels(request):
    return request.param


# ---- golden data ----


def segment_bytes(name):
    (log,) = (GOLDEN / name).glob("*.log")
    return log.read_bytes()


def lines(*path):
    with GOLDEN.joinpath(*path).open() as file:
        return [json.loads(line) for line in file]


def segment_facts(name):
    return json.loads((GOLDEN / name / "segment.json").read_text())


def rows_of(kernels, data, *, start=0, capacity=2000, check_crc=True, stop_on_bad=True):
    """Scan into rows: a list of dicts, next position, status."""
    columns = array("q", bytes(8 * capacity * len(v.SCAN_COLUMNS)))
    count, position, status = kernels.scan_batches(data, start, columns, check_crc, stop_on_bad)
    rows = [
        {name: columns[c * capacity + r] for c, name in enumerate(v.SCAN_COLUMNS)}
        for r in range(count)
    ]
    return rows, position, status


def recover(kernels, data, base_offset, interval, window=None, **options):
    """Recovery over windows of ``window`` bytes, as a caller does it."""
    scan = kernels.RecoveryScan(base_offset, interval, **options)
    rows, position, size = [], 0, window or len(data)
    while True:
        end = min(position + size, len(data))
        position += scan.feed(memoryview(data)[position:end], position, end == len(data))
        rows += scan.take_producer_batches()
        if scan.status == v.SCAN_FULL or (scan.status == v.SCAN_END and end < len(data)):
            continue
        if scan.status == v.SCAN_INCOMPLETE and end < len(data):
            size = max(size, scan.needed_bytes)
            continue
        return scan, rows


def digest(data):
    return hashlib.sha256(data).hexdigest()


@for_each("window", [None, 1, 700, 9000])
@for_each("name", SEGMENTS)
def test_recovery_rebuilds_the_index_files_of_kafka(kernels, name, window):
    """Rules F-131 to F-135, F-232 and F-233."""
    facts = segment_facts(name)
    kafka = facts["recover"]
    data = segment_bytes(name)
    base = facts["baseOffset"]
    scan, rows = recover(kernels, data, base, facts["indexIntervalBytes"], window)
    assert scan.status == v.SCAN_END
    assert (scan.valid_bytes, scan.next_offset) == (kafka["validBytes"], kafka["nextOffset"])
    entries = [
        {"offset": base + offset, "position": position}
        for offset, position in struct.iter_unpack(">ii", scan.offset_index)
    ]
    assert entries == kafka["offsetIndex"]
    assert digest(scan.offset_index) == kafka["indexFileSha256"]
    assert digest(scan.time_index + scan.final_time_entry()) == kafka["timeindexFileSha256"]
    assert scan.epochs == [(e["epoch"], e["startOffset"]) for e in kafka["leaderEpochs"]]
    batches = lines(name, "batches.jsonl")
    assert scan.batch_count == len(batches)
    with_producer = [
        b for b in batches if b.get("producerId", -1) >= 0 or b.get("isControl", False)
    ]
    assert [r[7] for r in rows] == [b["position"] for b in with_producer]
    assert [r[:3] for r in rows] == [
        (b["producerId"], b["producerEpoch"], b["baseSequence"]) for b in with_producer
    ]


def case_id(case):
    return f"{case['source']}-{'-'.join(map(str, case['op']))}"


def test_both_kernels_recover_damaged_segments_alike():
    for case in lines("recovery", "cases.jsonl")[::3]:
        facts = segment_facts(case["source"])
        data = damaged(segment_bytes(case["source"]), case["op"])
        for strict in (True, False):
            args = data, facts["baseOffset"], facts["indexIntervalBytes"]
            assert summary(*recover(native, *args, strict=strict)) == summary(
                *recover(reference, *args, strict=strict)
            )


SCAN_FIELDS = [
    "status",
    "valid_bytes",
    "needed_bytes",
    "next_offset",
    "max_timestamp",
    "offset_of_max_timestamp",
    "first_batch_max_timestamp",
    "batch_count",
    "record_count",
    "epoch_falls",
    "first_fall_offset",
    "offset_index",
    "time_index",
    "epochs",
]


def summary(scan, rows):
    return [getattr(scan, f) for f in SCAN_FIELDS], scan.final_time_entry(), rows


# ---- worked examples ----

F72 = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (63, "7e"),
    (-64, "7f"),
    (64, "8001"),
    (2147483647, "feffffff0f"),
    (-2147483648, "ffffffff0f"),
]


def one_record(delta: bytes, length: bytes = b"") -> bytes:
    """A record without key and value, with this timestamp delta and, if given, length."""
    body = b"\0" + delta + b"\0\x01\x01\0"
    return (length or reference.encode_varint(len(body))) + body


@for_each("number, text", F72)
def test_varint_samples(kernels, number, text):
    data = bytes.fromhex(text)
    assert kernels.encode_varint(number) == kernels.encode_varlong(number) == data
    assert reference.decode_varint(b"\xff" + data, 1) == (number, 1 + len(data))
    (record,) = kernels.decode_records(one_record(data), 0, 0, 1)
    assert record.timestamp == number


@for_each(
    "payload",
    [
        one_record(b"\0", b"\x8c\x80\x80\x80\x80\0"),  # six bytes of 32 bits
        one_record(b"\0", b"\x80\x80\x80\x80"),  # and no end
        one_record(b"\x80" * 10 + b"\x01"),  # eleven bytes of 64 bits
        one_record(b"\x80")[:-4],
    ],
)
def test_malformed_varints(kernels, payload):
    with pytest.raises(CorruptBatchError) as error:
        kernels.decode_records(payload, 0, 0, 1)
    assert (error.value.path, error.value.position) == ("", 0)


def test_varint_extremes(kernels):
    for n in (2**63 - 1, -(2**63)):
        data = kernels.encode_varlong(n)
        assert len(data) == 10
        assert kernels.decode_records(one_record(data), 0, 0, 1)[0].timestamp == n
    for n, encode in ((2**31, kernels.encode_varint), (2**63, kernels.encode_varlong)):
        with pytest.raises(OverflowError):
            encode(n)


def test_f81_control_batches_are_passed_unless_asked_for(kernels):
    out = []
    everything = ReadBounds(include_control=True)
    assert kernels.decode_run(MARKER_BATCHES, 0, out, 10, ReadBounds()) == (156, v.DECODE_END)
    assert not out
    assert kernels.decode_run(MARKER_BATCHES, 0, out, 10, everything) == (156, v.DECODE_END)
    assert [record.offset for record in out] == [7, 7]
    (abort,) = kernels.decode_records(MARKER_BATCHES[61:78], 7, 1700000000100, 1)
    assert (abort.key, abort.value) == (bytes(4), b"\0\0\0\0\0\x09")
    found = kernels.analyse_batches(MARKER_BATCHES)
    assert (found.attributes_or, found.attributes_and, found.has_producer) == (0x30, 0x30, True)
    assert not found.ascending


def test_f89_compressed_batches_are_special(kernels):
    assert kernels.decode_run(LZ4, 0, [], 10, ReadBounds()) == (0, v.DECODE_SPECIAL)
    assert kernels.ColumnBuilder().add_run(LZ4, 0, 9, 9, ReadBounds()) == (0, v.DECODE_SPECIAL)
    found = kernels.analyse_batches(LZ4, deep=True)
    assert (found.codec_mask, found.record_count, found.min_timestamp) == (1 << 3, 1, -1)


def test_f92_empty_batch(kernels):
    (row,), _, status = rows_of(kernels, EMPTY)
    assert (row["base_offset"], row["last_offset"], row["record_count"]) == (100, 101, 0)
    assert status == v.SCAN_END
    assert kernels.decode_run(EMPTY, 0, [], 10, ReadBounds()) == (61, v.DECODE_END)
    assert not kernels.analyse_batches(EMPTY, deep=True).dense
    encoded = kernels.encode_records([], 0)
    assert encoded.buffer == bytes(61)
    assert (encoded.count, encoded.base_timestamp, encoded.offset_of_max) == (0, -1, -1)
    scan, _ = recover(kernels, EMPTY, 0, 4096)
    assert (scan.next_offset, scan.record_count, scan.batch_count) == (102, 0, 1)


def test_f94_log_append_time_overrides_the_deltas(kernels):
    out = []
    kernels.decode_run(LOG_APPEND, 0, out, 10, ReadBounds())
    assert [r.timestamp for r in out] == [9999, 9999]
    assert [r.timestamp for r in kernels.decode_records(LOG_APPEND[61:], 500, 1000, 2)] == [
        1000,
        1500,
    ]
    builder = kernels.ColumnBuilder(keys=False)
    builder.add_run(LOG_APPEND, 0, 10, 10, ReadBounds(501))
    assert list(memoryview(builder.finish()["timestamps"])) == [9999]
    found = kernels.analyse_batches(LOG_APPEND, deep=True)
    assert (found.min_timestamp, found.record_max_timestamp) == (9999, 9999)


def test_f104_legacy_entries(kernels):
    rows, position, status = rows_of(kernels, LEGACY)
    assert (position, status) == (len(LEGACY), v.SCAN_END)
    assert [(r["magic"], r["base_offset"], r["last_offset"]) for r in rows] == [
        (0, 10, 10),
        (1, 10, 10),
        (1, 11, 11),
    ]
    assert [(r["max_timestamp"], r["attributes"], r["record_count"]) for r in rows] == [
        (-1, 0, 1),
        (1000, 0, 1),
        (1001, 1, -1),
    ]
    assert {(r["leader_epoch"], r["producer_id"]) for r in rows} == {(-1, -1)}
    assert kernels.decode_run(LEGACY, 0, [], 10, ReadBounds()) == (0, v.DECODE_SPECIAL)
    found = kernels.analyse_batches(LEGACY)
    assert (found.magic_min, found.magic_max, found.record_count) == (0, 1, -1)


# ---- framing and damage ----


def make_batch(records=((None, b"v"),), *, base_offset=0, kernels=native, **header):
    """A whole batch, with anything in its header."""
    encoded = kernels.encode_records(records, 1000)
    fields = {
        "leader_epoch": 0,
        "attributes": 0,
        "last_offset_delta": max(encoded.count - 1, 0),
        "base_timestamp": encoded.base_timestamp,
        "max_timestamp": encoded.max_timestamp,
        "record_count": encoded.count,
    } | header
    kernels.seal_batch(encoded.buffer, base_offset=base_offset, **fields)
    return bytes(encoded.buffer)


BATCH = make_batch()
HUGE = BATCH[:8] + b"\x7f\xff\xff\xff" + BATCH[12:]


@for_each(
    "data, status",
    [
        (BATCH, v.SCAN_END),
        (BATCH + bytes(16), v.SCAN_TAIL),
        (BATCH + bytes(17), v.SCAN_BAD_SIZE),  # F-107
        (BATCH + b"\xff" * 100, v.SCAN_BAD_SIZE),
        (BATCH + BATCH[:-1], v.SCAN_INCOMPLETE),
        (BATCH + HUGE, v.SCAN_INCOMPLETE),
        (BATCH + BATCH[:-1] + b"?", v.SCAN_BAD_CRC),
        (BATCH + BATCH[:16] + b"\x03" + BATCH[17:], v.SCAN_BAD_MAGIC),
        (BATCH + BATCH[:16] + b"\xff" + BATCH[17:], v.SCAN_BAD_MAGIC),
        (BATCH + struct.pack(">qiib", 0, 48, 0, 2) + bytes(43), v.SCAN_BAD_HEADER),
        (BATCH + struct.pack(">qiib", 0, 21, 0, 1) + bytes(16), v.SCAN_BAD_HEADER),
        (BATCH + make_batch(record_count=-1), v.SCAN_BAD_HEADER),
        (BATCH + make_batch(last_offset_delta=-1), v.SCAN_BAD_HEADER),
        (BATCH + make_batch(base_offset=-1), v.SCAN_BAD_OFFSET),
        (BATCH + make_batch(base_offset=2**63 - 2, last_offset_delta=1), v.SCAN_BAD_OFFSET),
    ],
)
def test_where_a_scan_ends(kernels, data, status):
    rows, position, got = rows_of(kernels, data)
    assert (len(rows), position, got) == (1, len(BATCH), status)
    if status < v.SCAN_BAD_SIZE:
        assert kernels.analyse_batches(data).size == len(BATCH)
        return
    with pytest.raises(CorruptBatchError) as error:
        kernels.analyse_batches(data)
    assert error.value.position == len(BATCH)
    if status == v.SCAN_BAD_SIZE:
        return
    rows, position, got = rows_of(kernels, data + BATCH, stop_on_bad=False)
    assert [r["valid"] for r in rows] == [1, 0, 1]
    assert (position, got) == (len(data + BATCH), v.SCAN_END)


def test_scan_stops_at_capacity_and_goes_on(kernels):
    data = BATCH * 5
    rows, position, status = rows_of(kernels, data, capacity=2)
    assert (len(rows), position, status) == (2, 2 * len(BATCH), v.SCAN_FULL)
    rows, _, status = rows_of(kernels, data, start=position, capacity=3)
    assert [r["position"] for r in rows] == [n * len(BATCH) for n in (2, 3, 4)]
    assert status == v.SCAN_END
    assert rows_of(kernels, data, capacity=0)[2] == v.SCAN_FULL
    with pytest.raises(ValueError):
        rows_of(kernels, data, start=len(data) + 1)


def test_crc_is_only_looked_at_when_asked(kernels):
    data = BATCH[:-1] + b"?"
    assert rows_of(kernels, data, check_crc=False)[0][0]["valid"] == 1
    assert kernels.analyse_batches(data, check_crc=False).batch_count == 1


# ---- recovery rules ----


def test_f134_rebuilt_index(kernels):
    """Five batches of two records, the first three appended at once: one entry per batch."""
    size = len(make_batch([(b"k", b"v" * 105), (b"k", b"v")]))
    filler = 105 + 175 - size
    records = [(b"k", b"v" * filler), (b"k", b"v")]
    data = b"".join(make_batch(records, base_offset=1000 + 2 * i) for i in range(5))
    assert len(data) == 5 * 175
    scan, _ = recover(kernels, data, 1000, 200)
    assert list(struct.iter_unpack(">ii", scan.offset_index)) == [(5, 350), (9, 700)]


@for_each(
    "second, options, status",
    [
        ({"base_offset": 101}, {}, v.SCAN_END),
        ({"base_offset": 105}, {}, v.SCAN_END),
        ({"base_offset": 105}, {"contiguous": True}, v.SCAN_BAD_OFFSET),
        ({"base_offset": 101}, {"contiguous": True, "expected_offset": 100}, v.SCAN_END),
        ({"base_offset": 100}, {}, v.SCAN_BAD_OFFSET),
        ({"base_offset": 100}, {"strict": False}, v.SCAN_END),
        ({"base_offset": 100 + 2**31}, {"strict": False}, v.SCAN_BAD_OFFSET),
        ({"base_offset": 99 + 2**31}, {}, v.SCAN_END),
        ({"base_offset": 99}, {"strict": False}, v.SCAN_BAD_OFFSET),
        ({"base_offset": 101, "leader_epoch": 1}, {}, v.SCAN_END),
        ({"base_offset": 101, "leader_epoch": -1}, {}, v.SCAN_END),
        ({"base_offset": 101, "leader_epoch": 1}, {"strict": False}, v.SCAN_END),
    ],
)
def test_offsets_and_epochs_that_no_crc_covers(kernels, second, options, status):
    first = make_batch(base_offset=100, leader_epoch=2)
    data = first + make_batch(**({"leader_epoch": 2} | second))
    scan, _ = recover(kernels, data, 100, 4096, **options)
    assert scan.status == status
    if status == v.SCAN_END:
        assert scan.valid_bytes == len(data)
    else:
        assert (scan.valid_bytes, scan.next_offset) == (len(first), 101)
    assert scan.epochs == [(2, 100)]


@for_each(
    "epochs, known, falls, first, found",
    [
        ([2, 2, 2], -1, 0, -1, [(2, 10)]),
        ([2, 1, 1], -1, 1, 11, [(2, 10)]),
        ([2, 1, 3, 0, 3], -1, 2, 11, [(2, 10), (3, 12)]),
        ([1, 1, 2], 2, 1, 10, []),
        ([2, -1, 2], -1, 0, -1, [(2, 10)]),
        ([*[3] * 5, *[2] * 9, *[4] * 5], -1, 1, 15, [(3, 10), (4, 24)]),
    ],
)
def test_leader_epochs_that_fall_are_kept_and_counted(kernels, epochs, known, falls, first, found):
    """F-232: Kafka assigns an epoch only above the latest, and takes every batch."""
    batches = [make_batch(base_offset=10 + at, leader_epoch=e) for at, e in enumerate(epochs)]
    data = b"".join(batches)
    scan, _ = recover(kernels, data, 10, 4096, last_epoch=known)
    assert (scan.status, scan.valid_bytes) == (v.SCAN_END, len(data))
    assert (scan.epoch_falls, scan.first_fall_offset) == (falls, first)
    assert scan.epochs == found


def test_first_offset_of_a_recovery(kernels):
    data = make_batch(base_offset=100)
    for options, status in [
        ({"expected_offset": 100, "contiguous": True}, v.SCAN_END),
        ({"expected_offset": 99, "contiguous": True}, v.SCAN_BAD_OFFSET),
        ({"expected_offset": 99}, v.SCAN_END),
        ({"expected_offset": 101}, v.SCAN_BAD_OFFSET),
        ({"contiguous": True}, v.SCAN_END),
    ]:
        assert recover(kernels, data, 90, 4096, **options)[0].status == status


def test_known_epochs_are_not_collected_again(kernels):
    data = b"".join(make_batch(base_offset=i, leader_epoch=e) for i, e in enumerate([3, 4, 4, 6]))
    assert recover(kernels, data, 0, 4096, last_epoch=4)[0].epochs == [(6, 3)]


def test_windows_of_a_recovery(kernels):
    data = BATCH + make_batch(base_offset=1)
    scan = kernels.RecoveryScan(0, 4096)
    assert scan.feed(data[: len(BATCH) + 5], 0, False) == len(BATCH)
    assert (scan.status, scan.needed_bytes) == (v.SCAN_INCOMPLETE, 17)
    assert scan.feed(data[len(BATCH) : -1], len(BATCH), False) == 0
    assert (scan.status, scan.needed_bytes) == (v.SCAN_INCOMPLETE, len(BATCH))
    with pytest.raises(ValueError):
        scan.feed(data, 0, True)
    assert scan.feed(data[len(BATCH) :] + b"?", len(BATCH), True) == len(BATCH)
    assert (scan.status, scan.valid_bytes) == (v.SCAN_TAIL, len(data))


def test_recovery_reports_producers_in_portions(monkeypatch):
    limit = v.PRODUCER_ROWS_MAX
    one = make_batch(producer_id=7, producer_epoch=1, base_sequence=5)
    data = bytearray(one * (limit + 3))
    for i in range(limit + 3):
        struct.pack_into(">q", data, i * len(one), i)
    scan = native.RecoveryScan(0, 4096)
    assert scan.feed(data, 0, True) == limit * len(one)
    assert scan.status == v.SCAN_FULL
    rows = scan.take_producer_batches()
    assert len(rows) == limit
    assert rows[1] == (7, 1, 5, 0, 1, 1000, 0, len(one), len(one), 1)
    rest = memoryview(data)[limit * len(one) :]
    assert scan.feed(rest, limit * len(one), True) == len(rest)
    assert len(scan.take_producer_batches()) == 3
    assert scan.take_producer_batches() == []

    monkeypatch.setattr(reference, "PRODUCER_ROWS_MAX", 2)
    scan = reference.RecoveryScan(0, 4096)
    assert scan.feed(data[: 5 * len(one)], 0, True) == 2 * len(one)
    assert scan.status == v.SCAN_FULL


def test_max_timestamp_is_that_of_the_first_batch_that_reached_it(kernels):
    data = b"".join(make_batch(base_offset=i, max_timestamp=t) for i, t in enumerate([5, 9, 9, 7]))
    scan, _ = recover(kernels, data, 0, 4096)
    assert (scan.max_timestamp, scan.offset_of_max_timestamp) == (9, 1)
    assert scan.first_batch_max_timestamp == 5
    found = kernels.analyse_batches(data)
    assert (found.max_timestamp, found.offset_of_max_timestamp) == (9, 1)


# ---- analysis ----


def small_batches(count, contiguous=True):
    """One record each: what the native walk takes four at a time."""
    stamps = random.Random(1)
    return [
        make_batch(
            [(b"k" * 16, bytes(i % 7), stamps.randrange(1000))],
            base_offset=10 + (i if contiguous else 3 * i),
        )
        for i in range(count)
    ]


@for_each("contiguous", [True, False])
@for_each("strict", [True, False])
@for_each("window", [None, 200, 1000])
def test_both_recover_small_batches_alike(window, strict, contiguous):
    """Whole, and with one byte changed in any field of any batch of a group of four."""
    batches = small_batches(11)
    whole = b"".join(batches)
    start = len(b"".join(batches[:4]))
    size = sum(len(b) for b in batches[4:8])
    cases = [whole, b"".join(small_batches(11, contiguous=False)), whole[:-1]]
    for at in range(start, start + size, 1 if window is None else 13):
        for bit in (0x01, 0x80):
            cases.append(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
    for data in cases:
        options = {"window": window, "strict": strict, "contiguous": contiguous}
        mine, others = (recover(k, data, 10, 200, **options) for k in (native, reference))
        assert summary(*mine) == summary(*others)


def test_both_analyse_small_batches_alike():
    whole = b"".join(small_batches(9))
    for at in range(0, len(whole), 5):
        data = whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]
        mine, others = (outcome(k.analyse_batches, data) for k in (native, reference))
        assert mine[0] == others[0]
        if mine[0] == "value":
            fields = reference.BatchAnalysis.__slots__
            assert [getattr(mine[1], f) for f in fields] == [getattr(others[1], f) for f in fields]
        columns = array("q", bytes(8 * 20 * len(v.SCAN_COLUMNS)))
        other = array("q", columns)
        assert native.scan_batches(data, 0, columns, True, False) == reference.scan_batches(
            data, 0, other, True, False
        )
        assert columns == other


@for_each("from_offset", [0, 1500, 1501, 1999])
@for_each("end_offset", [END, 1501, 1900])
def test_columns_of_every_shape(kernels, from_offset, end_offset):
    """Values around the sizes of inline copies, nulls, long numbers, headers; bounds inside."""
    sizes = [0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 160, 161, 8191, 8192]
    rows = []
    for i in range(1000):
        key = None if i % 5 == 0 else bytes([i % 251]) * sizes[i % len(sizes)]
        value = None if i % 11 == 0 else bytes([i % 241]) * sizes[i * 7 % len(sizes)]
        stamp = 10**12 + (i if i % 3 else i * 10**7)
        rows.append((key, value, stamp, [("h", b"x")] if i % 97 == 0 else []))
    data = make_batch(rows, base_offset=1000)
    want = [
        Record(1000 + i, row[2], row[0], row[1], tuple(row[3]))
        for i, row in enumerate(rows)
        if from_offset <= 1000 + i < end_offset
    ]
    for headers in (True, False):
        builder = kernels.ColumnBuilder(True, True, True, headers)
        builder.add_run(data, 0, 10**6, 10**9, ReadBounds(from_offset, end_offset))
        expected = want if headers else [r._replace(headers=()) for r in want]
        assert columns_as_records(builder.finish()) == expected


def test_a_window_that_is_read(tmp_path):
    window = pytest.importorskip("logstore.kernels._window")
    path = tmp_path / "f"
    content = os.urandom(300_000)
    path.write_bytes(content)
    with path.open("rb") as file:
        read = window.ReadWindow(file.fileno(), 5000, 200_000)
        past = window.ReadWindow(file.fileno(), 299_999, 200_000)
        assert len(window.ReadWindow(file.fileno(), 300_000, 1)) == 0
        with pytest.raises(OSError):
            window.ReadWindow(-1, 0, 10)
        for position, size in ((-1, 5), (0, 0), (0, -1)):
            with pytest.raises(ValueError):
                window.ReadWindow(file.fileno(), position, size)
    view = memoryview(read)
    assert (view, view.readonly, len(read)) == (content[5000:205_000], True, 200_000)
    assert memoryview(past) == content[-1:]
    del read
    assert view == content[5000:205_000]


def test_a_mapped_window(tmp_path):
    window = pytest.importorskip("logstore.kernels._window")
    path = tmp_path / "f"
    content = os.urandom(20_000)
    path.write_bytes(content)
    with path.open("rb") as file:
        mapped = window.MappedWindow(file.fileno(), 5000, 9000)
        with pytest.raises(OSError):
            window.MappedWindow(-1, 0, 10)
        for position, size in ((-1, 5), (0, 0), (0, -1)):
            with pytest.raises(ValueError):
                window.MappedWindow(file.fileno(), position, size)
        past = window.MappedWindow(file.fileno(), 15_000, 50_000)
    mapped.populate()
    with pytest.raises(OSError):
        past.populate()  # and no signal
    past.close()
    view = memoryview(mapped)
    assert (view, view.readonly, len(mapped)) == (content[5000:14_000], True, 9000)
    with pytest.raises(BufferError):
        mapped.close()
    part = view[10:20]
    del view, mapped
    assert part == content[5010:5020]
    mapped = part.obj
    part.release()
    mapped.close()
    mapped.close()
    with pytest.raises(BufferError):
        memoryview(mapped)
    with pytest.raises(ValueError):
        mapped.populate()


def test_analysis_of_a_client_batch(kernels):
    data = make_batch([(b"k", b"v", 5), (None, b"v", 9), (b"k", None, 7)])
    found = kernels.analyse_batches(data + data[:30], deep=True)
    assert (found.batch_count, found.record_count, found.size) == (1, 3, len(data))
    assert (found.first_offset, found.last_offset) == (0, 2)
    assert (found.base_timestamp, found.max_timestamp) == (5, 9)
    assert (found.min_timestamp, found.record_max_timestamp) == (5, 9)
    assert found.dense
    assert found.offsets_dense
    assert found.all_base_zero
    assert found.ascending
    assert found.has_null_key
    assert found.too_large_position == -1
    assert not found.has_producer
    assert kernels.analyse_batches(data, max_batch_size=len(data) - 1).too_large_position == 0
    with pytest.raises(AttributeError):
        native.analyse_batches(data).size = 1


def with_payload(payload, count=1, **header):
    buffer = bytearray(61) + payload
    fields = {
        "base_offset": 0,
        "leader_epoch": 0,
        "attributes": 0,
        "last_offset_delta": 0,
        "base_timestamp": 0,
        "max_timestamp": 0,
    }
    native.seal_batch(buffer, record_count=count, **(fields | header))
    return bytes(buffer)


# length, attributes, timestamp delta, offset delta, key, value, headers
SOUND = bytes.fromhex("0c 00 00 00 01 01 00")


@for_each(
    "payload, count, place",
    [
        (SOUND + b"\0", 1, 7),  # a byte after the last record
        (SOUND, 2, 0),  # too short for two
        (SOUND + SOUND, 2, 7),  # offset delta 0 again
        (bytes.fromhex("0d 00 00 00 01 01 00"), 1, 0),  # length is negative
        (bytes.fromhex("0e 00 00 00 01 01 00"), 1, 0),  # length runs past the end
        (bytes.fromhex("00 00 00 00 01 01 00"), 1, 0),  # length is 0
        (bytes.fromhex("0e 00 00 00 01 01 00 00"), 1, 0),  # a byte remains in the record
        (bytes.fromhex("0c 00 00 00 04 01 00"), 1, 0),  # key runs past the record
        (bytes.fromhex("0c 00 00 00 01 02 00"), 1, 0),  # value takes the header count
        (bytes.fromhex("0c 00 00 00 01 01 01"), 1, 0),  # header count is -1
        (bytes.fromhex("0c 00 00 00 01 01 02"), 1, 0),  # a header that is not there
        (bytes.fromhex("10 00 00 00 01 01 02 01 01"), 1, 0),  # header key is null
        (bytes.fromhex("0c 00 80 80 80 80 80"), 1, 0),  # timestamp delta does not end
        (bytes.fromhex("0c 00 00 01 01 01 00"), 1, 0),  # offset delta is -1
    ],
)
def test_records_that_break_f73(kernels, payload, count, place):
    with pytest.raises(CorruptBatchError) as error:
        kernels.decode_records(payload, 0, 0, count)
    assert (error.value.path, error.value.position) == ("", place)
    data = BATCH + with_payload(payload, count, base_offset=1)
    out = []
    with pytest.raises(CorruptBatchError) as error:
        kernels.decode_run(data, 0, out, 10, ReadBounds())
    assert error.value.position == len(BATCH) + 61 + place
    assert len(out) == 1
    builder = kernels.ColumnBuilder(headers=True)
    with pytest.raises(CorruptBatchError) as error:
        builder.add_run(data, 0, 10, 1000, ReadBounds())
    assert error.value.position == len(BATCH) + 61 + place
    assert columns_as_records(builder.finish()) == out
    if payload not in (SOUND + SOUND, bytes.fromhex("0c 00 00 01 01 01 00")):
        with pytest.raises(CorruptBatchError) as error:
            kernels.analyse_batches(data, deep=True)
        assert error.value.position == len(BATCH) + 61 + place


def test_a_huge_record_count_costs_nothing(kernels):
    for count in (2**31 - 1, -1):
        with pytest.raises(CorruptBatchError):
            kernels.decode_records(SOUND, 0, 0, count)


def test_as_lenient_as_kafka(kernels):
    """Any negative length is null, header names need not be UTF-8, the sums wrap."""
    payload = bytes.fromhex("12 00 00 00 03 05 02 02 ff 03")
    (record,) = kernels.decode_records(payload, 5, 0, 1)
    assert record == (5, 0, None, None, (("�", None),))


# ---- encoding ----


def test_records_lists_and_columns_encode_alike(kernels):
    keys = [b"a", None, b"", b"key" * 40]
    values = [None, b"x", b"y" * 300, b""]
    times = [5, 3, 9, 9]
    rows = list(zip(keys, values, times, strict=True))
    expected = kernels.encode_records(rows, -1)
    assert expected.offset_of_max == 2
    assert [tuple(r[1:4]) for r in kernels.decode_records(expected.buffer[61:], 0, 5, 4)] == [
        (t, k, v_) for k, v_, t in rows
    ]
    as_records = [Record(99, t, k, value) for k, value, t in rows]
    arrays = [pa.array(keys, pa.binary()), pa.array(values, pa.large_binary())]
    padded = [pa.concat_arrays([a[:3], a]) for a in arrays]
    buffers = [buffer for a in padded for buffer in [a.buffers()[i] for i in (1, 2, 0)]]
    for got in (
        kernels.encode_records(as_records, -1),
        kernels.encode_lists(keys, values, times),
        kernels.encode_lists(tuple(keys), values, array("q", times)),
        kernels.encode_columns(3, 7, *buffers, array("q", [0, 0, 0, *times]), value_offset_size=8),
        kernels.encode_columns(
            3, 7, *buffers, pa.array([0, 0, 0, *times]).buffers()[1], value_offset_size=8
        ),
    ):
        for field in ("buffer", "base_timestamp", "max_timestamp", "offset_of_max", "count"):
            assert getattr(got, field) == getattr(expected, field)


def test_default_timestamps_and_bytes_like_fields(kernels):
    expected = kernels.encode_records([(b"k", b"v", 7), (b"k", b"v", 7)], -1).buffer
    for got in (
        kernels.encode_records([(bytearray(b"k"), memoryview(b"v")), (b"k", b"v", None)], 7),
        kernels.encode_lists([b"k", b"k"], [b"v", b"v"], 7),
        kernels.encode_lists([b"k", b"k"], [b"v", b"v"], [None, 7], [None, ()], 7),
        kernels.encode_lists([b"k", b"k"], [b"v", b"v"], default_timestamp=7),
    ):
        assert got.buffer == expected


@for_each(
    "record, why",
    [
        ((b"k" * 3, "v"), "a value must be bytes or None, not str"),
        (("k", b"v"), "a key must be bytes or None, not str"),
        ((b"k", 1), "a value must be bytes or None, not int"),
        ((b"k",), "a record has two to four fields, not 1"),
        ((1, 2, b"k", b"v", ()), "a record has two to four fields, not 5"),
        ([b"k", b"v"], "a record must be a tuple .* not list"),
        ({"key": b"k"}, "a record must be a tuple .* not dict"),
        (b"kv", "a record must be a tuple .* not bytes"),
        ((b"k", b"v", -2), "timestamp -2 is outside"),
        ((b"k", b"v", 2**63), "timestamp 9223372036854775808 is outside"),
        ((b"k", b"v", 1.5), "an int in ms or an aware datetime, not float"),
        ((b"k", b"v", [("h", b"x")]), "not list; headers are the fourth"),
        ((b"k", b"v", "1"), "an int in ms or an aware datetime, not str"),
        ((b"k", b"v", datetime(2024, 1, 1)), "2024-01-01 00:00:00 has no time zone"),
        ((b"k", b"v", datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)), "is before 1970"),
        ((b"k", b"v", 1, {}), "headers must be a tuple or list, not dict"),
        ((b"k", b"v", 1, [(b"h", b"x")]), "a header key must be str, not bytes"),
        ((b"k", b"v", 1, [("h", "x")]), "a header value must be bytes or None, not str"),
        ((b"k", b"v", 1, [("h",)]), "a header must be a pair, not 1 items"),
        ((b"k", b"v", 1, ["hv"]), "a header must be a pair, not str"),
        ((b"k", b"v", 1, [("\ud800", None)]), "surrogates not allowed"),
    ],
)
def test_what_encoding_refuses(kernels, record, why):
    """The error names the record and what is wrong with it, whatever that is."""
    with pytest.raises(InvalidRecordError, match=f"record 2: .*{why}") as caught:
        kernels.encode_records([(b"k", b"v"), (None, b"v"), record], 0)
    ((index, reason),) = caught.value.record_errors
    assert index == 2
    assert reason in str(caught.value)


def test_what_lists_refuse_names_the_record(kernels):
    for columns, why in (
        (([b"a", b"b", "c"], [b""] * 3), "a key must be bytes or None, not str"),
        ((None, [b"", b"", 3]), "a value must be bytes or None, not int"),
        ((None, [b""] * 3, [1, None, 1.5]), "an int in ms or an aware datetime, not float"),
        ((None, [b""] * 3, array("q", [1, 1, -2])), "timestamp -2 is outside"),
        ((None, [b""] * 3, None, [None, (), "h"]), "headers must be a tuple or list, not str"),
    ):
        with pytest.raises(InvalidRecordError, match=f"record 2: .*{why}"):
            kernels.encode_lists(*columns)


def test_what_is_wrong_with_the_records_as_a_whole(kernels):
    for call, why in (
        (lambda: kernels.encode_records(7), "records must be an iterable, not int"),
        (lambda: kernels.encode_records([], "now"), "an aware datetime, not str"),
        (lambda: kernels.encode_records([], -2), "timestamp -2 is outside"),
        (lambda: kernels.encode_lists(None, None), "values must be an iterable, not NoneType"),
        (lambda: kernels.encode_lists(5, [b"v"]), "keys must be an iterable, not int"),
        (lambda: kernels.encode_lists([b"k"], []), "1 keys, 0 values, 0 timestamps and 0 headers"),
        (lambda: kernels.encode_lists(None, [b"v"], [1, 2]), "2 timestamps"),
        (lambda: kernels.encode_lists(None, [b"v"], None, []), "0 headers"),
        (lambda: kernels.encode_lists(None, [b"v"], 1.5), "a buffer of int64, not float"),
        (lambda: kernels.encode_lists(None, [b"v"], array("d", [1])), "int64, not array"),
        (lambda: kernels.encode_lists(None, [b"v"], datetime(2024, 1, 1)), "no time zone"),
    ):
        with pytest.raises(InvalidRecordError, match=why):
            call()


def test_a_generator_is_walked_once_and_its_own_error_comes_out(kernels):
    rows = [(b"k%d" % i, b"v") for i in range(5)]
    assert kernels.encode_records(row for row in rows).buffer == (
        kernels.encode_records(rows).buffer
    )
    by_lists = kernels.encode_lists((k for k, _ in rows), (value for _, value in rows))
    assert by_lists.buffer == kernels.encode_records(rows).buffer

    def broken():
        yield b"k", b"v"
        raise ValueError("of the caller")

    with pytest.raises(ValueError, match="of the caller"):
        kernels.encode_records(broken())


def test_keys_that_are_required(kernels):
    """A compacted topic needs them; a generator is no way round."""
    rows = [(b"k", b"v"), (None, b"v"), (b"", b"v"), (None, None)]
    why = "a compacted topic needs a key"
    for call in (
        lambda: kernels.encode_records(rows, keys_required=True),
        lambda: kernels.encode_records((row for row in rows), keys_required=True),
        lambda: kernels.encode_records([Record(0, 0, *r) for r in rows], keys_required=True),
        lambda: kernels.encode_lists([r[0] for r in rows], [b"v"] * 4, keys_required=True),
    ):
        with pytest.raises(InvalidRecordError, match="without key") as caught:
            call()
        assert caught.value.record_errors == ((1, why), (3, why))
    with pytest.raises(InvalidRecordError, match="without key"):
        kernels.encode_lists(None, [b"v"], keys_required=True)
    assert kernels.encode_records([rows[0], rows[2]], keys_required=True).count == 2
    assert kernels.encode_records([], keys_required=True).count == 0


def test_aware_datetimes_are_timestamps(kernels):
    moment = datetime(2024, 2, 29, 12, 0, 0, 123_999, timezone(timedelta(hours=5, minutes=30)))
    ms = 1709188200123
    expected = kernels.encode_records([(b"k", b"v", ms)]).buffer
    for got in (
        kernels.encode_records([(b"k", b"v", moment)]),
        kernels.encode_records([Record(9, moment, b"k", b"v")]),
        kernels.encode_records([(b"k", b"v")], moment),
        kernels.encode_lists([b"k"], [b"v"], moment),
        kernels.encode_lists([b"k"], [b"v"], [moment]),
        kernels.encode_lists([b"k"], [b"v"], default_timestamp=moment),
        kernels.encode_columns(
            0, 1, array("i", [0, 1]), b"k", None, array("i", [0, 1]), b"v", None, moment
        ),
    ):
        assert got.buffer == expected
        assert got.max_timestamp == ms


def test_what_columns_refuse(kernels):
    offsets = array("i", [0, 1, 2])
    for call in (
        lambda: kernels.encode_columns(0, 3, None, None, None, offsets, b"ab", None),
        lambda: kernels.encode_columns(0, 2, None, None, None, offsets, b"a", None),
        lambda: kernels.encode_columns(0, 2, None, None, None, offsets, None, None),
        lambda: kernels.encode_columns(0, 2, None, None, None, offsets, b"ab", b""),
        lambda: kernels.encode_columns(
            0, 2, None, None, None, offsets, b"ab", None, array("q", [1])
        ),
        lambda: kernels.encode_columns(2, 1, None, None, None, offsets, b"ab", None),
        lambda: kernels.encode_columns(0, 2, None, None, None, array("i", [0, 2, 1]), b"ab", None),
        lambda: kernels.encode_columns(0, 2, None, None, None, array("i", [-1, 0, 1]), b"ab", None),
    ):
        with pytest.raises(ValueError):
            call()
    for times in (-2, 1.5, array("d", [1, 2])):
        with pytest.raises(InvalidRecordError):
            kernels.encode_columns(0, 2, None, None, None, offsets, b"ab", None, times)


def test_seal_refuses_what_does_not_fit(kernels):
    fields = {
        "base_offset": 0,
        "leader_epoch": 0,
        "attributes": 0,
        "last_offset_delta": 0,
        "base_timestamp": 0,
        "max_timestamp": 0,
        "record_count": 0,
    }
    with pytest.raises(OverflowError):
        kernels.seal_batch(bytearray(61), **(fields | {"attributes": 2**15}))
    with pytest.raises(OverflowError):
        kernels.seal_batch(bytearray(61), **(fields | {"base_offset": 2**63}))
    with pytest.raises(ValueError):
        kernels.seal_batch(bytearray(60), **fields)
    with pytest.raises((BufferError, TypeError)):
        kernels.seal_batch(bytes(61), **fields)


# ---- runs ----


def three_batches():
    return b"".join(
        make_batch([(b"k%02d" % (10 * i + j), b"v") for j in range(3)], base_offset=10 * i)
        for i in range(3)
    )


@for_each(
    "arguments, offsets, batches, status",
    [
        ((100, 0, END), [0, 1, 2, 10, 11, 12, 20, 21, 22], 3, v.DECODE_END),
        ((1, 0, END), [0, 1, 2], 1, v.DECODE_FULL),
        ((4, 0, END), [0, 1, 2, 10, 11, 12], 2, v.DECODE_FULL),
        ((0, 0, END), [], 0, v.DECODE_FULL),
        ((100, 2, END), [2, 10, 11, 12, 20, 21, 22], 3, v.DECODE_END),
        ((100, 3, 12), [10, 11], 1, v.DECODE_LIMIT),
        ((100, 3, 13), [10, 11, 12], 2, v.DECODE_LIMIT),
        ((100, 3, 15), [10, 11, 12], 2, v.DECODE_LIMIT),
        ((100, 23, END), [], 3, v.DECODE_END),
    ],
)
def test_where_a_run_ends(kernels, arguments, offsets, batches, status):
    data = three_batches()
    size = len(data) // 3
    out = ["kept"]
    limit, first, end = arguments
    got = kernels.decode_run(data + data[:40], 0, out, limit, ReadBounds(first, end))
    assert got == (batches * size, status)
    assert [r.offset for r in out[1:]] == offsets
    builder = kernels.ColumnBuilder()
    assert builder.add_run(data, 0, limit, END, ReadBounds(first, end)) == got
    assert list(memoryview(builder.finish()["offsets"])) == offsets


def test_a_run_checks_the_crc_if_asked(kernels):
    data = three_batches()
    bad = data[:-1] + b"\x02"  # a header count: structure, and so a violation without the crc too
    where = 2 * len(data) // 3
    for check_crc in (True, False):
        for run in (
            lambda crc: kernels.decode_run(bad, 0, [], 100, ReadBounds(check_crc=crc)),
            lambda crc: kernels.ColumnBuilder().add_run(
                bad, 0, 100, END, ReadBounds(check_crc=crc)
            ),
        ):
            with pytest.raises(CorruptBatchError) as error:
                run(check_crc)
            assert (error.value.position == where) is check_crc


def test_columns_stop_at_bytes_and_start_over(kernels):
    data = three_batches()
    builder = kernels.ColumnBuilder(timestamps=False)
    assert builder.add_run(data, 0, 100, 1, ReadBounds())[1] == v.DECODE_FULL
    assert builder.rows == 3
    columns = builder.finish()
    assert "timestamps" not in columns
    assert builder.rows == 0
    assert columns_as_records(builder.finish() | {"timestamps": array("q")}) == []
    # The columns outlive the builder.
    del builder
    assert bytes(memoryview(columns["key_data"])) == b"k00k01k02"


def test_columns_have_the_layout_of_arrow():
    data = three_batches() + make_batch([(None, b"x"), (b"k", None)], base_offset=90)
    builder = native.ColumnBuilder()
    builder.add_run(data, 0, END, END, ReadBounds())
    columns = builder.finish()
    assert memoryview(columns["key_offsets"]).format == "i"
    assert memoryview(columns["offsets"]).readonly
    keys = pa.Array.from_buffers(
        pa.binary(),
        11,
        [
            columns["key_validity"] and pa.py_buffer(columns["key_validity"]),
            pa.py_buffer(columns["key_offsets"]),
            pa.py_buffer(columns["key_data"]),
        ],
    )
    keys.validate(full=True)
    assert keys.to_pylist()[-3:] == [b"k22", None, b"k"]
    with pytest.raises((BufferError, TypeError)):
        struct.pack_into("q", columns["offsets"], 0, 1)


def columns_as_records(columns):
    """The rows of a finished ColumnBuilder."""

    def strings(name, count):
        offsets = memoryview(columns[f"{name}_offsets"]).tolist()
        content = bytes(columns[f"{name}_data"])
        bits = columns.get(f"{name}_validity")
        bits = b"\xff" * (count // 8 + 1) if bits is None else bytes(bits)
        assert len(offsets) == count + 1
        return [
            content[offsets[i] : offsets[i + 1]] if bits[i >> 3] >> (i & 7) & 1 else None
            for i in range(count)
        ]

    offsets = memoryview(columns["offsets"]).tolist()
    times = memoryview(columns["timestamps"]).tolist()
    keys, values = strings("key", len(offsets)), strings("value", len(offsets))
    headers = [()] * len(offsets)
    if "header_list_offsets" in columns:
        places = memoryview(columns["header_list_offsets"]).tolist()
        names = [n.decode(errors="replace") for n in strings("header_name", places[-1])]
        pairs = list(zip(names, strings("header_value", places[-1]), strict=True))
        headers = [tuple(pairs[a:b]) for a, b in pairwise(places)]
    return [Record(*row) for row in zip(offsets, times, keys, values, headers, strict=True)]


@for_each("limit", [0, 99, 100, 199])
def test_a_column_never_outgrows_its_limit(kernels, limit):
    """Refused as a whole batch, before anything of it is added; the next builder takes it."""
    batches = [make_batch([(b"k", bytes(60))], base_offset=i) for i in range(3)]
    size = len(batches[0])
    data = b"".join(batches)
    builder = kernels.ColumnBuilder(True, True, True, True, limit)
    position, status = builder.add_run(data, 0, 100, 10**9, ReadBounds())
    held = position // size
    assert status == v.DECODE_FULL
    assert builder.rows == held < 3
    assert held == 0 or 60 * held <= limit < 60 * held + size
    payload = batches[0][61:]
    assert builder.add_payload(payload, 7, 0, 1, None, ReadBounds()) == (
        v.DECODE_FULL if 60 * held + len(payload) > limit else v.DECODE_END
    )
    for wrong in (-1, 2**31):
        with pytest.raises(ValueError, match="columns of"):
            kernels.ColumnBuilder(column_bytes_max=wrong)


# ---- both twins, on anything ----


def outcome(function, *args, **kwargs):
    """The result, or the type and position of the error."""
    try:
        return "value", function(*args, **kwargs)
    except CorruptDataError as error:
        return type(error).__name__, error.path, error.position, error.reason
    except InvalidRecordError as error:
        return "InvalidRecordError", error.reason, error.record_errors
    except (ValueError, TypeError, OverflowError) as error:
        return (type(error).__name__,)


def any_bytes(chance, none=0.2):
    if chance.random() < none:
        return None
    return chance.randbytes(chance.choice([0, 1, 3, 5, 8, 15, 16, 17, 33, 100, 127, 128, 300]))


def any_row(chance):
    row = [any_bytes(chance), any_bytes(chance)]
    if chance.random() < 0.7:
        row.append(chance.choice([None, -1, 0, 1000, 10**12, 2**63 - 1, chance.randrange(2**40)]))
        if chance.random() < 0.4:
            names = ["", "h", "naïve", "x" * 70]
            pairs = chance.randrange(3)
            row.append([(chance.choice(names), any_bytes(chance)) for _ in range(pairs)])
    return tuple(row)


def any_batch(chance, base_offset):
    rows = [any_row(chance) for _ in range(chance.choice([0, 1, 1, 2, 5, 20]))]
    encoded = native.encode_records(rows, 1000)
    buffer = encoded.buffer
    if chance.random() < 0.15 and len(buffer) > 61:  # unsound, under a good crc
        for _ in range(chance.choice([1, 1, 3])):
            buffer[chance.randrange(61, len(buffer))] = chance.randrange(256)
    native.seal_batch(
        buffer,
        base_offset=base_offset,
        leader_epoch=chance.choice([-1, 0, 0, 1, 5]),
        attributes=chance.choice([0, 0, 0, 0, 0, 8, 16, 0x30, 1, 4, 7, 0x40]),
        last_offset_delta=chance.choice([len(rows), max(len(rows) - 1, 0)]),
        base_timestamp=encoded.base_timestamp,
        max_timestamp=chance.choice([encoded.max_timestamp, chance.randrange(-1, 2**62)]),
        producer_id=chance.choice([-1, -1, 7]),
        record_count=chance.choice([len(rows)] * 20 + [0, 3, -1]),
    )
    return buffer, base_offset + max(len(rows), 1)


def any_legacy(chance, offset):
    magic = chance.randrange(2)
    body = bytes([magic, chance.choice([0, 0, 1])]) + bytes(8 * magic)
    body += b"".join(
        struct.pack(">i", -1 if f is None else len(f)) + (f or b"")
        for f in (any_bytes(chance), any_bytes(chance))
    )
    crc = reference.crc32(body)
    return struct.pack(">qiI", offset, len(body) + 4, crc) + body, offset + 1


def any_segment(seed):
    """Batches, mostly sound, perhaps with some bytes changed afterwards or a torn end."""
    chance = random.Random(seed)
    data, offset = bytearray(), chance.choice([0, 0, 100])
    for _ in range(chance.randrange(12)):
        maker = any_legacy if chance.random() < 0.1 else any_batch
        batch, offset = maker(chance, offset + chance.choice([0, 0, 0, 3, -1]))
        data += batch
    for _ in range(chance.choice([0, 0, 0, 1, 4])):
        if data:
            place = chance.randrange(len(data))
            data[place] ^= 1 << chance.randrange(8)
    if chance.random() < 0.3:
        del data[chance.randrange(len(data) + 1) :]
    if chance.random() < 0.2:
        data += bytes(chance.choice([1, 16, 17, 100]))
    return chance, bytes(data)


SEEDS = st.integers(0, 2**48)
QUICK = settings(max_examples=int(os.environ.get("KERNEL_EXAMPLES", "120")))


def same(name, *args, **kwargs):
    got = outcome(getattr(native, name), *args, **kwargs)
    assert got == outcome(getattr(reference, name), *args, **kwargs)
    return got


@QUICK
@given(seed=SEEDS)
def test_twins_scan_alike(seed):
    chance, data = any_segment(seed)
    for check_crc in (True, False):
        for stop_on_bad in (True, False):
            options = {
                "capacity": chance.choice([0, 1, 3, 20]),
                "start": chance.choice([0, 0, chance.randrange(len(data) + 1)]),
                "check_crc": check_crc,
                "stop_on_bad": stop_on_bad,
            }
            assert rows_of(native, data, **options) == rows_of(reference, data, **options)


@QUICK
@given(seed=SEEDS)
def test_twins_recover_alike(seed):
    chance, data = any_segment(seed)
    options = {
        "window": chance.choice([None, 1, 100, 5000]),
        "strict": chance.random() < 0.5,
        "contiguous": chance.random() < 0.3,
        "expected_offset": chance.choice([-1, -1, 0, 100]),
        "last_epoch": chance.choice([-1, 0, 3]),
    }
    args = data, chance.choice([0, 0, 50, 2**40]), chance.choice([0, 50, 1000])
    assert summary(*recover(native, *args, **options)) == summary(
        *recover(reference, *args, **options)
    )


@QUICK
@given(seed=SEEDS)
def test_twins_analyse_alike(seed):
    chance, data = any_segment(seed)
    fields = reference.BatchAnalysis.__slots__
    for deep in (False, True):
        options = {
            "deep": deep,
            "check_crc": chance.random() < 0.7,
            "max_batch_size": chance.choice([100, 1000, 2**31 - 1]),
        }
        results = []
        for kernels in (native, reference):
            result = outcome(kernels.analyse_batches, data, **options)
            if result[0] == "value":
                result = [getattr(result[1], f) for f in fields]
            results.append(result)
        assert results[0] == results[1]


@QUICK
@given(seed=SEEDS)
def test_twins_decode_alike(seed):
    chance, data = any_segment(seed)
    position = chance.choice([0, 0, 0, chance.randrange(len(data) + 1)])
    limit = chance.choice([1, 4, 1000])
    times = sorted(chance.choice([-1, 1000, 1001, 1003, 9999, 10**12]) for _ in range(2))
    bounds = ReadBounds(
        chance.choice([0, 0, 2, 105]),
        chance.choice([END, END, 3, 110]),
        chance.random() < 0.5,
        chance.random() < 0.5,
        [(chance.choice([-1, 9, 1000]), chance.choice([0, 5, 100]), chance.choice([9, END]))],
        chance.choice([None, times[0]]),
        chance.choice([None, times[1]]),
    )
    outs = [], []
    results = [
        outcome(k.decode_run, data, position, out, limit, bounds)
        for k, out in zip((native, reference), outs, strict=True)
    ]
    assert results[0] == results[1]
    assert outs[0] == outs[1]
    parts = [chance.random() < 0.8 for _ in range(4)]
    size = chance.choice([1, 500, 10**6])
    builders = [k.ColumnBuilder(*parts, runs=True) for k in (native, reference)]
    for builder in builders:
        results.append(outcome(builder.add_run, data, position, limit, size, bounds))
        payload = (data[61:], 5, 1000, chance.choice([0, 1, 2]) if builder is None else 1, None)
        results.append(outcome(builder.add_payload, *payload, bounds))
    assert results[2:4] == results[4:6]
    assert builders[0].rows == builders[1].rows
    assert builders[0].runs() == builders[1].runs()
    columns = [
        {name: c if c is None else bytes(memoryview(c)) for name, c in b.finish().items()}
        for b in builders
    ]
    for c in columns:
        c.pop("header_name_data", None)  # the reference has decoded and replaced
        c.pop("header_name_offsets", None)
    assert columns[0] == columns[1]


@QUICK
@given(payload=st.binary(max_size=60), count=st.integers(-1, 4), time=st.none() | st.just(5))
def test_twins_decode_any_payload_alike(payload, count, time):
    same("decode_records", payload, 10, 1000, count, time, 11)
    # A sound start, so that more of the bytes are looked at.
    same("decode_records", SOUND + payload, 2**63 - 1, 2**63 - 1, count, time, 0)


@QUICK
@given(delta=st.binary(max_size=12), length=st.binary(max_size=7))
def test_twins_read_varints_alike(delta, length):
    same("decode_records", one_record(delta, length), 0, 0, 1, None, 0)


@QUICK
@given(n=st.integers(-(2**64), 2**64))
def test_twins_write_varints_alike(n):
    same("encode_varint", n)
    kind, *value = same("encode_varlong", n)
    if kind == "value":
        assert reference.decode_varlong(value[0], 0) == (n, len(value[0]))


ENCODED = ["buffer", "base_timestamp", "max_timestamp", "offset_of_max", "count"]


def same_encoding(name, *args, **kwargs):
    results = []
    for kernels in (native, reference):
        result = outcome(getattr(kernels, name), *args, **kwargs)
        if result[0] == "value":
            result = [getattr(result[1], f) for f in ENCODED]
        results.append(result)
    assert results[0] == results[1]
    return results[0]


@QUICK
@given(seed=SEEDS)
def test_twins_encode_alike(seed):
    chance = random.Random(seed)
    rows = [any_row(chance) for _ in range(chance.choice([0, 1, 3, 80]))]
    if rows and chance.random() < 0.2:
        bad = chance.choice([(1, b""), (b"", b"", -2), (b"", b"", "x"), (), (None, None, 1, [1])])
        rows[chance.randrange(len(rows))] = bad
    if chance.random() < 0.3:
        padded = [(*row, None, None, None) for row in rows]
        rows = [Record(0, row[2], row[0], row[1]) for row in padded]
    same_encoding("encode_records", rows, chance.choice([-1, 0, 5, -2]))
    keys = [any_bytes(chance) for _ in rows]
    values = [any_bytes(chance) for _ in rows]
    times = [chance.choice([-1, 5, 2**50, -2 if chance.random() < 0.05 else 0]) for _ in rows]
    kinds = [None, 7, times, array("q", times), times[1:]]
    same_encoding("encode_lists", chance.choice([None, keys]), values, chance.choice(kinds))
    arrow = [pa.array(c, pa.binary()).buffers() for c in (keys, values)]
    columns = [b for c in arrow for b in (c[1], c[2], c[0])]
    start = chance.randrange(len(rows) + 1)
    stop = chance.randrange(start, len(rows) + 2)
    same_encoding("encode_columns", start, stop, *columns, chance.choice(kinds[:2] + kinds[3:4]))
    offsets = array("i", sorted(chance.randrange(-1, 12) for _ in range(6)))
    chance.shuffle(offsets) if chance.random() < 0.5 else None
    same_encoding("encode_columns", 0, 5, offsets, b"0123456789", b"\x15", None, None, None)


@QUICK
@given(seed=SEEDS)
def test_noise_never_crashes(seed):
    """Random bytes, and random bytes under a header that frames them."""
    chance = random.Random(seed)
    noise = chance.randbytes(chance.choice([0, 10, 61, 200, 2000]))
    framed = struct.pack(">qiib", 0, len(noise) + 5, 0, 2) + noise
    for data in (noise, framed):
        rows_of(native, data, check_crc=False, stop_on_bad=False)
        recover(native, data, 0, 10)
        outcome(native.analyse_batches, data, check_crc=False, deep=True)
        outcome(native.decode_run, data, 0, [], END, ReadBounds(check_crc=False))
        outcome(
            native.ColumnBuilder(headers=True).add_run,
            data,
            0,
            END,
            END,
            ReadBounds(check_crc=False),
        )
        outcome(native.decode_records, data, 0, 0, chance.randrange(50))
        outcome(native.encode_columns, 0, chance.randrange(40), data, data, data, data, data, data)


# ---- the package ----


def test_the_twins_have_the_same_numbers_and_names():
    numbers = [n for name, n in vars(v).items() if name.startswith("SCAN_") and type(n) is int]
    assert list(_scan.STATUSES) == numbers
    assert list(_codec.STATUSES) == [0, 1, 2, 3]
    assert [v.DECODE_END, v.DECODE_FULL, v.DECODE_SPECIAL, v.DECODE_LIMIT] == [0, 1, 2, 3]
    found = native.analyse_batches(b"")
    plain = reference.analyse_batches(b"")
    for field in reference.BatchAnalysis.__slots__:
        assert getattr(found, field) == getattr(plain, field)
        assert type(getattr(found, field)) is type(getattr(plain, field))


def test_what_is_not_built_is_told():
    code = "import sys; sys.modules['logstore.kernels._codec'] = None; import logstore.kernels"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "ImportError: logstore has no native kernels for this Python here" in done.stderr


def test_one_scan_in_two_threads_is_refused_or_in_turn():
    one = make_batch([(None, bytes(1000))] * 50)
    data = bytearray(one * 200)
    for i in range(200):
        struct.pack_into(">q", data, i * len(one), 50 * i)
    builder = native.ColumnBuilder()
    failures = []

    def work():
        try:
            builder.add_run(data, 0, END, END, ReadBounds())
        except RuntimeError as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert builder.rows == 10_000 * (4 - len(failures))
