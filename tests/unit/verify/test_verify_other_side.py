"""What one file says and another one, the other direction or the other replica does not."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from verify_logs import LOG_DIR, PARTITION, check, copy, log_dir, names, patch, short

from logstore.common.config import LogConfig
from logstore.format.batch import encode_batch
from logstore.format.producer_snapshot import decode_snapshot, encode_snapshot
from logstore.format.reader import Batch, iter_batches
from logstore.kernels import crc32c
from logstore.log import run_inline
from logstore.manager import LogManager, ManagerOwner
from logstore.storage.memory import MemoryStorage
from logstore.testing import ManualClock
from logstore.verify import Severity, VerifyOptions, VerifyReport, verify
from tests.faults.coordinators import OFFSETS, TRANSACTIONS, honest, log_of, offset_record

_ATTRIBUTES, _SEQUENCE = 21, 53
_HORIZON = 0x40


def resealed(storage: MemoryStorage, path: str, batch: Batch, at: int, field: bytes) -> None:
    """Bytes of a batch replaced, and its checksum made right."""
    data = bytearray(storage.read_file(path)[batch.position : batch.end_position])
    data[at : at + len(field)] = field
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    patch(storage, path, batch.position, bytes(data))


def first_log(storage: MemoryStorage, directory: str = PARTITION) -> tuple[str, list[Batch]]:
    path = names(storage, ".log", directory)[0]
    return path, list(iter_batches(storage.read_file(path)))


# -- headers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sequence", "epoch", "told"),
    [
        (-1, -1, []),
        (0, -1, []),  # as Sarama
        (0, 0, []),  # as KafkaJS
        (1, -1, ["log-sequence"]),
        (-2, -1, ["log-sequence"]),
        (-1, 1, ["log-producer-epoch"]),
        (5, 2, ["log-producer-epoch", "log-sequence"]),
    ],
)
def test_sequence_and_epoch_without_a_producer(sequence: int, epoch: int, told: list[str]) -> None:
    storage = log_dir()
    path, batches = first_log(storage)
    resealed(storage, path, batches[3], 51, struct.pack(">hi", epoch, sequence))
    assert [finding.rule for finding in check(storage).findings] == told


# -- a bit that seems to say that a log was compacted ----------------------------------------------


def replicas(count: int) -> MemoryStorage:
    """Directories of as many brokers, ``/1`` and so on, all as one."""
    storage, first = MemoryStorage(), log_dir()
    for number in range(1, count + 1):
        copy(first, LOG_DIR, storage, f"/{number}")
        meta = storage.read_file(f"/{number}/meta.properties").decode()
        lines = [
            f"node.id={number}" if line.startswith("node.id") else line
            for line in meta.splitlines()
        ]
        storage.write_file(f"/{number}/meta.properties", "\n".join([*lines, ""]).encode())
    return storage


def compared(storage: MemoryStorage, count: int) -> VerifyReport:
    paths = [f"/{number}" for number in range(1, count + 1)]
    return verify(paths, VerifyOptions(threads=1), storage=storage)


@pytest.mark.parametrize("key", [True, False], ids=["with a value", "a tombstone"])
def test_the_bit_of_a_delete_horizon_does_not_end_a_comparison(key: bool) -> None:
    """F-95: any client can set it, in the last batch of a segment; the replica differs before."""
    storage = replicas(2)
    path, batches = first_log(storage, "/1/orders-0")
    attributes = struct.pack(">h", batches[-1].attributes | _HORIZON)
    resealed(storage, path, batches[-1], _ATTRIBUTES, attributes)
    if not key:
        one = batches[-1]
        tombstone = encode_batch(
            [(b"k", None, one.max_timestamp)],
            base_offset=one.base_offset,
            leader_epoch=one.leader_epoch,
        )
        data = storage.read_file(path)[: one.position] + bytes(tombstone)
        assert one.record_count != 1 or len(tombstone) != one.size
        storage.write_file(path, data)
    other = batches[2]
    resealed(storage, path, other, 27, struct.pack(">q", other.base_timestamp - 1))
    told = [f for f in compared(storage, 2).findings if f.rule == "replicas-differ"]
    assert {finding.severity for finding in told} == {Severity.ERROR}
    assert min(finding.offset for finding in told) == other.base_offset


def test_a_delete_horizon_without_anything_to_delete() -> None:
    storage = log_dir(clean=False)
    path, batches = first_log(storage)
    attributes = struct.pack(">h", batches[3].attributes | _HORIZON)
    resealed(storage, path, batches[3], _ATTRIBUTES, attributes)
    assert short(check(storage)) == [("warning", "log-attributes", path.rsplit("/")[-1])]
    assert [str(f.severity) for f in check(storage, deep=False).findings] == ["info"]


# -- replicas --------------------------------------------------------------------------------------


@pytest.mark.parametrize("alike", [True, False], ids=["alike", "differently"])
def test_two_damaged_replicas_do_not_outvote_a_whole_one(alike: bool) -> None:
    """I-4: a byte of one batch, without and with a right checksum."""
    storage = replicas(3)
    path, batches = first_log(storage, "/2/orders-0")
    at = batches[3].position + 70
    for number, byte in ((2, 0x55), (3, 0x55 if alike else 0x66)):
        patch(storage, path.replace("/2/", f"/{number}/"), at, bytes([byte]))
    report = compared(storage, 3)
    errors = {f.file.split("/")[1] for f in report.findings if f.severity is Severity.ERROR}
    assert errors == {"2", "3"}
    assert {f.rule for f in report.findings if f.severity is Severity.ERROR} == {"log-checksum"}
    whole = [part.unreadable for part in report.partitions]
    assert whole[0] == 0 < min(whole[1:])
    assert not any("/1/" in finding.file for finding in report.findings)


# -- producers -------------------------------------------------------------------------------------


def idempotent_log(order: Sequence[int]) -> tuple[MemoryStorage, str]:
    """A log of a batch of each producer, a second apart, and its last snapshot."""
    storage, clock = MemoryStorage(), ManualClock()
    owner = ManagerOwner(run_later=run_inline)
    manager = LogManager([LOG_DIR], LogConfig(), storage=storage, clock=clock, owner=owner)
    log = manager.create_topic("orders", 1)[0]
    for producer_id in order:
        clock.advance(1000)
        record = (b"key", b"value", clock.wall_ms())
        batch = encode_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=0)
        log.append_as_leader(batch, 0)
    manager.close()
    return storage, names(storage, ".snapshot")[-1]


def without(storage: MemoryStorage, path: str, producer_id: int) -> list[tuple[str, str, str]]:
    entries = decode_snapshot(storage.read_file(path))
    kept = [entry for entry in entries if entry.producer_id != producer_id]
    assert len(kept) == len(entries) - 1
    storage.write_file(path, encode_snapshot(kept))
    return short(check(storage))


def test_a_producer_cannot_expire_before_an_older_one() -> None:
    """F-199"""
    storage, path = idempotent_log([1, 2, 3])
    assert check(storage).findings == []
    assert without(storage, path, 2) == [("warning", "snapshot-producer", path.rsplit("/")[-1])]


def test_the_oldest_producer_may_have_expired() -> None:
    storage, path = idempotent_log([1, 2, 3])
    assert without(storage, path, 1) == []


# -- topics of coordinators ------------------------------------------------------------------------


def coordinators_log(topic: str, data: bytes) -> MemoryStorage:
    storage = MemoryStorage()
    storage.make_dir(f"/{topic}-7")
    storage.write_file(f"/{topic}-7/{0:020}.log", data)
    return storage


def told_of(topic: str, data: bytes, **options: bool) -> list[tuple[Severity, str]]:
    report = check(coordinators_log(topic, data), f"/{topic}-7", **options)
    rules = ("coordinator-record", "coordinator-partition")
    return [(f.severity, f.message) for f in report.findings if f.rule in rules]


@pytest.mark.parametrize("topic", [OFFSETS, TRANSACTIONS])
def test_what_coordinators_write_is_sound(topic: str) -> None:
    """W-170: tombstones, repeated states, groups that begin anew."""
    assert told_of(topic, log_of(honest(topic))) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"\x00\x03\x00\x01g", b"\x00\x00"), (offset_record("group-1")[0], b"\x00\x63")],
    ids=["a kind of KIP-848", "a later version"],
)
def test_what_a_newer_kafka_writes_is_no_damage(key: bytes, value: bytes) -> None:
    told = told_of(OFFSETS, log_of([[(key, value)]] * 3))
    assert [severity for severity, _ in told] == [Severity.INFO]
    assert told[0][1].startswith("not decoded: ")


def test_a_shallow_check_decodes_no_record() -> None:
    bad = [[(b"\x00", b"")]]
    assert [severity for severity, _ in told_of(OFFSETS, log_of(bad))] == [Severity.ERROR]
    assert told_of(OFFSETS, log_of(bad), deep=False) == []


def test_other_topics_may_have_any_records() -> None:
    storage = coordinators_log("offsets", log_of([[(b"\x00", b"")]]))
    report = check(storage, "/offsets-7")
    assert not [f for f in report.findings if f.rule.startswith("coordinator")]


# -- files that a start puts in the place of others ------------------------------------------------


def with_swap(cut: int) -> tuple[MemoryStorage, str]:
    storage = log_dir()
    path = names(storage, ".log")[1]
    data = storage.read_file(path)
    for suffix in (".index", ".timeindex"):
        storage.write_file(path.replace(".log", f"{suffix}.swap"), b"")
    storage.write_file(f"{path}.swap", data[: len(data) - cut])
    return storage, f"{path}.swap"


def test_a_sound_swap_says_what_it_replaces() -> None:
    """F-239"""
    storage, path = with_swap(0)
    report = check(storage)
    assert report.clean
    (told,) = (f for f in report.findings if f.file == path)
    assert (told.severity, told.rule) == (Severity.INFO, "leftover")
    base = int(path.rsplit("/")[-1][:20])
    assert f"of the segments {base}" in told.message


def test_a_torn_swap_is_an_error_though_the_log_is_whole() -> None:
    storage, path = with_swap(5)
    assert short(check(storage)) == [("error", "leftover", path.rsplit("/")[-1])]


def test_a_swap_at_a_cleaned_file_is_deleted_by_the_next_start() -> None:
    """F-238: so its content is no matter."""
    storage, path = with_swap(5)
    storage.write_file(path.replace(".swap", ".cleaned"), b"")
    assert check(storage).clean


# -- topic ids -------------------------------------------------------------------------------------


def test_two_topics_with_one_topic_id() -> None:
    """F-37"""
    storage, clock = MemoryStorage(), ManualClock()
    owner = ManagerOwner(run_later=run_inline)
    manager = LogManager([LOG_DIR], LogConfig(), storage=storage, clock=clock, owner=owner)
    manager.create_topic("orders", 2)
    manager.create_topic("payments", 2)
    manager.close()
    assert check(storage).findings == []
    same = storage.read_file(f"{LOG_DIR}/orders-0/partition.metadata")
    for partition in (0, 1):
        storage.write_file(f"{LOG_DIR}/payments-{partition}/partition.metadata", same)
    assert short(check(storage)) == [("error", "topic-id", "partition.metadata")]
