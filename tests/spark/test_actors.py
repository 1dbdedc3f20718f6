"""Each actor at each step of a query: the rows are those of one moment, or the query fails.

A query lists, plans, opens and reads. At one of these steps one actor acts. The rows must be those
from before the act or from after it; an actor that takes records away may also make the query fail,
with the reason.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from itertools import product, takewhile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo

from logstore.common.errors import LogstoreError, ResourceBusyError
from logstore.directory import windows
from logstore.directory.errors import DataLossError
from logstore.directory.split_reader import count_splits
from logstore.segments.producer_state import AppendOrigin
from logstore.spark import data_source as source
from logstore.spark.data_source import BatchReader
from logstore.storage.local import LocalStorage
from tests.spark import columnar_wire
from tests.spark.reading import Broker, read, reader, schema_of, tasks
from tests.support.builders import batch, marker, produced
from tests.support.cases import for_each

PRODUCER = 7


class World:
    """A log of several segments with an aborted and an open transaction, its engine running."""

    def __init__(self, path: Path) -> None:
        self.broker = Broker(path / "logs")
        self.path = path / "logs"
        self.log = self.broker.manager.get_or_create("orders", 0, topic_id=uuid.uuid4())
        self.directory = self.path / "orders-0"
        for number in range(60):
            self.append(number)
        self.log.append_as_leader(produced(PRODUCER, 0, 3, transactional=True, value=b"gone"), 0)
        self.end_transaction(commit=False)
        self.append(61)
        self.log.append_as_leader(produced(PRODUCER, 3, 3, transactional=True, value=b"open"), 0)
        self.append(62)

    def append(self, number: int) -> None:
        self.log.append_as_leader(batch(0, 4, value=b"%060d" % number), 0)

    def end_transaction(self, *, commit: bool) -> None:
        data = marker(commit=commit, producer_id=PRODUCER)
        self.log.append_as_leader(data, 0, AppendOrigin.COORDINATOR)

    def segments(self) -> list[Path]:
        return sorted(self.directory.glob("*.log"))


def append(world: World) -> None:
    for number in range(5):
        world.append(100 + number)


def roll(world: World) -> None:
    for number in range(60):
        world.append(100 + number)


def abort(world: World) -> None:
    world.end_transaction(commit=False)


def commit(world: World) -> None:
    world.end_transaction(commit=True)


def clean(world: World, *, keep_old: bool = True) -> None:
    """Every second batch of the first two segments goes, and the two become one."""
    first, second = world.segments()[:2]
    size = len(batch(0, 4, value=b"%060d" % 0))
    data = first.read_bytes() + second.read_bytes()
    kept = [data[at : at + size] for at in range(0, len(data), 2 * size)]
    swap = first.with_suffix(".log.swap")
    swap.write_bytes(b"".join(kept))
    for old in (first, second):
        for suffix in (".index", ".timeindex", ".log"):
            name = old.with_suffix(suffix)
            name.rename(f"{name}.deleted") if keep_old else name.unlink()
    swap.rename(first)


def clean_at_once(world: World) -> None:
    clean(world, keep_old=False)


def retention(world: World) -> None:
    for suffix in (".log", ".index", ".timeindex"):
        world.segments()[0].with_suffix(suffix).unlink()


def cut(world: World) -> None:
    """Down to the middle, and other records of the same sizes after it."""
    end = world.log.log_end_offset
    world.log.truncate_to(120)
    for number in range(60):
        if world.log.log_end_offset < end:
            world.append(500 + number)


def cut_tail(world: World) -> None:
    """The last append alone, which comes anew with another value."""
    world.log.truncate_to(world.log.log_end_offset - 4)
    world.append(900)


def cut_active(world: World) -> None:
    """Nearly all of the last segment, and other records of the same sizes in their place."""
    end = world.log.log_end_offset
    world.log.truncate_to(int(world.segments()[-1].stem) + 4)
    while world.log.log_end_offset < end:
        world.append(800)


def second_life(world: World) -> None:
    world.broker.manager.delete("orders", 0)
    world.log = world.broker.manager.get_or_create("orders", 0, topic_id=uuid.uuid4())
    for number in range(64):
        world.append(700 + number)


ACTORS: dict[str, Callable[[World], None]] = {
    act.__name__: act
    for act in (
        append,
        roll,
        abort,
        commit,
        clean,
        clean_at_once,
        retention,
        cut,
        cut_tail,
        cut_active,
        second_life,
    )
}
HARMLESS = {"append", "roll", "abort", "commit", "clean"}
"""They take nothing away that a query could not still read."""
GROWING = {"append", "roll", "cut", "cut_tail", "cut_active"}
"""They append one batch after the other: the log of a moment may have some of them."""
IN_WINDOWS = "between two windows"
STEPS = (
    "while listed",
    "listed",
    "planned",
    "between tasks",
    "before the last task",
    "opened",
    IN_WINDOWS,
)


class Once:
    """Acts at the first call."""

    def __init__(self, world: World, act: Callable[[World], None]) -> None:
        self._world, self._act, self.done = world, act, False

    def __call__(self) -> None:
        if not self.done:
            self.done = True
            self._act(self._world)


def rows_of(
    made: BatchReader,
    step: str,
    act: Once,
    patch: pytest.MonkeyPatch,
    directory: Path,
    *,
    counted: bool = False,
) -> list[dict[str, Any]]:
    """What a query reads while ``act`` happens at ``step``."""
    if step == "while listed":
        _act_between_names_and_sizes(patch, act, directory)
    if step == IN_WINDOWS:
        patch.setattr(windows, "WINDOW", 400)  # one batch
    if step == "listed":
        plain = source.list_partitions
        patch.setattr(source, "list_partitions", lambda *a, **k: (plain(*a, **k), act())[0])
    planned = tasks(made)
    if step == "planned":
        act()
    found: list[dict[str, Any]] = []
    for number, task in enumerate(planned):
        if step == "between tasks" and number == len(planned) // 2:
            act()
        if step == "before the last task" and number == len(planned) - 1:
            act()
        for one in _read(made, task, counted):
            found += one
            if step in ("opened", IN_WINDOWS) and number == len(planned) - 1:
                act()
    assert act.done
    return found


def _read(made: BatchReader, task: Any, counted: bool) -> Iterator[list[dict[str, Any]]]:
    if counted:
        for _, count in count_splits(task.splits, made.settings()):
            yield [{}] * count
    else:
        for batch in made.read(task):
            yield batch.to_pylist()


def _act_between_names_and_sizes(patch: pytest.MonkeyPatch, act: Once, directory: Path) -> None:
    """The last segment's size is taken first, then the actor acts, then come the other files."""
    plain = LocalStorage.scan_dir

    def scan_dir(self: LocalStorage, path: str) -> Any:
        if act.done or Path(path) != directory:
            return plain(self, path)
        before = {entry.name: entry for entry in plain(self, path)}
        newest = max(name for name in before if name.endswith(".log"))
        act()
        after = {entry.name: entry for entry in plain(self, path)}
        return sorted({**after, newest: before[newest]}.values())

    patch.setattr(LocalStorage, "scan_dir", scan_dir)


