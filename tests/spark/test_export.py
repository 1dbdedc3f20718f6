"""``logstore.spark.export``: a table has each record of a topic once, whatever happens to a run."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logstore import LogConfig, LogManager
from logstore.common.errors import ConfigError, LogstoreError, UnknownTopicOrPartitionError
from logstore.directory.windows import BatchTable
from logstore.format.batch import rebuild_batch
from logstore.format.header import parse_header
from logstore.format.reader import read_records
from logstore.log import PartitionLog
from logstore.segments.producer_state import AppendOrigin
from logstore.spark import DataLossError, ExportRefusedError, export, exported
from logstore.spark.delta_log import DeltaLog
from logstore.spark.exporting import _Job
from logstore.storage.local import NamingStorage
from tests.clients import toolchain
from tests.spark.exports import in_table
from tests.support.builders import marker, produced
from tests.support.lanes import missing
from tests.support.until import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

CONFIG = LogConfig(
    segment_bytes=2000, index_interval_bytes=200, file_delete_delay_ms=0, retention_ms=-1
)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[LogManager]:
    with LogManager([tmp_path / "data"], CONFIG) as manager:
        yield manager


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


class Exports:
    """A topic ``t`` with its table."""

    def __init__(self, spark: SparkSession, manager: LogManager, table: Path) -> None:
        self.spark, self.manager, self.table = spark, manager, table
        self.data = str(table.parent / "data")

    def append(self, count: int, partition: int = 0) -> PartitionLog:
        log = self.manager.get_or_create("t", partition)
        for _ in range(count):
            log.append([(b"k", b"%d" % log.log_end_offset + bytes(100), log.log_end_offset)])
        return log

    def run(self, **options: Any) -> Any:
        return export(self.spark, self.data, "t", self.table, **options)

    def rows(self) -> list[tuple[int, int, bytes]]:
        found = in_table(self.table)
        frame = exported(self.spark, self.table).select("partition", "offset", "value")
        assert sorted((p, o, bytes(v)) for p, o, v in frame.collect()) == found
        return found

    def held(self) -> list[tuple[int, int, bytes]]:
        return sorted(
            (tp.partition, record.offset, record.value)
            for tp, log in self.manager.logs.items()
            for record in log.records()
            if tp.topic == "t"
        )


@pytest.fixture
def topic(spark: SparkSession, manager: LogManager, table: Path) -> Exports:
    return Exports(spark, manager, table)


@pytest.mark.essential
def test_each_run_adds_what_is_new(topic: Exports) -> None:
    """All columns are those of the source; a partition that appears later is there, too."""
    topic.append(40)
    topic.append(3, partition=1)
    seen: list[tuple[int, int]] = []
    first = topic.run(progress=lambda done, total: seen.append((done, total)))
    assert (first.records, first.version, seen[-1]) == (43, 0, (43, 43))
    assert topic.rows() == topic.held()
    assert (topic.run().offsets, DeltaLog(str(topic.table)).latest()) == ({}, 0)
    topic.append(7, partition=1)
    topic.append(5, partition=2)
    again = topic.run()
    assert {tp.partition: found for tp, found in again.offsets.items()} == {1: (3, 10), 2: (0, 5)}
    assert topic.rows() == topic.held()
    source = topic.spark.read.format("logstore").option("includeHeaders", "true").load(topic.data)
    target = exported(topic.spark, topic.table)
    assert source.schema.simpleString() == target.schema.simpleString()
    assert source.exceptAll(target).count() == target.exceptAll(source).count() == 0


class Killed(BaseException):
    pass


def kill(patch: pytest.MonkeyPatch, owner: type, name: str, *, after: bool) -> None:
    """End the process before or after a step. Nothing that it would do at its end is done."""
    step = getattr(owner, name)

    def killed(*arguments: Any) -> None:
        if after:
            step(*arguments)
        patch.setattr(NamingStorage, "remove", lambda *_: None)
        patch.setattr(NamingStorage, "remove_tree", lambda *_: None)
        raise Killed

    patch.setattr(owner, name, killed)


POINTS: list[tuple[type, str, bool]] = [
    (DeltaLog, "data_directory", True),
    (_Job, "write", False),
    (_Job, "write", True),
    (DeltaLog, "sync", False),
    (DeltaLog, "sync", True),
    (DeltaLog, "commit", False),
    (NamingStorage, "link", False),
    (NamingStorage, "link", True),
    (DeltaLog, "commit", True),
]


@pytest.mark.essential
def test_a_run_that_is_killed_has_added_all_or_nothing(topic: Exports) -> None:
    rng = random.Random(1)
    before: list[tuple[int, int, bytes]] = []
    for owner, name, after in rng.sample(POINTS, len(POINTS)):
        topic.append(rng.randint(1, 30), rng.randrange(3))
        with pytest.MonkeyPatch.context() as patch:
            kill(patch, owner, name, after=after)
            with pytest.raises(Killed):
                topic.run()
        is_in = (owner, name, after) in POINTS[-2:]
        if before or is_in:
            assert topic.rows() == (topic.held() if is_in else before), (owner, name, after)
        topic.append(rng.randint(0, 3), rng.randrange(3))
        topic.run()
        before = topic.rows()
        assert before == topic.held(), (owner, name, after)
    left = {path.name.partition("-")[0] for path in topic.table.iterdir()} - {"_delta_log"}
    assert len(left) == len([*topic.table.iterdir()]) - 1  # one directory for each commit
    assert all(path.suffix in ("", ".json") for path in (topic.table / "_delta_log").iterdir())


def test_a_log_whose_offsets_do_not_ascend(topic: Exports) -> None:
    topic.append(40)
    newest = max(Path(topic.data, "t-0").glob("*.log"))
    content = bytearray(newest.read_bytes())
    at = BatchTable(content).cells("position")[len(BatchTable(content).cells("position")) // 2]
    content[at + 3] ^= 1
    newest.write_bytes(content)
    with pytest.raises(Exception, match="offsets do not ascend from here on"):
        topic.run()
    assert [path.name for path in topic.table.iterdir()] == ["_delta_log"]
    done = command(topic.data, "t", "--to", topic.table, "--format", "delta", "--spark", "local[1]")
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert "offsets do not ascend from here on" in done.stderr


def test_a_run_that_fails_leaves_nothing(topic: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    log = topic.append(40)
    write = _Job.write

    def cut(self: _Job, directory: str, progress: Any) -> int:
        rows = write(self, directory, progress)
        log.truncate_to(30)
        return rows

    monkeypatch.setattr(_Job, "write", cut)
    with pytest.raises(ExportRefusedError, match=r"t-0: .* the log ends at 30"):
        topic.run()
    assert [path.name for path in topic.table.iterdir()] == ["_delta_log"]
    monkeypatch.undo()
    topic.run()
    assert topic.rows() == topic.held()


def test_rows_that_the_driver_does_not_see(topic: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a cluster whose machines have disks of their own."""
    topic.append(40)
    write = _Job.write

    def elsewhere(self: _Job, directory: str, progress: Any) -> int:
        rows = write(self, directory, progress)
        next(Path(directory).glob("part-*")).unlink()
        return rows

    monkeypatch.setattr(_Job, "write", elsewhere)
    with pytest.raises(ExportRefusedError, match="have written 40 rows, and the driver sees 0"):
        topic.run()


