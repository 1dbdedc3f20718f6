"""The source against the engine that wrote the log, which reads with other code."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import LongType, StructField, StructType

from logstore.common.errors import ConfigError
from logstore.format.batch import encode_batch
from logstore.log import PartitionLog
from logstore.spark.planning import TopOffsets
from tests.spark import columnar_wire
from tests.spark.reading import Broker, offsets, read, reader, schema_of, tasks
from tests.unit.verify.verify_logs import CODECS, fill

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Written:
    """A directory with two topics, and what the engine reads from it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self.committed: list[dict[str, Any]] = []
        with Broker(path, orders=2, payments=1) as broker:
            for number, (topic, logs) in enumerate(broker.logs.items()):
                for partition, log in enumerate(logs):
                    rng = random.Random(10 * number + partition)
                    fill(log, broker.clock, 60, rng, partition == 1, CODECS)
                    start = log.log_start_offset
                    self.rows += self._rows(log, topic, partition, start, committed=False)
                    self.committed += self._rows(log, topic, partition, start, committed=True)

    def _rows(
        self, log: PartitionLog, topic: str, partition: int, start: int, *, committed: bool
    ) -> list[dict[str, Any]]:
        end = log.last_stable_offset if committed else log.log_end_offset
        aborted = log.reader.aborted_transactions(start, end) if committed else ()
        gone = set()
        for transaction in aborted:
            for producer, first, last in self._transactional(log):
                inside = transaction.first_offset <= first < transaction.last_offset
                if producer == transaction.producer_id and inside:
                    gone.update(range(first, last + 1))
        return [
            {
                "topic": topic,
                "partition": partition,
                "offset": record.offset,
                "timestamp": EPOCH + timedelta(milliseconds=record.timestamp),
                "key": record.key,
                "value": record.value,
            }
            for record in log.records(start, end)
            if record.offset not in gone
        ]

    def _transactional(self, log: PartitionLog) -> list[tuple[int, int, int]]:
        path = str(log.directory)
        rows = read(path, granularity="batch")
        return [
            (row["producerId"], row["baseOffset"], row["lastOffset"])
            for row in rows
            if row["isTransactional"] and not row["isControl"]
        ]


COLUMNS = "topic,partition,offset,timestamp,key,value"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("data") / "logs")


def test_all_records_come_in_the_order_of_the_log(written: Written) -> None:
    assert read(written.path, columns=COLUMNS) == written.rows


@pytest.mark.slow
@given(split_bytes=st.integers(1024, 8000), min_partitions=st.integers(1, 30))
@settings(max_examples=20)
def test_no_size_of_splits_loses_or_doubles_a_record(
    written: Written, split_bytes: int, min_partitions: int
) -> None:
    rows = read(written.path, columns=COLUMNS, splitBytes=split_bytes, minPartitions=min_partitions)
    assert rows == written.rows


def test_read_committed_ends_at_the_last_stable_offset_without_aborted_data(
    written: Written,
) -> None:
    assert len(written.committed) < len(written.rows)
    assert read(written.path, columns=COLUMNS, isolation="read_committed") == written.committed


