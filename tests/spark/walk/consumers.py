"""Spark's consumers of a columnar scan. Each takes all columns of a frame of ``directory``.

What one gives is compared between sources: a frame by the digest of its rows, in any order; any
other value as it is. So none depends on an order that SQL does not promise.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, GroupedData

Consumer = Callable[["DataFrame"], Any]
CONSUMERS: dict[str, Consumer] = {}
SMALL = "topic LIKE 'v%' OR topic IN ('mixed', 'transactions')"


def consumer(take: Consumer) -> Consumer:
    CONSUMERS[take.__name__] = take
    return take


def digest(frame: DataFrame) -> list[Any]:
    """Of all rows: any difference in a value or its place in a row changes it."""
    named = frame.toDF(*(f"c{n}" for n in range(len(frame.columns))))
    hashed = named.select(f.xxhash64(*named.columns).alias("h"))
    row = hashed.agg(f.count("*"), f.bit_xor("h"), f.sum(f.pmod("h", f.lit(1_000_003)))).first()
    return list(row or ())


def told(result: Any) -> Any:
    """What is compared of what a consumer gave."""
    from pyspark.sql import DataFrame

    return digest(result) if isinstance(result, DataFrame) else result


def rows_of(frame: DataFrame) -> list[str]:
    """In any order."""
    return sorted(map(repr, frame.collect()))


def small(frame: DataFrame) -> DataFrame:
    """Some thousand rows of every kind."""
    return frame.where(SMALL)


# ---- Python functions --------------------------------------------------------------------------


def crc(data: bytes | None) -> int:
    return -1 if data is None else zlib.crc32(data)


def _crcs(data: pa.Array) -> pa.Array:
    return pa.array([crc(value) for value in data.to_pylist()], pa.int64())


def _pandas() -> Any:
    @f.pandas_udf("long")
    def pandas(values: pd.Series) -> pd.Series:
        return values.map(crc)

    return pandas


def _pandas_text() -> Any:
    @f.pandas_udf("string")
    def text(keys: pd.Series, offsets: pd.Series) -> pd.Series:
        return pd.Series([f"{k!r} {o}" for k, o in zip(keys, offsets, strict=True)])

    return text


def _pandas_iterator() -> Any:
    @f.pandas_udf("long")
    def iterator(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for values in batches:
            yield values.map(crc)

    return iterator


def _pandas_iterator_of_two() -> Any:
    @f.pandas_udf("long")
    def iterator(batches: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
        for values, offsets in batches:
            yield values.map(crc) ^ offsets

    return iterator


def _arrow() -> Any:
    @f.arrow_udf("long")
    def arrow(values: pa.Array) -> pa.Array:
        return _crcs(values)

    return arrow


def _arrow_iterator() -> Any:
    @f.arrow_udf("long")
    def arrow(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for values in batches:
            yield _crcs(values)

    return arrow


def _select(*columns: Any) -> Consumer:
    """Each is a name, a text of SQL, or a function that makes a column."""

    def take(frame: DataFrame) -> DataFrame:
        made = [c() if callable(c) else f.expr(c) for c in columns]
        return frame.select(*(c.alias(f"c{n}") for n, c in enumerate(made)))

    return take


SCALARS: dict[str, Callable[[], Any]] = {
    "pickled": lambda: f.udf(crc, "long", useArrow=False),
    "by_arrow": lambda: f.udf(crc, "long", useArrow=True),
    "pandas": _pandas,
    "pandas_iterator": _pandas_iterator,
    "arrow": _arrow,
    "arrow_iterator": _arrow_iterator,
}


def _binary(column: Column) -> Column:
    return column.cast("string").cast("binary")


def _with_scalar(name: str, take: Callable[[DataFrame, Any], Any]) -> None:
    for kind, make in SCALARS.items():
        CONSUMERS[f"{kind}_{name}"] = lambda frame, make=make: take(frame, make())  # type: ignore[misc]


_with_scalar("udf", lambda df, u: df.select("topic", "offset", u("value")))
_with_scalar("udf_alone", lambda df, u: df.select(u("value")))
_with_scalar("udf_of_all", lambda df, u: df.select("*", u("value"), u("key").alias("k")))
_with_scalar("chained", lambda df, u: df.select("offset", u(_binary(u(_binary(u("key")))))))
_with_scalar("in_filter", lambda df, u: df.where(u("value") % 3 == 0).select("topic", "offset"))
_with_scalar("of_constant", lambda df, u: df.select("offset", u(f.lit(b"constant"))))
_with_scalar("without_column", lambda df, u: df.select(u(f.lit(b"constant"))))
_with_scalar("grouped_by", lambda df, u: df.groupBy(u("key").alias("g")).agg(f.sum("offset")))
_with_scalar(
    "of_aggregate", lambda df, u: df.groupBy("topic").agg(f.max("value").alias("m")).select(u("m"))
)
_with_scalar("under_limit", lambda df, u: len(df.select(u("value")).limit(7).collect()))
_with_scalar(
    "of_headers",
    lambda df, u: small(df).select(
        "offset", u(f.expr("headers[0].value")), u(_binary(f.expr("headers.key[0]")))
    ),
)


@consumer
def mixed_kinds_in_one_projection(frame: DataFrame) -> DataFrame:
    return frame.select(
        "offset",
        *(make()("value").alias(name) for name, make in SCALARS.items() if name != "pickled"),
        "key",
    )


@consumer
def pickled_beside_pandas(frame: DataFrame) -> DataFrame:
    first = frame.select("*", SCALARS["pickled"]()("value").alias("p"))
    return first.select("offset", "p", _pandas()("key").alias("q"), _pandas_text()("key", "p"))


@consumer
def a_udf_of_every_column(frame: DataFrame) -> DataFrame:
    text = f.udf(repr, "string", useArrow=True)
    plain = f.udf(repr, "string", useArrow=False)
    some = small(frame)
    names = [name for name in frame.columns if name != "headers"]
    return some.select(*(text(name).alias(name) for name in names)).union(
        some.select(*(plain(name).alias(name) for name in names))
    )


@consumer
def a_udf_of_nested_values(frame: DataFrame) -> DataFrame:
    def flat(headers: Any) -> str:
        return repr(None if headers is None else [(h["key"], crc(h["value"])) for h in headers])

    @f.pandas_udf("string")
    def pandas(headers: pd.Series) -> pd.Series:
        return headers.map(lambda h: flat(h if h is None else list(h)))

    @f.arrow_udf("string")
    def arrow(headers: pa.Array) -> pa.Array:
        return pa.array([flat(h) for h in headers.to_pylist()], pa.string())

    kinds = [f.udf(flat, "string", useArrow=True), f.udf(flat, "string", useArrow=False)]
    made = [k("headers").alias(f"h{n}") for n, k in enumerate((*kinds, pandas, arrow))]
    return small(frame).select("topic", "offset", *made)


@consumer
def pandas_of_two_columns(frame: DataFrame) -> DataFrame:
    two = _pandas_iterator_of_two()
    return frame.select("offset", _pandas_text()("key", "offset"), two("value", "offset"))


@consumer
def udf_in_a_join_condition(frame: DataFrame) -> DataFrame:
    few = small(frame).where("key IS NOT NULL").select("topic", "offset", "key")
    left, right = few.alias("l"), few.where("offset % 5 = 0").alias("r")
    same = f.udf(lambda a, b: a == b, "boolean", useArrow=True)
    on = (f.col("l.topic") == f.col("r.topic")) & same("l.key", "r.key")
    return left.join(right, on).select("l.topic", "l.offset", f.col("r.offset").alias("o"))


@consumer
def udf_that_makes_a_structure(frame: DataFrame) -> DataFrame:
    def both(key: Any, value: Any) -> Any:
        return (crc(key), value, [key, value])

    kind = "struct<a:long,b:binary,c:array<binary>>"
    made = [f.udf(both, kind, useArrow=a)("key", "value") for a in (True, False)]
    return frame.select("offset", *(c.alias(f"s{n}") for n, c in enumerate(made)))


@consumer
def grouped_aggregates_of_pandas(frame: DataFrame) -> DataFrame:
    @f.pandas_udf("long")
    def total(values: pd.Series, offsets: pd.Series) -> int:
        return int((values.map(crc) ^ offsets).sum() % (1 << 40))

    @f.pandas_udf("long")
    def iterated(batches: Iterator[pd.Series]) -> int:
        return sum(int(values.map(crc).sum()) for values in batches) % (1 << 40)

    groups = frame.groupBy("topic", "partition")
    return groups.agg(total("value", "offset")).unionAll(groups.agg(iterated("value")))


@consumer
def grouped_aggregates_of_arrow(frame: DataFrame) -> DataFrame:
    @f.arrow_udf("long")
    def total(values: pa.Array) -> int:
        return int(sum(map(crc, values.to_pylist())) % (1 << 40))

    @f.arrow_udf("long")
    def iterated(batches: Iterator[pa.Array]) -> int:
        return sum(crc(v) for values in batches for v in values.to_pylist()) % (1 << 40)

    groups = frame.groupBy("topic", "partition")
    return groups.agg(total("value")).unionAll(groups.agg(iterated("key")))


@consumer
def window_functions_of_python(frame: DataFrame) -> DataFrame:
    @f.pandas_udf("long")
    def pandas(values: pd.Series) -> int:
        return int(values.map(crc).sum())

    @f.arrow_udf("long")
    def arrow(values: pa.Array) -> int:
        return sum(map(crc, values.to_pylist()))

    some = small(frame)
    ordered = Window.partitionBy("topic", "partition").orderBy("offset")
    near, whole = ordered.rowsBetween(-2, 0), Window.partitionBy("topic", "partition")
    first = some.select("topic", "offset", pandas("value").over(near), pandas("key").over(whole))
    other = some.select("topic", "offset", arrow("value").over(near), arrow("key").over(whole))
    return first.unionAll(other)


_GROUP = "topic string, partition int, rows long, crc long"


def _group(topic: Any, partition: Any, values: Sequence[Any]) -> dict[str, list[Any]]:
    total = sum(map(crc, values)) % (1 << 40)
    return {"topic": [topic], "partition": [partition], "rows": [len(values)], "crc": [total]}


def _groups(frame: DataFrame) -> GroupedData:
    return frame.select("topic", "partition", "value").groupBy("topic", "partition")


def _arrow_group(table: pa.Table) -> pa.Table:
    topic, partition = table["topic"][0].as_py(), table["partition"][0].as_py()
    found = pa.table(_group(topic, partition, table["value"].to_pylist()))
    return found.cast(
        pa.schema(
            [
                ("topic", pa.string()),
                ("partition", pa.int32()),
                ("rows", pa.int64()),
                ("crc", pa.int64()),
            ]
        )
    )


@consumer
def grouped_maps(frame: DataFrame) -> DataFrame:
    def pandas(group: pd.DataFrame) -> pd.DataFrame:
        first = group.iloc[0]
        return pd.DataFrame(_group(first["topic"], first["partition"], list(group["value"])))

    groups = _groups(frame)
    return groups.applyInPandas(pandas, _GROUP).unionAll(groups.applyInArrow(_arrow_group, _GROUP))


@consumer
def grouped_maps_by_iterators(frame: DataFrame) -> DataFrame:
    def pandas(groups: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        whole = pd.concat(list(groups))
        first = whole.iloc[0]
        yield pd.DataFrame(_group(first["topic"], first["partition"], list(whole["value"])))

    def arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _arrow_group(pa.Table.from_batches(list(batches))).to_batches()

    groups = _groups(frame)
    return groups.applyInPandas(pandas, _GROUP).unionAll(groups.applyInArrow(arrow, _GROUP))


@consumer
def cogrouped_maps(frame: DataFrame) -> DataFrame:
    def pandas(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        values, first = [*left["value"], *right["value"]], left.iloc[0]
        return pd.DataFrame(_group(first["topic"], first["partition"], values))

    def arrow(left: pa.Table, right: pa.Table) -> pa.Table:
        values = [*left["value"].to_pylist(), *right["value"].to_pylist()]
        made = _arrow_group(left).set_column(2, "rows", pa.array([len(values)], pa.int64()))
        return made.set_column(3, "crc", pa.array([sum(map(crc, values)) % (1 << 40)], pa.int64()))

    pairs = _groups(frame).cogroup(_groups(frame.where("offset % 3 = 0")))
    return pairs.applyInPandas(pandas, _GROUP).unionAll(pairs.applyInArrow(arrow, _GROUP))


@consumer
def map_in_pandas(frame: DataFrame) -> DataFrame:
    def take(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            yield batch.assign(crc=batch["value"].map(crc))[["topic", "offset", "crc", "key"]]

    return frame.mapInPandas(take, "topic string, offset long, crc long, key binary")


@consumer
def map_in_arrow(frame: DataFrame) -> DataFrame:
    def take(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    return frame.mapInArrow(take, frame.schema)


@consumer
def map_in_arrow_that_holds_all_batches(frame: DataFrame) -> DataFrame:
    def take(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from reversed(list(batches))

    return frame.mapInArrow(take, frame.schema)


@consumer
def map_in_arrow_of_no_column(frame: DataFrame) -> DataFrame:
    def take(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"n": pa.array([7] * batch.num_rows, pa.int64())})

    return frame.selectExpr("1 AS one").mapInArrow(take, "n long")


@consumer
def maps_that_stop_early(frame: DataFrame) -> int:
    def first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches).slice(0, 1)

    found = frame.where("topic = 'big'").select("offset").mapInArrow(first, "offset long")
    return len(found.collect())


@consumer
def table_functions(frame: DataFrame) -> list[str]:
    class Two:
        def eval(self, key: Any, offset: Any) -> Iterator[tuple[Any, ...]]:
            yield offset, key
            yield -offset, crc(key).to_bytes(8, "big", signed=True)

    some, found = small(frame), []
    some.createOrReplaceTempView("walked")
    for by_arrow in (True, False):
        made = f.udtf(Two, returnType="n long, b binary", useArrow=by_arrow)
        frame.sparkSession.udtf.register("two", made)
        query = "SELECT topic, n, b FROM walked, LATERAL two(key, offset)"
        found += rows_of(frame.sparkSession.sql(query))
    return found


@consumer
def table_functions_of_arrow(frame: DataFrame) -> list[str]:
    @f.arrow_udtf(returnType="n long, c long")
    class Crcs:
        def eval(self, table: pa.RecordBatch) -> Iterator[pa.Table]:
            yield pa.table({"n": table.column("offset"), "c": _crcs(table.column("value"))})

    some, spark = small(frame).select("offset", "value"), frame.sparkSession
    some.createOrReplaceTempView("walked")
    spark.udtf.register("crcs", Crcs)
    return rows_of(spark.sql("SELECT * FROM crcs(TABLE(SELECT * FROM walked))"))


# ---- nested fields and expressions -------------------------------------------------------------


PROJECTIONS = {
    "header_names": ("topic", "offset", "headers.key"),
    "header_values": ("offset", "headers.value"),
    "header_names_alone": ("headers.key",),
    "header_values_alone": ("headers.value",),
    "first_header_value": ("offset", "headers[0].value"),
    "first_header_name": ("headers[0].key",),
    "both_fields": ("headers.key", "headers.value", "headers[0].value", "headers[0].key"),
    "field_beside_whole": ("headers", "headers.value", "size(headers)"),
    "transformed": ("offset", "transform(headers, h -> concat(h.key, length(h.value)))"),
    "transformed_one_field": ("offset", "transform(headers, h -> upper(h.key))"),
    "transformed_with_index": ("transform(headers, (h, i) -> struct(i, h.value))",),
    "filtered_lists": ("offset", "filter(headers, h -> h.value IS NOT NULL)"),
    "exists": ("offset", "exists(headers, h -> h.key = 'a')", "forall(headers, h -> h.key > '')"),
    "reduced": ("offset", "aggregate(headers, 0, (s, h) -> s + length(h.key))"),
    "sized": ("size(headers)",),
    "elements": ("offset", "element_at(headers, -1)", "try_element_at(headers, 2).value"),
    "sorted_lists": ("offset", "sort_array(headers, false)", "array_max(headers)"),
    "sliced": ("slice(headers, 1, 2)", "arrays_zip(headers.key, headers.value)"),
    "exploded": ("topic", "offset", "explode(headers)"),
    "exploded_field": ("offset", "explode(headers.value)"),
    "exploded_outer": ("offset", "explode_outer(headers.key)"),
    "as_json": ("offset", "to_json(struct(headers, topic, partition))"),
    "as_a_row": ("struct(*)",),
    "null_tests": ("headers IS NULL", "key IS NULL", "value IS NOT NULL", "timestamp IS NULL"),
    "binary": ("hex(key)", "base64(value)", "sha2(value, 256)", "length(value)", "substr(key, 2)"),
    "text": ("decode(value, 'ISO-8859-1')", "crc32(key)", "reverse(decode(key, 'ISO-8859-1'))"),
    "times": ("timestamp", "unix_micros(timestamp)", "timestamp + INTERVAL 1 HOUR"),
    "cases": ("IF(key IS NULL, value, key)", "coalesce(key, value)", "nullif(key, value)"),
    "numbers": ("offset * 2 - partition", "offset DIV 7", "pmod(position, 13)", "sequence & 255"),
    "constants": ("1", "'x'"),
    "one_constant": ("current_database()",),
    "batch_columns": ("leaderEpoch", "producerId", "producerEpoch", "sequence", "isControl"),
    "split_columns": ("topic", "partition", "broker", "segment"),
    "same_column_often": ("value", "value", "length(value)", "value"),
    "everything_backwards": ("broker", "compression", "headers", "offset", "value", "key"),
}  # fmt: skip
for _name, _columns in PROJECTIONS.items():
    CONSUMERS[f"projection_{_name}"] = _select(*_columns)

_AT = "timestamp >= timestamp_millis(1700000000"
CONDITIONS = {
    "nested": "headers[0].value IS NOT NULL",
    "nested_name": "exists(headers, h -> h.key = 'trace-id')",
    "null_headers": "headers IS NULL AND key IS NOT NULL",
    "key": "key = X'6B31'",
    "key_range": "key > X'6B' AND key < X'6C'",
    "value_length": "length(value) > 1000000",
    "times": f"{_AT}500) AND timestamp < timestamp_millis(1700000050000)",
    "no_time": "timestamp = timestamp_millis(-1)",
    "null_times": "timestamp IS NULL",
    "not_null_times": "NOT (timestamp > timestamp_millis(1700000000000))",
    "offsets": "offset BETWEEN 30000 AND 70000",
    "contradictory_offsets": "offset >= 30000 AND offset < 7 AND key IS NOT NULL",
    "contradictory_times": f"{_AT}500) AND timestamp < timestamp_millis(0)",
    "one_offset": "offset = 65536",
    "offsets_in": "offset IN (0, 1, 999, 1000, 32768, 119999, 368769)",
    "places": "topic = 'mixed' AND partition IN (0, 2)",
    "either": "topic = 'large' OR partition = 1",
    "topics": "topic LIKE 'v2-%' AND compression <> 'none'",
    "not_topics": "topic NOT IN ('big', 'large')",
    "null_safe": "key <=> value",
    "null_safe_null": "key <=> NULL",
    "epochs": "leaderEpoch = 2 AND offset % 3 = 0",
    "committed_flags": "isTransactional AND producerId = 2",
    "impossible": "offset < 0",
    "false": "false",
    "random_null": "IF(offset % 2 = 0, NULL, true)",
    "other_type": "offset > 1.5D AND partition = '0'",
    "big_number": "offset > 99999999999999999999",
}
for _name, _condition in CONDITIONS.items():
    CONSUMERS[f"where_{_name}"] = lambda frame, c=_condition: frame.where(c)  # type: ignore[misc]
    CONSUMERS[f"count_where_{_name}"] = lambda frame, c=_condition: frame.where(c).count()  # type: ignore[misc]


# ---- SQL ---------------------------------------------------------------------------------------


def _queries() -> Iterator[tuple[str, str]]:
    """Of ``queries.sql``: names, and texts."""
    parts = Path(__file__).with_name("queries.sql").read_text().split("\n-- ")[1:]
    for part in parts:
        name, _, text = part.partition("\n")
        yield name, text.strip().removesuffix(";")


def _asked(frame: DataFrame, text: str) -> DataFrame:
    frame.createOrReplaceTempView("t")
    return frame.sparkSession.sql(text)


def _asked_in_order(frame: DataFrame, text: str) -> list[str]:
    return list(map(repr, _asked(frame, text).collect()))


for _name, _text in _queries():
    _ask = _asked_in_order if _name.startswith("ordered ") else _asked
    CONSUMERS[f"sql_{_name.removeprefix('ordered ')}"] = partial(_ask, text=_text)


def _joined(frame: DataFrame, hint: str, kind: str) -> DataFrame:
    where = "topic IN ('mixed', 'large', 'v2-none', 'v1-lz4')"
    left, right = frame.where(where).alias("l"), frame.where(where).alias("r").hint(hint)
    on = "l.topic = r.topic AND l.partition = r.partition AND l.offset = r.offset - 3"
    joined = left.join(right, f.expr(on), kind)
    return (
        joined
        if kind.startswith("left_")
        else joined.select("l.*", "r.key", "r.value", "r.headers")
    )


for _hint in ("broadcast", "merge", "shuffle_hash", "shuffle_replicate_nl"):
    for _kind in ("inner", "left", "right", "full", "left_semi", "left_anti"):
        CONSUMERS[f"join_{_hint}_{_kind}"] = partial(_joined, hint=_hint, kind=_kind)


@consumer
def sql_functions_and_views(frame: DataFrame) -> list[str]:
    spark = frame.sparkSession
    frame.createOrReplaceTempView("t")
    made = "CREATE OR REPLACE TEMPORARY"
    heads = "SELECT topic, headers.key AS names FROM t WHERE headers IS NOT NULL"
    weight = "(v BINARY) RETURNS INT RETURN coalesce(length(v), -1)"
    content = "(name STRING) RETURNS TABLE (o BIGINT, k BINARY)"
    spark.sql(f"{made} VIEW heads AS {heads}")
    spark.sql(f"{made} FUNCTION weight {weight}")
    spark.sql(
        f"{made} FUNCTION of_topic {content} RETURN SELECT offset, key FROM t WHERE topic = name"
    )
    return [
        *rows_of(spark.sql("SELECT h.names, count(*) FROM heads h GROUP BY h.names")),
        *rows_of(spark.sql("SELECT topic, sum(weight(value)) FROM t GROUP BY topic")),
        *rows_of(spark.sql("SELECT count(*), sum(o), count(k) FROM of_topic('mixed')")),
    ]  # fmt: skip


# ---- caches ------------------------------------------------------------------------------------


def _cached(frame: DataFrame, level: StorageLevel) -> list[Any]:
    """Filled by a query that ends early, asked whole and in part; forgotten; asked again."""
    kept = frame.persist(level)
    try:
        found = [
            len(kept.take(3)),
            digest(kept),
            digest(kept.select("headers.value", "offset")),
            kept.where("offset > 70000").count(),
            digest(kept.select("offset", _pandas()("value"))),
        ]
    finally:
        kept.unpersist(blocking=True)
    return [*found, digest(frame)]


LEVELS = {
    "memory": StorageLevel.MEMORY_ONLY,
    "memory_and_disk": StorageLevel.MEMORY_AND_DISK_DESER,
    "serialized": StorageLevel.MEMORY_AND_DISK,
    "disk": StorageLevel.DISK_ONLY,
    "off_heap": StorageLevel.OFF_HEAP,
}
for _name, _level in LEVELS.items():
    CONSUMERS[f"cache_{_name}"] = partial(_cached, level=_level)


@consumer
def cache_joined_with_its_source(frame: DataFrame) -> DataFrame | Any:
    kept = small(frame).cache()
    try:
        other = kept.alias("a").join(
            kept.alias("b"), f.expr("a.offset = b.offset + 1 AND a.topic = b.topic")
        )
        return digest(other.select("a.value", "b.headers", "a.offset"))
    finally:
        kept.unpersist(blocking=True)


@consumer
def checkpoints(frame: DataFrame) -> list[Any]:
    local = frame.localCheckpoint()
    lazy = small(frame).localCheckpoint(eager=False)
    with TemporaryDirectory() as room:
        frame.sparkSession.sparkContext.setCheckpointDir(room)
        written = frame.checkpoint()
        return [digest(local), digest(lazy), digest(lazy), digest(written)]


# ---- taking rows -------------------------------------------------------------------------------


@consumer
def collected(frame: DataFrame) -> list[str]:
    return rows_of(frame.where("topic <> 'large' AND offset % 10 = 0"))


@consumer
def all_values_collected(frame: DataFrame) -> list[Any]:
    rows = frame.select("topic", "partition", "offset", "value").collect()
    return sorted((r[0], r[1], r[2], crc(r[3])) for r in rows)


@consumer
def to_pandas(frame: DataFrame) -> list[Any]:
    table = (
        small(frame).select("topic", "partition", "offset", "key", "value", "headers").toPandas()
    )
    rows = table.itertuples(index=False)
    return sorted(
        repr(
            (
                *r[:5],
                r[5]
                if r[5] is None
                else [dict(h) if isinstance(h, dict) else h.asDict() for h in r[5]],
            )
        )
        for r in rows
    )


@consumer
def to_arrow(frame: DataFrame) -> list[Any]:
    """Held as Arrow while the session goes on, then compared."""
    table = frame.toArrow()
    frame.count()
    frame.select("value").toArrow()
    crcs = zip(
        table["topic"].to_pylist(),
        table["partition"].to_pylist(),
        table["offset"].to_pylist(),
        _crcs(table["value"].combine_chunks()).to_pylist(),
        strict=True,
    )
    nulls = [table[name].null_count for name in table.column_names]
    return [sorted(crcs), nulls, pc.count_distinct(table["key"]).as_py()]


@consumer
def by_rdd(frame: DataFrame) -> list[Any]:
    some = small(frame)
    counted = (
        frame.select("topic", "value")
        .rdd.map(lambda r: (r[0], crc(r[1])))
        .reduceByKey(lambda a, b: (a + b) % (1 << 40))
    )
    return [sorted(counted.collect()), sorted(map(repr, some.rdd.map(tuple).collect()))]


@consumer
def for_each_partition(frame: DataFrame) -> list[int]:
    context = frame.sparkSession.sparkContext
    rows, total = context.accumulator(0), context.accumulator(0)

    def take(part: Iterator[Any]) -> None:
        for row in part:
            rows.add(1)
            total.add(crc(row[0]))

    frame.select("value").foreachPartition(take)
    return [rows.value, total.value]


@consumer
def local_iterators(frame: DataFrame) -> list[Any]:
    """One is left in the middle."""
    ordered = frame.where("topic = 'big'").select("offset", "value")
    left = ordered.toLocalIterator(prefetchPartitions=True)
    some = [next(left) for _ in range(3)]
    del left
    return [len(some), [(r[0], crc(r[1])) for r in ordered.toLocalIterator()]]


@consumer
def limits(frame: DataFrame) -> list[Any]:
    """The number of rows; each is one that is there."""
    whole = frame.where("topic = 'big'")
    return [
        len(frame.take(5)),
        len(frame.limit(1000).collect()),
        len(frame.select("value").head(3)),
        frame.limit(200_000).count(),
        frame.limit(17).select("topic").count(),
        frame.isEmpty(),
        frame.where("offset < 0").isEmpty(),
        len(frame.tail(4)),
        frame.limit(0).collect(),
        whole.limit(40_000).distinct().count(),
        whole.limit(3).unionAll(whole.limit(4)).count(),
        len(whole.select("offset", "value").limit(33_000).toPandas()),
        digest(whole.limit(70_000).where("crc32(value) < 0")),
    ]


@consumer
def shown(frame: DataFrame) -> str:
    from contextlib import redirect_stdout
    from io import StringIO

    with redirect_stdout(StringIO()) as text:
        frame.where("topic = 'big'").select("topic", "offset").orderBy("offset").show(
            5, truncate=False
        )
    return text.getvalue()


@consumer
def rows_in_the_order_of_the_log(frame: DataFrame) -> DataFrame | Any:
    """Tasks of a partition follow each other, and rows in them, in both sources."""
    rows = frame.where("topic = 'mixed'").select("partition", "offset").collect()
    return [[r[1] for r in rows if r[0] == number] for number in range(3)]


@consumer
def ordered_and_parted(frame: DataFrame) -> list[Any]:
    some = small(frame)
    return [
        digest(frame.repartition(3)),
        digest(frame.repartition(3, "key")),
        digest(frame.coalesce(1)),
        digest(frame.repartitionByRange(3, "offset")),
        digest(frame.sort("value", "offset")),
        digest(frame.sortWithinPartitions("headers", "offset")),
        list(map(repr, some.sort("topic", "partition", "offset").limit(500).collect())),
        frame.sample(1.0, seed=3).count(),
        frame.dropDuplicates(["topic", "key"]).count(),
        digest(frame.na.drop(subset=["timestamp"]).select("offset")),
        digest(some.na.fill({"topic": "x", "partition": 0})),
    ]


@consumer
def summaries(frame: DataFrame) -> list[str]:
    some = frame.select("offset", "partition", "topic", "leaderEpoch")
    crossed = frame.crosstab("topic", "compression")
    return [
        *rows_of(some.summary("count", "min", "max")),
        *rows_of(crossed),
        *rows_of(frame.groupBy("topic").pivot("partition").count()),
    ]


@consumer
def the_same_frame_twice(frame: DataFrame) -> list[Any]:
    counted = [
        frame.where("offset < 100").count(),
        frame.count(),
        frame.select("key").distinct().count(),
    ]
    doubled = frame.unionAll(frame)
    return [
        counted,
        digest(doubled),
        digest(frame),
        digest(frame.select("offset").exceptAll(frame.select("offset"))),
    ]


@consumer
def columns_renamed_and_dropped(frame: DataFrame) -> DataFrame:
    named = frame.withColumnRenamed("value", "v").drop("key", "headers")
    return named.withColumns(
        {"w": f.length("v"), "v": f.col("v").substr(1, 3), "x": f.lit(None).cast("string")}
    )


@consumer
def melted(frame: DataFrame) -> DataFrame:
    return frame.select("offset", "key", "value").unpivot(
        "offset", ["key", "value"], "name", "content"
    )


@consumer
def by_variants(frame: DataFrame) -> DataFrame:
    made = small(frame).selectExpr(
        "offset", "parse_json(to_json(named_struct('t', topic, 'o', offset))) AS j"
    )
    return made.selectExpr(
        "offset", "variant_get(j, '$.o', 'bigint')", "variant_get(j, '$.t', 'string')"
    )


# ---- writing -----------------------------------------------------------------------------------


@consumer
def written_to_files(frame: DataFrame) -> list[Any]:
    spark, found = frame.sparkSession, []
    with TemporaryDirectory() as room:
        for kind, rows in (
            ("parquet", frame),
            ("orc", frame),
            ("json", small(frame)),
            ("avro", None),
        ):
            if rows is not None:
                rows.write.format(kind).save(f"{room}/{kind}")
                found.append(
                    digest(spark.read.schema(frame.schema).format(kind).load(f"{room}/{kind}"))
                )
        small(frame).write.partitionBy("topic", "partition").parquet(f"{room}/parted")
        found.append(
            digest(
                spark.read.parquet(f"{room}/parted").select("topic", "offset", "value", "headers")
            )
        )
        frame.write.bucketBy(2, "offset").sortBy("offset").mode("overwrite").option(
            "path", f"{room}/bucketed"
        ).saveAsTable("bucketed")
        found.append(digest(spark.table("bucketed")))
        spark.sql("DROP TABLE bucketed")
    frame.write.format("noop").mode("overwrite").save()
    return found


@consumer
def written_to_logs(frame: DataFrame) -> list[Any]:
    with TemporaryDirectory() as room:
        rows = frame.select("key", "value", "topic", "partition", "timestamp", "headers").where(
            "timestamp IS NOT NULL"
        )
        target = str(Path(room) / "logs")
        rows.write.format("logstore").mode("append").save(target)
        read = (
            frame.sparkSession.read.format("logstore").option("includeHeaders", "true").load(target)
        )
        again = read.select(rows.columns)
        return [digest(again), digest(rows) == digest(again)]


__all__ = ["CONSUMERS", "digest", "rows_of", "small", "told"]
