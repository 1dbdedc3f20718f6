"""One run from a program and a strategy to a result."""

from __future__ import annotations

import gc
import logging
import random
from dataclasses import dataclass
from functools import partial

from logstore.common.config import LogConfig
from logstore.common.errors import LogClosedError, LogstoreError
from logstore.common.shield import unshielded
from logstore.log import PartitionLog
from logstore.testing.faulty import SimulatedCrash
from tests.interleavings.fine import steps_at_calls
from tests.interleavings.judge import batch_spans
from tests.interleavings.locks import explorer_locks
from tests.interleavings.model import Row, State
from tests.interleavings.program import OPERATIONS, Op, Program, Schedule
from tests.interleavings.reading import check_all
from tests.interleavings.scheduler import Found, Strategy
from tests.interleavings.world import ActorEnds, RebuildWatch, World, idle_files
from tests.interleavings.writing import Hands


@dataclass
class Result:
    """``found`` is None when every promise was kept."""

    found: Found | None
    steps: int
    switches: tuple[tuple[int, int], ...]
    trace: list[tuple[int, int, str]]


def execute(
    program: Program,
    strategy: Strategy,
    *,
    fine: bool = False,
    strict: bool = True,
    traced: bool = False,
) -> Result:
    """Run ``program`` under ``strategy``; ``fine`` as for ``Schedule``, ``strict`` for ``Disk``."""
    config = LogConfig(**dict(program.config))
    world = World(strategy, config, replicated=program.replicated, strict=strict)
    scheduler = world.scheduler
    scheduler.trace = [] if traced else None
    watch = RebuildWatch()
    logger = logging.getLogger("logstore")
    level, propagate = logger.level, logger.propagate
    logger.addHandler(watch)
    logger.propagate = False
    collecting = gc.isenabled()
    gc.disable()  # a finalizer at another moment would be another run
    found: Found | None = None
    try:
        with (
            unshielded(),  # actors are greenlets of one thread
            explorer_locks(scheduler),
            idle_files(program.idle_files),
            steps_at_calls(scheduler, fine),
        ):
            _run(world, program, watch)
    except Found as error:
        found = scheduler.found or error
        found.__traceback__ = None if not traced else error.__traceback__
    finally:
        world.release()
        logger.removeHandler(watch)
        logger.setLevel(level)
        logger.propagate = propagate
        if collecting:
            gc.enable()
    return Result(found, scheduler.step, tuple(scheduler.switches), scheduler.trace or [])


def execute_drawn(
    program: Program, schedule: Schedule, *, strict: bool = True, traced: bool = False
) -> Result:
    """Run ``program`` as ``schedule`` says."""
    strategy = schedule.strategy(program)
    return execute(program, strategy, fine=schedule.fine, strict=strict, traced=traced)


def _run(world: World, program: Program, watch: RebuildWatch) -> None:
    world.truncations = program.truncates
    world.begin()
    hands = Hands(9)
    for op in program.setup:
        _do(world, hands, op)
    if program.fault is not None:
        operation, glob, after, error = program.fault
        world.disk.fail(operation, glob, after=after, error=error)
    if program.power_cut is not None:
        world.disk.crash_after(program.power_cut)
    for index, ops in enumerate(program.actors):
        world.scheduler.spawn(partial(_act, world, index, ops))
    world.scheduler.run()
    if watch.seen and not world.disk.has_failed:
        raise Found("needless rebuild of an index", watch.seen)
    _end(world, program)


def _act(world: World, index: int, ops: tuple[Op, ...]) -> None:
    hands = Hands(index)
    try:
        for op in ops:
            _do(world, hands, op)
    except ActorEnds:
        return


def _do(world: World, hands: Hands, op: Op) -> None:
    OPERATIONS[op[0]](world, hands, *op[1:])


# -- after the actors ------------------------------------------------------------------------------


def _end(world: World, program: Program) -> None:
    disk, log = world.disk, world.log
    healthy = not disk.has_failed and not disk.stopped and not world.closing
    state = world.model.now
    disk.heal()
    if healthy:
        check_all(world, log, state, "when all is quiet")
    in_flight = world.removal_in_flight
    clean = False
    disk.checking = False
    if disk.stopped or program.ending != "close":
        mode = program.ending if program.ending != "close" else "all_lost"
        disk.crash(random.Random(1), mode)  # type: ignore[arg-type]
    elif healthy:
        log.close()
        clean = True
    else:
        log.crash()
    try:
        again = world.open(
            clean_shutdown=clean,
            recovery_point=state.end if clean else 0,
            log_start_offset=state.start,
        )
    except (LogstoreError, OSError, ValueError) as error:
        raise Found("content after a restart", f"cannot open: {error!r}") from error
    try:
        _check_again(world, again, state, complete=clean, in_flight=in_flight)
    except (LogClosedError, SimulatedCrash) as error:
        raise Found("content after a restart", repr(error)) from error
    finally:
        again.crash()


def _check_again(
    world: World, log: PartitionLog, state: State, *, complete: bool, in_flight: bool
) -> None:
    """What a restart finds: all that is durable, in order, and nothing that never was."""
    if world.replicated:
        log.replica.update_high_watermark(log.log_end_offset)
    start, end = log.log_start_offset, log.log_end_offset
    if complete and not _same_range(start, end, state):
        raise Found("content after a restart", f"[{start}, {end}) for {state.numbers()}")
    records = [Row(r.offset, r.value or b"", r.timestamp) for r in log.records()]
    lived = {row for seen in world.model.states for batch in seen.batches for row in batch.rows}
    for row in records:
        if row not in lived:
            raise Found("content after a restart", f"{row} was never in the log")
    if in_flight:
        return
    held = set(records)
    lost = [
        row
        for row in state.rows(state.start, state.end)
        if row.value in world.model.known_durable and row not in held
    ]
    if lost:
        raise Found("durable records lost", f"{lost} of {state.numbers()}; end {end}")
    batches = tuple(batch for batch in state.batches if batch.last < end)
    found = State(start, end, log.high_watermark, log.last_stable_offset, batches)
    if complete or _spans(log) == [(b.base, b.last, b.size) for b in found.from_offset(start)]:
        check_all(world, log, found, "after a restart")


def _same_range(start: int, end: int, state: State) -> bool:
    """An end in a gap, where a follower was cut, is not known to the files."""
    last = state.batches[-1].last + 1 if state.batches else 0
    return start == state.start and (end == state.end or last <= end < state.end != last)


def _spans(log: PartitionLog) -> list[tuple[int, int, int]]:
    spans: list[tuple[int, int, int]] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        more = batch_spans(log.read(offset).data)
        if not more:
            break
        spans += more
        offset = spans[-1][1] + 1
    return spans
