"""What may stand at the end of a ``.log`` after a crash: S-29, S-30, S-31, S-48, S-49."""

from __future__ import annotations

import random
import struct
from contextlib import suppress

import pytest

from logstore.common.errors import LogstoreError, RecordRejectedError
from logstore.log import PartitionLog
from logstore.recovery.recovery import RecoveryOptions
from tests.crash.checks import check_lookups, check_state
from tests.crash.disk import (
    CONFIG,
    DIRECTORY,
    batches_of,
    disk_with,
    joined,
    last_log,
    log_bytes,
    open_log,
    written,
)
from tests.crash.model import Batch, as_client, data_batch

TEN = batches_of(10)
FILES = written(TEN)
LOG = last_log(FILES)


def recovered(tail: bytes, options: RecoveryOptions | None = None) -> PartitionLog:
    """The log that recovery makes of these bytes; the indexes are of all ten batches."""
    return open_log(disk_with(FILES | {LOG: tail}), options=options)


def assert_holds(log: PartitionLog, batches: list[Batch]) -> None:
    """Exactly these batches, answers equal to a scan, and the next append follows them."""
    assert log_bytes(log.core.storage) == joined(batches)
    check_state(log, batches, whole=True)
    check_lookups(log, batches, random.Random(1))
    assert log.append([(b"k", b"next")]).first_offset == (batches[-1].last + 1 if batches else 0)


@pytest.mark.slow
def test_s29_torn_batch_at_the_tail() -> None:
    whole = joined(TEN)
    start = len(whole) - len(TEN[-1].data)
    for kept in range(1, len(TEN[-1].data)):
        log = recovered(whole[: start + kept])
        assert log.recovery_report.bytes_cut == kept
        assert_holds(log, TEN[:9])


@pytest.mark.parametrize("kept", [1, 16, 17, 60, 61, 200])
def test_s29_a_whole_batch_after_a_torn_one_goes_too(kept: int) -> None:
    log = recovered(joined(TEN[:8]) + TEN[8].data[:kept] + TEN[9].data)
    assert_holds(log, TEN[:8])


def test_s29_a_second_recovery_changes_nothing() -> None:
    storage = disk_with(FILES | {LOG: joined(TEN)[:-5]})
    open_log(storage).crash()
    before = log_bytes(storage)
    log = open_log(storage)
    assert log_bytes(storage) == before
    assert log.recovery_report.bytes_cut == 0


@pytest.mark.parametrize("zeroed", [1, 16, 17, 60, 61, 200, len(TEN[-1].data)])
def test_s30_the_last_bytes_are_zero(zeroed: int) -> None:
    """A record without headers ends in a zero: one zeroed byte may change nothing."""
    whole = joined(TEN)
    data = whole[:-zeroed] + bytes(zeroed)
    assert_holds(recovered(data), TEN if data == whole else TEN[:9])


@pytest.mark.parametrize("added", [1, 17, 512, 4096, 1 << 20])
def test_s30_zeros_behind_the_tail(added: int) -> None:
    log = recovered(joined(TEN) + bytes(added))
    assert log.recovery_report.bytes_cut == added
    assert_holds(log, TEN)


def test_s30_a_preallocated_segment() -> None:
    config = CONFIG.with_properties({"preallocate": True, "segment.bytes": 1 << 16})
    files = written(TEN, config, closed=False)
    assert len(files[LOG]) == 1 << 16
    log = open_log(disk_with(files), config)
    assert (log.log_end_offset, log.size) == (30, len(joined(TEN)))


def test_s31a_random_bytes_behind_the_tail() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        log = recovered(joined(TEN) + rng.randbytes(rng.randint(1, 1024)))
        assert log_bytes(log.core.storage) == joined(TEN), f"seed {seed}"
        assert log.log_end_offset == 30


@pytest.mark.parametrize("copied", [0, 5, 9])
def test_s31b_an_old_batch_of_the_same_log(copied: int) -> None:
    """Kafka would take it, or empty the segment: offsets that go backwards end the scan here."""
    assert_holds(recovered(joined(TEN) + TEN[copied].data), TEN)


def test_s31c_a_batch_that_leaves_a_gap() -> None:
    """Accepted, on purpose: compacted and truncated logs have gaps, and no CRC covers offsets.

    Whoever knows that the log was never compacted says so, and the gap ends the scan.
    """
    later = batches_of(1, base=50)[0]
    log = recovered(joined(TEN) + later.data)
    assert log.log_end_offset == 53
    log = recovered(joined(TEN) + later.data, RecoveryOptions(contiguous=True))
    assert_holds(log, TEN)


def test_s31d_a_header_with_a_wrong_crc() -> None:
    wrong = bytearray(batches_of(1, base=30)[0].data)
    wrong[17] ^= 1
    assert_holds(recovered(joined(TEN) + bytes(wrong)), TEN)


