"""The writer without Spark: one call for each task, then the commit, as Spark makes them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from checkpoints import clean_shutdown
from checkpoints.meta_properties import MetaPropertiesFile
from logstore import LogManager
from logstore.common.errors import (
    ConfigError,
    InvalidRecordError,
    InvalidTopicError,
    InvariantError,
    LogDirLockedError,
    ResourceBusyError,
    StorageFailedError,
)
from logstore.common.partitioner import murmur2, murmur3
from logstore.common.types import Record
from logstore.directory.layout import list_partitions
from logstore.format.codecs.compression import Compression
from logstore.log import LogOwner, PartitionLog
from logstore.manager import ManagerOwner
from logstore.spark.writer import directory
from logstore.spark.writer.directory import StagedFile
from logstore.spark.writer.options import WriteOptions
from logstore.spark.writer.writer import LogstoreWriter
from logstore.storage.local import LocalStorage, NamingStorage
from logstore.verify import Severity, verify
from tests.support.until import patience

pytestmark = pytest.mark.essential  # without a JVM

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ARROW = {
    "key": pa.string(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestampType": pa.int32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "headers": HEADERS,
}
SPARK = {
    "key": StringType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestampType": IntegerType(),
    "timestamp": TimestampType(),
    "headers": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}


def writer(target: Path, columns: Iterable[str], overwrite: bool = False, **options: Any):
    schema = StructType([StructField(name, SPARK[name]) for name in columns])
    given = {name.replace("_", "."): str(value) for name, value in options.items()}
    return LogstoreWriter({"path": str(target), **given}, schema, overwrite)


def rows(**columns: list[Any]) -> pa.RecordBatch:
    arrays = [pa.array(values, ARROW[name]) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def numbered(task: int, output: StagedFile) -> StagedFile:
    """The same output as of another task: outside Spark every task is number 0."""
    return StagedFile(task, output.path, output.size, output.extents)


def write(target: Path, *tasks: pa.RecordBatch, overwrite: bool = False, **options: Any) -> None:
    made = writer(target, tasks[0].schema.names, overwrite, **options)
    made.commit([numbered(n, made.write(iter([batch]))) for n, batch in enumerate(tasks)])


def records(target: Path, topic: str = "t", partition: int = 0) -> list[Record]:
    path = target / f"{topic}-{partition}"
    with PartitionLog.open(path, owner=LogOwner(clean_shutdown=True, managed=True)) as log:
        return list(log.records())


def values(target: Path, topic: str = "t", partition: int = 0) -> list[bytes | None]:
    return [record.value for record in records(target, topic, partition)]


def assert_clean(target: Path) -> None:
    report = verify([target])
    assert [f for f in report.findings if f.severity > Severity.INFO] == []
    assert clean_shutdown.exists(str(target / clean_shutdown.CLEAN_SHUTDOWN), LocalStorage())


def assert_nothing_beside(target: Path) -> None:
    assert [p.name for p in target.parent.iterdir() if p != target] == []


# ---- rows into records -------------------------------------------------------------------------


def test_every_field_of_a_record_is_kept(tmp_path):
    target = tmp_path / "out"
    write(
        target,
        rows(
            key=["k", None, ""],
            value=[b"v", b"", None],
            timestamp=[1_700_000_000_123_456, 5_000, -1_000],
            headers=[[{"key": "h", "value": b"1"}, {"key": "", "value": None}], None, []],
        ),
        topic="t",
    )
    assert records(target) == [
        Record(0, 1_700_000_000_123, b"k", b"v", (("h", b"1"), ("", None))),
        Record(1, 5, None, b"", ()),
        Record(2, -1, b"", None, ()),
    ]
    assert_clean(target)
    assert_nothing_beside(target)


def test_a_row_without_timestamp_gets_the_time_of_writing(tmp_path):
    write(tmp_path / "out", rows(value=[b"a", b"b"], timestamp=[7_000, None]), topic="t")
    first, second = records(tmp_path / "out")
    assert first.timestamp == 7
    assert second.timestamp > 1_700_000_000_000


def test_offsets_follow_tasks_then_rows_whatever_order_messages_come_in(tmp_path):
    made = writer(tmp_path / "out", ["value"], topic="t")
    outputs = [
        numbered(task, made.write(iter([rows(value=[b"%d.%d" % (task, n) for n in range(3)])])))
        for task in (2, 0, 1)
    ]
    made.commit(outputs)
    assert values(tmp_path / "out") == [b"%d.%d" % (t, n) for t in range(3) for n in range(3)]
    assert [r.offset for r in records(tmp_path / "out")] == list(range(9))


@pytest.mark.parametrize(("name", "hashed"), [("murmur2", murmur2), ("murmur3", murmur3)])
def test_keys_choose_the_partition_as_a_producer_does(tmp_path, name, hashed):
    keys = [f"key-{n}" for n in range(200)]
    batch = rows(key=keys, value=[b"%d" % n for n in range(200)])
    write(tmp_path / "out", batch, topic="t", numPartitions=5, partitioner=name)
    for partition in range(5):
        expected = [
            b"%d" % n
            for n, key in enumerate(keys)
            if (hashed(key.encode()) & 0x7FFFFFFF) % 5 == partition
        ]
        assert values(tmp_path / "out", partition=partition) == expected
        assert expected


def test_a_partition_column_goes_before_the_key_and_null_falls_back_to_it(tmp_path):
    here = (murmur2(b"k") & 0x7FFFFFFF) % 3
    other = (here + 1) % 3
    batch = rows(key=["k", "k", "k"], value=[b"a", b"b", b"c"], partition=[other, None, other])
    write(tmp_path / "out", batch, topic="t", numPartitions=3)
    assert values(tmp_path / "out", partition=other) == [b"a", b"c"]
    assert values(tmp_path / "out", partition=here) == [b"b"]


def test_null_partitions_are_not_placed_among_a_number_that_nobody_gave(tmp_path):
    """One task sees partition 5 and another one does not: the keys of both must agree."""
    made = writer(tmp_path / "out", ["key", "value", "partition"], topic="t")
    for given in ([5, None], [None, None]):
        batch = rows(key=["a", "b"], value=[b"", b""], partition=given)
        with pytest.raises(InvalidRecordError, match="numPartitions is needed to place them by"):
            made.write(iter([batch]))
    made.abort([])
    keys = [f"key-{n}" for n in range(60)]
    given = [None if n % 2 else 5 for n in range(60)]
    batch = rows(key=keys, value=[key.encode() for key in keys], partition=given)
    write(tmp_path / "out", batch, topic="t", numPartitions=6)
    for partition in range(6):
        assert values(tmp_path / "out", partition=partition) == [
            key.encode()
            for n, key in enumerate(keys)
            if ((murmur2(key.encode()) & 0x7FFFFFFF) % 6 == partition and n % 2)
            or (partition == 5 and n % 2 == 0)
        ]


def test_times_are_cut_to_the_millisecond_before_them(tmp_path):
    """Before 1970, too; Kafka stores no other time before it than −1 ms, which says none."""
    times = [-1, -999, -1_000, 0, 1, 999, 1_000, 1_999]
    write(tmp_path / "out", rows(value=[b""] * 8, timestamp=times), topic="t")
    assert [r.timestamp for r in records(tmp_path / "out")] == [-1, -1, -1, 0, 0, 0, 1, 1]
    made = writer(tmp_path / "out", ["value", "timestamp"], topic="t")
    with pytest.raises(InvalidRecordError, match="timestamp -2 is outside"):
        made.write(iter([rows(value=[b""], timestamp=[-1_001])]))
    made.abort([])


def test_rows_without_key_spread_over_partitions_by_task(tmp_path):
    made = writer(tmp_path / "out", ["value"], topic="t", numPartitions=3)
    outputs = []
    for task in range(3):
        encoded = made.write(iter([rows(value=[b"%d" % task] * 10)]))
        outputs.append(numbered(task, encoded))
    assert {len(output.extents) for output in outputs} == {1}
    made.commit(outputs)
    assert_clean(tmp_path / "out")


def test_topics_come_from_the_column_unless_an_option_names_one(tmp_path):
    batch = rows(topic=["b", "a", "b"], value=[b"1", b"2", b"3"], partition=[0, 7, 0])
    write(tmp_path / "two", batch)
    assert values(tmp_path / "two", "b") == [b"1", b"3"]
    assert values(tmp_path / "two", "a", 7) == [b"2"]
    write(tmp_path / "one", batch, topic="c")
    assert values(tmp_path / "one", "c") == [b"1", b"3"]


def test_codecs(tmp_path):
    content = [b"%d" % n * 50 for n in range(1000)]
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        out = tmp_path / codec
        options = {"topic": "t", "compression_type": codec, "batch_size": 4096}
        write(out, rows(value=content), **options)
        assert values(out) == content
        report = verify([out])
        assert [p.batches > 5 for p in report.partitions] == [True]
        data = (out / "t-0" / f"{0:020}.log").read_bytes()
        assert data[22] & 7 == Compression.of(codec)
        assert_clean(out)


def test_log_append_time_is_that_of_the_commit(tmp_path):
    options = {"topic": "t", "message_timestamp_type": "LogAppendTime"}
    write(tmp_path / "out", rows(value=[b"a", b"b"], timestamp=[5_000, 6_000]), **options)
    first, second = records(tmp_path / "out")
    assert first.timestamp == second.timestamp > 1_700_000_000_000
    assert_clean(tmp_path / "out")


def test_segments_roll_by_size_and_not_by_the_timestamps_of_rows(tmp_path):
    """Rows of years, in no order: rolling by age would make a segment of every batch."""
    times = [(n * 7919 % 1000) * 86_400_000_000_000 // 1000 for n in range(1000)]
    batch = rows(value=[bytes(100)] * 1000, timestamp=times)
    options = {"batch_size": 1024, "segment_bytes": 20_000, "index_interval_bytes": 0}
    write(tmp_path / "out", batch, topic="t", **options)
    logs = sorted((tmp_path / "out" / "t-0").glob("*.log"))
    assert 5 < len(logs) < 9
    assert all(log.stat().st_size <= 20_000 for log in logs)
    assert len(values(tmp_path / "out")) == 1000
    assert_clean(tmp_path / "out")


def test_a_row_larger_than_a_window_of_the_commit(tmp_path):
    large = bytes(17 << 20)
    write(tmp_path / "out", rows(value=[b"a", large, b"b"]), topic="t")
    assert values(tmp_path / "out") == [b"a", large, b"b"]


def test_rows_of_many_small_batches_are_joined(tmp_path):
    made = writer(tmp_path / "out", ["value"], topic="t")
    output = made.write(rows(value=[b"%d" % n]) for n in range(500))
    made.commit([output])
    assert values(tmp_path / "out") == [b"%d" % n for n in range(500)]
    (partition,) = verify([tmp_path / "out"]).partitions
    assert partition.batches == 1


def test_sliced_columns(tmp_path):
    whole = rows(
        key=["x", "a", "b"],
        value=[b"0", b"1", b"2"],
        headers=[[{"key": "no", "value": b""}], [{"key": "h", "value": b"1"}], None],
    )
    write(tmp_path / "out", whole.slice(1), topic="t")
    assert [(r.key, r.value, r.headers) for r in records(tmp_path / "out")] == [
        (b"a", b"1", (("h", b"1"),)),
        (b"b", b"2", ()),
    ]


# ---- the directory -----------------------------------------------------------------------------


def test_the_directory_is_one_that_a_broker_starts_on(tmp_path):
    target = tmp_path / "out"
    batch = rows(value=[b"a", b"b"], partition=[0, 1])
    options = {"broker_id": 7, "cluster_id": "AAAAAAAAAAAAAAAAAAAAAQ", "leaderEpoch": 5}
    write(target, batch, topic="t", **options)
    meta = MetaPropertiesFile(str(target / "meta.properties"), LocalStorage()).read()
    assert (meta.node_id, meta.cluster_id) == (7, "AAAAAAAAAAAAAAAAAAAAAQ")
    with LogManager([target], owner=ManagerOwner(node_id=7)) as manager:
        logs = manager.logs.values()
        assert [log.epochs.entries for log in logs] == [((5, 0),)] * 2
        assert len({log.topic_id for log in logs}) == 1
        assert all(report.clean for report in manager.recovery_reports)
    epochs = (target / "t-0" / "leader-epoch-checkpoint").read_text()
    assert epochs == "0\n1\n5 0\n"


def test_all_partitions_of_a_topic_are_there_even_without_rows(tmp_path):
    made = writer(tmp_path / "out", ["value"], topic="t", numPartitions=3)
    made.commit([made.write(iter([]))])
    assert sorted(p.name for p in (tmp_path / "out").glob("t-*")) == ["t-0", "t-1", "t-2"]
    assert_clean(tmp_path / "out")


def test_no_task_at_all_gives_an_empty_log_directory(tmp_path):
    writer(tmp_path / "deep" / "out", ["value"], topic="t").commit([])
    assert_clean(tmp_path / "deep" / "out")


# ---- all or nothing ----------------------------------------------------------------------------


def test_rows_of_attempts_that_do_not_count_are_not_in_the_log(tmp_path):
    """A retry, and a speculative copy: Spark keeps the message of one attempt for each task."""
    made = writer(tmp_path / "out", ["value"], topic="t")
    batch = rows(value=[b"a", b"b"])

    def interrupted():
        yield batch
        raise RuntimeError("executor lost")

    with pytest.raises(RuntimeError, match="executor lost"):
        made.write(interrupted())
    made.write(iter([batch]))  # succeeded, and came second
    made.commit([made.write(iter([batch]))])
    assert values(tmp_path / "out") == [b"a", b"b"]
    assert_nothing_beside(tmp_path / "out")


def test_an_abort_leaves_nothing(tmp_path):
    made = writer(tmp_path / "out", ["value"], topic="t")
    output = made.write(iter([rows(value=[b"a"])]))
    assert os.path.exists(output.path)
    made.abort([output, None])
    assert list(tmp_path.iterdir()) == []


def test_a_commit_without_the_word_of_a_task_is_refused(tmp_path):
    made = writer(tmp_path / "out", ["value"], topic="t")
    output = made.write(iter([rows(value=[b"a"])]))
    with pytest.raises(InvariantError, match="did not succeed"):
        made.commit([output, None])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_file_that_the_driver_does_not_see_whole(tmp_path, damage):
    made = writer(tmp_path / "out", ["value"], topic="t")
    output = made.write(iter([rows(value=[b"a"])]))
    if damage == "missing":
        os.unlink(output.path)
    else:
        os.truncate(output.path, 10)
    with pytest.raises(StorageFailedError, match="mount the same file system") as caught:
        made.commit([output])
    assert caught.value.path == output.path
    assert list(tmp_path.iterdir()) == []


def test_bytes_of_a_task_that_changed_are_refused(tmp_path):
    made = writer(tmp_path / "out", ["value"], topic="t")
    output = made.write(iter([rows(value=[b"abcdefgh"])]))
    data = bytearray(Path(output.path).read_bytes())
    data[-3] ^= 1
    Path(output.path).write_bytes(data)
    with pytest.raises(Exception, match=r"checksum|CRC|crc"):
        made.commit([output])
    assert list(tmp_path.iterdir()) == []


class FailingAt(NamingStorage):
    """The ``n``-th change of a name, or sync of a directory, fails."""

    def __init__(self, n: int, exchanges: bool = True) -> None:
        self.left, self.exchanges = n, exchanges

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            self.left = 2**31  # what comes after it, cleaning up, works
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def sync_dir(self, path: str) -> None:
        self._count()
        super().sync_dir(path)

    def make_dir(self, path: str) -> None:
        self._count()
        super().make_dir(path)

    def link(self, source: str, target: str) -> bool:
        self._count()
        return self.exchanges and super().link(source, target)

    def exchange(self, first: str, second: str) -> bool:
        self._count()
        return self.exchanges and super().exchange(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("mode", ["new", "overwrite", "append"])
def test_a_commit_that_fails_anywhere_leaves_the_old_or_the_new(tmp_path, mode, exchanges):
    """Each rename, link, sync and new directory of a commit fails in turn; what is told as an error
    leaves the target as it was, but for the last sync, which follows what publishes."""
    told: list[bool] = []
    before, after = {
        "new": ([], [b"new"]),
        "overwrite": ([b"old"], [b"new"]),
        "append": ([b"old"], [b"old", b"new"]),
    }[mode]
    for n in range(200):
        target = tmp_path / str(n) / "out"
        if mode != "new":
            write(target, rows(value=[b"old"]), topic="t")
        made = writer(target, ["value"], mode == "overwrite", topic="t")
        output = made.write(iter([rows(value=[b"new"])]))
        storage = made._area.storage = FailingAt(n, exchanges)
        try:
            made.commit([output])
            told.append(False)
        except StorageFailedError:
            told.append(True)
        assert_nothing_beside(target)
        found = values(target) if target.exists() else []
        if 0 <= storage.left < 200:
            break  # nothing was left to fail
        if told[-1] and found != after:
            assert found == before
        else:
            assert found == after
            assert_clean(target)
    assert 20 < n < 200
    assert told.count(False) <= 3  # without any fault; a clean marker that was synced again


@pytest.fixture
def no_exchange(monkeypatch):
    """A file system where two directories cannot change places."""
    monkeypatch.setattr(NamingStorage, "exchange", lambda *_: False)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "no"), KeyboardInterrupt()])
def test_what_an_overwrite_took_away_goes_back_or_stays(tmp_path, monkeypatch, no_exchange, error):
    """Nothing can be given the target's name any more: the old directory must not be removed, by
    the commit or by the abort that Spark makes of its failure, until it can be put back."""
    target = tmp_path / "out"
    write(target, rows(value=[b"old"]), topic="t")
    made = writer(target, ["value"], True, topic="t")
    output = made.write(iter([rows(value=[b"new"])]))
    rename = LocalStorage.rename

    def refuse(self: LocalStorage, source: str, to: str) -> None:
        if to == str(target):
            raise error
        rename(self, source, to)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "rename", refuse)
        with pytest.raises((StorageFailedError, KeyboardInterrupt)):
            made.commit([output])
        if isinstance(error, OSError):
            made.abort([output])
        assert not target.exists()
        with pytest.raises(
            ConfigError, match=r"taken away by a write that was killed: rename .*back"
        ):
            writer(target, ["value"], topic="t")
    made.abort([output])
    assert values(target) == [b"old"]
    assert_nothing_beside(target)


def test_a_broker_that_starts_between_the_renames_costs_nobody_a_record(
    tmp_path, monkeypatch, no_exchange
):
    target = tmp_path / "out"
    write(target, rows(value=[b"old"]), topic="t")
    made = writer(target, ["value"], True, topic="t")
    output = made.write(iter([rows(value=[b"new"])]))
    rename = LocalStorage.rename

    def start_a_broker(self: LocalStorage, source: str, to: str) -> None:
        rename(self, source, to)
        if source == str(target):
            (target / "its-0").mkdir(parents=True)

    monkeypatch.setattr(LocalStorage, "rename", start_a_broker)
    with pytest.raises(StorageFailedError):
        made.commit([output])
    (left,) = tmp_path.glob(".out.writing-*")
    assert os.listdir(target) == ["its-0"]
    assert values(left / "replaced") == [b"old"]


def test_a_target_that_is_a_link(tmp_path):
    """The directory it leads to is replaced, on its own file system; the link stays."""
    (tmp_path / "disk").mkdir()
    link = tmp_path / "out"
    link.symlink_to(tmp_path / "disk" / "logs")
    (tmp_path / "disk" / "logs").mkdir()
    for value in (b"old", b"new"):
        write(link, rows(value=[value]), topic="t", overwrite=True)
        assert link.is_symlink()
        assert values(link) == [value]
        assert os.listdir(tmp_path / "disk") == ["logs"]


# ---- appending -----------------------------------------------------------------------------------


def contents(target: Path) -> dict[str, bytes]:
    return {str(p.relative_to(target)): p.read_bytes() for p in target.rglob("*") if p.is_file()}


@pytest.mark.parametrize("links", [True, False])
def test_a_backup_is_continued(tmp_path, monkeypatch, links):
    """Offsets go on in every partition, under the topic's id; no byte of a segment is copied where
    a file may have two names."""
    if not links:
        monkeypatch.setattr(NamingStorage, "link", lambda *_: False)
    target = tmp_path / "out"
    options = {"topic": "t", "numPartitions": 3, "segment_bytes": 2_000, "batch_size": 500}
    batches = [
        rows(key=[f"key-{n}" for n in span], value=[b"%d" % n * 10 for n in span])
        for span in (range(100), range(100, 250), range(250, 251))
    ]
    write(target, batches[0], **options)
    old = contents(target)
    inodes = {path.name: path.stat().st_ino for path in target.glob("t-0/*.log")}

    def inodes_now() -> dict[str, int]:
        return {p.name: p.stat().st_ino for p in target.glob("t-0/*.log") if p.name in inodes}

    with LogManager([target]) as manager:
        topic_id = manager.get("t", 0).topic_id
    write(target, batches[1], topic="t")
    # A copy of a copy may be given the number of the first file, which is gone by then.
    assert (inodes_now() == inodes) == links
    write(target, batches[2], topic="t", numPartitions=3)
    assert inodes_now() == inodes or not links
    keys = [f"key-{n}" for n in range(251)]
    for partition in range(3):
        assert [r.offset for r in records(target, partition=partition)] == list(
            range(len(values(target, partition=partition)))
        )
        assert values(target, partition=partition) == [
            b"%d" % n * 10
            for n, key in enumerate(keys)
            if (murmur2(key.encode()) & 0x7FFFFFFF) % 3 == partition
        ]
    assert_clean(target)
    assert_nothing_beside(target)
    new = contents(target)
    assert all(new[name] == data for name, data in old.items() if name.endswith(".log"))
    with LogManager([target]) as manager:
        assert {log.topic_id for log in manager.logs.values()} == {topic_id}
        assert all(report.clean for report in manager.recovery_reports)


def test_an_append_that_is_not_committed_changes_no_byte(tmp_path, monkeypatch):
    """Killed just before it is published: the segments have two names then, and one content."""
    target = tmp_path / "out"
    write(target, rows(value=[b"%d" % n for n in range(50)]), topic="t", segment_bytes=600)
    before = contents(target)
    made = writer(target, ["value"], topic="t")
    output = made.write(iter([rows(value=[b"new"])]))

    class KilledError(BaseException):
        pass

    def killed(*_: object) -> bool:
        raise KilledError

    monkeypatch.setattr(NamingStorage, "exchange", killed)
    monkeypatch.setattr(type(made._area), "remove", lambda _: None)
    with pytest.raises(KilledError):
        made.commit([output])
    assert contents(target) == before
    monkeypatch.undo()
    write(target, rows(value=[b"again"]), topic="t")
    assert values(target)[-2:] == [b"49", b"again"]


def test_a_commit_that_is_asked_for_twice_counts_once(tmp_path):
    target = tmp_path / "out"
    for overwrite in (False, False, True):
        made = writer(target, ["value"], overwrite, topic="t")
        output = made.write(iter([rows(value=[b"a"])]))
        made.commit([output])
        once = values(target)
        made.commit([output])
        assert values(target) == once
    assert once == [b"a"]


def test_a_write_with_an_id_counts_once_whoever_asks(tmp_path):
    """A micro-batch that runs again, in another job, after a crash."""
    target = tmp_path / "out"
    for number in (0, 0, 1, 1, 0, 2):
        batch = rows(value=[b"%d" % number])
        write(target, batch, topic="t", writeId=f"query-{number}")
    assert values(target) == [b"0", b"1", b"2"]
    with pytest.raises(ConfigError, match="writeId"):
        writer(target, ["value"], topic="t", writeId="a\nb")


def test_of_two_first_writes_the_later_one_deletes_nothing(tmp_path):
    target = tmp_path / "out"
    made = writer(target, ["value"], topic="t")
    output = made.write(iter([rows(value=[b"later"])]))
    write(target, rows(value=[b"first"]), topic="t")
    with pytest.raises(ConfigError, match="t was made, deleted or changed while the job ran"):
        made.commit([output])
    assert values(target) == [b"first"]
    assert_nothing_beside(target)


def test_two_appends_of_one_moment_both_count(tmp_path):
    target = tmp_path / "out"
    write(target, rows(value=[b"0"]), topic="t")
    made = [writer(target, ["value"], topic="t") for _ in range(2)]
    outputs = [w.write(iter([rows(value=[b"%d" % n])])) for n, w in enumerate(made, 1)]
    for w, output in zip(made, outputs, strict=True):
        w.commit([output])
    assert values(target) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_commit_waits_for_one_that_is_under_way(tmp_path, monkeypatch, overwrite):
    target = tmp_path / "out"
    write(target, rows(value=[b"0"]), topic="t")
    first, second = (writer(target, ["value"], n, topic="t") for n in (overwrite, False))
    output, later = (
        first.write(iter([rows(value=[b"1"])])),
        second.write(iter([rows(value=[b"2"])])),
    )
    refused, failed = threading.Event(), list[BaseException]()
    lock, store_writes = NamingStorage.lock, directory.store_writes

    def told(self: NamingStorage, path: str):
        try:
            return lock(self, path)
        except LogDirLockedError:
            refused.set()
            raise

    def commit() -> None:
        try:
            second.commit([later])
        except ConfigError as error:
            failed.append(error)

    beside = threading.Thread(target=commit)

    def in_the_midst(*args: Any) -> None:
        monkeypatch.setattr(directory, "store_writes", store_writes)
        beside.start()
        assert refused.wait(patience())
        store_writes(*args)

    monkeypatch.setattr(NamingStorage, "lock", told)
    monkeypatch.setattr(directory, "store_writes", in_the_midst)
    first.commit([output])
    beside.join()
    if overwrite:  # rows were placed by the partitions of a topic that is gone
        assert "t was made, deleted or changed while the job ran" in str(failed)
        assert values(target) == [b"1"]
    else:
        assert failed == []
        assert values(target) == [b"0", b"1", b"2"]
    assert_clean(target)
    assert_nothing_beside(target)


def test_a_commit_that_waited_in_vain_is_refused_as_busy(tmp_path):
    """Until the other process is killed: what it leaves stops nobody."""
    target = tmp_path / "out"
    write(target, rows(value=[b"0"]), topic="t")
    lock = tmp_path / ".out.committing"
    holds = "import sys; from logstore.storage.local import LocalStorage as L; "
    holds += "lock = L().lock(sys.argv[1]); print(); input()"
    command = [sys.executable, "-c", holds, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        with pytest.raises(ResourceBusyError, match=f"{other.pid}.* for 0 s .commitTimeout"):
            write(target, rows(value=[b"1"]), topic="t", commitTimeout="0ms")
        other.kill()
    assert sorted(os.listdir(tmp_path)) == [".out.committing", "out"]
    write(target, rows(value=[b"2"]), topic="t", commitTimeout="0ms")
    assert values(target) == [b"0", b"2"]
    assert_nothing_beside(target)


def test_a_job_that_begins_between_the_renames_of_another_waits(tmp_path, monkeypatch, no_exchange):
    """Where two directories cannot change places there is no target for a moment."""
    target = tmp_path / "out"
    write(target, rows(value=[b"0"]), topic="t")
    made = writer(target, ["value"], topic="t")
    output = made.write(iter([rows(value=[b"1"])]))
    rename, looked = LocalStorage.rename, list[str]()

    def look_between(self: LocalStorage, source: str, to: str) -> None:
        if to == str(target):
            with pytest.raises(ResourceBusyError):
                writer(target, ["value"], topic="t", commitTimeout="0ms")
            looked.append(to)
        rename(self, source, to)

    monkeypatch.setattr(LocalStorage, "rename", look_between)
    made.commit([output])
    assert looked
    assert values(target) == [b"0", b"1"]


def test_a_topic_made_anew_while_the_job_ran_is_not_appended_to(tmp_path):
    """As many partitions, and another id."""
    target = tmp_path / "out"
    write(target, rows(value=[b"0"]), topic="t")
    made = writer(target, ["value"], topic="t")
    output = made.write(iter([rows(value=[b"1"])]))
    write(target, rows(value=[b"other"]), topic="t", overwrite=True)
    with pytest.raises(ConfigError, match="t was made, deleted or changed while the job ran"):
        made.commit([output])
    assert values(target) == [b"other"]


def test_another_topic_is_added(tmp_path):
    target = tmp_path / "out"
    write(target, rows(value=[b"a"]), topic="t")
    write(target, rows(value=[b"b"] * 2, partition=[0, 1]), topic="u")
    batch = rows(topic=["u", "t", "u"], key=["x", "y", "z"], value=[b"1", b"2", b"3"])
    write(target, batch)
    assert values(target) == [b"a", b"2"]
    here = [(murmur2(key) & 0x7FFFFFFF) % 2 for key in (b"x", b"z")]
    for partition in range(2):
        more = [v for v, p in zip((b"1", b"3"), here, strict=True) if p == partition]
        assert values(target, "u", partition) == [b"b", *more]


def test_what_an_append_refuses(tmp_path):
    target = tmp_path / "out"
    write(target, rows(value=[b"a"]), topic="t", numPartitions=2)
    with pytest.raises(ConfigError, match="t has 2 partitions, not 3 as numPartitions says"):
        writer(target, ["value"], topic="t", numPartitions=3)
    made = writer(target, ["value", "partition"], topic="t")
    with pytest.raises(InvalidRecordError, match=r"partition 2 of a row is outside \[0, 2\) of t"):
        made.write(iter([rows(value=[b"a"], partition=[2])]))
    made.abort([])
    (target / clean_shutdown.CLEAN_SHUTDOWN).unlink()
    made = writer(target, ["value"], topic="t")
    output = made.write(iter([rows(value=[b"a"])]))
    with pytest.raises(ConfigError, match="was not closed cleanly: open and close it with LogMan"):
        made.commit([output])
    assert values(target) == [b"a"]
    assert_nothing_beside(target)


def test_leader_epochs_never_fall(tmp_path):
    target = tmp_path / "out"
    for epoch in (5, 0, 7):
        write(target, rows(value=[b"%d" % epoch]), topic="t", leaderEpoch=epoch)
    assert (target / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n2\n5 0\n7 2\n"
    assert_clean(target)


def test_old_rows_are_not_deleted_by_age(tmp_path):
    target = tmp_path / "out"
    for _ in range(3):
        write(target, rows(value=[b"a"], timestamp=[1_000]), topic="t")
    assert len(values(target)) == 3


def test_a_listing_has_all_of_a_write_or_nothing(tmp_path, monkeypatch):
    """The directory is replaced while its partitions are listed: some would be of before."""
    target = tmp_path / "out"
    first = rows(value=[b"a"] * 4, partition=[0, 1, 2, 3])
    write(target, first, topic="t")
    scan = LocalStorage.scan_dir
    looks: list[str] = []

    def scan_then_write(storage: LocalStorage, path: str):
        if path.startswith(f"{target}/t-"):
            looks.append(path)
            if len(looks) == 3:
                write(target, first, topic="t")
        return scan(storage, path)

    monkeypatch.setattr(
        "logstore.directory.layout.at_once", lambda call, items: list(map(call, items))
    )
    monkeypatch.setattr(LocalStorage, "scan_dir", scan_then_write)
    layouts = list_partitions([str(target)])
    assert [len(layout.segments) for layout in layouts] == [2] * 4
    assert len(looks) >= 8


def test_a_speculative_attempt_that_comes_late_leaves_nothing(tmp_path):
    for end in ("commit", "abort"):
        made = writer(tmp_path / "out", ["value"], topic="t")
        batch = rows(value=[b"a"])

        def slowly(made=made, batch=batch, end=end):
            yield batch
            if end == "commit":
                made.commit([made.write(iter([batch]))])
            else:
                made.abort([])
            yield batch

        with pytest.raises(StorageFailedError, match="this task came late"):
            made.write(slowly())
        assert list(tmp_path.glob(".*")) == []


# ---- what is refused ---------------------------------------------------------------------------


def test_an_empty_directory_is_written_to(tmp_path):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", rows(value=[b"a"]), topic="t")
    assert values(tmp_path / "empty") == [b"a"]


def test_overwriting_replaces_the_whole_directory(tmp_path):
    target = tmp_path / "out"
    write(target, rows(value=[b"a"]), topic="gone")
    write(target, rows(value=[b"b"]), topic="t", overwrite=True)
    assert not (target / "gone-0").exists()
    assert values(target) == [b"b"]
    assert_nothing_beside(target)


def test_only_a_log_directory_is_overwritten(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years")
    with pytest.raises(ConfigError, match=r"'thesis\.txt', which is no part of a log directory"):
        writer(tmp_path / "home", ["value"], True, topic="t")
    with pytest.raises(ConfigError, match="is a file"):
        writer(tmp_path / "home" / "thesis.txt", ["value"], True, topic="t")


def test_a_directory_in_use_is_not_overwritten(tmp_path):
    target = tmp_path / "out"
    write(target, rows(value=[b"a"]), topic="t")
    made = writer(target, ["value"], True, topic="t")
    output = made.write(iter([rows(value=[b"b"])]))
    with LogManager([target]), pytest.raises(LogDirLockedError):
        made.commit([output])
    assert values(target) == [b"a"]
    assert_nothing_beside(target)


def test_options_that_are_refused(tmp_path):
    for options, reason in (
        ({"topc": "t"}, "unknown option 'topc'. Did you mean 'topic'"),
        ({"topic": "t", "compression_type": "brotli"}, "option compression: 'brotli' is none of"),
        ({"topic": "t", "compression": "zstd", "compression_type": "zstd"}, "given twice"),
        ({"topic": "t", "partitioner": "crc32"}, "'crc32' is none of murmur2, murmur3"),
        ({"topic": "t", "numPartitions": "-1"}, "numPartitions: -1 is below 0"),
        ({"topic": "t", "numPartitions": 2**31}, "numPartitions: 2147483648 is above"),
        ({"topic": "t", "segmentBytes": "many"}, "segmentBytes: 'many' is no size in bytes"),
        ({"topic": "t", "segmentBytes": "4g"}, "segmentBytes: 4294967296 bytes are outside"),
        ({"topic": "t", "message_timestamp_type": "Never"}, "option timestampType: 'Never'"),
        ({"topic": "t", "path": "s3://bucket/logs"}, "driver and all executors mount"),
        ({"topic": "t", "path": ""}, "no path: save"),
        ({}, "column 'topic' or the option topic"),
    ):
        with pytest.raises(ConfigError, match=reason):
            writer(options.pop("path", tmp_path / "out"), ["value"], **options)


def test_options_are_written_as_those_of_reading(tmp_path):
    """In any case, sizes with suffixes; Kafka's own names say the same."""
    given = {"path": "/x", "batchsize": "1m", "SEGMENTBYTES": "128m", "compression": "ZSTD"}
    ours = WriteOptions.from_spark(given)
    assert (ours.batch_size, ours.segment_bytes) == (1 << 20, 128 << 20)
    kafkas = {"path": "/x", "batch.size": "1048576", "segment.bytes": "128m"}
    assert WriteOptions.from_spark(kafkas | {"Compression.Type": "zstd"}) == ours
    sinks = {"path": "/x", "kafka.batch.size": "1048576", "segment.bytes": "128m"}
    assert WriteOptions.from_spark(sinks | {"kafka.compression.type": "zstd"}) == ours