def test_two_at_once(topic: Exports) -> None:
    topic.append(100)
    outcomes: list[Any] = []

    def run() -> None:
        try:
            outcomes.append(topic.run().records)
        except ExportRefusedError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 100 in outcomes
    assert all(found in (0, 100) or "another export is under way" in found for found in outcomes)
    assert topic.rows() == topic.held()


def test_another_machine_that_does_not_see_the_lock(topic: Exports) -> None:
    """Both make commit 1; the file of one of them was there first."""
    topic.append(3)
    topic.run()
    topic.append(4)
    log = DeltaLog(str(topic.table))
    write = _Job.write

    def late(self: _Job, directory: str, progress: Any) -> int:
        rows = write(self, directory, progress)
        log.commit(1, [{"commitInfo": {"operation": "OPTIMIZE"}}])
        return rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Job, "write", late)
        with pytest.raises(ExportRefusedError, match="has made commit 1 meanwhile"):
            topic.run()
    assert len(topic.rows()) == 3
    assert topic.run().version == 2
    assert topic.rows() == topic.held()


# ---- logs that have lost something -------------------------------------------------------------


def retained(topic: Exports, log: PartitionLog, offset: int) -> None:
    log.delete_records(offset)
    log.maintenance.delete_old_segments()
    topic.manager.housekeeper.checkpoint_log_start_offsets()


def test_retention_past_what_was_exported(topic: Exports) -> None:
    log = topic.append(10)
    topic.run()
    retained(topic, topic.append(30), 5)
    topic.append(0)
    retained(topic, log, 20)
    before = topic.rows()
    with pytest.raises(DataLossError, match="offsets 10 to 20: deleted before they were read"):
        topic.run()
    assert topic.rows() == before
    report = topic.run(failOnDataLoss=False)
    assert [text.partition(";")[0] for text in report.lost] == [
        f"{topic.data}/t-0: offsets 10 to 20: deleted before they were read: the log starts at 20"
    ]
    assert topic.rows() == sorted({*before, *topic.held()})


