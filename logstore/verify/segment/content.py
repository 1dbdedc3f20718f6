"""Topics whose records have a form of their own: their checks are plugged in from above.

A check is an entry point of the group ``logstore.verify`` with the name of the topic. It is called
with a partition and the least number of partitions that the topic has, and gives what takes the
records of a segment in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial

from logstore.common.errors import CorruptBatchError
from logstore.common.types import Record
from logstore.format.header import parse_header
from logstore.format.reader import batch_records
from logstore.verify.common.batch_rules import MAGIC
from logstore.verify.common.header_table import HeaderTable
from logstore.verify.common.report import Problem, Severity

ENTRY_POINT_GROUP = "logstore.verify"
OF_COORDINATORS = frozenset(("__consumer_offsets", "__transaction_state"))

RecordCheck = Callable[[Record], Iterable[Problem]]

misplaced = partial(Problem, Severity.WARNING, "coordinator-partition")


def of_content(severity: Severity, message: str) -> Problem:
    """A problem of what is in a record."""
    return Problem(severity, "coordinator-record", message)


def record_check(topic: str, partition: int, partitions: int) -> RecordCheck | None:
    """The check of a topic's records; None if there is none."""
    plugged = _plugged(topic) if topic in OF_COORDINATORS else None
    return plugged and plugged(partition, partitions)


@cache
def _plugged(topic: str) -> Callable[[int, int], RecordCheck] | None:
    from importlib.metadata import entry_points  # 60 ms, needed by few

    points = entry_points(group=ENTRY_POINT_GROUP, name=topic)
    return next((point.load() for point in points), None)


def check_records_of(
    view: memoryview, table: HeaderTable, limit: int, check: RecordCheck
) -> Iterator[Problem]:
    """Pass the records of a table whose bytes lie in ``view`` to ``check``. Markers and messages
    of older formats are left out.
    """
    for row in table.rows():
        if row.magic != MAGIC or row.is_control or not row.record_count:
            continue
        batch = view[row.position - table.start : row.end - table.start]
        try:
            parsed = parse_header(batch)
            records = batch_records(batch, parsed, check_crc=False, decompressed_limit=limit)
        except CorruptBatchError:
            continue  # which has its own finding
        for record in records:
            for problem in check(record):
                yield problem._replace(position=row.position, offset=record.offset)