def test_options_of_kafka_that_mean_nothing_are_named_once(tmp_path, caplog):
    given = {"kafka.bootstrap.servers": "a:9092", "subscribe": "a", "startingOffsets": "earliest"}
    write(tmp_path / "out", rows(value=[b"a"]), topic="t", **{"kafka.acks": "all"}, **given)
    assert [found for found in caplog.messages if "ignored" in found] == [
        "options for Kafka that are ignored here: kafka.acks, kafka.bootstrap.servers, "
        "startingoffsets, subscribe"
    ]


def test_a_file_uri_is_a_local_path(tmp_path):
    write(f"file://{tmp_path}/a%20b", rows(value=[b"a"]), topic="t")
    assert values(tmp_path / "a b") == [b"a"]


def test_columns_that_are_refused(tmp_path):
    for column, kind, reason in (
        ("leaderEpoch", IntegerType(), "column 'leaderEpoch' is not written; known are: key, val"),
        ("key", IntegerType(), "column 'key' must be binary or string, not int"),
        ("partition", LongType(), "column 'partition' must be int, not bigint"),
        ("headers", MapType(StringType(), BinaryType()), "column 'headers' must be array<struct<"),
        ("value", BinaryType(), "two columns of one name"),
    ):
        schema = StructType([StructField("value", BinaryType()), StructField(column, kind)])
        with pytest.raises(ConfigError, match=reason):
            LogstoreWriter({"path": str(tmp_path / "out"), "topic": "t"}, schema, False)