OPTIONS = {
    "records": {"columns": "offset,value", "splitBytes": 1500},
    "committed": {
        "columns": "offset,value",
        "splitBytes": 1500,
        "isolation": "read_committed",
    },
    "batches": {"granularity": "batch", "columns": "baseOffset,crc", "splitBytes": 1500},
    "counted": {"columns": "offset", "splitBytes": 1500, "isolation": "read_committed"},
}
"""``counted``: by the headers of batches, rows without a column."""


def pairs() -> Iterator[tuple[str, str, str]]:
    """Each actor at each step, in one of the kinds: each actor and each step meets every kind."""
    kinds = list(OPTIONS)
    for at, step in enumerate(STEPS):
        for number, actor in enumerate(ACTORS):
            yield step, actor, kinds[(at + number) % len(kinds)]


def test_the_pairs_are_those_that_are_promised() -> None:
    drawn = [*pairs()]
    for sides in ((0, 1), (0, 2), (1, 2)):
        tables = [(STEPS, ACTORS, OPTIONS)[side] for side in sides]
        assert {tuple(row[side] for side in sides) for row in drawn} == {*product(*tables)}


@pytest.mark.slow
@for_each("step, actor, kind", pairs(), at_once=len(ACTORS))
def test_rows_are_those_of_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, actor: str, step: str, kind: str
) -> None:
    world = World(tmp_path)
    options = OPTIONS[kind]
    try:
        before = read(world.path, **options)
        error: LogstoreError | None = None
        rows: list[dict[str, Any]] = []
        made = reader(world.path, **options)
        with monkeypatch.context() as patch:
            try:
                act = Once(world, ACTORS[actor])
                counted = kind == "counted"
                rows = rows_of(made, step, act, patch, world.directory, counted=counted)
            except (DataLossError, ResourceBusyError) as found:
                error = found
        after = read(world.path, **options)
    finally:
        world.broker.manager.close()
    assert before != after or kind != "records" or actor in ("abort", "commit")
    if error is not None:
        assert actor not in HARMLESS, error
        assert "\n" not in str(error)
        return
    if kind == "counted":
        before, after = ([{}] * len(one) for one in (before, after))
    pairs = zip(before, after, strict=False)
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    midway = actor in GROWING and len(rows) >= same and rows == after[: len(rows)]
    assert midway or rows in (before, after)


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_segment_that_one_look_misses_is_not_taken_for_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    """A rename may hide a file under both names."""
    world = World(tmp_path)
    world.broker.manager.close()
    before = read(world.path, columns="offset")
    hidden = world.segments()[1].name
    plain = LocalStorage.scan_dir
    looks = 0

    def scan_dir(self: LocalStorage, path: str) -> Any:
        nonlocal looks
        found = plain(self, path)
        looks += Path(path) == world.directory
        return [entry for entry in found if looks != missing or entry.name != hidden]

    monkeypatch.setattr(LocalStorage, "scan_dir", scan_dir)
    assert read(world.path, columns="offset") == before


