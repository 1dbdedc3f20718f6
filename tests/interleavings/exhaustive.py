"""Every schedule of two actors with few steps, up to a number of preemptions.

Most races need one or two switches at the wrong moment. Each pair below brings two operations
together that share something, on a log small enough that all schedules can be run.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.interleavings.program import Op, Program
from tests.interleavings.run import execute
from tests.interleavings.scheduler import Found
from tests.interleavings.strategies import every_way

_SETUP: tuple[Op, ...] = (
    ("append", 2, 10, 3),
    ("append", 1, 110, 5),
    ("append", 3, 60, 9),
    ("append", 2, 0, 7),
)


def _pair(
    one: tuple[Op, ...],
    other: tuple[Op, ...],
    *,
    setup: tuple[Op, ...] = _SETUP,
    replicated: bool = False,
    fault: tuple[str, str, int, int] | None = None,
    **config: int,
) -> Program:
    settings = {
        "segment_bytes": 6000,
        "index_interval_bytes": 0,
        "segment_index_bytes": 1200,
        "retention_ms": -1,
        "file_delete_delay_ms": 0,
        **config,
    }
    return Program(
        tuple(settings.items()), replicated, setup, (one, other), fault=fault, ending="all_lost"
    )


_TRANSACTIONS: tuple[Op, ...] = (
    ("append", 1, 0, 0),
    ("transact", 2, 10),
    ("append", 1, 0, 2),
    ("end_transaction", False),
    ("append", 2, 0, 4),
    ("transact", 1, 10),
)

PAIRS: dict[str, Program] = {
    "read up to the watermark, append": _pair(
        (("read", 0, "hw", 1 << 20),), (("append", 1, 60, 1),)
    ),
    "committed read, transaction": _pair(
        (("read", 0, "committed", 1 << 20),),
        (("transact", 1, 0), ("end_transaction", False)),
        setup=_TRANSACTIONS,
    ),
    "read, truncate and append": _pair(
        (("read", 700, "", 200),), (("truncate_to", 300), ("append", 3, 110, 1))
    ),
    "read by limit, truncate and append": _pair(
        (("read", 300, "hw", 1 << 20),), (("truncate_to", 600), ("append", 3, 10, 1))
    ),
    "lookup by timestamp, truncate and append": _pair(
        (("find_timestamp", 7),), (("truncate_to", 300), ("append", 3, 110, 8))
    ),
    "available bytes, append": _pair((("available_bytes", 300, 1000),), (("append", 1, 60, 1),)),
    "chunks, delete records and segments": _pair(
        (("iterate", "chunks", 0, False, 4),),
        (("delete_records", 800), ("retain",), ("purge",)),
        segment_bytes=300,
    ),
    "records, truncate and append": _pair(
        (("iterate", "records", 300, False, 4),), (("truncate_to", 500), ("append", 2, 60, 1))
    ),
    "flush, roll": _pair((("flush", 1001),), (("append", 2, 60, 1), ("roll",))),
    "flush beside one that fails": _pair(
        (("append", 1, 0, 1), ("flush", 1001)),
        (("flush", 1001),),
        fault=("sync", "*.log", 0, 5),
    ),
    "flush by count, flush": _pair((("flush", 1001),), (("append", 1, 0, 1),), flush_messages=1),
    "flush by count, truncate": _pair(
        (("append", 1, 0, 1), ("append", 1, 0, 2)), (("truncate_to", 500),), flush_messages=1
    ),
    "roll, retention": _pair(
        (("append", 3, 110, 1),), (("retain",),), segment_bytes=400, retention_bytes=0
    ),
    "retention, retention": _pair(
        (("retain",), ("append", 1, 0, 1)), (("retain",),), segment_bytes=300, retention_bytes=0
    ),
    "roll, truncate": _pair((("append", 3, 110, 1),), (("truncate_to", 300),), segment_bytes=500),
    "append, close": _pair((("append", 2, 60, 1), ("read", 0, "", 200)), (("close",),)),
    "iterate, close": _pair((("iterate", "chunks", 0, False, 3),), (("close",),)),
    "follow, append": _pair(
        (("follow", 900, False, 4),), (("append", 1, 0, 1), ("append", 2, 9, 1))
    ),
    "follow, truncate and append": _pair(
        (("follow", 600, False, 4),), (("truncate_to", 700), ("append", 2, 60, 1))
    ),
    "follow, watermark": _pair(
        (("follow", 0, False, 4),),
        (("advance_watermark", 400), ("advance_watermark", 1000)),
        replicated=True,
    ),
    "follow, close": _pair((("follow", 1000, False, 2),), (("append", 1, 0, 1), ("close",))),
    "append and sync, append and sync": _pair(
        (("append_synced", 1, 0, 1),), (("append_synced", 2, 0, 1), ("roll",))
    ),
    "append, append": _pair(
        (("append", 1, 10, 1), ("append", 1, 10, 1)), (("append_as_leader", (1, 2), 0, 2),)
    ),
    "abort, write of its index entry fails": _pair(
        (("transact", 1, 0), ("end_transaction", False)),
        (("read", 0, "committed", 1 << 20),),
        fault=("write", "*.txnindex", 0, 5),
    ),
}


@dataclass
class Outcome:
    """``complete``: all schedules within the bound were run."""

    schedules: int
    complete: bool
    found: Found | None = None
    switches: tuple[tuple[int, int], ...] = ()


def explore(program: Program, preemptions: int, *, limit: int, strict: bool = True) -> Outcome:
    """Run every schedule with at most so many preemptions, or ``limit`` of them."""
    count = 0
    for strategy in every_way(preemptions):
        if count == limit:
            return Outcome(count, False)
        count += 1
        result = execute(program, strategy, strict=strict)
        if result.found is not None:
            return Outcome(count, False, result.found, result.switches)
    return Outcome(count, True)