def test_what_reading_gives_is_written(tmp_path):
    """Its offset and timestampType are the target's to settle."""
    read = rows(value=[b"a", b"b"], topic=["t", "t"], offset=[7, 9], timestampType=[0, 1])
    write(tmp_path / "out", read)
    assert [(r.offset, r.value) for r in records(tmp_path / "out")] == [(0, b"a"), (1, b"b")]


def test_a_value_is_needed(tmp_path):
    with pytest.raises(ConfigError, match="a column 'value' is needed"):
        writer(tmp_path / "out", ["key"], topic="t")


def test_rows_that_are_refused(tmp_path):
    for columns, error, reason in (
        ({"topic": ["a", None]}, InvalidRecordError, "1 rows without a topic"),
        ({"topic": ["a", "no/pe"]}, InvalidTopicError, "no/pe"),
        ({"partition": [0, -1]}, InvalidRecordError, r"partition -1 of a row is outside \[0, 2\)"),
        ({"partition": [0, 2]}, InvalidRecordError, r"partition 2 of a row is outside \[0, 2\)"),
        ({"timestamp": [0, -5_000]}, InvalidRecordError, "timestamp -5 is outside"),
        ({"headers": [None, [{"key": None, "value": b""}]]}, InvalidRecordError, "without a key"),
    ):
        batch = rows(value=[b"a", b"b"], **columns)
        topic = {} if "topic" in columns else {"topic": "t"}
        made = writer(tmp_path / "out", batch.schema.names, numPartitions=2, **topic)
        with pytest.raises(error, match=reason):
            made.write(iter([batch]))
        made.abort([])
        assert list(tmp_path.iterdir()) == []