@pytest.mark.parametrize("transition", ["", ".deleted"])
def test_a_file_of_the_same_name_is_not_taken_for_the_planned_one(
    tmp_path: Path, transition: str
) -> None:
    world = World(tmp_path)
    made = reader(world.path, columns="offset,value")
    planned = tasks(made)
    before = [row for task in planned for b in made.read(task) for row in b.to_pylist()]
    first = world.segments()[0]
    copy = first.read_bytes()
    if transition:
        first.rename(f"{first}{transition}")
    else:
        first.rename(tmp_path / "elsewhere")
    first.write_bytes(copy[: len(copy) // 2])
    world.broker.manager.close()
    if transition:
        assert before == [row for t in planned for b in made.read(t) for row in b.to_pylist()]
    else:
        with pytest.raises(DataLossError, match="replaced by another one meanwhile"):
            [list(made.read(task)) for task in planned]


def test_a_topic_made_anew_is_named(tmp_path: Path) -> None:
    world = World(tmp_path)
    made = reader(world.path, columns="offset")
    planned = tasks(made)
    shutil.rmtree(world.directory)
    (tmp_path / "other").mkdir()
    other = World(tmp_path / "other")
    shutil.copytree(other.directory, world.directory)
    other.broker.manager.close()
    world.broker.manager.close()
    with pytest.raises(DataLossError, match="deleted and created again: its id was"):
        [list(made.read(task)) for task in planned]


@pytest.mark.parametrize("entries", [1, 3, 10])
def test_an_index_with_too_high_offsets_loses_nothing(tmp_path: Path, entries: int) -> None:
    world = World(tmp_path)
    world.broker.manager.close()
    for index in world.directory.glob("*.index"):
        data = index.read_bytes()
        pairs = [data[at : at + 8] for at in range(0, len(data), 8)]
        shifted = [o[:4] + p[4:] for o, p in zip(pairs[entries:], pairs, strict=False)]
        index.write_bytes(b"".join(shifted))
    for low, high in ((0, 100), (50, 57), (101, 102)):
        bounds = {
            "startingOffsets": f'{{"orders":{{"0":{low}}}}}',
            "endingOffsets": f'{{"orders":{{"0":{high}}}}}',
        }
        found = read(world.path, columns="offset", **bounds)
        assert [row["offset"] for row in found] == list(range(low, high))


@pytest.mark.parametrize("torn", [True, False])
def test_a_torn_transaction_index_is_rebuilt_and_a_missing_one_told(
    tmp_path: Path, torn: bool
) -> None:
    world = World(tmp_path)
    roll(world)
    abort(world)
    roll(world)
    world.broker.manager.close()
    options = {"columns": "offset", "isolation": "read_committed"}
    expected = read(world.path, **options)
    for index in world.directory.glob("*.txnindex"):
        data = index.read_bytes()
        index.write_bytes(data[:-20]) if torn else index.unlink()
    if torn:
        assert read(world.path, **options) == expected
    else:
        with pytest.raises(LogstoreError, match="lacks the transaction of producer 7"):
            read(world.path, **options)


def test_a_snapshot_above_the_end_is_not_believed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.broker.manager.close()
    options = {"columns": "offset", "isolation": "read_committed"}
    expected = read(world.path, **options)
    newest = sorted(world.directory.glob("*.snapshot"))[0]
    shutil.copy(newest, world.directory / f"{100_000:020d}.snapshot")
    assert read(world.path, **options) == expected


def test_what_is_written_after_the_listing_is_no_fault_of_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    act = Once(world, append)
    made = reader(world.path, columns="offset", startingOffsets='{"orders":{"0":200}}')
    rows_of(made, "listed", act, monkeypatch, world.directory)
    world.broker.manager.close()
    assert "index is not used" not in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": ","}, "names nothing"),
        ({"subscribe": ""}, "names nothing"),
        ({"assign": "{}"}, "names no partition"),
        ({"broker": "99"}, "broker 99 is none of those there"),
        (
            {
                "startingOffsets": '{"orders":{"0":30}}',
                "endingOffsets": '{"orders":{"0":10}}',
            },
            "start at 30 and end before that, at 10",
        ),
        ({"startingOffsets": '{"orders":{"0":3,"00":5}}'}, "names a partition twice"),
    ],
    ids=str,
)
def test_a_selection_of_nothing_is_an_error_in_one_sentence(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    world = World(tmp_path)
    world.broker.manager.close()
    with pytest.raises(LogstoreError, match=message) as caught:
        read(world.path, **options)
    assert "\n" not in str(caught.value)


def test_options_of_kafka_are_taken_as_far_as_they_mean_something(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    world.broker.manager.close()
    given = {
        "kafka.bootstrap.servers": "a:9092",
        "kafka.isolation.level": "read_committed",
        "kafka.group.id": "g",
        "groupIdPrefix": "p",
        "kafkaConsumer.pollTimeoutMs": "512",
        "FETCHOFFSET.numRetries": "3",
        "fetchOffset.retryIntervalMs": "10",
        "maxOffsetsPerTrigger": "1",
        "minOffsetsPerTrigger": "1",
        "maxTriggerDelay": "1m",
    }
    assert read(world.path, **given) == read(world.path, isolation="read_committed")
    caplog.clear()
    asked, wanted = {"path": str(world.path), **given}, [EqualTo(("offset",), 1)]
    assert columnar_wire.exact(asked, schema_of({}), wanted) == [True]
    assert (
        len(columnar_wire.query(asked, schema_of({}), schema_of({"columns": "offset"}), wanted)[0])
        == 1
    )
    ignored = sorted(name.lower() for name in given if name != "kafka.isolation.level")
    assert caplog.messages == [f"options for Kafka that are ignored here: {', '.join(ignored)}"]
    assert read(f"{world.path}/") == read(world.path)


def test_no_task_has_more_records_than_asked_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.broker.manager.close()
    made = reader(world.path, columns="offset", maxRecordsPerPartition=7)
    found = [[n for b in made.read(t) for n in b["offset"].to_pylist()] for t in tasks(made)]
    assert max(map(len, found)) <= 7
    assert [n for one in found for n in one] == [
        row["offset"] for row in read(world.path, columns="offset")
    ]
