"""Questions in SQL, made from a seed: nested expressions, filters, groups, joins, orders, limits.

Each is asked of a view of a source, and of one of the rows in memory. A limit stands only where an
order decides what it leaves; so every answer is exact.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.spark.walk.consumers import digest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BINARIES = ("key", "value", "headers[0].value", "element_at(headers, -1).value")
NUMBERS = ("offset", "partition", "leaderEpoch", "producerId", "sequence", "segment", "position")
TEXTS = ("topic", "compression", "broker", "headers[0].key")
TIMES = ("timestamp",)
FLAGS = ("isTransactional", "isControl", "key IS NULL", "value IS NULL", "headers IS NOT NULL")
LISTS = ("headers.key", "headers.value", "transform(headers, h -> length(h.value))")
LITERALS = ("0", "1", "-1", "17", "1000", "32768", "70001", "5039", "368800", "2147483648")
TOPICS = (
    "big",
    "mixed",
    "large",
    "transactions",
    "nothing",
    "v0-none",
    "v1-lz4",
    "v2-txn",
    "v2-none",
)
MOMENTS = (-1, 0, 1_700_000_000_000, 1_700_000_000_001, 1_700_000_033_333, 1_700_000_500_000)
COMPARED = ("=", "<", "<=", ">", ">=", "<>", "<=>")


class Asker:
    """``question`` gives a text for the table ``t``, and whether its rows have an order."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def question(self) -> tuple[str, bool]:
        kinds: tuple[tuple[Callable[[], tuple[str, bool]], int], ...] = (
            (self._plain, 4),
            (self._ordered, 3),
            (self._grouped, 4),
            (self._extremes, 2),
            (self._joined, 2),
            (self._distinct, 1),
            (self._set, 1),
            (self._exploded, 1),
            (self._windowed, 1),
        )
        made = self._rng.choices([k for k, _ in kinds], [weight for _, weight in kinds])[0]
        return made()

    # -- expressions -----------------------------------------------------------------------------

    def _number(self, depth: int = 2) -> str:
        rng = self._rng
        if depth == 0 or rng.random() < 0.4:
            return rng.choice((*NUMBERS, "offset", "offset"))
        deeper = self._number(depth - 1)
        return rng.choice(
            (
                f"({deeper} % {rng.choice((2, 3, 7, 1000))})",
                f"try_add({deeper}, {rng.choice(LITERALS)})",
                f"length({self._binary(depth - 1)})",
                f"crc32({self._binary(depth - 1)})",
                "size(headers)",
                f"CASE WHEN {self._condition(depth - 1)} THEN {deeper} ELSE -7 END",
                f"coalesce({deeper}, {self._number(depth - 1)})",
                "unix_millis(timestamp)",
                f"abs({deeper} % 1000003)",
                "timestampType",
            )
        )

    def _binary(self, depth: int = 2) -> str:
        rng = self._rng
        if depth == 0 or rng.random() < 0.5:
            return rng.choice(BINARIES)
        return rng.choice(
            (
                f"coalesce({self._binary(depth - 1)}, {self._binary(depth - 1)})",
                f"substr({self._binary(depth - 1)}, {rng.choice((1, 2, -3))}, 4)",
                f"IF({self._condition(depth - 1)}, {self._binary(depth - 1)}, NULL)",
                f"encode({self._text(depth - 1)}, 'UTF-8')",
                f"concat({self._binary(depth - 1)}, X'00FF')",
            )
        )

    def _text(self, depth: int = 2) -> str:
        rng = self._rng
        if depth == 0 or rng.random() < 0.5:
            return rng.choice(TEXTS)
        return rng.choice(
            (
                f"hex({self._binary(depth - 1)})",
                f"upper({self._text(depth - 1)})",
                f"md5({self._binary(depth - 1)})",
                "array_join(headers.key, '|', '-')",
                f"concat({self._text(depth - 1)}, '/', {self._text(depth - 1)})",
            )
        )

    def _any(self) -> str:
        rng = self._rng
        made = (
            self._number,
            self._binary,
            self._text,
            self._condition,
            lambda: rng.choice(TIMES),
            lambda: rng.choice(LISTS),
            lambda: "headers",
            lambda: rng.choice(BINARIES + NUMBERS + TEXTS),
        )
        return rng.choice(made)()

    def _condition(self, depth: int = 2) -> str:
        rng = self._rng
        compared = rng.choice(COMPARED)
        simple: tuple[Callable[[], str], ...] = (
            lambda: f"offset {compared} {rng.choice(LITERALS)}",
            lambda: f"{rng.choice(LITERALS)} {compared} offset",
            lambda: f"`offset` BETWEEN {rng.choice(LITERALS)} AND {rng.choice(LITERALS)}",
            lambda: f"`offset` IN ({', '.join(rng.sample(LITERALS, 3))})",
            lambda: f"timestamp {compared} timestamp_millis({rng.choice(MOMENTS)})",
            lambda: f"timestamp {compared} timestamp_micros({rng.choice(MOMENTS) * 1000 + 1})",
            lambda: f"topic {rng.choice(('=', '<>', '>', '<='))} '{rng.choice(TOPICS)}'",
            lambda: f"topic IN ('{rng.choice(TOPICS)}', '{rng.choice(TOPICS)}')",
            lambda: f"topic LIKE '{rng.choice(('v%', '%x%', 'b_g', 'v2-%'))}'",
            lambda: f"partition {compared} {rng.choice((0, 1, 2, 7))}",
            lambda: rng.choice(FLAGS),
            lambda: f"leaderEpoch {compared} {rng.choice((0, 1, 2))}",
            lambda: (
                f"compression {rng.choice(('=', '<>'))} '{rng.choice(('none', 'zstd', 'lz4'))}'"
            ),
            lambda: f"broker {rng.choice(('=', '<>'))} '0'",
            lambda: f"key {compared} X'{rng.choice(('6B31', '6B', ''))}'",
            lambda: "exists(headers, h -> h.value IS NULL)",
        )
        if depth == 0 or rng.random() < 0.5:
            return rng.choice(simple)()
        left, right = self._condition(depth - 1), self._condition(depth - 1)
        return rng.choice(
            (
                f"({left} AND {right})",
                f"({left} OR {right})",
                f"NOT ({left})",
                f"{self._number(depth - 1)} {compared} {self._number(0)}",
                f"length({self._binary(depth - 1)}) {compared} {rng.choice((0, 3, 9))}",
            )
        )

    def _where(self) -> str:
        some = [self._condition() for _ in range(self._rng.choice((0, 1, 1, 2)))]
        return f"WHERE {' AND '.join(some)}" if some else ""

    # -- questions -------------------------------------------------------------------------------

    def _columns(self, most: int = 5) -> list[str]:
        return [self._any() for _ in range(self._rng.randint(1, most))]

    def _plain(self) -> tuple[str, bool]:
        return f"SELECT {_named(self._columns())} FROM t {self._where()}", False

    def _ordered(self) -> tuple[str, bool]:
        rng = self._rng
        columns = [self._number(1), *self._columns(3), "topic", "partition", "offset"]
        first = rng.choice(("offset", "timestamp", "topic", f"{self._number(1)}"))
        places = [f"{first} {rng.choice(('DESC', 'ASC', 'DESC NULLS LAST', 'ASC NULLS LAST'))}"]
        order = ", ".join([*places, "topic", "partition", "offset", "isControl"])
        limit = f"LIMIT {rng.choice((1, 2, 10, 100))}" + rng.choice(("", "", " OFFSET 3"))
        return f"SELECT {_named(columns)} FROM t {self._where()} ORDER BY {order} {limit}", True

    def _group(self) -> str:
        plain = ("topic", "partition", "compression", "leaderEpoch", "isTransactional", "key")
        some = self._rng.sample(plain, self._rng.randint(1, 2))
        return ", ".join([*some, *([self._number(1)] if self._rng.random() < 0.3 else [])])

    def _aggregate(self) -> str:
        number, binary = self._number(1), self._binary(1)
        return self._rng.choice(
            (
                "count(*)",
                f"count({binary})",
                f"sum(({number}) % 1000003)",
                f"min({number})",
                f"max({number})",
                f"min({binary})",
                f"max({self._text(1)})",
                f"count(DISTINCT {number})",
                f"count(*) FILTER (WHERE {self._condition(1)})",
                "min(timestamp)",
                "max(timestamp)",
                f"bit_xor(crc32({binary}))",
                "sum(size(headers))",
            )
        )

    def _grouped(self) -> tuple[str, bool]:
        group = self._group()
        made = [self._aggregate() for _ in range(self._rng.randint(1, 4))]
        having = self._rng.choice(("", "", "HAVING count(*) > 5"))
        text = f"SELECT {_named([*group.split(', '), *made])} FROM t {self._where()}"
        return f"{text} GROUP BY {group} {having}" if _flat(group) else self._extremes()[0], False

    def _extremes(self) -> tuple[str, bool]:
        """What might be answered by indexes and headers alone."""
        rng = self._rng
        kinds = ("count(*)", "min(offset)", "max(offset)", "min(timestamp)", "max(timestamp)")
        kinds += ("count(offset)", "count(timestamp)", "max(partition)", "min(topic)", "count(key)")
        made = rng.sample(kinds, rng.randint(1, 4))
        simple = (
            "",
            f"WHERE offset >= {rng.choice(LITERALS)}",
            f"WHERE timestamp < timestamp_millis({rng.choice(MOMENTS)})",
            f"WHERE timestamp >= timestamp_millis({rng.choice(MOMENTS)}) AND offset < 40000",
            f"WHERE topic = '{rng.choice(TOPICS)}' AND partition = 0",
        )
        group = rng.choice(
            ("", "GROUP BY topic", "GROUP BY partition", "GROUP BY topic, partition")
        )
        keys = group.removeprefix("GROUP BY ").split(", ") if group else []
        return f"SELECT {_named([*keys, *made])} FROM t {rng.choice(simple)} {group}", False

    def _joined(self) -> tuple[str, bool]:
        rng = self._rng
        kind = rng.choice(("JOIN", "LEFT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"))
        hint = rng.choice(("", "/*+ BROADCAST(b) */", "/*+ MERGE(b) */", "/*+ SHUFFLE_HASH(b) */"))
        shift = rng.choice((0, 1, -3))
        left = f"(SELECT * FROM t {self._where()}) a"
        right = f"(SELECT * FROM t {self._where()}) b"
        names = ("key", "value", "headers", "offset", "timestamp", "topic", "sequence")
        sides = ("a",) if "SEMI" in kind or "ANTI" in kind else ("a", "b")
        columns = [f"{rng.choice(sides)}.{name}" for name in rng.sample(names, 4)]
        on = "a.topic = b.topic AND a.partition = b.partition AND a.offset = b.offset + " + str(
            shift
        )
        return f"SELECT {hint} {_named(columns)} FROM {left} {kind} {right} ON {on}", False

    def _distinct(self) -> tuple[str, bool]:
        return f"SELECT DISTINCT {_named(self._columns(3))} FROM t {self._where()}", False

    def _set(self) -> tuple[str, bool]:
        kind = self._rng.choice(("UNION", "UNION ALL", "INTERSECT", "EXCEPT", "EXCEPT ALL"))
        columns = _named(self._columns(3))
        sides = [f"SELECT {columns} FROM t {self._where()}" for _ in range(2)]
        return f" {kind} ".join(sides), False

    def _exploded(self) -> tuple[str, bool]:
        kind = self._rng.choice(("explode(headers)", "explode_outer(headers)"))
        field = self._rng.choice(("h.key", "h.value", "h", "length(h.value)"))
        where = self._where()
        return f"SELECT topic, offset, {field} FROM t LATERAL VIEW {kind} AS h {where}", False

    def _windowed(self) -> tuple[str, bool]:
        window = "OVER (PARTITION BY topic, partition ORDER BY offset, isControl)"
        made = self._rng.choice(("lag({}, 1)", "lead({}, 2)", "first_value({})", "count({})"))
        column = made.format(self._any())
        return f"SELECT topic, offset, {column} {window} AS w FROM t {self._where()}", False


def _named(columns: list[str]) -> str:
    return ", ".join(f"{column} AS c{n}" for n, column in enumerate(columns))


def _flat(group: str) -> bool:
    """Whether its columns can be told apart by commas."""
    return "(" not in group and "CASE" not in group


def asked(frame: DataFrame, text: str, ordered: bool) -> Any:
    frame.createOrReplaceTempView("t")
    answer = frame.sparkSession.sql(text)
    return list(map(repr, answer.collect())) if ordered else digest(answer)