@pytest.mark.parametrize("lossy", [False, True])
def test_a_log_that_was_cut_or_made_again(topic: Exports, lossy: bool) -> None:
    """Its offsets are in the table already, with other records."""
    topic.manager.create_topic("t", 1)
    log = topic.append(10)
    topic.run()
    before = topic.rows()
    for records in (5, 2):  # beyond the end of what was exported, and up to it
        log.truncate_to(8)
        log.append([(b"k", b"another")] * records)
        with pytest.raises(ExportRefusedError, match="those of another log: export to another"):
            topic.run(failOnDataLoss=not lossy)
    topic.manager.delete_topic("t")
    topic.manager.create_topic("t", 1)
    topic.append(20)
    with pytest.raises(ExportRefusedError, match=r"deleted and created again \(its id was"):
        topic.run(failOnDataLoss=not lossy)
    assert topic.rows() == before


def test_a_partition_that_is_gone_for_a_while(topic: Exports) -> None:
    topic.append(3)
    topic.append(3, partition=1)
    topic.run()
    topic.append(4)
    topic.manager.close()
    away = topic.table.parent / "away"
    shutil.move(f"{topic.data}/t-1", away)
    with pytest.raises(DataLossError, match="should it come back, it goes on there"):
        topic.run()
    assert topic.run(failOnDataLoss=False).records == 4
    shutil.move(away, f"{topic.data}/t-1")
    assert topic.run().records == 0
    assert len(topic.rows()) == len(set(topic.rows())) == 10


def test_gaps_of_compaction(topic: Exports) -> None:
    log = topic.manager.get_or_create("t", 0)
    log.append([(b"k", b"a"), (b"k", b"b"), (b"l", b"c")])
    topic.run()
    log.append([(b"k", b"d"), (b"k", b"e"), (b"k", b"f")])
    topic.manager.close()
    path = Path(topic.data, "t-0", f"{0:020}.log")
    content = path.read_bytes()
    size = parse_header(content, 0).size
    batches = content[:size], content[size:]
    kept = [rebuild_batch(parse_header(each, 0), read_records(each)[1:]) for each in batches]
    path.write_bytes(b"".join(map(bytes, kept)))
    assert topic.run().records == 2
    assert [offset for _, offset, _ in topic.rows()] == [0, 1, 2, 4, 5]


def test_only_what_was_committed(topic: Exports) -> None:
    log = topic.append(2)

    def append(data: bytes, origin: AppendOrigin = AppendOrigin.CLIENT) -> None:
        log.append_as_leader(data, 0, origin=origin)

    append(produced(7, 0, transactional=True, value=b"aborted"))
    append(marker(commit=False, producer_id=7), AppendOrigin.COORDINATOR)
    append(produced(7, 1, transactional=True, value=b"open"))
    topic.append(2)
    assert topic.run(isolation="read_committed").records == 2
    append(marker(commit=True, producer_id=7), AppendOrigin.COORDINATOR)
    assert topic.run(isolation="read_committed").records == 3
    assert [offset for _, offset, _ in topic.rows()] == [0, 1, 4, 5, 6]


# ---- tables of others --------------------------------------------------------------------------


def test_a_table_that_another_program_has_packed(topic: Exports) -> None:
    """Its commit says that no row is another. One that does not is refused."""
    topic.append(3)
    topic.run()
    log = DeltaLog(str(topic.table))
    (old,) = log.files()
    shutil.copy(old, topic.table / "packed.parquet")
    remove = {"path": os.path.relpath(old, topic.table), "dataChange": False}
    add = {"path": "packed.parquet", "dataChange": False}
    log.commit(1, [{"remove": remove}, {"add": add}])
    topic.append(4)
    assert topic.run().version == 2
    assert topic.rows() == topic.held()
    log.commit(3, [{"remove": {"path": "packed.parquet", "dataChange": True}}])
    topic.append(1)
    with pytest.raises(ExportRefusedError, match="commit 3 is of another program, and changed it"):
        topic.run()


DELTA_RS = """
import sys
from deltalake import DeltaTable

table = DeltaTable(sys.argv[1])
rows = table.to_pyarrow_table().select(["partition", "offset", "value"]).to_pylist()
for row in sorted((r["partition"], r["offset"], r["value"].hex()) for r in rows):
    print(*row)
table.optimize.compact()
table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
table.create_checkpoint()
"""


