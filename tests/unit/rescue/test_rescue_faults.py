"""A rescue beside media that fail, sources in use, topics that are not the same, and crashes."""

from __future__ import annotations

import errno
import random
import uuid
from contextlib import suppress
from functools import cache

import pytest

from checkpoints import PartitionMetadata, PartitionMetadataFile
from logstore.common.errors import ConfigError, LogDirLockedError
from logstore.kernels import crc32c
from logstore.rescue import rescue
from logstore.storage.memory import MemoryStorage
from logstore.testing import FaultyStorage, SimulatedCrash
from logstore.testing.faulty import FOREVER, CrashMode
from logstore.verify import Severity, verify
from tests.histories.rescue_model import read_log
from tests.unit.verify.verify_logs import LOG_DIR, copy, log_dir

OTHER, TARGET = "/other", "/target/rescued"


@cache
def _original() -> MemoryStorage:
    return log_dir()


def sources() -> FaultyStorage:
    """Two equal log directories."""
    storage = FaultyStorage()
    for path in (LOG_DIR, OTHER):
        copy(_original(), LOG_DIR, storage, path)
    storage.make_dir("/target")
    return storage


def first_log(storage: MemoryStorage, directory: str = LOG_DIR) -> str:
    names = [e.name for e in storage.scan_dir(f"{directory}/orders-0") if e.name.endswith(".log")]
    return f"{directory}/orders-0/{min(names)}"


def targets(storage: MemoryStorage) -> list[str]:
    return [entry.name for entry in storage.scan_dir("/target")]


def test_what_most_have_wins_over_what_comes_first() -> None:
    """One of three has another batch in a place, with a right checksum."""
    storage = sources()
    copy(_original(), LOG_DIR, storage, "/third")
    path = first_log(storage)
    whole = storage.read_file(path)
    size = 12 + int.from_bytes(whole[8:12], "big")
    other = bytearray(whole[:size])
    other[-2] ^= 1  # the end of a value; behind it is the count of headers
    other[17:21] = crc32c(bytes(other[21:])).to_bytes(4, "big")
    storage.write_file(path, bytes(other) + whole[size:])
    rescue([LOG_DIR, OTHER, "/third"], TARGET, storage=storage)
    assert read_log(storage, f"{TARGET}/orders-0")[0].data == whole[:size]


def test_a_full_disk_is_told_and_leaves_nothing() -> None:
    storage = sources()
    storage.capacity = (
        sum(
            len(storage.read_file(f"{path}/orders-0/{entry.name}"))
            for path in (LOG_DIR, OTHER)
            for entry in storage.scan_dir(f"{path}/orders-0")
        )
        + 4000
    )
    with pytest.raises(OSError) as caught:
        rescue([LOG_DIR], TARGET, storage=storage)
    assert caught.value.errno == errno.ENOSPC
    assert targets(storage) == []


def test_what_the_medium_refuses_is_lost_alone_and_told() -> None:
    storage = sources()
    storage.fail("read", first_log(storage), times=FOREVER)
    report = rescue([LOG_DIR], TARGET, storage=storage)
    (part,) = report.partitions
    assert not part.whole
    assert "the medium refused to read it" in part.gaps[0].reason
    assert part.end == read_log(storage, f"{OTHER}/orders-0")[-1].next


def test_another_replica_has_what_the_medium_refuses() -> None:
    storage = sources()
    storage.fail("read", first_log(storage), times=FOREVER)
    report = rescue([LOG_DIR, OTHER], TARGET, storage=storage)
    assert report.whole
    assert read_log(storage, f"{TARGET}/orders-0") == read_log(storage, f"{OTHER}/orders-0")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["all_kept", "all_lost", "random"])
def test_after_a_crash_what_has_the_name_of_the_result_is_whole(mode: CrashMode) -> None:
    """Power fails at changes all along the way, and at each of the last."""
    probe = sources()
    before = probe.operations
    rescue([LOG_DIR], TARGET, storage=probe)
    changes, expected = probe.operations - before, read_log(probe, f"{TARGET}/orders-0")
    for number in [*range(1, changes, 29), *range(changes - 5, changes + 1)]:
        storage = sources()
        storage.sync_dir("/")
        storage.crash_after(number)
        with suppress(SimulatedCrash):
            rescue([LOG_DIR], TARGET, storage=storage)
        storage.crash(random.Random(number), mode)
        if storage.info(TARGET) is not None:
            assert read_log(storage, f"{TARGET}/orders-0") == expected, number
            assert not _errors(storage), number


