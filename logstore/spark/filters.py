"""Filters that Spark pushes down, as ranges of offsets and times and as conditions on names."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from logstore.directory.columns import TIMESTAMP_MAX, TIMESTAMP_MIN
from logstore.format.reader import MAX_OFFSET

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)

_CONDITIONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, choice: value in choice,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: operator.contains,
}
_NAMES = ("topic", "partition", "broker")
"""Columns that are the same in a whole partition, and never null."""


@dataclass(slots=True)
class PushedFilters:
    """The part of the logs that the filters of a query leave to read.

    Offsets are exactly in ``[from_offset, end_offset)``, and times in ``[start_timestamp,
    end_timestamp)``, in ms; ``None`` means no bound. With ``no_null_time`` a record whose time is
    null in Spark is not wanted either: no comparison holds for null.
    """

    granularity: str = "record"
    from_offset: int = 0
    end_offset: int = MAX_OFFSET
    start_timestamp: int | None = None
    end_timestamp: int | None = None
    no_null_time: bool = False
    _on_names: list[Filter] = field(default_factory=list)

    def takes(self, **names: str | int) -> bool:
        """Whether a partition with these values of ``topic``, ``partition``, ``broker`` is wanted.

        Conditions on columns that are not given count as met.
        """
        return all(
            _meets(condition, names[_column(condition)])
            for condition in self._on_names
            if _column(condition) in names
        )

    def push(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Take over filters. Yields those that Spark still has to evaluate."""
        for condition in filters:
            if not self._narrow(condition):
                yield condition

    def _narrow(self, condition: Filter) -> bool:
        """Narrow what is read. Returns whether ``condition`` then holds for every row."""
        column = _column(condition)
        if column in _NAMES:
            if not _is_known(condition):
                return isinstance(condition, IsNotNull)
            self._on_names.append(condition)
            return True
        if self.granularity != "record":
            return False
        if column == "offset":
            return self._take_offset(condition)
        return column == "timestamp" and self._take_timestamp(condition)

    def _take_offset(self, condition: Filter) -> bool:
        if isinstance(condition, IsNotNull):
            return True  # offset is never null
        bounds = _range(condition, lambda value: (value, True) if _is_int(value) else None)
        if bounds is None:
            return False
        low, high = bounds
        if low is not None:
            self.from_offset = max(self.from_offset, low)
        if high is not None:
            self.end_offset = min(self.end_offset, max(high, 0))
        return not isinstance(condition, In)  # a range holds more than the offsets of a list

    def _take_timestamp(self, condition: Filter) -> bool:
        bounds: tuple[int | None, int | None] = None, None
        if not isinstance(condition, IsNotNull):
            found = _range(condition, _milliseconds)
            if found is None:
                return False
            bounds = found
        low, high = bounds
        if low is not None:
            known = self.start_timestamp
            self.start_timestamp = low if known is None else max(known, low)
        if high is not None:
            known = self.end_timestamp
            self.end_timestamp = high if known is None else min(known, high)
        self.no_null_time = True
        return not isinstance(condition, In)

    @property
    def times(self) -> tuple[int, int] | None:
        """The times ``[start, end)`` that are wanted, in ms; ``None`` for all, and null."""
        if not self.no_null_time:
            return None
        start, end = self.start_timestamp, self.end_timestamp
        return (
            TIMESTAMP_MIN if start is None else max(start, TIMESTAMP_MIN),
            TIMESTAMP_MAX + 1 if end is None else end,  # no value of Spark's is above
        )


def _column(condition: Filter) -> str:
    """The column of a filter; empty for a field inside one."""
    path = _plain(condition).attribute
    return path[0] if len(path) == 1 else ""


def _plain(condition: Filter) -> Any:
    return condition.child if isinstance(condition, Not) else condition


def _is_known(condition: Filter) -> bool:
    plain = _plain(condition)
    if type(plain) not in _CONDITIONS:
        return False
    values = plain.value if isinstance(plain, In) else (plain.value,)
    return all(isinstance(value, str) or _is_int(value) for value in values)


def _meets(condition: Filter, value: Any) -> bool:
    plain = _plain(condition)
    return _CONDITIONS[type(plain)](value, plain.value) != isinstance(condition, Not)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Microseconds:
    """A time since 1970, also one that no ``datetime`` can be."""

    value: int


def _milliseconds(value: Any) -> tuple[int, bool] | None:
    """The last millisecond that is not after a time, and whether it equals that time."""
    if isinstance(value, Microseconds):
        whole, more = divmod(value.value, 1000)
        return whole, not more
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    whole, rest = divmod(value - _EPOCH, _MS)
    return whole, not rest


def _range(
    condition: Filter, parse: Callable[[Any], tuple[int, bool] | None]
) -> tuple[int | None, int | None] | None:
    """The whole numbers ``[low, high)`` that may meet a condition; ``None`` for any number.

    ``parse`` gives a value's floor, and whether the value is whole.
    """
    if isinstance(condition, In):
        parsed = [parse(value) for value in condition.value]
        if not parsed or None in parsed:
            return None
        floors = [value[0] for value in parsed if value is not None]
        return min(floors), max(floors) + 1
    if type(condition) not in (
        EqualTo,
        EqualNullSafe,
        GreaterThan,
        GreaterThanOrEqual,
        LessThan,
        LessThanOrEqual,
    ):
        return None
    value = parse(condition.value)  # type: ignore[attr-defined]
    if value is None:
        return None
    floor, is_whole = value
    ceiling = floor if is_whole else floor + 1  # above ``floor`` no whole number equals the value
    match condition:
        case GreaterThan():
            return floor + 1, None
        case GreaterThanOrEqual():
            return ceiling, None
        case LessThan():
            return None, ceiling
        case LessThanOrEqual():
            return None, floor + 1
    return ceiling, floor + 1
