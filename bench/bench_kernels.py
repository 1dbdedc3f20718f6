"""The kernels alone, each as a share of what one pass of the checksum over the same bytes reaches.

Segments of 16 MB with 16-byte keys and 100-byte values. The checksum's own limit is a copy of its
bytes. A run over more than the last-level cache measures the memory of the machine.
"""

from __future__ import annotations

import random
import statistics
from array import array
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from workloads import KEY, START_MS, VALUE, in_turns, rates, scaled, seconds

from logstore import kernels

SEGMENT_SIZE = scaled(16_000_000)
RECORDS_PER_BATCH = [1, 100]
ROUNDS = 9
ROUND_BYTES = scaled(16_000_000)  # in one round of a small unit


@cache
def segment(record_count: int) -> tuple[bytes, int]:
    """Consecutive batches, and how many records they have."""
    encoded = kernels.encode_records([(KEY, VALUE)] * record_count, START_MS)
    batches = []
    for i in range(SEGMENT_SIZE // len(encoded.buffer)):
        kernels.seal_batch(
            encoded.buffer,
            base_offset=i * record_count,
            leader_epoch=0,
            attributes=0,
            last_offset_delta=record_count - 1,
            base_timestamp=encoded.base_timestamp,
            max_timestamp=encoded.max_timestamp,
            record_count=record_count,
        )
        batches.append(bytes(encoded.buffer))
    return b"".join(batches), len(batches) * record_count


def against(
    benchmark: Any, claim: Any, what: str, work: Callable[[], object], data: bytes, records: int
) -> None:
    """A line: the kernel over ``data``, in turns with one pass of the checksum over it."""
    repeat = range(max(1, ROUND_BYTES // len(data)))
    took = in_turns(
        benchmark,
        lambda: [work() for _ in repeat],
        rounds=ROUNDS,
        crc=lambda: seconds(lambda: [kernels.crc32c(data) for _ in repeat]),
    )
    size = len(repeat) * len(data) / 1e6
    rate = len(repeat) * records / statistics.median(took["ours"]) / 1e6
    claim(
        what,
        rates(size, took["ours"]),
        "MB/s",
        peer="the checksum of the same bytes",
        theirs=rates(size, took["crc"]),
        note=f"{rate:.1f} M records/s",
    )


@pytest.mark.parametrize("size", [1024, 65536, 1 << 26])
def test_crc32c(benchmark: Any, claim: Any, size: int) -> None:
    # Not bytes(size): untouched zeros are one page of memory, which never leaves the first cache.
    data = random.Random(1).randbytes(scaled(size, 1024))
    room = bytearray(data)
    repeat = range(max(1, ROUND_BYTES // len(data)))

    def copy() -> None:
        room[:] = data

    took = in_turns(
        benchmark,
        lambda: [kernels.crc32c(data) for _ in repeat],
        rounds=ROUNDS,
        copy=lambda: seconds(lambda: [copy() for _ in repeat]),
    )
    ours, theirs = (rates(len(repeat) * len(data) / 1e6, each) for each in took.values())
    claim(f"crc32c of {size:,} bytes", ours, "MB/s", peer="a copy of them", theirs=theirs)


@cache
def columns(records: int) -> array[int]:
    return array("q", bytes(8 * len(kernels.SCAN_COLUMNS) * (records + 1)))


def recover(data: bytes, records: int) -> None:
    scan = kernels.RecoveryScan(0, 4096)
    scan.feed(data, 0, True)
    assert (scan.status, scan.valid_bytes) == (kernels.SCAN_END, len(data))


def decode(data: bytes, records: int) -> None:
    """In portions of about 1,000 records, as a consumer takes them."""
    position, count, status = 0, 0, None
    while status != kernels.DECODE_END:
        out: list[object] = []
        position, status = kernels.decode_run(data, position, out, 1000, kernels.ReadBounds())
        count += len(out)
    assert count == records


def build(data: bytes, records: int) -> None:
    """Batches of columns of 10,000 rows, each dropped before the next but one is built."""
    position, count = 0, 0
    while position < len(data):
        builder = kernels.ColumnBuilder()
        position, _ = builder.add_run(data, position, 10_000, 2**62, kernels.ReadBounds())
        count += builder.rows
        assert len(builder.finish()["offsets"])
    assert count == records


OVER_A_SEGMENT: dict[str, Callable[[bytes, int], object]] = {
    "scan of headers and checksums": lambda data, records: kernels.scan_batches(
        data, 0, columns(records), True
    ),
    "scan of a recovery": recover,
    "analysis of headers": lambda data, records: kernels.analyse_batches(data, deep=False),
    "analysis of every record": lambda data, records: kernels.analyse_batches(data, deep=True),
    "records as Python tuples": decode,
    "records as columns": build,
}


@pytest.mark.parametrize("per_batch", RECORDS_PER_BATCH)
@pytest.mark.parametrize("what", OVER_A_SEGMENT)
def test_kernels_over_a_segment(benchmark: Any, claim: Any, what: str, per_batch: int) -> None:
    data, records = segment(per_batch)
    kernel = OVER_A_SEGMENT[what]
    against(
        benchmark,
        claim,
        f"{what}, {per_batch} a batch",
        lambda: kernel(data, records),
        data,
        records,
    )


@pytest.mark.parametrize("count", RECORDS_PER_BATCH)
@pytest.mark.parametrize("given", ["tuples", "lists", "columns"])
def test_encode(benchmark: Any, claim: Any, given: str, count: int) -> None:
    rows = [(KEY, VALUE)] * count
    keys, values = [KEY] * count, [VALUE] * count
    key_offsets = array("i", range(0, 16 * count + 1, 16))
    value_offsets = array("i", range(0, 100 * count + 1, 100))
    parts = key_offsets, KEY * count, None, value_offsets, VALUE * count, None
    data = bytes(kernels.encode_records(rows, START_MS).buffer)
    work = {
        "tuples": lambda: kernels.encode_records(rows, START_MS),
        "lists": lambda: kernels.encode_lists(keys, values, START_MS),
        "columns": lambda: kernels.encode_columns(0, count, *parts, START_MS),
    }[given]
    what = f"a batch encoded from {given}, {count} a batch"
    against(benchmark, claim, what, work, data, count)