def test_read_committed_without_snapshots_walks_the_whole_log(
    written: Written, tmp_path: Path
) -> None:
    """A snapshot only shortens the walk."""
    copy = tmp_path / "logs"
    for source in written.path.rglob("*"):
        if source.is_file() and source.suffix != ".snapshot":
            target = copy / source.relative_to(written.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    assert read(copy, columns=COLUMNS, isolation="read_committed") == written.committed


def test_read_committed_follows_split_boundaries(written: Written) -> None:
    rows = read(written.path, columns=COLUMNS, isolation="read_committed", splitBytes=1500)
    assert rows == written.committed


# ---- filters ---------------------------------------------------------------------------------

Condition = tuple[Filter, Callable[[dict[str, Any]], bool]]

_COMPARISONS: list[tuple[type[Filter], Callable[[Any, Any], bool]]] = [
    (EqualTo, lambda a, b: a == b),
    (GreaterThan, lambda a, b: a > b),
    (GreaterThanOrEqual, lambda a, b: a >= b),
    (LessThan, lambda a, b: a < b),
    (LessThanOrEqual, lambda a, b: a <= b),
]


@st.composite
def conditions(draw: st.DrawFn) -> Condition:
    column, values = draw(
        st.sampled_from(
            [
                ("offset", st.integers(-3, 260)),
                ("partition", st.integers(-1, 3)),
                ("topic", st.sampled_from(("orders", "payments", "p", ""))),
                ("timestamp", st.integers(-200_000, 800_000).map(_time)),
            ]
        )
    )
    kind = draw(st.integers(0, 4))
    if kind == 0:
        chosen = draw(st.lists(values, min_size=1, max_size=3))
        return In((column,), tuple(chosen)), lambda row: row[column] in chosen
    if kind == 1 and column == "topic":
        value = draw(values)
        return StringStartsWith((column,), value), lambda row: row[column].startswith(value)
    if kind == 2:
        return IsNotNull((column,)), lambda row: row[column] is not None
    made, holds = draw(st.sampled_from(_COMPARISONS))
    value = draw(values)
    if kind == 3:
        return Not(made((column,), value)), lambda row: not holds(row[column], value)  # type: ignore[call-arg]
    return made((column,), value), lambda row: holds(row[column], value)  # type: ignore[call-arg]


def _time(microseconds: int) -> datetime:
    """Around the times of the records, which begin with the clock of the tests."""
    return EPOCH + timedelta(milliseconds=1_700_000_000_000, microseconds=microseconds)


@pytest.mark.slow
@given(pushed=st.lists(conditions(), min_size=1, max_size=4), split_bytes=st.integers(1024, 9000))
@settings(max_examples=80)
def test_a_pushed_filter_leaves_the_rows_of_a_full_scan(
    written: Written, pushed: list[Condition], split_bytes: int
) -> None:
    """Spark evaluates again what was handed back; everything else has to hold in each row."""
    made = reader(written.path, columns=COLUMNS, splitBytes=split_bytes)
    left = made.pushFilters([condition for condition, _ in pushed])
    rows = [row for task in tasks(made) for batch in made.read(task) for row in batch.to_pylist()]
    again = [holds for condition, holds in pushed if any(condition is one for one in left)]
    assert [row for row in rows if all(holds(row) for holds in again)] == [
        row for row in written.rows if all(holds(row) for _, holds in pushed)
    ]


@pytest.mark.parametrize(
    "condition",
    [
        EqualTo(("offset",), 100),
        LessThan(("offset",), 5),
        EqualTo(("topic",), "payments"),
        Not(In(("partition",), (0,))),
        StringStartsWith(("topic",), "pay"),
        IsNotNull(("offset",)),
        In(("broker",), ("0",)),
        GreaterThan(("timestamp",), EPOCH),
        IsNotNull(("timestamp",)),
    ],
    ids=repr,
)
def test_conditions_on_names_offsets_and_times_are_not_handed_back(
    written: Written, condition: Filter
) -> None:
    assert reader(written.path).pushFilters([condition]) == []


def test_what_is_not_pushed_is_handed_back_as_the_same_object(written: Written) -> None:
    filters = [
        EqualTo(("value",), b"x"),
        In(("timestamp",), (EPOCH, EPOCH + timedelta(days=1))),
        In(("offset",), (1, 5)),
        EqualTo(("offset",), None),
        Not(EqualTo(("offset",), 7)),
        GreaterThan(("headers", "key"), "a"),
    ]
    left = reader(written.path).pushFilters(filters)
    assert [id(one) for one in left] == [id(one) for one in filters]


def test_a_filter_on_offsets_reads_only_the_segments_around_them(written: Written) -> None:
    whole = sum(s.size for task in tasks(reader(written.path)) for s in task.splits)
    made = reader(written.path)
    made.pushFilters(
        [EqualTo(("topic",), "orders"), EqualTo(("partition",), 0), EqualTo(("offset",), 70)]
    )
    splits = [split for task in tasks(made) for split in task.splits]
    assert [(s.topic, s.partition) for s in splits] == [("orders", 0)]
    assert sum(split.size for split in splits) < whole / 10


@pytest.fixture
def rising(tmp_path: Path) -> Path:
    """Several segments with a record every millisecond, in batches of ten: offset n at n ms."""
    with Broker(tmp_path / "logs", orders=1) as broker:
        for number in range(100):
            records = [(b"k", bytes(50), 10 * number + n) for n in range(10)]
            broker.logs["orders"][0].append_as_leader(encode_batch(records), 0)
    return tmp_path / "logs"


def test_a_lower_bound_on_time_skips_segments_by_their_time_index(rising: Path) -> None:
    made = reader(rising)
    made.pushFilters([GreaterThanOrEqual(("timestamp",), EPOCH + timedelta(milliseconds=995))])
    splits = [split for task in tasks(made) for split in task.splits]
    bases = sorted(int(path.stem) for path in (rising / "orders-0").glob("*.log"))
    assert len(bases) > 3
    assert {split.segment_base for split in splits} <= set(bases[-2:])


@pytest.mark.parametrize("ascending", [False, True])
def test_an_upper_bound_on_time_leaves_out_later_batches(rising: Path, ascending: bool) -> None:
    bound = LessThan(("timestamp",), EPOCH + timedelta(milliseconds=205))
    rows = read(rising, filters=[bound], ascendingTimestamps=ascending)
    assert offsets(rows) == list(range(205))


# ---- what is answered in a task ----------------------------------------------------------------


def top(path: Path, count: int, filters: Sequence[Filter] = (), **options: Any) -> list[int]:
    """Offsets that the tasks give for ``ORDER BY offset LIMIT count``, DESC where it is below 0."""
    given = {"path": str(path), **options}
    order = "LOWEST_OFFSETS" if count > 0 else "HIGHEST_OFFSETS"
    schema = StructType([StructField("offset", LongType())])
    found = columnar_wire.query(
        given, schema_of(given), schema, filters, limit=abs(count), order=order
    )
    return [row["offset"] for row in found[0]]


def outer(rows: Iterable[int], count: int) -> list[int]:
    return sorted(rows, reverse=count < 0)[: abs(count)]


@pytest.mark.slow
@given(
    count=st.integers(-400, 400).filter(bool),
    pushed=st.lists(conditions(), max_size=2),
    committed=st.booleans(),
    split_bytes=st.sampled_from((1024, 5000, 1 << 27)),  # alone in a task, and together
)
@settings(max_examples=60)
def test_the_outer_offsets_are_among_those_that_tasks_give(
    written: Written, count: int, pushed: list[Condition], committed: bool, split_bytes: int
) -> None:
    options = {"splitBytes": str(split_bytes)}
    options |= {"isolation": "read_committed"} if committed else {}
    filters = [condition for condition, _ in pushed if type(condition) is not In]
    holding = [holds for condition, holds in pushed if type(condition) is not In]
    made = reader(written.path, **options)
    assume(not made.pushFilters(filters))  # Spark orders only where no filter is left to it
    rows = written.committed if committed else written.rows
    wanted = [row["offset"] for row in rows if all(holds(row) for holds in holding)]
    assert outer(top(written.path, count, filters, **options), count) == outer(wanted, count)


def test_no_more_is_read_than_the_outer_offsets_take(rising: Path) -> None:
    late = GreaterThanOrEqual(("timestamp",), EPOCH + timedelta(milliseconds=500))
    assert top(rising, 7) == list(range(7))
    assert top(rising, -7) == list(range(993, 1000))
    assert top(rising, 7, [late]) == list(range(500, 507))
    assert top(rising, -7, [late]) == list(range(993, 1000))
    assert top(rising, -7, [LessThan(("offset",), 105)]) == list(range(98, 105))


def test_logs_that_end_below_the_outer_offsets_are_not_opened(
    tmp_path: Path,
) -> None:
    with Broker(tmp_path / "logs", orders=3) as broker:
        for number, log in enumerate(broker.logs["orders"]):
            log.append_as_leader(encode_batch([(b"k", b"v", 5)] * (10 * number + 10)), 0)
    made = reader(tmp_path / "logs")
    made.top = TopOffsets(5, highest=True)
    assert [[s.partition for s in task.splits] for task in tasks(made)] == [[2]]
    made.top = TopOffsets(12, highest=True)
    assert [[s.partition for s in task.splits] for task in tasks(made)] == [[1, 2]]
    made.top = TopOffsets(31, highest=True)  # no log has so many
    assert [[s.partition for s in task.splits] for task in tasks(made)] == [[0, 1, 2]]


def test_a_damaged_log_is_told_by_the_task_that_reads_it(rising: Path) -> None:
    last = max((rising / "orders-0").glob("*.log"))
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    last.write_bytes(data)
    with pytest.raises(columnar_wire.Refused, match=r"checksum|crc"):
        top(rising, -7)


# ---- where reading starts and ends -------------------------------------------------------------


def of_orders(written: Written, low: int, high: int) -> list[int]:
    return [
        row["offset"]
        for row in written.rows
        if (row["topic"], row["partition"]) == ("orders", 0) and low <= row["offset"] < high
    ]


@pytest.mark.slow
@given(low=st.integers(0, 150), high=st.integers(0, 150), split_bytes=st.integers(1024, 9000))
@settings(max_examples=30)
def test_offsets_by_partition(written: Written, low: int, high: int, split_bytes: int) -> None:
    low, high = sorted((low, high))
    rows = read(
        written.path,
        assign='{"orders":[0]}',
        startingOffsets=f'{{"orders":{{"0":{low}}}}}',
        endingOffsets=f'{{"orders":{{"0":{high}}}}}',
        splitBytes=split_bytes,
    )
    assert offsets(rows) == of_orders(written, low, high)


@pytest.mark.slow
@given(start=st.integers(-150, 900), end=st.integers(-150, 900))
@settings(max_examples=30)
def test_times_mean_the_first_record_that_is_not_earlier(
    written: Written, start: int, end: int
) -> None:
    """As ListOffsets answers; records behind it may be earlier."""
    base = 1_700_000_000_000
    times = [
        (row["offset"], round((row["timestamp"] - EPOCH).total_seconds() * 1000))
        for row in written.rows
        if (row["topic"], row["partition"]) == ("orders", 0)
    ]
    last = times[-1][0] + 1
    low = next((offset for offset, time in times if time >= base + start), last)
    high = next((offset for offset, time in times if time >= base + end), last)
    rows = read(
        written.path,
        assign='{"orders":[0]}',
        startingTimestamp=base + start,
        endingTimestamp=base + end,
        startingOffsetsByTimestampStrategy="latest",
    )
    assert offsets(rows) == of_orders(written, low, high)


def test_a_time_after_the_last_record_is_an_error_unless_latest_will_do(written: Written) -> None:
    with pytest.raises(ConfigError, match=r"orders-0 has no record at or after 9000000000000 ms"):
        read(written.path, topics="orders", startingTimestamp=9_000_000_000_000)
