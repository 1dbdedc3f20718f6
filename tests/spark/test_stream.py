"""The streaming reader without Spark: what each look at a live log makes of it."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from logstore import LogConfig, LogManager
from logstore.common.errors import ConfigError, UnknownTopicOrPartitionError
from logstore.common.types import TopicPartition
from logstore.directory.errors import DataLossError
from logstore.log import PartitionLog
from logstore.spark.stream.stream import LogstoreStreamReader, StreamOptions
from logstore.spark.stream.stream_offsets import (
    VERSION,
    Proof,
    StreamMark,
    common_end,
    from_json,
    share,
    to_json,
)
from logstore.testing import ManualClock
from tests.spark.columnar_wire import Conversation, Refused
from tests.support.builders import batch, marker, produced

pytestmark = pytest.mark.essential  # without a JVM

SCHEMA = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])
ALL = ReadAllAvailable()
T0 = TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=200, file_delete_delay_ms=0)


class Stream:
    """A reader and its checkpoint: what Spark would do with them, one trigger at a time."""

    def __init__(self, directory: Path, checkpoint: str = "", **options: Any) -> None:
        given = {"path": str(directory), "startingOffsets": "earliest", **options}
        self.clock = ManualClock()
        self.reader = LogstoreStreamReader(
            StreamOptions.from_spark({k: str(v) for k, v in given.items()}), SCHEMA, self.clock
        )
        self.checkpoint = checkpoint

    def trigger(self, limit: Any = None) -> list[tuple[int, bytes]]:
        """The rows of a micro-batch; none when Spark would not run one."""
        start = json.loads(self.checkpoint or json.dumps(self.reader.initialOffset()))
        limit = limit or self.reader.getDefaultReadLimit()
        end = json.loads(json.dumps(self.reader.latestOffset(start, limit)))
        self.checkpoint = json.dumps(end)
        return [] if end == start else self.read(start, end)

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        for task in self.reader.partitions(start, end):
            for rows in self.reader.read(task):
                found += zip(*(rows.column(n).to_pylist() for n in range(2)), strict=True)
        return found

    def offset(self, tp: TopicPartition = T0) -> int:
        return from_json(json.loads(self.checkpoint))[tp].offset


@pytest.fixture
def manager(tmp_path) -> Iterator[LogManager]:
    with LogManager([tmp_path / "data"], CONFIG) as manager:
        yield manager


@pytest.fixture
def data(tmp_path) -> Path:
    return tmp_path / "data"


def append(log: PartitionLog, *values: str, epoch: int | None = None) -> None:
    for value in values:
        log.append([(None, value.encode())], leader_epoch=epoch)


def rows(*values: str, start: int = 0) -> list[tuple[int, bytes]]:
    return [(start + n, value.encode()) for n, value in enumerate(values)]


# ---- tailing -----------------------------------------------------------------------------------


def test_each_record_once_while_a_log_grows_and_rolls(manager, data):
    log = manager.get_or_create("t", 0)
    stream = Stream(data)
    expected: list[tuple[int, bytes]] = []
    assert stream.trigger() == []
    for turn in range(60):
        values = [f"{turn}.{n}" * 20 for n in range(turn % 4)]
        append(log, *values)
        found = stream.trigger()
        assert found == rows(*values, start=len(expected))
        expected += found
    assert len(expected) == log.log_end_offset
    assert len(log.segments) > 3


def test_a_restart_goes_on_where_the_checkpoint_is(manager, data):
    log = manager.get_or_create("t", 0)
    append(log, "a", "b")
    first = Stream(data)
    assert first.trigger() == rows("a", "b")
    append(log, "c")
    again = Stream(data, first.checkpoint, startingOffsets="latest")
    assert again.trigger() == rows("c", start=2)


def test_a_planned_range_is_read_again_as_it_was(manager, data):
    """After a failure Spark asks for the range in its log, whatever was appended since."""
    log = manager.get_or_create("t", 0)
    append(log, "a", "b")
    stream = Stream(data)
    start = stream.reader.initialOffset()
    end = stream.reader.latestOffset(start, ALL)
    append(log, "c")
    assert Stream(data).read(start, end) == rows("a", "b")


def test_nothing_new_gives_the_same_text(manager, data):
    append(manager.get_or_create("t", 0), "a")
    append(manager.get_or_create("u", 1), "b")
    stream = Stream(data)
    stream.trigger()
    before = stream.checkpoint
    assert stream.trigger() == []
    assert stream.checkpoint == before
    assert Stream(data, before).trigger() == []


def test_the_default_start_is_the_end(manager, data):
    log = manager.get_or_create("t", 0)
    append(log, "a", "b")
    stream = Stream(data, startingOffsets="latest")
    assert stream.trigger() == []
    append(log, "c")
    assert stream.trigger() == rows("c", start=2)
    assert StreamOptions.from_spark({"path": "x"}).read.starting.offset == -1


def test_starting_offsets_of_a_partition(manager, data):
    append(manager.get_or_create("t", 0), "a", "b", "c")
    stream = Stream(data, startingOffsets='{"t":{"0":1}}')
    assert stream.trigger() == rows("b", "c", start=1)


def test_new_partitions_and_topics_are_read_from_their_start(manager, data):
    append(manager.get_or_create("t", 0), "a")
    stream = Stream(data, startingOffsets="latest", subscribePattern="t.*")
    assert stream.trigger() == []
    append(manager.get_or_create("t", 1), "b")
    append(manager.get_or_create("tea", 0), "c")
    append(manager.get_or_create("coffee", 0), "d")
    assert sorted(stream.trigger()) == [(0, b"b"), (0, b"c")]
    assert stream.trigger() == []


def test_a_half_written_batch_waits_until_it_is_whole(manager, data):
    log = manager.get_or_create("t", 0)
    append(log, "a")
    stream = Stream(data)
    stream.trigger()
    whole = batch(1, value=b"b")
    path = data / "t-0" / f"{0:020}.log"
    size = path.stat().st_size
    with path.open("r+b") as file:
        for cut in (5, 20, 61, len(whole) - 1):
            file.seek(size)
            file.write(whole[:cut])
            file.flush()
            assert stream.trigger() == []
        file.seek(size)
        file.write(whole)
    assert stream.trigger() == rows("b", start=1)


def test_a_batch_whose_bytes_come_after_its_size_waits(manager, data):
    """A preallocated segment, or a network file system: the room is there, the bytes are not."""
    log = manager.get_or_create("t", 0)
    append(log, "a")
    stream = Stream(data)
    stream.trigger()
    whole = batch(1, value=b"b" * 50)
    path = data / "t-0" / f"{0:020}.log"
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size)
        file.write(whole[:80] + bytes(len(whole) - 80))
        file.flush()
        assert stream.trigger() == []
        file.seek(size)
        file.write(whole)
    assert stream.trigger() == rows("b" * 50, start=1)


def test_only_committed_records_up_to_the_last_stable_offset(manager, data):
    log = manager.get_or_create("t", 0)
    stream = Stream(data, isolation="read_committed")
    append(log, "a")
    log.append_as_leader(produced(1, 0, transactional=True, value=b"aborted"), 0)
    append(log, "b")
    assert stream.trigger() == rows("a")
    log.append_as_leader(marker(commit=False), 0, origin=_coordinator())
    log.append_as_leader(produced(1, 1, transactional=True, value=b"open"), 0)
    assert stream.trigger() == rows("b", start=2)
    assert stream.trigger() == []
    log.append_as_leader(marker(commit=True), 0, origin=_coordinator())
    assert stream.trigger() == rows("open", start=4)


def _coordinator():
    from logstore.segments.producer_state import AppendOrigin

    return AppendOrigin.COORDINATOR


def test_up_to_the_high_watermark(manager, data):
    log = manager.get_or_create("t", 0)
    append(log, "a", "b")
    manager.housekeeper.checkpoint_high_watermarks()
    append(log, "c")
    stream = Stream(data, upTo="highWatermark")
    assert stream.trigger() == rows("a", "b")
    assert stream.trigger() == []
    manager.housekeeper.checkpoint_high_watermarks()
    assert stream.trigger() == rows("c", start=2)


# ---- how much at a time ------------------------------------------------------------------------


def test_a_limit_is_shared_by_what_is_there_and_nobody_starves(manager, data):
    for partition, count in ((0, 90), (1, 10), (2, 1)):
        log = manager.get_or_create("t", partition)
        log.append([(None, b"%d" % n) for n in range(count)])
    stream = Stream(data, maxOffsetsPerTrigger=10)
    found = [stream.trigger()]
    assert [stream.offset(TopicPartition("t", n)) for n in range(3)] == [8, 1, 1]
    while found[-1]:
        assert len(found[-1]) <= 12
        found.append(stream.trigger())
    assert sorted(row for batch in found for row in batch) == sorted(
        (n, b"%d" % n) for count in (90, 10, 1) for n in range(count)
    )


def test_share():
    for available, limit, expected in (
        ((5, 5), 10, (5, 5)),
        ((5, 5), 4, (2, 2)),
        ((1000, 1, 0), 10, (9, 1, 0)),
        ((7,), 3, (3,)),
    ):
        partitions = [TopicPartition("t", n) for n in range(len(available))]
        found = share(dict(zip(partitions, available, strict=True)), limit)
        assert tuple(found.values()) == expected


def test_too_few_records_wait_for_more_but_not_for_ever(manager, data):
    log = manager.get_or_create("t", 0)
    stream = Stream(data, minOffsetsPerTrigger=3, maxTriggerDelay="30s")
    append(log, "a", "b")
    assert stream.trigger() == []
    append(log, "c")
    assert stream.trigger() == rows("a", "b", "c")
    append(log, "d")
    assert stream.trigger() == []
    stream.clock.advance(30_000)
    assert stream.trigger() == rows("d", start=3)


def test_available_now_ends_where_the_logs_ended_when_it_began(manager, data):
    log = manager.get_or_create("t", 0)
    append(log, "a", "b", "c")
    stream = Stream(data, maxOffsetsPerTrigger=2, minOffsetsPerTrigger=2)
    stream.checkpoint = json.dumps(stream.reader.initialOffset())
    stream.reader.prepareForTriggerAvailableNow()
    append(log, "later")
    append(manager.get_or_create("later", 0), "too")
    assert stream.trigger() == rows("a", "b")
    assert stream.trigger() == rows("c", start=2)
    assert stream.trigger() == []
    following = Stream(data, stream.checkpoint)
    following.reader.prepareForTriggerAvailableNow()
    assert sorted(following.trigger()) == [(0, b"too"), (3, b"later")]


def test_progress_tells_where_the_logs_end(manager, data):
    append(manager.get_or_create("t", 0), "a", "b", "c")
    stream = Stream(data)
    stream.trigger(ReadMaxRows(1))
    assert stream.reader.reportLatestOffset()["offsets"] == {"t": {"0": 3}}
    assert json.loads(stream.checkpoint)["offsets"] == {"t": {"0": 1}}


# ---- what was lost -----------------------------------------------------------------------------


def lossy(data: Path, stream: Stream) -> Stream:
    return Stream(data, stream.checkpoint, failOnDataLoss="false")


def assert_lost(stream: Stream, start: int, end: int, reason: str) -> None:
    before = stream.checkpoint
    with pytest.raises(DataLossError, match=reason) as caught:
        stream.trigger()
    assert (caught.value.start, caught.value.end) == (start, end)
    assert stream.checkpoint == before


def test_retention_past_the_checkpoint(manager, data, caplog):
    log = manager.get_or_create("t", 0)
    append(log, "a", "b")
    stream = Stream(data)
    stream.trigger()
    append(log, *["x" * 100] * 30)
    log.delete_records(20)
    log.maintenance.delete_old_segments()
    manager.housekeeper.checkpoint_log_start_offsets()
    assert_lost(stream, 2, 20, "deleted before they were read: the log starts at 20")
    going_on = lossy(data, stream)
    assert [offset for offset, _ in going_on.trigger()] == list(range(20, 32))
    assert "t-0: offsets 2 to 20" in caplog.text
    assert "a leader since" not in caplog.text
    assert going_on.trigger() == []


def test_retention_past_a_cut_below_the_checkpoint(manager, data):
    """Offset 1 of the second leader is lost as well. No file tells that it was there."""
    log = manager.get_or_create("t", 0)
    append(log, "a", "b", "c")
    stream = Stream(data)
    stream.trigger()
    log.truncate_to(1)
    append(log, *["x" * 100] * 30, epoch=1)
    log.delete_records(20)
    log.maintenance.delete_old_segments()
    manager.housekeeper.checkpoint_log_start_offsets()
    reason = "starts at 20; a leader since may have replaced, and lost, records before them, too"
    assert_lost(stream, 3, 20, reason)


def test_retention_up_to_the_checkpoint_loses_nothing(manager, data):
    log = manager.get_or_create("t", 0)
    append(log, *["x" * 100] * 20)
    stream = Stream(data)
    stream.trigger()
    append(log, "b")
    log.delete_records(20)
    log.maintenance.delete_old_segments()
    manager.housekeeper.checkpoint_log_start_offsets()
    assert stream.trigger() == rows("b", start=20)


def test_a_log_that_is_shorter_than_what_was_read(manager, data):
    log = manager.get_or_create("t", 0)
    append(log, "a", "b", "c", "d")
    stream = Stream(data)
    stream.trigger()
    log.truncate_to(2)
    assert_lost(stream, 2, 4, "the log ends at 2, the same up to 2")
    going_on = lossy(data, stream)
    assert going_on.trigger() == []
    assert going_on.offset() == 2
    append(log, "e")
    assert going_on.trigger() == rows("e", start=2)


def test_a_log_cut_and_grown_past_the_checkpoint_under_another_epoch(manager, data, caplog):
    """The offset alone tells nothing here."""
    log = manager.get_or_create("t", 0)
    append(log, "a", "b", "c", "d", epoch=3)
    stream = Stream(data)
    stream.trigger()
    log.truncate_to(2)
    append(log, "E", "F", "G", "H", epoch=4)
    assert_lost(stream, 2, 4, "the log ends at 6, the same up to 2")
    going_on = lossy(data, stream)
    assert going_on.trigger() == rows("E", "F", "G", "H", start=2)
    assert "t-0: offsets 2 to 4" in caplog.text
    assert going_on.trigger() == []


def test_two_histories_part_where_the_last_common_epoch_ended_first(manager, data):
    """An unclean election: read under epochs 1, 2; the log now has 1, 3, and more of 1."""
    log = manager.get_or_create("t", 0)
    append(log, "a", "b", epoch=1)
    append(log, "c", "d", "e", epoch=2)
    stream = Stream(data)
    stream.trigger()
    log.truncate_to(2)
    append(log, "C", "D", epoch=1)
    append(log, "E", "F", epoch=3)
    assert_lost(stream, 2, 5, "the same up to 2")
    assert lossy(data, stream).trigger() == rows("C", "D", "E", "F", start=2)


def test_a_log_cut_and_grown_under_the_same_epoch(manager, data):
    """As after a crash of a log without replicas: the checksum of the last batch tells."""
    log = manager.get_or_create("t", 0)
    append(log, "a", "b", "c")
    stream = Stream(data)
    stream.trigger()
    log.truncate_to(2)
    append(log, "C", "D")
    assert_lost(stream, 2, 3, "the same up to 2")
    assert lossy(data, stream).trigger() == rows("C", "D", start=2)


def test_the_same_size_again_is_noticed_when_the_log_grows(manager, data):
    log = manager.get_or_create("t", 0)
    append(log, "a", "b")
    stream = Stream(data)
    stream.trigger()
    log.truncate_to(1)
    append(log, "B")
    append(log, "c")
    assert_lost(stream, 1, 2, "the same up to 1")


def test_inside_a_batch_the_rest_of_it_must_be_the_same(manager, data):
    log = manager.get_or_create("t", 0)
    log.append([(None, b"a"), (None, b"b"), (None, b"c")])
    stream = Stream(data)
    assert stream.trigger(ReadMaxRows(2)) == rows("a", "b")
    log.truncate_to(0)
    log.append([(None, b"a"), (None, b"b"), (None, b"C")])
    append(log, "d")
    assert_lost(stream, 0, 2, "cut meanwhile")


def test_a_range_that_was_planned_and_is_gone(manager, data):
    log = manager.get_or_create("t", 0)
    append(log, "a", "b", "c")
    stream = Stream(data)
    start = stream.reader.initialOffset()
    end = stream.reader.latestOffset(start, ALL)
    log.truncate_to(1)
    with pytest.raises(DataLossError, match="cut meanwhile: the log ends at 1"):
        Stream(data).read(start, end)
    assert Stream(data, failOnDataLoss="false").read(start, end) == rows("a")


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_range_that_was_planned_and_written_anew(manager, data, epoch):
    """A first attempt may have read what was cut: the second must not pass for the same. What is
    there now is of the next micro-batch, so that no record comes twice."""
    log = manager.get_or_create("t", 0)
    append(log, "a", "b", "c", epoch=0)
    stream = Stream(data)
    start = stream.reader.initialOffset()
    end = stream.reader.latestOffset(start, ALL)
    log.truncate_to(1)
    append(log, "B", "C", "D", epoch=epoch)
    with pytest.raises(DataLossError, match="cut meanwhile: the log ends at 4") as caught:
        Stream(data).read(start, end)
    assert (caught.value.start, caught.value.end) == (1, 3)
    again = Stream(data, json.dumps(end), failOnDataLoss="false")
    assert again.read(start, end) == rows("a")
    assert again.trigger() == rows("B", "C", "D", start=1)


def test_retention_in_a_partition_that_is_new(manager, data):
    """Its records are to be read from the first one, in a planned range as well."""
    append(manager.get_or_create("t", 0), "a")
    stream = Stream(data)
    stream.trigger()
    before = json.loads(stream.checkpoint)
    log = manager.get_or_create("u", 0)
    append(log, *["x" * 100] * 30)
    planned = stream.reader.latestOffset(before, ALL)
    log.delete_records(20)
    log.maintenance.delete_old_segments()
    manager.housekeeper.checkpoint_log_start_offsets()
    with pytest.raises(DataLossError, match="deleted before they were read"):
        Stream(data).read(before, planned)
    assert_lost(stream, 0, 20, "u-0.*the log starts at 20")
    kept = [offset for offset, _ in lossy(data, stream).trigger()]
    assert kept == list(range(20, 30))


def test_a_deleted_topic(manager, data, caplog):
    append(manager.get_or_create("t", 0), "a")
    append(manager.get_or_create("u", 0), "b")
    stream = Stream(data)
    stream.trigger()
    manager.delete("u", 0)
    append(manager.get("t", 0), "c")
    assert_lost(stream, 1, 1, "u-0.*not there any more")
    going_on = lossy(data, stream)
    assert going_on.trigger() == rows("c", start=1)
    assert "u-0" in caplog.text
    append(manager.get_or_create("u", 0), "new")
    assert going_on.trigger() == rows("new")


def test_compaction_of_what_was_read_is_no_loss(manager, data):
    """The batch before the offset is rebuilt without a record, or gone: F-95, F-304."""
    from logstore.format.batch import rebuild_batch
    from logstore.format.header import parse_header
    from logstore.format.reader import read_records

    log = manager.get_or_create("t", 0)
    log.append([(b"k", b"a"), (b"k", b"b")])
    stream = Stream(data)
    stream.trigger()
    path = data / "t-0" / f"{0:020}.log"
    content = path.read_bytes()
    header = parse_header(content, 0)
    kept = rebuild_batch(header, read_records(content)[1:])
    path.write_bytes(bytes(kept) + batch(2, value=b"c"))
    assert stream.trigger() == rows("c", start=2)


@pytest.mark.parametrize("block", range(3))
def test_whatever_happens_what_was_read_last_of_each_offset_is_what_the_log_holds(tmp_path, block):
    """Appends, rolls, limits, restarts, and cuts with a new leader epoch as a broker has after
    them: every record that stays is read, once unless it came after a cut, and in order."""
    for seed in range(4 * block, 4 * block + 4):
        with LogManager([tmp_path / str(seed)], CONFIG) as manager:
            _live(random.Random(seed), manager.get_or_create("t", 0), tmp_path / str(seed))


def _live(rng: random.Random, log: PartitionLog, data: Path) -> None:
    stream = Stream(data, failOnDataLoss="false")
    read: dict[int, bytes] = {}
    starts: list[int] = []  # of batches: a broker cuts nowhere else
    epoch, number, was_cut = 0, 0, False
    for _ in range(60):
        match rng.choice(("append", "append", "roll", "cut", "restart", "read", "read")):
            case "append":
                for _ in range(rng.randrange(1, 5)):
                    count = rng.randrange(1, 6)
                    values = [b"%d" % (number + n) for n in range(count)]
                    starts.append(log.log_end_offset)
                    log.append([(None, value) for value in values], leader_epoch=epoch)
                    number += count
            case "roll":
                log.roll()
            case "cut" if starts:
                log.truncate_to(rng.choice(starts))
                starts = [start for start in starts if start < log.log_end_offset]
                epoch, was_cut = epoch + 1, True
            case "restart":
                stream = Stream(data, stream.checkpoint, failOnDataLoss="false")
            case "read":
                limit = ReadMaxRows(rng.randrange(1, 20)) if rng.random() < 0.5 else ALL
                found = stream.trigger(limit)
                if found:
                    assert [offset for offset, _ in found] == sorted({o for o, _ in found})
                    assert was_cut or not read or found[0][0] == max(read) + 1
                    read = {o: v for o, v in read.items() if o < found[0][0]} | dict(found)
    while found := stream.trigger():
        read = {o: v for o, v in read.items() if o < found[0][0]} | dict(found)
    held = {record.offset: record.value for record in log.records()}
    assert {o: v for o, v in read.items() if o < log.log_end_offset} == held


# ---- offsets of the checkpoint -----------------------------------------------------------------


def test_offsets_survive_json():
    marks = {
        TopicPartition("t", 1): StreamMark(
            7, 123, ((0, 0), (4, 5)), "A" * 22, (Proof(3, 9), Proof(6, 8))
        ),
        TopicPartition("t", 0): StreamMark(0),
        TopicPartition("a.b", 12): StreamMark(2**40, 2**32 - 1, ((3, 9),)),
    }
    text = json.dumps(to_json(marks))
    assert from_json(json.loads(text)) == marks
    assert json.loads(text)["offsets"] == {"t": {"0": 0, "1": 7}, "a.b": {"12": 2**40}}
    assert json.dumps(to_json(dict(sorted(marks.items())))) == text


def test_offsets_of_another_source_are_refused():
    for value in ({}, {"offsets": {}}, {"offsets": 3, "seen": {}}, {"t": {"0": 1}}):
        with pytest.raises(ConfigError, match="not an offset of this source"):
            from_json(value)


def test_where_two_histories_part():
    for *question, expected in (
        (((0, 0),), 10, ((0, 0),), 7, (7, True)),
        (((0, 0),), 10, ((0, 0), (1, 6)), 20, (6, True)),
        (((0, 0), (1, 4)), 10, ((0, 0), (2, 7)), 20, (4, True)),
        (((0, 0), (1, 4)), 10, ((0, 0), (2, 3)), 20, (3, True)),
        (((2, 4),), 10, ((0, 0), (1, 3)), 20, (4, False)),
        (((4, 40), (5, 50)), 60, ((0, 0), (1, 10), (20, 15)), 200, (15, False)),
        (((0, 0),), 10, ((0, 0),), 20, (10, True)),
        ((), 10, ((0, 0),), 20, (10, True)),
        (((0, 0),), 10, (), 7, (7, True)),
    ):
        assert common_end(*question) == expected, question


def test_a_checkpoint_is_bounded_whatever_was_read():
    epochs = [(n, n * 10) for n in range(1_000_000)]
    proofs = [Proof(n, 2**32 - 1) for n in range(0, 10_000_000, 97)]
    mark = StreamMark.of(Proof(10_000_000, 1), epochs, "A" * 22, proofs)
    assert mark.epochs == tuple(epochs[-256:])
    assert len(mark.earlier) < 30
    assert len(json.dumps(to_json({T0: mark}))) < 8_000


@pytest.mark.parametrize("cut", [0, 1, 7, 15, 39, 40, 77, 119])
def test_a_cut_below_any_number_of_epochs_is_found_exactly(manager, data, cut):
    log = manager.get_or_create("t", 0)
    for epoch in range(40):
        append(log, *(f"{epoch}.{n}" for n in range(3)), epoch=epoch)
    stream = Stream(data)
    stream.trigger()
    log.truncate_to(cut)
    append(log, *map(str, range(150)), epoch=50)
    assert_lost(stream, cut, 120, f"the same up to {cut};")
    assert [o for o, _ in lossy(data, stream).trigger()] == list(range(cut, cut + 150))


def test_more_epochs_than_a_checkpoint_keeps_cost_exactness_and_no_record(
    manager, data, monkeypatch
):
    """Where the oldest epoch that is known is above the cut, what was proven to be the same says
    from where on everything is read again; the error names all of it."""
    monkeypatch.setattr("logstore.spark.stream.stream_offsets._EPOCHS_MAX", 8)
    log = manager.get_or_create("t", 0)
    stream = Stream(data)
    for epoch in range(12):
        append(log, *["x"] * 10, epoch=epoch)
        stream.trigger()
    log.truncate_to(15)
    append(log, *["y"] * 185, epoch=20)
    with pytest.raises(DataLossError, match="cut meanwhile") as caught:
        stream.trigger()
    assert caught.value.start <= 15
    assert caught.value.end == 120
    again = lossy(data, stream).trigger()
    assert [offset for offset, _ in again] == list(range(caught.value.start, 200))


@pytest.mark.parametrize("step", [1, 3, 100])
def test_a_cut_within_one_epoch_skips_nothing(tmp_path, step):
    """As after a crash: the epochs tell nothing, and the last batch tells only that it is another
    one. Proofs of batches farther back bound what is read again."""
    for cut in (0, 2, 5, 8, 9):
        with LogManager([tmp_path / str(cut)], CONFIG) as manager:
            _cut(manager.get_or_create("t", 0), tmp_path / str(cut), cut, step)


def _cut(log: PartitionLog, data: Path, cut: int, step: int) -> None:
    stream = Stream(data)
    append(log, *(f"old {n}" for n in range(10)))
    while stream.trigger(ReadMaxRows(step)):
        pass
    log.truncate_to(cut)
    append(log, *(f"new {n}" for n in range(cut, 20)))
    with pytest.raises(DataLossError, match="cut meanwhile") as caught:
        stream.trigger()
    assert caught.value.end == 10
    found = lossy(data, stream).trigger()
    assert found[0][0] == caught.value.start <= cut
    assert 10 - caught.value.start <= 4 * (10 - cut)
    assert found == [(r.offset, r.value) for r in log.records() if r.offset >= found[0][0]]


def test_what_was_cut_and_written_anew_and_then_deleted_is_named(manager, data):
    """Neither the cut alone nor the new start of the log says all of it. Retention took the epochs
    of what it deleted, too: the range that is named begins where something is known, or at 0."""
    log = manager.get_or_create("t", 0)
    append(log, *["x" * 100] * 30, epoch=0)
    stream = Stream(data)
    stream.trigger()
    log.truncate_to(10)
    append(log, *["y" * 100] * 30, epoch=1)
    log.delete_records(25)
    log.maintenance.delete_old_segments()
    manager.housekeeper.checkpoint_log_start_offsets()
    assert_lost(stream, 0, 30, "the same up to 0, and starts at 25")
    assert [offset for offset, _ in lossy(data, stream).trigger()] == list(range(25, 40))


# ---- a topic's second life ---------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize("planned", [False, True])
def test_a_topic_made_anew_is_read_from_its_start(manager, data, count, planned, caplog):
    """With fewer, as many or more records than the one before; between two triggers, and between
    the plan of a micro-batch and its reading."""
    append(manager.get_or_create("t", 0, topic_id=uuid.uuid4()), "a", "b", "c")
    stream = Stream(data)
    start = stream.reader.initialOffset()
    end = stream.reader.latestOffset(start, ALL)
    if not planned:
        assert stream.read(start, end) == rows("a", "b", "c")
    manager.delete("t", 0)
    new = [f"new {n}" for n in range(count)]
    append(manager.get_or_create("t", 0, topic_id=uuid.uuid4()), *new)
    stream.checkpoint = json.dumps(end)
    going_on = lossy(data, stream)
    if planned:
        with pytest.raises(DataLossError, match="deleted and created again"):
            stream.read(start, end)
        assert going_on.read(start, end) == []
    assert_lost(stream, 3, 3, "t-0: offsets 3 to 3: the topic was deleted and created again")
    assert going_on.trigger() == rows(*new)
    assert "its id was" in caplog.text
    assert going_on.trigger() == []
    assert Stream(data, going_on.checkpoint).trigger() == []


def test_a_second_life_of_the_same_size_is_noticed_at_once(manager, data):
    """The listing is the same, byte for byte."""
    append(manager.get_or_create("t", 0, topic_id=uuid.uuid4()), "a", "b")
    stream = Stream(data)
    stream.trigger()
    stream.trigger()
    manager.delete("t", 0)
    append(manager.get_or_create("t", 0, topic_id=uuid.uuid4()), "A", "B")
    assert_lost(stream, 2, 2, "deleted and created again")


def test_a_micro_batch_of_a_second_life_is_read_again_as_it_was(manager, data):
    append(manager.get_or_create("t", 0, topic_id=uuid.uuid4()), *"abcdef")
    stream = Stream(data)
    stream.trigger()
    manager.delete("t", 0)
    append(manager.get_or_create("t", 0, topic_id=uuid.uuid4()), "A", "B")
    before = json.loads(stream.checkpoint)
    going_on = lossy(data, stream)
    planned = going_on.reader.latestOffset(before, ALL)
    append(manager.get("t", 0), "C")
    for _ in range(2):
        assert lossy(data, stream).read(before, planned) == rows("A", "B")


# ---- restarts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["earliest", "latest"])
def test_a_first_micro_batch_that_failed_begins_where_it_began(manager, data, where):
    """Spark writes no start of the first micro-batch down: after a restart it asks anew, and by
    then the end is elsewhere."""
    log = manager.get_or_create("t", 0)
    append(log, "a")
    first = Stream(data, startingOffsets=where)
    start = json.loads(json.dumps(first.reader.initialOffset()))
    append(log, "b", "c")
    end = json.loads(json.dumps(first.reader.latestOffset(start, ALL)))
    append(log, "d")
    again = Stream(data, startingOffsets=where)
    asked_anew = json.loads(json.dumps(again.reader.initialOffset()))
    skipped = 0 if where == "earliest" else 1
    assert again.read(asked_anew, end) == rows("a", "b", "c")[skipped:]
    again.checkpoint = json.dumps(end)
    assert again.trigger() == rows("d", start=3)


def test_the_end_of_a_log_is_written_down_before_there_is_something_to_read(manager, data):
    """An empty micro-batch, once: what comes while the query is down is not passed over."""
    log = manager.get_or_create("t", 0)
    append(log, "a")
    stream = Stream(data, startingOffsets="latest")
    start = stream.reader.initialOffset()
    end = stream.reader.latestOffset(start, ALL)
    assert end != start
    assert stream.read(start, end) == []
    assert stream.reader.latestOffset(end, ALL) == end
    append(log, "b")
    assert Stream(data, json.dumps(end), startingOffsets="latest").trigger() == rows("b", start=1)


def test_what_is_not_selected_for_a_while_is_kept_where_it_was(manager, data):
    append(manager.get_or_create("t", 0), "a")
    append(manager.get_or_create("u", 0), "b")
    both = Stream(data, subscribe="t,u")
    both.trigger()
    append(manager.get("t", 0), "c")
    append(manager.get("u", 0), "d")
    one = Stream(data, both.checkpoint, subscribe="t")
    assert one.trigger() == rows("c", start=1)
    again = Stream(data, one.checkpoint, subscribe="t,u")
    assert again.trigger() == rows("d", start=1)


def test_what_was_planned_and_is_not_selected_any_more_is_not_passed_over(manager, data):
    append(manager.get_or_create("t", 0), "a")
    append(manager.get_or_create("u", 0), "b")
    both = Stream(data, subscribe="t,u")
    start = both.reader.initialOffset()
    end = both.reader.latestOffset(start, ALL)
    with pytest.raises(DataLossError, match=r"u-0.*not selected by the options any more"):
        Stream(data, subscribe="t").read(start, end)


def test_a_plan_that_reaches_into_an_open_transaction_is_not_read_as_committed(manager, data):
    log = manager.get_or_create("t", 0)
    append(log, "a")
    log.append_as_leader(produced(1, 0, transactional=True, value=b"open"), 0)
    stream = Stream(data)
    start = stream.reader.initialOffset()
    end = stream.reader.latestOffset(start, ALL)
    committed = Stream(data, isolation="read_committed", failOnDataLoss="false")
    with pytest.raises(ConfigError, match="open since 1: start the query again when"):
        committed.read(start, end)
    log.append_as_leader(marker(commit=False), 0, origin=_coordinator())
    assert committed.read(start, end) == rows("a")


# ---- the text of a checkpoint ------------------------------------------------------------------


def test_a_checkpoint_of_the_first_layout_is_read(manager, data):
    log = manager.get_or_create("t", 0)
    append(log, "a", "b")
    written = Stream(data)
    written.trigger()
    found = json.loads(written.checkpoint)["seen"]["t"]["0"]
    old = {
        "offsets": {"t": {"0": 2}},
        "seen": {"t": {"0": {"crc": found["crc"], "epochs": found["epochs"]}}},
    }
    assert Stream(data, json.dumps(old)).trigger() == []
    append(log, "c")
    stream = Stream(data, json.dumps(old))
    assert stream.trigger() == rows("c", start=2)
    assert json.loads(stream.checkpoint)["version"] == VERSION
    log.truncate_to(0)
    append(log, *"ABCD")
    old_stream = Stream(data, json.dumps(old))
    assert_lost(old_stream, 0, 2, "cut meanwhile")  # no proof but one: everything again


def test_a_checkpoint_of_a_later_layout_is_refused():
    with pytest.raises(ConfigError, match="version 3, known are 1 and 2: go on with the version"):
        from_json({"version": 3, "offsets": {}, "seen": {}})


# ---- what is refused ---------------------------------------------------------------------------


def test_options_that_are_refused():
    for options, reason in (
        ({"maxOffsetPerTrigger": 3}, "Did you mean 'maxOffsetsPerTrigger'"),
        ({"maxOffsetsPerTrigger": 0}, "maxOffsetsPerTrigger"),
        ({"maxOffsetsPerTrigger": 3, "minOffsetsPerTrigger": 4}, "is above maxOffsetsPerTrigger"),
        ({"maxTriggerDelay": "soon"}, "'soon' is no duration, such as 500ms, 30s or 15m"),
        ({"endingOffsets": "latest"}, "endingOffsets is for batch queries"),
        ({"granularity": "batch"}, "granularity=batch is for batch queries"),
        ({"replicas": "all"}, "replicas=all is for batch queries"),
    ):
        with pytest.raises(ConfigError, match=reason):
            StreamOptions.from_spark({"path": "x", **{k: str(v) for k, v in options.items()}})


def test_options_of_kafka_that_mean_nothing_are_named_once(manager, data, caplog):
    append(manager.get_or_create("t", 0), "a")
    given = {"kafka.bootstrap.servers": "a:9092", "kafkaConsumer.pollTimeoutMs": 1}
    stream = Stream(data, **given, **{"kafka.isolation.level": "read_committed"})
    assert stream.trigger() == rows("a")
    assert caplog.messages == [
        "options for Kafka that are ignored here: kafka.bootstrap.servers, "
        "kafkaconsumer.polltimeoutms"
    ]


def test_a_topic_that_is_named_must_be_there_at_the_start_and_only_then(manager, data):
    append(manager.get_or_create("t", 0), "a")
    with pytest.raises(UnknownTopicOrPartitionError, match="flihgts not found below"):
        Stream(data, subscribe="t,flihgts").trigger()
    stream = Stream(data, subscribe="t")
    assert stream.trigger() == rows("a")
    later = Stream(data, stream.checkpoint, subscribe="t,later")
    assert later.trigger() == []
    append(manager.get_or_create("later", 0), "b")
    assert later.trigger() == rows("b")


def test_a_micro_batch_is_cut_into_as_many_tasks_as_asked_for(manager, data):
    log = manager.get_or_create("t", 0)
    append(log, *["x" * 100] * 100)
    for least in (1, 8):
        stream = Stream(data, minPartitions=least)
        start = stream.reader.initialOffset()
        end = stream.reader.latestOffset(start, ALL)
        assert (len(stream.reader.partitions(start, end)) >= 8) == (least == 8)
        assert [offset for offset, _ in stream.read(start, end)] == list(range(100))


def test_a_segment_deleted_while_the_listing_is_looked_at(manager, data, monkeypatch):
    """The listing is made again, and finds what there is then."""
    import logstore.spark.stream.stream as module

    log = manager.get_or_create("t", 0)
    append(log, *["x" * 100] * 30)
    stream = Stream(data)
    listed = module.list_partitions
    calls: list[int] = []

    def list_then_delete(*args: Any, **options: Any):
        layouts = listed(*args, **options)
        calls.append(1)
        if len(calls) == 1:
            manager.delete("t", 0)
        return layouts

    monkeypatch.setattr(module, "list_partitions", list_then_delete)
    assert stream.reader.initialOffset()["offsets"] == {}
    assert len(calls) == 2


# ---- by column: the same reader, asked by the JVM ----------------------------------------------


def test_each_micro_batch_is_the_same_by_column(manager, data):
    """Texts too: a checkpoint of one source is continued by the other."""
    logs = [manager.get_or_create("t", partition) for partition in range(3)]
    options = {"path": str(data), "startingOffsets": "earliest", "maxOffsetsPerTrigger": "5"}
    plain, columnar = Stream(data, maxOffsetsPerTrigger=5), Conversation(options, SCHEMA)
    with closing(columnar):
        end = columnar.initial()
        assert end == json.dumps(plain.reader.initialOffset())
        for turn in range(12):
            append(logs[turn % 3], *map(str, range(turn % 4)))
            found = plain.trigger()
            start, (end, latest) = end, columnar.next(end, limited=True)
            assert end == plain.checkpoint
            assert latest == json.dumps(plain.reader.reportLatestOffset())
            rows = columnar.rows(start, end) if start != end else []
            assert [(row["offset"], row["value"]) for row in rows] == found
        assert columnar.next(end)[0] == end
        append(logs[0], "a", "b")
        append(logs[1], "c")
        with closing(Conversation(options, SCHEMA, available_now=True)) as ending:
            append(logs[2], "later")
            now, _ = ending.next(end)
            assert [row["value"] for row in ending.rows(end, now)] == [b"a", b"b", b"c"]
            assert ending.behind(end) == {
                "minOffsetsBehindLatest": "0",
                "maxOffsetsBehindLatest": "2",
                "avgOffsetsBehindLatest": "1.0",
            }
        assert len(columnar.rows(end, columnar.next(end)[0])) == 4
        assert columnar.behind('{"version": 2, "offsets": {}, "seen": {}}') == {}


def test_an_error_ends_the_conversation(manager, data):
    append(manager.get_or_create("t", 0), "a")
    columnar = Conversation({"path": str(data)}, SCHEMA)
    with closing(columnar), pytest.raises(Refused, match="the checkpoint is of another source"):
        columnar.next('{"version": 2}')
    with pytest.raises(Refused, match="unknown option 'nothing'"):
        Conversation({"path": str(data), "nothing": "1"}, SCHEMA)
