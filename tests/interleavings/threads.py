"""The same mix with real threads on a real directory, under a switch interval of 1 µs.

    python -m tests.interleavings.threads --minutes 5

The scheduler of the explorer switches at locks and at the storage seam; here threads meet anywhere,
in native code too. A round lasts about a second and ends with a close beside everything else.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from logstore.common.config import LogConfig
from logstore.common.errors import LogClosedError, OffsetOutOfRangeError
from logstore.format.batch import encode_batch
from logstore.log import LogOwner, PartitionLog
from logstore.segments.producer_state import AppendOrigin
from tests.interleavings.judge import batch_spans
from tests.interleavings.witness import (
    NEVER,
    UNKNOWN,
    Answer,
    Broken,
    Life,
    Removal,
    Witness,
)
from tests.interleavings.world import RebuildWatch
from tests.support.builders import marker, produced
from tests.support.logs import check_invariants
from tests.support.until import patience

"""How long a round may go on after its end before it counts as a deadlock."""
ROUND_S = 0.8


class Round:
    """One log, its threads and what they saw."""

    def __init__(self, directory: Path, seed: int) -> None:
        rng = random.Random(seed)
        self.directory = directory
        self.seed = seed
        self.config = LogConfig(
            segment_bytes=rng.choice((2_000, 20_000, 200_000)),
            index_interval_bytes=rng.choice((0, 200, 4096)),
            segment_index_bytes=4096,
            retention_bytes=rng.choice((-1, 10_000)),
            file_delete_delay_ms=0,
            flush_messages=rng.choice((1, 5, 2**63 - 1)),
        )
        self.truncating = rng.random() < 0.7
        self.log = PartitionLog.open(str(directory), self.config)
        self.witness = Witness()
        self._now = int(time.time() * 1000)

    def run(self, seconds: float) -> None:
        """Raise ``Broken``, or what a thread met, if a promise was broken."""
        bodies: list[Callable[[random.Random], None]] = [
            self._append,
            self._append_ready,
            self._transact,
            self._read,
            self._read,
            self._iterate,
            self._look_up,
            self._flush,
            self._remove,
        ]
        threads = [
            threading.Thread(target=self._loop, args=(body, index), daemon=True)
            for index, body in enumerate(bodies)
        ]
        for thread in threads:
            thread.start()
        self.witness.stop.wait(seconds)
        beside = random.Random(self.seed).random() < 0.5
        if beside:
            self.log.close()
        self.witness.stop.set()
        for thread in threads:
            thread.join(patience())
            if thread.is_alive():
                faulthandler.dump_traceback(all_threads=True)
                raise Broken("deadlock: the stacks are above")
        self.witness.check()
        if not beside:
            self._check_content(self.log)
            end = self.log.log_end_offset
            start = self.log.log_start_offset
            self.log.close()
            again = PartitionLog.open(
                str(self.directory),
                self.config,
                owner=LogOwner(clean_shutdown=True, recovery_point=end, log_start_offset=start),
            )
            self._check_content(again)
            again.close()

    def _loop(self, body: Callable[[random.Random], None], index: int) -> None:
        rng = random.Random(self.seed * 100 + index)
        try:
            while not self.witness.stop.is_set():
                body(rng)
        except LogClosedError as error:
            if not self.log.failed:
                self._fail(error)
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.witness.failures.append(error)
        self.witness.stop.set()

    def _check_content(self, log: PartitionLog) -> None:
        content = [(r.offset, r.value or b"") for r in log.records()]
        self.witness.check_content(log.log_start_offset, content)
        check_invariants(log)

    # -- writers -------------------------------------------------------------------------------

    def _values(self, rng: random.Random, count: int) -> list[bytes]:
        width = rng.choice((0, 0, 30, 90))
        tick = self.witness.tick()
        values = [b"<%d.%d>" % (tick, i) + b"\xff\0" * width for i in range(count)]
        # Until the append returns, and if it never does, they may be anywhere.
        self.witness.lives.update((value, UNKNOWN._replace(called=tick)) for value in values)
        return values

    def _note(self, called: int, info: Any, batches: list[list[bytes]], aborted: bool) -> None:
        acknowledged = self.witness.tick()
        offset = info.first_offset
        for values in batches:
            last = offset + len(values) - 1
            for value in values:
                life = Life(offset, last, called, acknowledged, aborted)
                self.witness.lives[value] = life
                offset += 1
        limit = self.config.flush_messages
        point = self.log.recovery_point
        if limit == 1 and point < offset and not self.witness.removed_between(called, NEVER):
            raise Broken(f"acknowledged up to {offset}, recovery point {point}")

    def _append(self, rng: random.Random) -> None:
        values = self._values(rng, rng.randint(1, 5))
        called = self.witness.tick()
        info = self.log.append([(None, value, self._now) for value in values])
        self._note(called, info, [values], False)

    def _append_ready(self, rng: random.Random) -> None:
        batches = [self._values(rng, rng.randint(1, 3)) for _ in range(rng.randint(1, 3))]
        data = b"".join(
            bytes(encode_batch([(None, value, self._now) for value in values]))
            for values in batches
        )
        if len(data) > self.config.segment_bytes:
            return
        called = self.witness.tick()
        info = self.log.append_as_leader(data, 0)
        self._note(called, info, batches, False)

    def _transact(self, rng: random.Random) -> None:
        """A whole transaction of a producer of its own: a truncation cannot confuse its numbers."""
        producer = 1_000 + self.witness.tick()
        aborted = rng.random() < 0.6
        called = self.witness.tick()
        value = self._values(rng, 1)[0]
        info = self.log.append_as_leader(
            produced(producer, 0, 1, transactional=True, timestamp=self._now, value=value), 0
        )
        self.witness.transactional.add(info.first_offset)
        self._note(called, info, [[value]], aborted)
        end = marker(commit=not aborted, producer_id=producer, timestamp=self._now)
        try:
            info = self.log.append_as_leader(end, 0, AppendOrigin.COORDINATOR)
        except LogClosedError:  # after it was written, perhaps
            self.witness.gaps_known = False
            raise
        self.witness.controls.add(info.first_offset)

    def _flush(self, rng: random.Random) -> None:
        rng.choice((self.log.flush, self.log.roll, self.log.flusher.save_epochs))()
        time.sleep(0.001)

    def _remove(self, rng: random.Random) -> None:
        time.sleep(rng.choice((0.0, 0.002, 0.02)))
        log = self.log
        start, end = log.log_start_offset, log.log_end_offset
        kind = rng.random()
        if kind < 0.4:
            with suppress(OffsetOutOfRangeError):  # cut meanwhile
                log.delete_records(rng.randint(start, max(start, end - 5)))
        elif kind < 0.6:
            log.maintenance.delete_old_segments()
        elif self.truncating:
            everything = kind > 0.95
            target = end if everything else rng.randint(max(start, end - 30), end)
            called = self.witness.tick()
            # Noted before the call: who meets it must know of it.
            at = len(self.witness.removals)
            removal = Removal(called, NEVER, -1 if everything else target)
            self.witness.removals.append(removal)
            if everything:
                log.maintenance.truncate_fully_and_start_at(target)
            else:
                log.truncate_to(target)
            self.witness.removals[at] = removal._replace(returned=self.witness.tick())

    # -- readers -------------------------------------------------------------------------------

    def _read(self, rng: random.Random) -> None:
        log = self.log
        known = self.witness.tick()  # the position was in range after it
        start, end = log.log_start_offset, log.log_end_offset
        position = rng.randint(start, end)
        limit = rng.choice((NEVER, end, end))
        committed = rng.random() < 0.4
        size = rng.choice((200, 5_000, 1 << 20))
        called = self.witness.tick()
        start = log.log_start_offset
        try:
            fetched = log.read(
                position, size, up_to=None if limit == NEVER else limit, committed=committed
            )
        except OffsetOutOfRangeError:
            self._check_refused(known, position, end)
            return
        returned = self.witness.tick()
        what = f"read({position}, {size}, up_to={limit}, committed={committed})"
        bound = min(limit, fetched.log_end_offset)
        if committed:
            bound = min(bound, fetched.last_stable_offset)
        if any(base >= bound for base, _, _ in batch_spans(fetched.data)):
            raise Broken(f"{what}: bytes above {bound}")
        if position < start:
            raise Broken(f"{what}: answered below the log start {start}")
        records = tuple((r.offset, r.value or b"") for r in fetched.records())
        after = log.log_start_offset
        self.witness.answers.append(
            Answer(
                what,
                called,
                returned,
                position,
                limit,
                start,
                after,
                records,
                committed,
                not fetched.data,
            )
        )

    def _check_refused(self, known: int, position: int, end_before: int) -> None:
        returned = self.witness.tick()
        if self.log.log_start_offset > position or position > end_before:
            return
        if not self.witness.removed_between(known, returned):
            raise Broken(f"{position} out of range, and nothing was removed")

    def _iterate(self, rng: random.Random) -> None:
        log = self.log
        known = self.witness.tick()
        start, end = log.log_start_offset, log.log_end_offset
        position = rng.choice((start, rng.randint(start, end)))
        arrow = rng.random() < 0.3
        try:
            portions = (log.to_arrow if arrow else log.record_chunks)(position)
            while True:
                called, start = self.witness.tick(), log.log_start_offset
                portion: Any = next(portions, None)
                returned = self.witness.tick()
                records: tuple[tuple[int, bytes], ...] = ()
                if portion is not None and arrow:
                    columns = portion.to_pydict()
                    records = tuple(zip(columns["offset"], columns["value"], strict=True))
                elif portion is not None:
                    records = tuple((r.offset, r.value or b"") for r in portion)
                what = f"{'to_arrow' if arrow else 'record_chunks'} at {position}"
                after = log.log_start_offset
                self.witness.answers.append(
                    Answer(
                        what,
                        called,
                        returned,
                        position,
                        NEVER,
                        start,
                        after,
                        records,
                        ended=portion is None,
                    )
                )
                if portion is None or self.witness.stop.is_set():
                    return
                position, known = records[-1][0] + 1, called
        except OffsetOutOfRangeError:
            self._check_refused(known, position, end)

    def _look_up(self, rng: random.Random) -> None:
        log = self.log
        called = self.witness.tick()
        start, end = log.log_start_offset, log.log_end_offset
        with suppress(OffsetOutOfRangeError):
            kind = rng.random()
            if kind < 0.4:
                found = log.offset_for_timestamp(self._now)
                if found is not None and found.offset < start:
                    removed = self.witness.removed_between(called, self.witness.tick())
                    if not removed:
                        raise Broken(f"offset_for_timestamp: {found.offset} below {start}")
            elif kind < 0.7:
                log.reader.available_bytes(start, end)
            else:
                log.reader.aborted_transactions(start, end)


def run_rounds(directory: Path, seed: int, rounds: int, *, each: float = ROUND_S) -> None:
    """Raises what the first failing one found."""
    watch = RebuildWatch()
    logger = logging.getLogger("logstore")
    logger.addHandler(watch)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for count in range(rounds):
            path = directory / f"round{count}" / "t-0"
            path.parent.mkdir()
            try:
                Round(path, seed + count).run(each)
                if watch.seen:
                    raise Broken(watch.seen)
            except BaseException as error:
                error.add_note(f"seed {seed + count}; the files are in {path}")
                raise
    finally:
        sys.setswitchinterval(interval)
        logger.removeHandler(watch)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.interleavings.threads", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        rounds = int(options.minutes * 60 / ROUND_S)
        run_rounds(Path(directory), options.seed, rounds)
    print(f"{rounds} rounds from seed {options.seed}: nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
