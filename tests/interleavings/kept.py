"""Cases that once failed: on the log as it was with two locks, or on the way to this one.

The name says what broke. Programs are kept as values, so they survive a change of what seeds draw.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.interleavings.program import Program, Schedule

_SMALL = (("segment_bytes", 400), ("segment_index_bytes", 1200), ("retention_ms", -1))
_LARGE = (("segment_bytes", 6000), ("segment_index_bytes", 1200), ("retention_ms", -1))


class Case(NamedTuple):
    program: Program
    schedule: Schedule


KEPT: dict[str, Case] = {
    "a read takes the live size of the segment": Case(
        Program(
            (*_LARGE, ("index_interval_bytes", 100)),
            True,
            (),
            (
                (("read", 897, "", 1 << 20),),
                (
                    ("append_as_follower", (3, 2, 3), 10, 13),
                    ("append_as_follower", (2, 3, 1), 60, 5),
                ),
            ),
        ),
        Schedule("recorded", ((1, 1), (35, 0), (38, 1))),
    ),
    "a roll between the settling before a cut and the cut": Case(
        Program(
            _SMALL,
            False,
            (),
            ((("append", 1, 60, 5), ("roll",)), (("truncate_to", 201), ("truncate_to", 118))),
        ),
        Schedule("recorded", ((47, 1),)),
    ),
    "a lookup in a segment without files yet": Case(
        Program(_LARGE, True, (), ((("find_timestamp", 0),), (("start_at", -3),))),
        Schedule("recorded", ((1, 1), (27, 0))),
    ),
    "files let go under a roll": Case(
        Program(
            (*_LARGE, ("preallocate", True), ("flush_messages", 1)),
            False,
            (),
            ((("append", 3, 10, 3), ("roll",)), (("crash",),)),
        ),
        Schedule("recorded", ((22, 1), (24, 0), (93, 1))),
    ),
    "a commit that cannot wait for its flush": Case(
        Program(
            (*_SMALL, ("flush_messages", 1)),
            False,
            (("end_transaction", False),),
            ((("transact", 1, 40), ("end_transaction", True)), (("crash",),)),
        ),
        Schedule("recorded", ((23, 1),)),
    ),
    "a watermark that falls between retention's decision and its act": Case(
        Program(
            (*_SMALL, ("retention_bytes", 0)),
            True,
            (("append_as_follower", (3,), 60, 5),),
            ((("set_watermark", 1000), ("set_watermark", 418)), (("retain",),)),
        ),
        Schedule("recorded", ((7, 1), (63, 0))),
    ),
}