@pytest.mark.long
def test_delta_rs_reads_and_packs_it(topic: Exports) -> None:
    try:
        python = toolchain.python_with("deltalake==1.6.6", "pyarrow==26.0.1")
    except toolchain.SuiteUnavailable as error:
        missing(str(error))
    for count in (20, 7):
        topic.append(count)
        topic.append(count, partition=1)
        topic.run()
    for _ in range(2):
        done = subprocess.run(
            [python, "-c", DELTA_RS, str(topic.table)], capture_output=True, text=True, check=True
        )
        found = [tuple(line.split()) for line in done.stdout.splitlines()]
        assert found == [(str(p), str(o), v.hex()) for p, o, v in topic.held()]
        topic.append(5)
        topic.run()
        assert topic.rows() == topic.held()


def other_topic(topic: Exports) -> None:
    topic.manager.create_topic("u", 1)
    export(topic.spark, topic.data, "u", topic.table)


def lists_something(topic: Exports) -> None:
    elsewhere = topic.table.parent / "else"
    elsewhere.mkdir()
    (elsewhere / "x").touch()
    export(topic.spark, topic.data, "t", elsewhere)


def is_a_file(topic: Exports) -> None:
    path = topic.table.parent / "file"
    path.touch()
    export(topic.spark, topic.data, "t", path)


REFUSED: list[tuple[Callable[[Exports], object], type[LogstoreError], str]] = [
    (other_topic, ExportRefusedError, "it is the table of the topic 't'"),
    (lists_something, ExportRefusedError, "it holds 'x', and is no table of an export"),
    (is_a_file, ExportRefusedError, "it is a file; a table is a directory"),
    (lambda t: t.run(startingOffsets="earliest"), ConfigError, "goes on where it ends"),
    (lambda t: t.run(columns="value"), ConfigError, "option columns: an export sets it itself"),
    (lambda t: t.run(isolaton="x"), ConfigError, "isolaton"),
    (lambda t: export(t.spark, t.data, "t", "s3://b/t"), ConfigError, "on a local disk"),
    (
        lambda t: export(t.spark, t.data, "nope", t.table.parent / "new"),
        UnknownTopicOrPartitionError,
        "nope not found",
    ),
    (lambda t: exported(t.spark, t.table.parent / "new"), ExportRefusedError, "no table"),
]


def test_what_is_refused(topic: Exports) -> None:
    topic.append(1)
    topic.run()
    for attempt, error, text in REFUSED:
        with pytest.raises(error, match=text):
            attempt(topic)
    assert topic.run().records == 0


def test_where_a_table_begins(topic: Exports) -> None:
    topic.append(10)
    topic.append(10, partition=1)
    starts = json.dumps({"t": {"0": 7, "1": -2}})
    first = topic.run(startingOffsets=starts, maxOffsetsPerTrigger=6).records
    assert 0 < first <= 6
    assert topic.run().records == 13 - first
    assert topic.rows() == [row for row in topic.held() if row[:2] >= (0, 7)]


def test_a_table_begins_empty(topic: Exports) -> None:
    """What comes to a table that begins at the end is not passed over."""
    topic.append(3)
    assert topic.run(startingOffsets="latest").version == 0
    assert topic.rows() == []
    topic.append(2)
    assert topic.run().records == 2
    assert topic.rows() == topic.held()[3:]


def test_fifty_partitions(topic: Exports) -> None:
    topic.manager.create_topic("t", 50)
    for partition in range(0, 50, 2):
        topic.append(4, partition)
    assert len(topic.run().offsets) == 25
    for partition in range(50):
        topic.append(1, partition)
    assert (topic.run().records, topic.rows()) == (50, topic.held())


# ---- the command -------------------------------------------------------------------------------


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "logstore", "export", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=4 * patience(),
        check=False,
    )


def test_the_command(topic: Exports) -> None:
    topic.append(20)
    to = topic.data, "t", "--to", topic.table, "--format", "delta", "--spark", "local[1]"
    done = command(*to)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "t-0: offsets 0 to 19")
    assert re.search(r"/table: 20 records in 1 files of \d+ bytes, commit 0$", done.stdout)
    retained(topic, topic.append(20), 30)
    done = command(*to)
    assert done.returncode == 2
    assert done.stderr.endswith("starts at 30; --allow-data-loss goes on with what is there\n")
    done = command(*to, "--json", "--allow-data-loss", "--conf", "spark.ui.enabled=false")
    assert (done.returncode, json.loads(done.stdout)["records"]) == (0, 10), done.stderr
    assert "note: " in done.stderr
    assert "offsets 20 to 30: deleted before they were read" in done.stderr
    topic.append(3)
    newest = max(Path(topic.data, "t-0").glob("*.log"))
    content = bytearray(newest.read_bytes())
    content[-50] ^= 1
    newest.write_bytes(content)
    topic.append(3)
    done = command(*to)
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert "corrupt: " in done.stderr
    assert "nothing was exported" in done.stderr
    assert len(topic.rows()) == 30
