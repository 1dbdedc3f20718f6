"""Whatever the log takes, a reader returns: one bound for both (docs/format.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logstore import LogConfig, LogManager, PartitionLog
from logstore.cleaner import cleaner as cleaner_module
from logstore.common.bounds import UNPACKED_MAX
from logstore.common.errors import RecordTooLargeError
from logstore.format import batch as batch_module
from logstore.format.batch import encode_batch
from logstore.format.codecs.compression import Compression, decompress
from logstore.format.header import parse_header
from logstore.kernels import BatchAnalysis
from logstore.log.writing import writer
from logstore.log.writing.validation import analyse
from logstore.verify import VerifyOptions, verify
from tests.support.builders import Disk

BOUND = 5000
CODECS = ("gzip", "snappy", "lz4", "zstd")
# Length, attributes, two deltas, key, length of the value, number of headers.
OVERHEAD = 2 + 1 + 1 + 1 + 1 + 2 + 1


def records(size: int) -> list[tuple[None, bytes]]:
    """One record that takes ``size`` bytes in a batch."""
    return [(None, bytes(size - OVERHEAD))]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound of 5,000 bytes for writer and reader."""
    monkeypatch.setattr(batch_module, "UNPACKED_MAX", BOUND)
    monkeypatch.setattr(decompress, "__defaults__", (BOUND, 2))


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], bytes]:
    """A foreign batch, made without the bound of ours."""

    def encode(size: int, codec: str) -> bytes:
        with monkeypatch.context() as other:
            other.setattr(batch_module, "UNPACKED_MAX", 2**31)
            return bytes(encode_batch(records(size), compression=Compression.of(codec)))

    return encode


def with_epoch(data: bytes) -> bytes:
    return data[:12] + bytes(4) + data[16:]


def sizes(log: PartitionLog) -> list[int]:
    return [len(record.value or b"") + OVERHEAD for record in log.records()]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("codec", CODECS)
def test_own_appends(codec: str, tmp_path: Path) -> None:
    with PartitionLog.open(tmp_path / "t-0", LogConfig(compression_type=codec)) as log:
        log.append(records(BOUND - 1))
        log.append(records(BOUND))
        with pytest.raises(RecordTooLargeError, match="5001 bytes"):
            log.append(records(BOUND + 1))
        with pytest.raises(RecordTooLargeError):
            log.append_columns([bytes(BOUND)])
        with pytest.raises(RecordTooLargeError):
            log.producer("p").append(records(BOUND + 1), compression=Compression.of(codec))
        assert log.extend(records(BOUND - 50) * 4).batch_count == 4
        log.append(records(100))
        assert sizes(log) == [BOUND - 1, BOUND, *[BOUND - 50] * 4, 100]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("topic", ["producer", "uncompressed", "lz4"])
@pytest.mark.parametrize("codec", CODECS)
def test_batches_of_clients(codec: str, topic: str, encoded: Callable[[int, str], bytes]) -> None:
    """Kafka's producer splits a batch that is too large, and sends a bad one never again."""
    log = Disk(compression_type=topic).open()
    for size in (BOUND - 1, BOUND):
        log.append_as_leader(encoded(size, codec), 0)
    with pytest.raises(RecordTooLargeError):
        log.append_as_leader(encoded(BOUND + 1, codec), 0)
    assert sizes(log) == [BOUND - 1, BOUND]


@pytest.mark.usefixtures("small")
def test_a_batch_that_the_topic_compresses(encoded: Callable[[int, str], bytes]) -> None:
    log = Disk(compression_type="zstd").open()
    log.append_as_leader(encoded(BOUND, "none"), 0)
    with pytest.raises(RecordTooLargeError):
        log.append_as_leader(encoded(BOUND + 1, "none"), 0)
    assert sizes(log) == [BOUND]


@pytest.mark.usefixtures("small")
def test_what_is_not_compressed_has_no_such_bound(tmp_path: Path) -> None:
    with PartitionLog.open(tmp_path / "t-0") as log:
        log.append([(None, bytes(3 * BOUND))])
        assert [len(record.value or b"") for record in log.records()] == [3 * BOUND]


@pytest.mark.usefixtures("small")
def test_a_follower_takes_what_its_leader_has(encoded: Callable[[int, str], bytes]) -> None:
    """A copy that stops there would hold up all that follows."""
    log: PartitionLog = Disk().open()
    log.replica.append_as_follower(with_epoch(encoded(BOUND + 1, "zstd")))
    assert log.log_end_offset == 1


def test_verify_unpacks_what_a_reader_does() -> None:
    assert VerifyOptions().unpacked_max == UNPACKED_MAX


@pytest.mark.slow
def test_the_real_bound(tmp_path: Path, encoded: Callable[[int, str], bytes]) -> None:
    largest = UNPACKED_MAX - OVERHEAD - 6  # two lengths of five bytes
    with PartitionLog.open(tmp_path / "t-0", LogConfig(compression_type="zstd")) as log:
        log.append([(None, bytes(largest))])
        with pytest.raises(RecordTooLargeError):
            log.append([(None, bytes(largest + 1))])
        with pytest.raises(RecordTooLargeError):
            log.append_as_leader(encoded(UNPACKED_MAX + 10, "zstd"), 0)
        assert [len(record.value or b"") for record in log.records()] == [largest]
    rules = {finding.rule for finding in verify([str(tmp_path)]).findings}
    assert rules == {"meta-missing"}


def test_the_cleaner_writes_nothing_larger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The delete horizon of tombstones becomes the base of all timestamps, far from them."""
    config = LogConfig(compression_type="zstd", cleanup_policy="compact")
    with LogManager([tmp_path], config, background=False) as manager:
        log = manager.create_topic("t", 1)[0]
        rows = [(b"%03d" % number, None, 1) for number in range(200)]
        log.append([*rows, (b"other", b"value", 1)])
        log.append([(b"other", b"new", 1)])
        log.roll()
        data = (tmp_path / "t-0" / f"{0:020d}.log").read_bytes()
        content = data[61 : parse_header(data).size]
        unpacked = len(decompress(Compression.ZSTD, content))
        monkeypatch.setattr(decompress, "__defaults__", (unpacked, 2))
        monkeypatch.setattr(cleaner_module, "UNPACKED_MAX", unpacked)
        manager.cleaner.clean_by_hand(log.topic_partition)
        assert len(list(log.records())) == 202


@pytest.mark.parametrize("timestamps", ["CreateTime", "LogAppendTime"])
def test_a_limit_that_falls_while_an_append_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timestamps: str
) -> None:
    """What ``reconfigure`` returned from holds for every later record."""
    config = LogConfig(message_timestamp_type=timestamps)
    with PartitionLog.open(tmp_path / "t-0", config) as log:

        def analyse_then_lose(*args: Any, **options: Any) -> BatchAnalysis:
            found = analyse(*args, **options)
            log.reconfigure(replace(config, max_message_bytes=100))
            return found

        monkeypatch.setattr(writer, "analyse", analyse_then_lose)
        with pytest.raises(RecordTooLargeError, match=r"above max\.message\.bytes 100"):
            log.append([(None, bytes(200))])
        assert log.log_end_offset == 0