def _errors(storage: MemoryStorage) -> list[str]:
    findings = verify([TARGET], storage=storage).findings
    return [str(each) for each in findings if each.severity is not Severity.INFO]


def test_a_source_in_use_is_refused() -> None:
    storage = sources()
    storage.write_file(f"{LOG_DIR}/.lock", b"")
    lock = storage.lock(f"{LOG_DIR}/.lock")
    with pytest.raises(LogDirLockedError):
        rescue([OTHER, LOG_DIR], TARGET, storage=storage)
    lock.release()
    assert rescue([OTHER, LOG_DIR], TARGET, storage=storage).whole


def test_different_topics_of_one_name_are_refused_or_chosen() -> None:
    storage = sources()
    old = PartitionMetadataFile(f"{LOG_DIR}/orders-0/partition.metadata", storage).read()
    assert old is not None
    new = uuid.uuid4()
    file = PartitionMetadataFile(f"{OTHER}/orders-0/partition.metadata", storage)
    file.write(PartitionMetadata(new))
    with pytest.raises(ConfigError, match="--topic-id orders="):
        rescue([LOG_DIR, OTHER], TARGET, storage=storage)
    assert targets(storage) == []
    report = rescue([LOG_DIR, OTHER], TARGET, storage=storage, topic_ids={"orders": new})
    assert report.partitions[0].sources == [f"{OTHER}/orders-0"]
    assert any("of another topic id" in note for note in report.notes)
    result = PartitionMetadataFile(f"{TARGET}/orders-0/partition.metadata", storage).read()
    assert result is not None
    assert result.topic_id == new


def test_a_topic_in_one_source_alone_is_taken() -> None:
    storage = sources()
    copy(storage, f"{LOG_DIR}/orders-0", storage, f"{OTHER}/payments-3")
    storage.remove(f"{OTHER}/payments-3/partition.metadata")
    report = rescue([LOG_DIR, OTHER], TARGET, storage=storage)
    names = [(p.topic, p.partition, len(p.sources)) for p in report.partitions]
    assert names == [("orders", 0, 2), ("payments", 3, 1)]


def test_the_log_of_the_controllers_is_left_alone_and_told() -> None:
    storage = sources()
    storage.make_dir(f"{LOG_DIR}/__cluster_metadata-0")
    report = rescue([LOG_DIR], TARGET, storage=storage)
    assert any("__cluster_metadata-0: left alone" in note for note in report.notes)
    assert storage.info(f"{TARGET}/__cluster_metadata-0") is None


def test_the_result_stands_in_for_its_broker() -> None:
    storage = sources()
    rescue([LOG_DIR], TARGET, storage=storage)
    name = "meta.properties"
    assert storage.read_file(f"{TARGET}/{name}") == storage.read_file(f"{LOG_DIR}/{name}")
    assert verify([TARGET], storage=storage).clean


def test_transactions_are_the_same_after_a_rescue() -> None:
    storage = MemoryStorage()
    copy(log_dir(transactions=True, batches=150), LOG_DIR, storage, LOG_DIR)
    for entry in storage.scan_dir(f"{LOG_DIR}/orders-0"):
        if entry.name.endswith((".txnindex", ".snapshot", ".index", ".timeindex")):
            storage.remove(f"{LOG_DIR}/orders-0/{entry.name}")
    assert rescue([LOG_DIR], TARGET, storage=storage).whole
    assert verify([TARGET], storage=storage).clean


def test_an_empty_log_goes_on_where_it_was() -> None:
    storage = sources()
    for entry in storage.scan_dir(f"{LOG_DIR}/orders-0"):
        if entry.name.endswith((".log", ".index", ".timeindex", ".snapshot")):
            storage.remove(f"{LOG_DIR}/orders-0/{entry.name}")
    storage.write_file(f"{LOG_DIR}/orders-0/00000000000000000500.log", b"")
    (part,) = rescue([LOG_DIR], TARGET, storage=storage).partitions
    assert (part.start, part.end) == (500, 500)
    assert storage.info(f"{TARGET}/orders-0/00000000000000000500.log") is not None
