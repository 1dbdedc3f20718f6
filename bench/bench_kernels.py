"""Speed of the kernels: ``pytest bench/bench_kernels.py``.

Workloads: segments of about 16 MB with 16-byte keys and 100-byte values, at 1, 10, 100 and 1,000
records per batch. ``mb_per_s`` and ``records_per_s`` in the extra info are what the claims quote.
A run over more than the last-level cache measures the memory of the machine.
"""

from __future__ import annotations

import random
from array import array

import pytest

from logstore import kernels

SEGMENT_SIZE = 16_000_000
RECORDS_PER_BATCH = [1, 10, 100, 1000]
KEY, VALUE = bytes(range(16)), bytes(range(100))


def segment(record_count: int) -> tuple[bytes, int]:
    """Consecutive batches, and their number."""
    encoded = kernels.encode_records([(KEY, VALUE)] * record_count, 1_700_000_000_000)
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
    return b"".join(batches), len(batches)


@pytest.fixture(scope="module", params=RECORDS_PER_BATCH, ids=lambda n: f"{n}-per-batch")
def workload(request):
    data, batches = segment(request.param)
    return data, batches, request.param


@pytest.fixture
def measure(benchmark):
    """Run, and note bytes and records per second of the fastest round."""

    def run(function, *, size=0, records=0, units=1):
        result = benchmark.pedantic(
            function, rounds=15, iterations=max(1, 200_000 // units), warmup_rounds=1
        )
        fastest = benchmark.stats.stats.min
        if size:
            benchmark.extra_info["mb_per_s"] = round(size / fastest / 1e6)
        if records:
            benchmark.extra_info["records_per_s"] = round(records / fastest)
        return result

    return run


@pytest.mark.benchmark(group="crc32c")
@pytest.mark.parametrize("size", [180, 1024, 4096, 65536, 1 << 20, 1 << 26])
def test_crc32c(measure, size):
    # Not bytes(size): untouched zeros are one page of memory, which never leaves the first cache.
    data = random.Random(1).randbytes(size)
    measure(lambda: kernels.crc32c(data), size=size, units=max(size, 100))


@pytest.mark.benchmark(group="scan")
@pytest.mark.parametrize("check_crc", [True, False], ids=["crc", "no-crc"])
def test_scan(measure, workload, check_crc):
    data, batches, per_batch = workload
    columns = array("q", bytes(8 * len(kernels.SCAN_COLUMNS) * (batches + 1)))
    rows, _, _ = measure(
        lambda: kernels.scan_batches(data, 0, columns, check_crc),
        size=len(data),
        records=batches * per_batch,
        units=SEGMENT_SIZE,
    )
    assert rows == batches


@pytest.mark.benchmark(group="recovery scan")
def test_recovery_scan(measure, workload):
    data, batches, per_batch = workload

    def recover():
        scan = kernels.RecoveryScan(0, 4096)
        scan.feed(data, 0, True)
        return scan

    scan = measure(recover, size=len(data), records=batches * per_batch, units=SEGMENT_SIZE)
    assert (scan.status, scan.valid_bytes) == (kernels.SCAN_END, len(data))


@pytest.mark.benchmark(group="analysis")
@pytest.mark.parametrize("deep", [False, True], ids=["headers", "deep"])
def test_analysis(measure, workload, deep):
    data, batches, per_batch = workload
    measure(
        lambda: kernels.analyse_batches(data, deep=deep),
        size=len(data),
        records=batches * per_batch,
        units=SEGMENT_SIZE,
    )


@pytest.mark.benchmark(group="encode")
@pytest.mark.parametrize("count", RECORDS_PER_BATCH)
@pytest.mark.parametrize("shape", ["records", "lists"])
def test_encode(measure, shape, count):
    rows = [(KEY, VALUE)] * count
    keys, values = [KEY] * count, [VALUE] * count
    functions = {
        "records": lambda: kernels.encode_records(rows, 1_700_000_000_000),
        "lists": lambda: kernels.encode_lists(keys, values, 1_700_000_000_000),
    }
    measure(functions[shape], records=count, units=50 * count + 500)


@pytest.mark.benchmark(group="encode")
@pytest.mark.parametrize("count", RECORDS_PER_BATCH)
def test_encode_columns(measure, count):
    key_offsets = array("i", range(0, 16 * count + 1, 16))
    value_offsets = array("i", range(0, 100 * count + 1, 100))
    columns = key_offsets, KEY * count, None, value_offsets, VALUE * count, None
    measure(
        lambda: kernels.encode_columns(0, count, *columns, 1_700_000_000_000),
        records=count,
        units=50 * count + 500,
    )


@pytest.mark.benchmark(group="decode")
def test_decode_run(measure, workload):
    """In portions of about 1,000 records, as a consumer takes them."""
    data, batches, per_batch = workload

    def decode():
        position, count = 0, 0
        while True:
            out: list[object] = []
            position, status = kernels.decode_run(data, position, out, 1000, 0, 2**62)
            count += len(out)
            if status == kernels.DECODE_END:
                return count

    count = measure(decode, records=batches * per_batch, units=SEGMENT_SIZE)
    assert count == batches * per_batch


@pytest.mark.benchmark(group="columns")
@pytest.mark.parametrize("rows", [10_000, 1_000_000])
def test_columns(measure, workload, rows):
    """Column batches of so many rows, each dropped before the next but one is built."""
    data, batches, per_batch = workload

    def build():
        position, count = 0, 0
        while True:
            builder = kernels.ColumnBuilder()
            position, status = builder.add_run(data, position, rows, 2**62, 0, 2**62)
            count += builder.rows
            columns = builder.finish()
            assert len(columns["offsets"])
            if status == kernels.DECODE_END or position == len(data):
                return count

    count = measure(build, records=batches * per_batch, units=SEGMENT_SIZE)
    assert count == batches * per_batch
