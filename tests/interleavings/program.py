"""What actors do, as plain values: drawn from a seed, printed, shrunk and kept as text."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.interleavings import following, reading, writing
from tests.interleavings.scheduler import Strategy
from tests.interleavings.strategies import Aimed, Priorities, Recorded, Walk

Op = tuple[Any, ...]
"""The name of an operation in ``OPERATIONS``, and its arguments."""

OPERATIONS: dict[str, Callable[..., None]] = {
    call.__name__: call
    for call in (
        writing.append,
        writing.append_as_leader,
        writing.append_as_follower,
        writing.transact,
        writing.end_transaction,
        writing.roll,
        writing.flush,
        writing.truncate_to,
        writing.start_at,
        writing.delete_records,
        writing.retain,
        writing.purge,
        writing.regroup,
        writing.advance_watermark,
        writing.set_watermark,
        writing.reconfigure,
        writing.close,
        writing.crash,
        reading.read,
        reading.iterate,
        reading.find_timestamp,
        reading.available_bytes,
        reading.aborted_transactions,
        writing.append_synced,
        following.follow,
    )
}

TRUNCATIONS = ("truncate_to", "start_at")


@dataclass(frozen=True)
class Schedule:
    """``kind`` with its numbers: ``aimed`` (seed, changes), ``pct`` (seed, steps, changes),
    ``walk`` (seed, per mille), ``recorded`` (pairs of step and actor). ``fine``: with a step at
    every call inside the log."""

    kind: str
    numbers: tuple[Any, ...]
    fine: bool = False

    def strategy(self, program: Program) -> Strategy:
        lengths = [len(ops) for ops in program.actors]
        if self.kind == "aimed":
            seed, changes = self.numbers
            return Aimed(random.Random(seed), lengths, changes, longer=4 if self.fine else 1)
        if self.kind == "pct":
            seed, steps, changes = self.numbers
            return Priorities(random.Random(seed), len(lengths), steps, changes)
        if self.kind == "walk":
            seed, per_mille = self.numbers
            return Walk(random.Random(seed), per_mille / 1000)
        return Recorded(self.numbers)


@dataclass(frozen=True)
class Program:
    """A log's configuration, what happened before, what the actors do, and how it ends.

    ``fault`` is an operation of the storage seam, a pattern of paths, how many succeed before, and
    an ``errno``; ``power_cut`` a number of changes after which the machine goes down. ``ending``
    follows when all actors are done: ``close``, or a power cut in the mode ``all_lost``,
    ``all_kept`` or ``random``. ``idle_files``: how many files that nobody holds may stay open.
    """

    config: tuple[tuple[str, Any], ...]
    replicated: bool
    setup: tuple[Op, ...]
    actors: tuple[tuple[Op, ...], ...]
    fault: tuple[str, str, int, int] | None = None
    power_cut: int | None = None
    ending: str = "close"
    idle_files: int = 1024

    @property
    def truncates(self) -> bool:
        return any(op[0] in TRUNCATIONS for ops in (self.setup, *self.actors) for op in ops)

    def text(self) -> str:
        lines = [
            "Program(",
            f"    config={self.config!r},",
            f"    replicated={self.replicated},",
            "    setup=(",
            *(f"        {op!r}," for op in self.setup),
            "    ),",
            "    actors=(",
        ]
        for ops in self.actors:
            lines += ["        (", *(f"            {op!r}," for op in ops), "        ),"]
        lines += ["    ),"]
        if self.fault is not None:
            lines.append(f"    fault={self.fault!r},")
        if self.power_cut is not None:
            lines.append(f"    power_cut={self.power_cut},")
        lines += [f"    ending={self.ending!r},", f"    idle_files={self.idle_files},", ")"]
        return "\n".join(lines)


class Drawer:
    """Draws a program. Each seed uses a few of the operations much and the others not at all."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def program(self) -> Program:
        return self._focused() if self.rng.random() < 0.4 else self._mixed()

    def _focused(self) -> Program:
        """One kind of reading beside one kind of change, on a log that holds something."""
        rng = self.rng
        replicated = rng.random() < 0.25
        writers = self._subset(self._writers(replicated, False), 1, 2)
        changes = [*writers, *self._subset(self._removers(), 0, 1)]
        readers = self._subset(self._readers(), 1, 1)
        actors = [
            tuple(rng.choice(changes)() for _ in range(rng.randint(1, 5))),
            tuple(rng.choice(readers)() for _ in range(rng.randint(1, 3))),
        ]
        if rng.random() < 0.2:
            actors.append(tuple(rng.choice(changes)() for _ in range(rng.randint(1, 3))))
        setup = tuple(("append", *self._shape()) for _ in range(rng.randint(2, 10)))
        if replicated:
            setup = (*setup, ("advance_watermark", rng.choice((500, 1000))))
        ending = rng.choice(("close", "all_lost"))
        return Program(self._config(), replicated, setup, tuple(actors), ending=ending)

    def _mixed(self) -> Program:
        """Several actors with several kinds of operations, perhaps on a disk that fails."""
        rng = self.rng
        replicated = rng.random() < 0.4
        follower = replicated and rng.random() < 0.4
        config = self._config()
        writers = self._subset(self._writers(replicated, follower), 2, 4)
        readers = self._subset(self._readers(), 1, 3)
        removers = self._subset(self._removers(), 1, 2) if rng.random() < 0.75 else []
        count = rng.choice((2, 2, 3, 3, 4))
        actors = []
        for index in range(count):
            choices = {0: writers, 1: readers}.get(index) or rng.choice(
                [writers, readers, removers or readers, [*writers, *readers, *removers]]
            )
            if index == 1 and rng.random() < 0.2:
                choices = [*writers, *removers]
            actors.append(tuple(rng.choice(choices)() for _ in range(rng.randint(1, 8))))
        if rng.random() < 0.12:
            at = rng.randrange(count)
            actors[at] = (*actors[at], (rng.choice(("close", "close", "crash")),))
        setup = tuple(rng.choice(writers)() for _ in range(rng.randint(0, 14)))
        fault, power_cut = self._mishap()
        ending = rng.choice(("close", "all_lost", "random", "all_kept"))
        return Program(config, replicated, setup, tuple(actors), fault, power_cut, ending)

    def schedule(self, program: Program) -> Schedule:
        rng = self.rng
        kind = rng.random()
        if kind < 0.6:
            numbers = (rng.getrandbits(32), rng.randint(1, 4))
            return Schedule("aimed", numbers, fine=rng.random() < 0.4)
        if kind < 0.75:
            return Schedule("walk", (rng.getrandbits(32), rng.choice((20, 60, 200, 500))))
        steps = 16 * sum(len(ops) for ops in program.actors)
        return Schedule("pct", (rng.getrandbits(32), steps, rng.randint(1, 5)))

    def modernized(self, program: Program) -> Program:
        """Some operations replaced by those that came later."""

        def other(op: Op) -> Op:
            name, *arguments = op
            if name == "append" and self.rng.random() < 0.15:
                return ("append_synced", *arguments)
            if name in ("iterate", "read") and self.rng.random() < 0.12:
                return ("follow", self._place(), self.rng.random() < 0.3, self.rng.randint(1, 6))
            return op

        actors = tuple(tuple(map(other, ops)) for ops in program.actors)
        return replace(program, actors=actors, idle_files=self.rng.choice((0, 1, 1024, 1024)))

    def _config(self) -> tuple[tuple[str, Any], ...]:
        rng = self.rng
        flush = rng.choice((None, None, None, 1, 1, 2, 5))
        return (
            ("segment_bytes", rng.choice((400, 800, 1600, 6000))),
            ("index_interval_bytes", rng.choice((0, 100, 300, 4096))),
            ("segment_index_bytes", rng.choice((120, 1200, 1200))),
            ("retention_ms", -1),
            ("retention_bytes", rng.choice((-1, 0, 400, 1200))),
            ("file_delete_delay_ms", rng.choice((0, 60_000))),
            ("preallocate", rng.random() < 0.1),
            *([("flush_messages", flush)] if flush else []),
        )

    def _mishap(self) -> tuple[tuple[str, str, int, int] | None, int | None]:
        rng = self.rng
        kind = rng.random()
        if kind < 0.80:
            return None, None
        if kind < 0.88:
            return None, rng.randint(1, 60)
        operation, glob = rng.choice(
            (
                ("write", "*.txnindex"),
                ("write", "*.txnindex"),
                ("write", "*.log"),
                ("sync", "*.log"),
                ("sync_dir", "*"),
                ("read", "*.log"),
                ("open", "*"),
                ("rename", "*"),
                ("truncate", "*"),
            )
        )
        after = 0 if glob == "*.txnindex" else rng.randint(0, 12)
        return (operation, glob, after, rng.choice((errno.EIO, errno.ENOSPC))), None

    def _subset(self, choices: list[Any], low: int, high: int) -> list[Any]:
        return self.rng.sample(choices, min(len(choices), self.rng.randint(low, high)))

    def _place(self) -> int:
        return self.rng.choice(
            (0, 0, 1000, 1000, self.rng.randint(1, 999), self.rng.randint(1, 999))
        )

    def _shape(self) -> tuple[int, int, int]:
        rng = self.rng
        return rng.randint(1, 4), rng.choice((0, 10, 60, 110)), rng.randint(0, 20)

    def _batches(self) -> tuple[tuple[int, ...], int, int]:
        rng = self.rng
        counts = tuple(rng.randint(1, 3) for _ in range(rng.choice((1, 1, 2, 3))))
        return counts, rng.choice((0, 10, 60)), rng.randint(0, 20)

    def _writers(self, replicated: bool, follower: bool) -> list[Callable[[], Op]]:
        rng = self.rng
        if follower:
            return [
                lambda: ("append_as_follower", *self._batches()),
                lambda: ("append_as_follower", *self._batches()),
                lambda: ("set_watermark", self._place()),
                lambda: ("roll",),
                lambda: ("flush", 1001),
            ]
        choices: list[Callable[[], Op]] = [
            lambda: ("append", *self._shape()),
            lambda: ("append", *self._shape()),
            lambda: ("append_as_leader", *self._batches()),
            lambda: ("transact", rng.randint(1, 3), rng.choice((0, 40))),
            lambda: rng.choice(
                (
                    ("transact", rng.randint(1, 3), rng.choice((0, 40))),
                    ("end_transaction", rng.random() < 0.3),
                )
            ),
            lambda: ("roll",),
            lambda: ("flush", rng.choice((1001, 1001, self._place()))),
        ]
        if replicated:
            choices += [
                lambda: ("advance_watermark", rng.choice((1000, self._place()))),
                lambda: ("advance_watermark", rng.choice((1000, self._place()))),
            ]
        return choices

    def _readers(self) -> list[Callable[[], Op]]:
        rng = self.rng
        outside = lambda: rng.choice((self._place(), self._place(), self._place(), -1, 1001))  # noqa: E731
        size = lambda: rng.choice((1, 200, 1 << 20, 1 << 20))  # noqa: E731
        return [
            lambda: ("read", outside(), "", size()),
            lambda: ("read", outside(), "hw", size()),
            lambda: ("read", self._place(), "committed", size()),
            lambda: ("read", self._place(), "committed hw", size()),
            lambda: (
                "iterate",
                rng.choice(("records", "chunks", "arrow")),
                outside(),
                rng.random() < 0.3,
                rng.randint(1, 6),
            ),
            lambda: (
                "iterate",
                rng.choice(("records", "chunks", "arrow")),
                self._place(),
                rng.random() < 0.3,
                rng.randint(1, 6),
            ),
            lambda: ("find_timestamp", rng.choice((-1, -2, -3, *range(0, 22, 2)))),
            lambda: ("available_bytes", self._place(), self._place()),
            lambda: ("aborted_transactions", self._place(), self._place()),
        ]

    def _removers(self) -> list[Callable[[], Op]]:
        rng = self.rng
        return [
            lambda: ("truncate_to", self._place()),
            lambda: ("truncate_to", rng.randint(1, 999)),
            lambda: ("start_at", rng.choice((-3, 0, 0, 5))),
            lambda: ("delete_records", self._place()),
            lambda: ("delete_records", rng.randint(1, 999)),
            lambda: ("retain",),
            lambda: ("retain",),
            lambda: ("purge",),
            lambda: ("reconfigure", rng.choice((400, 1600)), rng.choice((-1, 0, 400))),
        ]


def draw(seed: int, *, plain: bool = False) -> tuple[Program, Schedule]:
    """The program and the schedule of a seed; ``plain`` leaves out what the log of commit 97b23b6
    did not have, and is the same otherwise."""
    drawer = Drawer(random.Random(seed))
    program = drawer.program()
    schedule = drawer.schedule(program)
    if plain:
        return program, replace(schedule, fine=False)
    regrouping = random.Random(f"regroup {seed}")  # the other draws stay what they were
    return with_regroups(drawer.modernized(program), regrouping), schedule


def with_regroups(program: Program, rng: random.Random) -> Program:
    """Some of what takes segments out, or flushes, is what a cleaner does instead."""

    def other(op: Op) -> Op:
        replaced = op[0] in ("retain", "purge", "flush", "reconfigure") and rng.random() < 0.4
        return ("regroup",) if replaced else op

    return replace(program, actors=tuple(tuple(map(other, ops)) for ops in program.actors))
