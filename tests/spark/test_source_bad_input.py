"""What is damaged, missing, half-written or taken away: named, or left out with a word."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
from pathlib import Path

import pytest
from pyspark.sql.datasource import GreaterThanOrEqual
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

from logstore.common.errors import ConfigError, CorruptBatchError, UnknownTopicOrPartitionError
from logstore.directory.columns import timestamps
from logstore.directory.errors import (
    DataLossError,
    DuplicatePartitionError,
    NotALogDirectoryError,
)
from logstore.format.codecs.compression import Compression
from tests.spark.reading import Broker, offsets, read, reader, tasks
from tests.support.builders import batch

SIZE = len(batch(0, 10))


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Three segments with ten records in each of 100 batches: offsets 0 to 999."""
    with Broker(tmp_path / "logs", orders=1) as broker:
        for number in range(100):
            broker.logs["orders"][0].append_as_leader(batch(0, 10, timestamp=number), 0)
    return tmp_path / "logs"


def segments(logs: Path, suffix: str = ".log") -> list[Path]:
    return sorted((logs / "orders-0").glob(f"*{suffix}"))


def patch(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


# ---- bytes -----------------------------------------------------------------------------------


def test_a_corrupt_batch_is_an_error_with_file_position_and_reason(logs: Path) -> None:
    first = segments(logs)[0]
    patch(first, 2 * SIZE + 80, b"\xff\xfe")
    with pytest.raises(CorruptBatchError, match="checksum") as caught:
        read(logs)
    assert (caught.value.path, caught.value.position) == (str(first), 2 * SIZE)


def test_a_corrupt_header_is_an_error_with_file_position_and_reason(logs: Path) -> None:
    second = segments(logs)[1]
    patch(second, SIZE + 8, b"\x00\x00\x00\x01")
    with pytest.raises(CorruptBatchError, match="size") as caught:
        read(logs)
    assert (caught.value.path, caught.value.position) == (str(second), SIZE)


def test_dropmalformed_leaves_out_the_batch_and_says_so(
    logs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = segments(logs)[0]
    patch(first, 2 * SIZE + 80, b"\xff\xfe")
    rows = read(logs, mode="dropmalformed")
    assert offsets(rows) == [n for n in range(1000) if not 20 <= n < 30]
    assert f"{first}: dropped a malformed batch of {SIZE} bytes at offset 20" in caplog.text


def test_dropmalformed_goes_on_with_the_next_segment_where_sizes_make_no_sense(
    logs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, *_ = segments(logs)
    patch(first, 3 * SIZE + 8, b"\x00\x00\x00\x01")
    rows = read(logs, mode="DROPMALFORMED")
    assert offsets(rows) == [n for n in range(1000) if n < 30 or n >= int(second.stem)]
    assert f"{first} at byte {3 * SIZE}" in caplog.text


def test_batches_tell_of_a_wrong_checksum_themselves(logs: Path) -> None:
    patch(segments(logs)[0], 2 * SIZE + 80, b"\xff\xfe")
    rows = read(logs, granularity="batch")
    assert [row["baseOffset"] for row in rows if not row["crcOk"]] == [20]
    assert len(rows) == 100


def test_without_checksums_content_is_taken_as_it_is(logs: Path) -> None:
    patch(segments(logs)[0], 2 * SIZE + 80, b"\xff\xfe")
    assert len(read(logs, checkCrcs=False)) == 1000


def test_a_half_written_batch_ends_a_live_log(logs: Path) -> None:
    last = segments(logs)[-1]
    with last.open("ab") as file:
        file.write(batch(1000, 10)[:100])
    assert offsets(read(logs)) == list(range(1000))
    assert len(read(logs, granularity="batch")) == 100


@pytest.mark.parametrize("size", [5, 61, 5000])
def test_room_set_aside_ends_a_live_log(logs: Path, size: int) -> None:
    with segments(logs)[-1].open("ab") as file:
        file.write(bytes(size))
    assert offsets(read(logs)) == list(range(1000))


def test_a_half_written_batch_before_the_last_segment_is_an_error(logs: Path) -> None:
    first = segments(logs)[0]
    size = first.stat().st_size
    with first.open("ab") as file:
        file.write(batch(1000, 10)[:100])
    with pytest.raises(CorruptBatchError, match="runs past") as caught:
        read(logs)
    assert (caught.value.path, caught.value.position) == (str(first), size)


def test_a_batch_above_the_limit_names_the_option(tmp_path: Path) -> None:
    with Broker(tmp_path / "logs", orders=1) as broker:
        broker.logs["orders"][0].append_as_leader(
            batch(0, 1, value=bytes(2000), compression=Compression.ZSTD), 0
        )
    assert len(read(tmp_path / "logs")) == 1
    with pytest.raises(CorruptBatchError, match="1024"):
        read(tmp_path / "logs", maxBatchBytes=1024)


def test_a_time_that_spark_cannot_hold_is_null() -> None:
    import pyarrow as pa

    limit = (2**63 - 1) // 1000
    given = [0, -1, limit, limit + 1, -limit, -(2**63), 2**63 - 1]
    made = timestamps(pa.array(given, pa.int64())).cast(pa.int64()).to_pylist()
    assert made == [0, -1000, limit * 1000, None, -limit * 1000, None, None]


# ---- indexes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [None, b"", bytes(4096), b"\x00\x00\x00\x05" * 400, b"\xff" * 96]
)
def test_no_index_that_lies_or_lacks_changes_the_rows(logs: Path, content: bytes | None) -> None:
    for path in (*segments(logs, ".index"), *segments(logs, ".timeindex")):
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
    assert offsets(read(logs, splitBytes=1024)) == list(range(1000))
    some = read(
        logs,
        startingOffsets='{"orders":{"0":444}}',
        endingOffsets='{"orders":{"0":777}}',
        splitBytes=1024,
    )
    assert offsets(some) == list(range(444, 777))
    assert offsets(read(logs, startingTimestamp=50)) == list(range(500, 1000))


def test_an_index_that_leads_into_a_record_is_not_used(
    logs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = segments(logs, ".index")[0]
    patch(index, 8 + 4, (1100).to_bytes(4, "big"))
    assert offsets(read(logs, splitBytes=1024)) == list(range(1000))
    assert f"{index}: entry 1 leads to no batch" in caplog.text


def test_an_index_that_leads_to_a_batch_inside_a_record_loses_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    """The one lie that no look at an entry can tell: the batch before it does."""
    inner = batch(5, 5)
    with Broker(tmp_path / "logs", orders=1) as broker:
        for _ in range(8):
            broker.logs["orders"][0].append_as_leader(batch(0, 1, value=inner + bytes(700)), 0)
    log = segments(tmp_path / "logs")[0]
    position = log.read_bytes().index(inner, 2000)
    entry = (7).to_bytes(4, "big") + position.to_bytes(4, "big")
    segments(tmp_path / "logs", ".index")[0].write_bytes(entry)
    with pytest.raises(CorruptBatchError, match=f"runs past byte {position}"):
        read(tmp_path / "logs", splitBytes=1024)


def test_a_time_index_that_lies_hides_no_record(
    logs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for path in segments(logs, ".timeindex"):
        data = path.read_bytes()
        later = bytearray(data)
        later[-4:] = (10**6).to_bytes(4, "big")
        path.write_bytes(later)
    made = reader(logs)
    made.pushFilters([GreaterThanOrEqual(("timestamp",), _time(95))])
    rows = [row for task in tasks(made) for b in made.read(task) for row in b.to_pylist()]
    assert {row["offset"] for row in rows} >= set(range(950, 1000))


def _time(milliseconds: int) -> object:
    from datetime import UTC, datetime, timedelta

    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


# ---- taken away ------------------------------------------------------------------------------


def test_a_segment_deleted_while_it_is_read_is_a_loss_that_names_it(
    logs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    second, third = segments(logs)[1:3]
    strict, lenient = reader(logs), reader(logs, failOnDataLoss=False)
    plans = tasks(strict), tasks(lenient)
    second.unlink()
    with pytest.raises(DataLossError, match=f"{second}: offsets {int(second.stem)} to .*deleted"):
        [list(strict.read(task)) for task in plans[0]]
    rows = [n for task in plans[1] for b in lenient.read(task) for n in b["offset"].to_pylist()]
    assert rows == [n for n in range(1000) if not int(second.stem) <= n < int(third.stem)]
    assert f"{second}: offsets {int(second.stem)} to {int(third.stem)}" in caplog.text


@pytest.mark.parametrize("left", ["nothing", "an empty mount point"])
def test_a_machine_without_the_mount_has_lost_no_record(logs: Path, left: str) -> None:
    """Nor has it any to give: the rest alone would be a wrong answer, also with failOnDataLoss."""
    lenient = reader(logs, failOnDataLoss=False)
    planned = tasks(lenient)
    logs.rename(logs.with_name("elsewhere"))
    if left != "nothing":
        logs.mkdir()
    text = f"{logs} is no log directory.*: it is not there on .*mean the same on all machines"
    with pytest.raises(NotALogDirectoryError, match=text):
        [list(lenient.read(task)) for task in planned]


def test_a_shared_mount_has_another_device_on_each_machine(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS has, whose files keep their inodes. `test_standalone` mounts one."""
    made = reader(logs)
    planned = tasks(made)
    fstat = os.fstat

    def elsewhere(descriptor: int) -> os.stat_result:
        found = fstat(descriptor)
        fields = [*found[:2], found.st_dev + 1, *found[3:]]
        return os.stat_result(fields, {"st_mtime_ns": found.st_mtime_ns})

    monkeypatch.setattr(os, "fstat", elsewhere)
    rows = [n for task in planned for b in made.read(task) for n in b["offset"].to_pylist()]
    assert rows == list(range(1000))


def test_a_segment_that_retention_has_renamed_is_read_all_the_same(logs: Path) -> None:
    made = reader(logs)
    planned = tasks(made)
    first = segments(logs)[0]
    first.rename(f"{first}.deleted")
    rows = [n for task in planned for b in made.read(task) for n in b["offset"].to_pylist()]
    assert rows == list(range(1000))


def test_a_segment_cut_while_it_is_read_is_a_loss(logs: Path) -> None:
    second, third = segments(logs)[1:3]
    strict, lenient = reader(logs), reader(logs, failOnDataLoss=False)
    plans = tasks(strict), tasks(lenient)
    with second.open("r+b") as file:
        file.truncate(SIZE + 10)
    with pytest.raises(DataLossError, match=f"was cut from .* to {SIZE + 10} bytes"):
        [list(strict.read(task)) for task in plans[0]]
    rows = [n for task in plans[1] for b in lenient.read(task) for n in b["offset"].to_pylist()]
    assert rows == [n for n in range(1000) if not int(second.stem) + 10 <= n < int(third.stem)]


@pytest.mark.parametrize(
    ("option", "offset", "reason"),
    [
        ("startingOffsets", 1001, "the log ends at 1000"),
        ("endingOffsets", 2000, "the log ends at 1000"),
        ("startingOffsets", 100, "the log starts at 200"),
    ],
)
def test_offsets_that_are_not_there_are_a_loss(
    logs: Path, option: str, offset: int, reason: str
) -> None:
    checkpoint = logs / "log-start-offset-checkpoint"
    checkpoint.write_text("0\n1\norders 0 200\n")
    given = {option: f'{{"orders":{{"0":{offset}}}}}'}
    with pytest.raises(DataLossError, match=reason) as caught:
        read(logs, **given)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    rows = offsets(read(logs, failOnDataLoss=False, **given))
    assert rows == ([] if offset == 1001 else list(range(200, 1000)))


def test_a_log_that_starts_inside_a_batch_starts_there(logs: Path) -> None:
    (logs / "log-start-offset-checkpoint").write_text("0\n1\norders 0 205\n")
    assert offsets(read(logs)) == list(range(205, 1000))


def test_a_malformed_checkpoint_counts_as_missing(
    logs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S-55."""
    (logs / "log-start-offset-checkpoint").write_text("0\nmany\n")
    assert len(read(logs)) == 1000
    assert "taken as missing" in caplog.text


# ---- high watermark --------------------------------------------------------------------------


def test_up_to_the_high_watermark_of_the_checkpoint(logs: Path) -> None:
    (logs / "replication-offset-checkpoint").write_text("0\n1\norders 0 123\n")
    assert offsets(read(logs, upTo="highWatermark")) == list(range(123))
    (logs / "replication-offset-checkpoint").unlink()
    with pytest.raises(ConfigError, match="no high watermark of orders-0; upTo=logEnd"):
        read(logs, upTo="highWatermark")


# ---- paths -----------------------------------------------------------------------------------


def test_paths_that_are_no_log_directory_are_named(tmp_path: Path, logs: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("")
    (tmp_path / "copy").mkdir()
    shutil.copy(segments(logs)[0], tmp_path / "copy")
    for path, reason in (
        (tmp_path / "nowhere", "no such file"),
        (tmp_path / "notes", "it holds todo.txt"),
        (tmp_path / "notes" / "todo.txt", "it is a file"),
        (tmp_path / "copy", "it holds segments, but directory 'copy'"),
        (tmp_path / "x*", "matches nothing"),
    ):
        with pytest.raises(NotALogDirectoryError, match=reason) as caught:
            read(path)
        assert caught.value.path == str(path)


def test_directories_of_partitions_and_patterns_are_paths_too(tmp_path: Path, logs: Path) -> None:
    for path in (logs / "orders-0", f"{logs}/orders-0/", tmp_path / "l*", f"{logs}/[a-p]*-?"):
        assert offsets(read(path)) == list(range(1000))


def test_deleted_stray_and_future_directories_are_left_out(logs: Path) -> None:
    unique = "0123456789abcdef0123456789abcdef"
    for suffix in ("delete", "stray", "future"):
        shutil.copytree(logs / "orders-0", logs / f"orders-0.{unique}-{suffix}")
    assert len(read(logs)) == 1000
    with pytest.raises(NotALogDirectoryError, match="-delete directory"):
        read(logs / f"orders-0.{unique}-delete")


def test_the_same_path_twice_is_one(logs: Path) -> None:
    paths = f'["{logs}", "{logs}/../{logs.name}/orders-0"]'
    assert len(read(logs, paths=paths)) == 1000


def two_brokers(logs: Path, tmp_path: Path, node_id: int) -> Path:
    other = tmp_path / "other"
    shutil.copytree(logs, other)
    meta = other / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=0", f"node.id={node_id}"))
    return other


def test_copies_of_several_brokers_need_a_word(logs: Path, tmp_path: Path) -> None:
    other = two_brokers(logs, tmp_path, 2)
    both = f'["{logs}", "{other}"]'
    with pytest.raises(DuplicatePartitionError, match="orders-0 is there 2 times") as caught:
        read(logs, paths=both)
    assert {place[0] for place in caught.value.places} == {"0", "2"}
    columns = "offset,broker"
    for broker in ("2", str(other)):
        rows = read(logs, paths=both, broker=broker, columns=columns)
        assert [(row["offset"], row["broker"]) for row in rows] == [(n, "2") for n in range(1000)]
    rows = read(logs, paths=both, replicas="all", columns=columns)
    assert sorted({row["broker"] for row in rows}) == ["0", "2"]
    assert len(rows) == 2000


def test_copies_under_one_broker_id_are_told_apart_by_their_paths(
    logs: Path, tmp_path: Path
) -> None:
    other = two_brokers(logs, tmp_path, 0)
    both = f'["{logs}", "{other}"]'
    rows = read(logs, paths=both, replicas="all", columns="broker", granularity="batch")
    assert {row["broker"] for row in rows} == {f"{logs}/orders-0", f"{other}/orders-0"}


def test_internal_topics_are_read_only_when_named(tmp_path: Path) -> None:
    with Broker(tmp_path / "logs", orders=1, __consumer_offsets=1) as broker:
        for log in (*broker.logs["orders"], *broker.logs["__consumer_offsets"]):
            log.append_as_leader(batch(0, 3), 0)
    path = tmp_path / "logs"
    internal = "__consumer_offsets"
    assert {row["topic"] for row in read(path)} == {"orders"}
    assert {row["topic"] for row in read(path, subscribePattern=".*")} == {"orders"}
    assert {row["topic"] for row in read(path, subscribe=internal)} == {internal}
    assert {row["topic"] for row in read(path / f"{internal}-0")} == {internal}


def test_an_empty_log_has_no_rows(tmp_path: Path) -> None:
    with Broker(tmp_path / "logs", orders=2):
        pass
    assert read(tmp_path / "logs") == []
    assert read(tmp_path / "logs", isolation="read_committed", upTo="highWatermark") == []


@pytest.mark.parametrize("options", [{}, {"startingTimestamp": "5"}])
def test_a_partition_without_segments_has_no_rows(tmp_path: Path, options: dict[str, str]) -> None:
    """As a broker that is killed while it makes the directory leaves it."""
    (tmp_path / "logs" / "orders-0").mkdir(parents=True)
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert read(tmp_path / "logs", **options, **latest) == []


# ---- options and columns ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"startingOfsets": "earliest"},
            "unknown option 'startingofsets'. Did you mean 'startingOffsets'?",
        ),
        ({"isolation": "serializable"}, "isolation: 'serializable' is none of read_uncommitted"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss: 'maybe' is none of true, false"),
        ({"splitBytes": "lots"}, "splitBytes: 'lots' is no size"),
        ({"splitBytes": "1"}, "splitBytes: 1 bytes are outside 1024"),
        ({"minPartitions": "0"}, "minPartitions: 0 is below 1"),
        ({"minPartitions": "few"}, "minPartitions: 'few' is no whole number"),
        ({"subscribe": "a", "topics": "b"}, "subscribe and topics exclude each other"),
        ({"subscribePattern": "("}, "subscribePattern: "),
        ({"assign": "orders"}, "assign: 'orders': "),
        ({"startingOffsets": "latest"}, "latest is for streaming"),
        ({"startingOffsets": '{"orders":{"0":-1}}'}, "is for streaming"),
        ({"endingOffsets": "earliest"}, "nothing lies before"),
        ({"endingOffsets": '{"orders":{"0":-3}}'}, "endingOffsets: "),
        ({"columns": "offset,vlaue"}, "unknown column 'vlaue'. Did you mean 'value'?"),
        ({"columns": "offset,OFFSET"}, "column offset is asked for twice"),
        ({"granularity": "batch", "columns": "value"}, "unknown column 'value'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_options_that_make_no_sense_are_named(
    logs: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        read(logs, **options)


def test_options_are_known_in_any_case(logs: Path) -> None:
    rows = read(logs, STARTINGOFFSETS='{"orders":{"0":990}}', Columns="Offset,VALUE")
    assert [list(row) for row in rows] == [["offset", "value"]] * 10


def test_topics_that_are_named_and_not_there_are_an_error(logs: Path) -> None:
    for options in (
        {"subscribe": "orders,refunds"},
        {"assign": '{"orders":[0], "refunds":[1]}'},
        {"startingOffsets": '{"orders":{"0":1},"refunds":{"1":1}}'},
    ):
        with pytest.raises(UnknownTopicOrPartitionError, match=r"^refunds(-1)? not found"):
            read(logs, **options)


def test_offsets_for_some_partitions_only_are_an_error(tmp_path: Path) -> None:
    with Broker(tmp_path / "logs", orders=2):
        pass
    with pytest.raises(ConfigError, match="an offset for some partitions, but none for orders-1"):
        read(tmp_path / "logs", startingOffsets='{"orders":{"0":0}}')


def test_topics_are_patterns_of_a_shell(tmp_path: Path) -> None:
    with Broker(tmp_path / "logs", orders=1, refunds=1, audit=1) as broker:
        for logs in broker.logs.values():
            logs[0].append_as_leader(batch(0, 1), 0)
    rows = read(tmp_path / "logs", topics="o*, ref?nds", columns="topic")
    assert [row["topic"] for row in rows] == ["orders", "refunds"]


def test_a_schema_may_be_any_choice_of_columns(logs: Path) -> None:
    schema = StructType().add("value", BinaryType()).add("leaderEpoch", IntegerType())
    rows = read(logs, schema=schema)
    assert rows[0] == {"value": bytes(50), "leaderEpoch": 0}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            StructType().add("val", BinaryType()),
            "column 'val' does not exist; the columns are: key",
        ),
        (StructType().add("offset", StringType()), "column offset is bigint, not string"),
        (StructType().add("partition", LongType()), "column partition is int, not bigint"),
    ],
    ids=["name", "type", "width"],
)
def test_a_schema_with_another_column_or_type_is_an_error(
    logs: Path, schema: StructType, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        reader(logs, schema)


def test_small_segments_share_a_task_and_large_ones_are_split(logs: Path) -> None:
    assert len(segments(logs)) > 2
    assert len(tasks(reader(logs))) == 1
    assert len(tasks(reader(logs, splitBytes="2k"))) > len(segments(logs))
    assert len(tasks(reader(logs, minPartitions=5))) >= 5


@pytest.fixture(autouse=True)
def _warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
