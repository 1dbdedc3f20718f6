"""Questions from a seed: what is answered below Spark's plan, beside the same rows in memory.

``python -m tests.spark.pushed_questions --seeds 1:500`` asks at length.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from logstore.format.batch import encode_batch
from logstore.format.codecs.compression import Compression
from logstore.kernels import encode_varint, encode_varlong, seal_batch
from logstore.log import PartitionLog
from tests.spark.reading import Broker, reader, tasks
from tests.spark.test_golden_source import FOLDERS
from tests.unit.verify.verify_logs import CODECS, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_MS = 1_700_000_000_000
MS_MAX = (2**63 - 1) // 1000
TIMES = (-1, 0, 1, -MS_MAX - 1, -MS_MAX, MS_MAX, MS_MAX + 1, 2**62, 2, START_MS, START_MS + 1)
COLUMNS = "value,topic,partition,offset,timestamp,broker,segment"
OPTIONS: tuple[dict[str, str], ...] = (
    {},
    {"splitBytes": "1500"},
    {"splitBytes": "4000", "isolation": "read_committed"},
    {"includeControl": "true"},
    {"mode": "DROPMALFORMED"},
    {"maxRecordsPerPartition": "97"},
)


# ---- logs --------------------------------------------------------------------------------------


def write(logs: Path) -> None:
    """Transactions, gaps, all codecs and formats; times that fall, are none, or out of reach."""
    rng = random.Random(1)
    with Broker(logs, plain=2, transactional=1, odd=2, appended=1, empty=1) as broker:
        for log in broker.logs["plain"]:
            fill(log, broker.clock, 30, rng, False, CODECS)
        fill(broker.logs["transactional"][0], broker.clock, 60, rng, True, CODECS)
        for log in broker.logs["odd"]:
            for _ in range(40):
                _append_odd(log, rng)
        for number in range(12):
            records = [(None, b"v", rng.choice((-1, START_MS, 2**62)))] * 3
            log = broker.logs["appended"][0]
            _append(log, records, log_append_time=rng.choice((START_MS + number, 2**61)))
    for folder in FOLDERS:
        shutil.copytree(folder, logs / f"{folder.name}-7")


def _append(log: PartitionLog, records: Sequence[Any], gap: int = 0, **fields: Any) -> None:
    data = encode_batch(records, base_offset=log.log_end_offset + gap, leader_epoch=0, **fields)
    log.replica.append_as_follower(bytes(data))


def _append_odd(log: PartitionLog, rng: random.Random) -> None:
    gap, near = rng.choice((0, 0, 7)), START_MS + rng.randrange(-30, 30)
    times = [rng.choice((*TIMES, near, near, near)) for _ in range(rng.choice((1, 3, 9)))]
    if rng.random() < 0.5 and min(times) >= -1:
        codec = rng.choice(tuple(Compression))
        _append(log, [(b"k", b"v", time) for time in times], gap, compression=codec)
        return
    base, deltas = log.log_end_offset + gap, sorted(rng.sample(range(12), len(times)))
    kept = {delta: time for delta, time in zip(deltas, times, strict=True) if rng.random() < 0.7}
    log.replica.append_as_follower(compacted(base, 12, kept))


def compacted(base_offset: int, span: int, times: dict[int, int]) -> bytes:
    """A batch of ``span`` offsets of which compaction has left ``times``, perhaps none."""
    section, first = b"", min(times.values(), default=0)
    for delta, time in times.items():
        fields = (bytes(1), encode_varlong(time - first), encode_varint(delta))
        record = b"".join((*fields, encode_varint(-1), encode_varint(1), b"v", encode_varint(0)))
        section += encode_varint(len(record)) + record
    data = bytearray(61) + section
    seal_batch(
        data,
        base_offset=base_offset,
        leader_epoch=0,
        attributes=0,
        last_offset_delta=span - 1,
        base_timestamp=first,
        max_timestamp=max(times.values(), default=-1),
        record_count=len(times),
    )
    return bytes(data)


def rows_of(logs: Path, options: dict[str, str]) -> pa.Table:
    """As a reader gives them that no filter was pushed to, with µs in place of timestamps."""
    made = reader(logs, columns=COLUMNS, **options)
    found = [batch for task in tasks(made) for batch in made.read(task)]
    table = pa.Table.from_batches(found)
    micros = table.column("timestamp").cast(pa.int64())  # also those that no datetime can be
    return table.drop_columns("timestamp").append_column("micros", micros)


# ---- questions ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """SQL about ``{t}``. ``exact``: every filter is one that leaves the plan.

    ``kind`` is ``rows``, ``limit``, ``top``, ``aggregates``, or ``others``, of which some function
    is not pushed.
    """

    sql: str
    exact: bool
    kind: str
    limit: int = 0


class Generator:
    def __init__(self, seed: int, offsets: Sequence[int], times: Sequence[int]) -> None:
        self.rng = random.Random(seed)
        self.offsets, self.times = offsets, times

    def question(self) -> Question:
        rng = self.rng
        filters = [self._filter() for _ in range(rng.choice((0, 1, 1, 2, 3)))]
        exact = all(is_exact for _, is_exact in filters)
        where = " WHERE " + " AND ".join(f"({text})" for text, _ in filters) if filters else ""
        kind = rng.choice(("rows", "limit", "top", "top", "aggregates", "aggregates", "others"))
        limit = rng.choice((1, 2, 5, 30, 200, 5000))
        if kind == "rows":
            columns = rng.choice(
                ("topic, partition, offset, unix_micros(timestamp)", "7", "offset")
            )
            return Question(f"SELECT {columns} FROM {{t}}{where}", exact, kind)
        if kind == "limit":
            columns = rng.choice(("topic, partition, offset", "7"))
            return Question(f"SELECT {columns} FROM {{t}}{where} LIMIT {limit}", exact, kind, limit)
        if kind == "top":
            order = rng.choice(("offset", "offset DESC", "offset DESC NULLS FIRST"))
            return Question(
                f"SELECT offset FROM {{t}}{where} ORDER BY {order} LIMIT {limit}",
                exact,
                kind,
                limit,
            )
        return self._aggregates(where, exact, kind)

    def _aggregates(self, where: str, exact: bool, kind: str) -> Question:
        rng = self.rng
        pushed = ["count(*)", "count(offset)", "count(1)", "min(offset)", "max(offset)"]
        pushed += ["unix_micros(min(timestamp))", "unix_micros(max(timestamp))"]
        chosen = rng.sample(pushed, rng.randint(1, 4))
        if kind == "others":
            others = ("count(value)", "count(timestamp)", "count(DISTINCT topic)", "sum(offset)")
            where_too = "count(*) FILTER (WHERE partition = 1)"
            chosen.append(rng.choice((*others, "min(topic)", "avg(partition)", where_too)))
        groups = rng.sample(("topic", "partition", "broker", "segment"), rng.choice((0, 0, 1, 2)))
        by = f" GROUP BY {', '.join(groups)}" if groups else ""
        return Question(f"SELECT {', '.join(groups + chosen)} FROM {{t}}{where}{by}", exact, kind)

    def _filter(self) -> tuple[str, bool]:
        """SQL, and whether it leaves the plan."""
        rng = self.rng
        if rng.random() < 0.25:
            first, second = self._filter()[0], self._filter()[0]
            return rng.choice((f"({first}) OR ({second})", f"NOT ({first})")), False
        column = rng.choice(("offset", "timestamp", "timestamp", "timestamp", "topic", "partition"))
        if column == "topic":
            names = ("odd", "plain", "transactional", "v2-txn", "x")
            name, other = rng.choice(names), rng.choice(names)
            forms = (f"= '{name}'", f"<> '{name}'", f"IN ('{name}', '{other}')", "LIKE 'v%'")
            return f"topic {rng.choice(forms)}", True
        if column == "partition":
            return f"partition {rng.choice(('=', '<', '>='))} {rng.choice((0, 1, 7))}", True
        literal = self._offset if column == "offset" else self._time
        match rng.randrange(8):
            case 0:
                return f"{column} IS NOT NULL", True
            case 1:
                return f"{column} BETWEEN {literal()} AND {literal()}", True
            case 2:
                return f"{column} IN ({literal()}, {literal()})", False
            case 3:
                return f"{column} IS NULL", False
        operator = rng.choice(("=", "<=>", ">", ">=", "<", "<="))
        sides = [column, literal()]
        if rng.random() < 0.3:
            sides.reverse()
        return f"{sides[0]} {operator} {sides[1]}", True

    def _offset(self) -> str:
        return str(self.rng.choice(self.offsets) + self.rng.choice((-1, 0, 0, 1)))

    def _time(self) -> str:
        rng = self.rng
        if rng.random() < 0.1:
            return rng.choice(("TIMESTAMP'2023-11-14 22:13:20.0005Z'", "DATE'2023-11-14'"))
        micros = rng.choice(self.times) * 1000 + rng.choice((-1000, -999, -1, 0, 0, 1, 999, 1000))
        return f"timestamp_micros({max(min(micros, 2**63 - 1), 1 - 2**63)}L)"


# ---- answers -----------------------------------------------------------------------------------


@dataclass
class Asked:
    """A session with the logs as views, and the same rows in memory beside each."""

    spark: SparkSession
    logs: Path
    offsets: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for number, options in enumerate(OPTIONS):
            rows = rows_of(self.logs, options)
            memory = self.spark.createDataFrame(rows)
            memory = memory.selectExpr("*", "timestamp_micros(micros) AS timestamp").cache()
            memory.createOrReplaceTempView(f"memory_{number}")
            source = self.spark.read.format("logstore").options(columns=COLUMNS, **options)
            source.load(str(self.logs)).createOrReplaceTempView(f"source_{number}")
        known = rows.column("micros").drop_null().unique().to_pylist()
        self.offsets = sorted(rows.column("offset").unique().to_pylist())
        self.times = [time // 1000 for time in sorted(known)]

    def ask(self, seed: int) -> str:
        """What is wrong with the answer to the question of a seed; "" if nothing is."""
        number = seed % len(OPTIONS)
        question = Generator(seed, self.offsets, self.times).question()
        found = self.spark.sql(question.sql.format(t=f"source_{number}"))
        plan = str(found._jdf.queryExecution().executedPlan().toString())
        wrong = _in_plan(question, plan)
        if not wrong:
            whole = re.sub(r" LIMIT \d+$", "", question.sql) if question.kind == "limit" else ""
            expected = self.spark.sql((whole or question.sql).format(t=f"memory_{number}"))
            wrong = _in_answer(
                question, *([tuple(row) for row in f.collect()] for f in (found, expected))
            )
        return wrong and f"seed {seed}, {OPTIONS[number]}: {question.sql}\n{wrong}\n{plan}"


def _in_plan(question: Question, plan: str) -> str:
    if "logstore [" not in plan:
        return ""  # Spark sees that there is no row
    if question.exact and re.search(r"\bFilter\b", plan):
        return "an exact filter is left to Spark"
    words = {"limit": ", limit ", "top": "PushedTopN: ", "aggregates": "PushedAggregates: "}
    if question.exact and question.kind in words and words[question.kind] not in plan:
        return f"{question.kind} is not pushed"
    if question.kind == "others" and "PushedAggregates: " in plan:
        return "an aggregate is pushed that takes values"
    return ""


def _in_answer(question: Question, got: list[Any], right: list[Any]) -> str:
    lacking, more = Counter(right) - Counter(got), Counter(got) - Counter(right)
    if question.kind == "limit":  # any rows will do
        if not more and len(got) == min(question.limit, len(right)):
            return ""
    elif not lacking and not more and (question.kind != "top" or got == right):
        return ""
    return f"{len(got)} rows, not {len(right)}: without {list(lacking)[:9]}, with {list(more)[:9]}"


def main() -> None:
    from logstore.spark import session
    from tests.spark.conftest import TEST_CONF

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1:300", help="first:last")
    first, last = map(int, parser.parse_args().seeds.split(":"))
    spark = session("local[2]", conf=TEST_CONF)
    failures = 0
    with TemporaryDirectory() as room:
        write(Path(room, "logs"))
        asked = Asked(spark, Path(room, "logs"))
        for seed in range(first, last + 1):
            wrong = asked.ask(seed)
            failures += bool(wrong)
            print(wrong or f"seed {seed}", flush=True)
    print(f"{last + 1 - first} questions, {failures} wrong")
    raise SystemExit(failures > 0)


if __name__ == "__main__":
    main()