def test_s31e_a_correct_crc_over_a_wrong_record_count() -> None:
    """Recovery reads headers; the batch is refused when its records are first decoded (I-17)."""
    from logstore.kernels import crc32c

    wrong = bytearray(batches_of(1, base=30)[0].data)
    struct.pack_into(">i", wrong, 57, 7)
    struct.pack_into(">I", wrong, 17, crc32c(bytes(wrong[21:])))
    log = recovered(joined(TEN) + bytes(wrong))
    if log.log_end_offset > 30:
        with pytest.raises(LogstoreError):
            list(log.records(30))
    assert [r.offset for r in log.records(0, 30)] == list(range(30))


LENGTHS = (-(2**31), -1, 0, 13, 14, 48, 49, -2, -3, 2**31 - 1)


@pytest.mark.parametrize("length", LENGTHS)
def test_s48_hostile_lengths(length: int) -> None:
    """On disk the scan stops; in an append nothing is written. −2 and −3: one off the true one."""
    batch = bytearray(batches_of(1, base=30)[0].data)
    true = len(batch) - 12
    value = {-2: true - 1, -3: true + 1}.get(length, length)
    struct.pack_into(">i", batch, 8, value)
    assert_holds(recovered(joined(TEN) + bytes(batch)), TEN)
    log = recovered(joined(TEN))
    client = bytearray(as_client(batches_of(1)[0]))
    struct.pack_into(">i", client, 8, value)
    with pytest.raises(RecordRejectedError):
        log.append_as_leader(bytes(client), 0)
    size = log.size
    with suppress(RecordRejectedError):
        assert (
            log.replica.append_as_follower(bytes(batch)).size == 0
        )  # a torn batch is left out (F-163)
    assert (log.size, log.log_end_offset) == (size, 30)


def test_s48_a_file_that_ends_inside_a_header() -> None:
    for kept in range(18):
        assert_holds(recovered(joined(TEN) + TEN[0].data[:kept]), TEN)


BEFORE, VICTIM, AFTER = (
    data_batch(base, 4, [(b"k", bytes([65 + base]) * 90, 1_700_000_000_000)] * 2)
    for base in (0, 2, 4)
)


def flips() -> list[tuple[int, int]]:
    return [(byte, bit) for byte in range(len(VICTIM.data)) for bit in range(8)]


def flipped(data: bytes, byte: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[byte] ^= 1 << bit
    return bytes(changed)


@pytest.mark.slow
def test_s49_every_bit_on_append_as_leader() -> None:
    """The leader places offset and epoch itself: only those bits are without effect."""
    survivors = set()
    for byte, bit in flips():
        log = open_log(disk_with({}))
        try:
            log.append_as_leader(flipped(as_client(VICTIM), byte, bit), 4)
        except RecordRejectedError:
            assert log.size == 0
            continue
        survivors.add(byte)
        assert log_bytes(log.core.storage)[61:] == VICTIM.data[61:]
    print("bytes whose flips survive an append as leader:", sorted(survivors))
    assert survivors <= set(range(8)) | set(range(12, 16))


@pytest.mark.slow
def test_s49_every_bit_on_append_as_follower() -> None:
    """Base offsets and epochs are outside the CRC: what stays plausible cannot be told (I-22)."""
    survivors = []
    for byte, bit in flips():
        log = open_log(disk_with({}))
        log.replica.append_as_follower(BEFORE.data)
        try:
            appended = log.replica.append_as_follower(flipped(VICTIM.data, byte, bit)).size
        except LogstoreError:
            appended = 0
        if appended:
            survivors.append((byte, bit))
    print("(byte, bit) that survive an append as follower:", survivors)
    assert {byte for byte, _ in survivors} <= set(range(8)) | set(range(12, 16))


@pytest.mark.slow
def test_s49_every_bit_in_recovery() -> None:
    """A flipped leader epoch is kept, as in Kafka, and told of where it makes the epochs fall."""
    survivors = []
    for byte, bit in flips():
        data = BEFORE.data + flipped(VICTIM.data, byte, bit) + AFTER.data
        log = open_log(disk_with({f"{DIRECTORY}/00000000000000000000.log": data}))
        if log.size != len(BEFORE.data):
            survivors.append((byte, bit))
        else:
            assert log.log_end_offset == 2
    print("(byte, bit) that survive recovery:", survivors)
    assert {byte for byte, _ in survivors} <= set(range(8)) | set(range(12, 16))
    epochs = [flip for flip in survivors if flip[0] >= 12]
    assert epochs == [(byte, bit) for byte in range(12, 16) for bit in range(8)]


@pytest.mark.parametrize("byte", [13, 15])
def test_s49_a_flipped_epoch_is_told_of(byte: int) -> None:
    for bit in range(8):
        data = BEFORE.data + flipped(VICTIM.data, byte, bit) + AFTER.data
        log = open_log(disk_with({f"{DIRECTORY}/00000000000000000000.log": data}))
        assert (log.size, log.log_end_offset) == (len(data), 6)
        report = log.recovery_report
        assert report.epoch_falls == 1
        assert any("epochs fall" in warning for warning in report.warnings)
