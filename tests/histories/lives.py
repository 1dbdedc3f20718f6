"""A search for something that outlives its log: everything of a run follows from one seed.

Topics are created, written, cut, deleted and created again, under the same few names, while the
process is killed or the power fails at any operation of the disk, also during a restart. After each
restart every log must be what one life of its name may have left.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable

from logstore.common.config import LogConfig
from logstore.common.random_id import new_uuid
from logstore.common.types import TopicPartition
from logstore.log import PartitionLog
from logstore.manager import LogManager, ManagerOwner
from logstore.testing import FaultyStorage, ManualClock, SimulatedCrash
from logstore.testing.faulty import CrashMode
from tests.histories.history import Run, history
from tests.histories.lives_model import Candidates, Life

NAMES = ("t", "u")
PARTITIONS = 2
TPS = [TopicPartition(name, p) for name in NAMES for p in range(PARTITIONS)]
MODES: tuple[CrashMode, ...] = ("all_kept", "all_kept", "all_lost", "random")
DEFAULT = LogConfig(
    retention_ms=-1, segment_bytes=400, segment_index_bytes=120, file_delete_delay_ms=1000
)


@history
def run(found: Run) -> None:
    search = Search(random.Random(found.seed), found)
    try:
        search.go(40)
    finally:
        search.release()


class Search:
    def __init__(self, rng: random.Random, found: Run) -> None:
        self.rng = rng
        self.run = found
        self.storage = FaultyStorage()
        self.clock = ManualClock()
        self.directories = ("/a", "/b")[: rng.choice((1, 1, 2))]
        self.replicated = rng.random() < 0.5
        self.inline = rng.random() < 0.7
        self.later: list[Callable[[], None]] = []
        self.manager: LogManager | None = None
        self.names: dict[TopicPartition, Candidates] = {tp: [None] for tp in TPS}
        self.whole: list[TopicPartition] = []  # all of them must be there, or none
        self.count = 0
        self.focus = TPS[0]  # most steps are about one log: what goes wrong takes several
        self.steps: dict[Callable[[], str], int] = {
            self.create: 4,
            self.create_one: 2,
            self.add_partitions: 1,
            self.append: 14,
            self.flush: 5,
            self.roll: 2,
            self.delete_records: 5,
            self.raise_high_watermark: 4,
            self.checkpoint: 7,
            self.truncate: 2,
            self.restart_log: 2,
            self.delete: 4,
            self.delete_topic: 2,
            self.alter: 2,
            self.work_later: 2,
            self.wait: 2,
            self.restart: 1,
            self.live_again: 5,
            self.half_deleted: 1,
            self.cut_and_grow: 4,
            self.checkpoint_deletion: 4,
        }
        self.crash_share = rng.choice((0.02, 0.06, 0.25))

    # -- the run -------------------------------------------------------------------------------

    def go(self, steps: int) -> None:
        self.open()
        for _ in range(steps):
            if self.rng.random() < self.crash_share:
                self.storage.crash_after(self.rng.randint(1, 14))
            try:
                step = self.rng.choices([*self.steps], [*self.steps.values()])[0]
                self.do(step)
            except SimulatedCrash as crash:
                self.note(f"{step.__name__}: crash {crash}")
                self.crash()
                if self.rng.random() < 0.5:  # before anything rewrites what the crash left
                    first = self.rng.choice((self.create, self.append, self.append))
                    self.do(first, self.append)
                    self.crash()
                continue
            if self.rng.random() < self.crash_share / 2:
                self.crash()
        self.crash()

    def do(self, *steps: Callable[[], str]) -> None:
        for step in steps:
            self.note(step())
            self.run.done[step.__name__] += 1
            self.learn()

    def note(self, text: str) -> None:
        self.run.trace.append(text)

    def open(self) -> None:
        def later(task: Callable[[], None]) -> None:
            if self.inline:
                task()
            else:
                self.later.append(task)

        self.later.clear()
        self.manager = LogManager(
            self.directories,
            DEFAULT,
            storage=self.storage,
            clock=self.clock,
            owner=ManagerOwner(
                cluster_id="c", run_later=later, replicated=self.replicated, random_id=self.new_id
            ),
        )

    def new_id(self) -> str:
        return f"{self.rng.getrandbits(128):032x}"

    def release(self) -> None:
        if self.manager is not None:
            self.manager.crash()
            self.manager = None

    def crash(self) -> None:
        """Take the machine down, perhaps again while it starts, and compare."""
        killed = True
        while True:
            mode = self.rng.choice(MODES)
            killed = killed and mode == "all_kept"
            self.note(f"-- {mode}")
            self.run.done["crashes"] += 1  # a step of this kind may be several
            self.storage.crash(self.rng, mode)
            self.release()
            if self.rng.random() < 0.3:
                self.storage.crash_after(self.rng.randint(1, 12))
            try:
                self.open()
                break
            except SimulatedCrash as crash:
                self.note(f"crash in a start {crash}")
        self.storage.heal()
        self.compare(killed)

    def compare(self, killed: bool) -> None:
        assert self.manager is not None
        logs = self.manager.logs
        here = {tp in logs for tp in self.whole}
        assert len(here) < 2, f"a creation was left half done: {sorted(map(str, logs))}"
        for tp, candidates in self.names.items():
            log = logs.get(tp)
            if log is None:
                assert None in candidates, f"{tp} is gone"
                self.names[tp] = [None]
                continue
            wrong = []
            for life in candidates:
                if life is None:
                    continue
                faults = life.faults(log, killed=killed, replicated=self.replicated)
                if not faults:
                    # A cut that only the cache knows of may still be lost with the power.
                    ghosts = [g for g in candidates if g is not life and killed and g is not None]
                    self.names[tp] = [life.adopt(log, killed=killed), *ghosts]
                    break
                wrong.append("; ".join(faults))
            else:
                raise AssertionError(
                    f"{tp} should not be here" if not wrong else f"{tp}: " + " | ".join(wrong)
                )
        self.whole = []
        for name in NAMES:
            marks = {log.config.retention_ms for tp, log in logs.items() if tp.topic == name}
            assert len(marks) < 2, f"the partitions of {name} differ in their configuration"

    def learn(self) -> None:
        """Take over what was flushed by the way."""
        for tp, log in self.logs().items():
            life = self.names[tp][0]
            assert life is not None
            if log.recovery_point > log.log_start_offset:
                life.flushed = max(life.flushed, log.recovery_point)

    # -- help ----------------------------------------------------------------------------------

    def logs(self) -> dict[TopicPartition, PartitionLog]:
        assert self.manager is not None
        return self.manager.logs

    def pick(self) -> tuple[TopicPartition, PartitionLog, Life] | None:
        found = sorted(self.logs())
        if not found:
            return None
        if self.focus not in found or self.rng.random() < 0.15:
            self.focus = self.rng.choice(found)
        life = self.names[self.focus][0]
        assert life is not None
        return self.focus, self.logs()[self.focus], life

    def mark(self) -> int:
        self.count += 1
        return 10_000 + self.count

    # -- names ---------------------------------------------------------------------------------

    def create(self) -> str:
        assert self.manager is not None
        free = [name for name in NAMES if not any(tp.topic == name for tp in self.logs())]
        if not free:
            return "no name is free"
        name, count = self.rng.choice(free), self.rng.randint(1, PARTITIONS)
        tps = [TopicPartition(name, p) for p in range(count)]
        mark = DEFAULT.retention_ms if self.replicated else self.mark()
        state = self.rng.getstate()
        topic_id = new_uuid(self.new_id)  # the manager asks the same source
        self.rng.setstate(state)
        self.whole = tps
        for tp in tps:
            self.names[tp] = [None, Life(topic_id, mark)]
        config = None if self.replicated else {"retention.ms": str(mark)}
        logs = self.manager.create_topic(name, count, config)
        self.whole = []
        for tp, log in zip(tps, logs, strict=True):
            assert log.topic_id == topic_id
            self.names[tp] = [Life(topic_id, mark)]
        return f"create {name} with {count}: {topic_id}"

    def create_one(self) -> str:
        """As a broker does: with the id that the controller gave, partition by partition."""
        assert self.manager is not None
        free = [tp for tp in TPS if tp not in self.logs()]
        if not self.replicated or not free:
            return "nothing to create"
        tp = self.rng.choice(free)
        others = [log.topic_id for other, log in self.logs().items() if other.topic == tp.topic]
        topic_id = others[0] if others else uuid.UUID(hex=self.new_id())
        # The id is written after the log is made; without it nothing was promised yet.
        self.names[tp] = [
            None,
            Life(topic_id, DEFAULT.retention_ms),
            Life(None, DEFAULT.retention_ms),
        ]
        self.manager.get_or_create(*tp, topic_id=topic_id)
        self.names[tp] = [Life(topic_id, DEFAULT.retention_ms)]
        return f"create {tp}: {topic_id}"

    def add_partitions(self) -> str:
        assert self.manager is not None
        topics = [t for t, found in self.manager.topics().items() if len(found) < PARTITIONS]
        if not topics:
            return "nothing to add"
        topic = self.rng.choice(topics)
        lives = [life for tp in self.logs() if tp.topic == topic and (life := self.names[tp][0])]
        known = next((life for life in lives if life.topic_id is not None), lives[0])
        missing = [tp for tp in TPS if tp.topic == topic and tp not in self.logs()]
        self.whole = missing
        for tp in missing:
            self.names[tp] = [None, Life(known.topic_id, known.mark)]
        self.manager.create_partitions(topic, PARTITIONS)
        self.whole = []
        for tp in missing:
            self.names[tp] = [Life(known.topic_id, known.mark)]
        return f"add {missing}"

    def delete(self) -> str:
        assert self.manager is not None
        picked = self.pick()
        if picked is None:
            return "nothing to delete"
        tp, log, life = picked
        self.names[tp] = [life, None, *self.names[tp][1:]]
        self.manager.delete(*tp)
        self.names[tp] = [None]
        assert log.failed
        return f"delete {tp}"

    # -- several steps in a row ----------------------------------------------------------------

    def live_again(self) -> str:
        """A name changes hands with nothing in between; some of its entries are on the disk."""
        self.do(self.checkpoint)
        if self.rng.random() < 0.3:
            self.storage.crash_after(self.rng.randint(1, 40))
        self.do(self.delete_topic, self.create, self.append)
        return "(live again)"

    def half_deleted(self) -> str:
        """A crash inside a deletion; the name is used again before anything else happens."""
        assert self.manager is not None
        self.do(self.append, self.raise_high_watermark, self.delete_records, self.flush)
        self.manager.housekeeper.checkpoint_recovery_points()
        self.manager.housekeeper.checkpoint_high_watermarks()
        self.storage.crash_after(self.rng.randint(2, 16))
        try:
            self.do(self.delete_topic)
        except SimulatedCrash as crash:
            self.note(f"crash {crash}")
        self.crash()
        self.do(self.create, self.append, self.append)
        self.crash()
        return "(half deleted)"

    def cut_and_grow(self) -> str:
        """What is on the disk of a log before a cut fits the log again after it."""
        assert self.manager is not None
        self.do(self.append, self.raise_high_watermark, self.flush)
        self.manager.housekeeper.checkpoint_recovery_points()
        self.manager.housekeeper.checkpoint_high_watermarks()
        if self.rng.random() < 0.3:
            self.storage.crash_after(self.rng.randint(1, 20))
        self.do(self.rng.choice((self.truncate, self.restart_log)), self.append, self.append)
        if self.rng.random() < 0.3:
            self.crash()
        return "(cut and grow)"

    def checkpoint_deletion(self) -> str:
        self.do(self.append, self.raise_high_watermark, self.delete_records)
        if self.rng.random() < 0.3:
            self.storage.crash_after(self.rng.randint(1, 10))
        self.do(self.checkpoint)
        return "(checkpoint deletion)"

    def delete_topic(self) -> str:
        assert self.manager is not None
        picked = self.pick()
        if picked is None:
            return "nothing to delete"
        tps = [tp for tp in self.logs() if tp.topic == picked[0].topic]
        for tp in tps:
            self.names[tp] = [*self.names[tp], None]
        self.manager.delete_topic(picked[0].topic)
        for tp in tps:
            self.names[tp] = [None]
        return f"delete {picked[0].topic}"

    # -- one log -------------------------------------------------------------------------------

    def append(self) -> str:
        picked = self.pick()
        if picked is None:
            return "nothing to append to"
        tp, log, life = picked
        for _ in range(self.rng.randint(1, 4)):
            before, count = life.copy(), self.rng.randint(1, 4)
            self.count += 1
            values = [b"%d.%d" % (self.count, n) for n in range(count)]
            after = life.copy(values=[*life.values, *values], bases=[*life.bases, life.end])
            self.names[tp] = [after, before, *self.names[tp][1:]]
            log.append([(b"k", value, self.clock.wall_ms()) for value in values])
            life = after
            self.names[tp] = [life]  # a cut before it is durable now
        return f"append to {tp}, up to {life.end}"

    def flush(self) -> str:
        picked = self.pick()
        if picked is None:
            return "nothing to flush"
        tp, log, life = picked
        log.flush()
        if life.end > life.start:  # else no record is left to be flushed
            life.flushed = life.end
        return f"flush {tp} up to {life.end}"

    def roll(self) -> str:
        picked = self.pick()
        if picked is None:
            return "nothing to roll"
        picked[1].roll()
        return f"roll {picked[0]}"

    def delete_records(self) -> str:
        picked = self.pick()
        if picked is None:
            return "no records to delete"
        tp, log, life = picked
        top = life.high_watermark if self.replicated else life.end
        if top < life.start:
            return "nothing is committed"
        offset = self.rng.randint(life.start, top)
        for candidate in self.names[tp]:
            if candidate is not None:
                candidate.starts.add(offset)
        log.delete_records(offset)
        life.start = offset
        return f"delete records of {tp} below {offset}"

    def raise_high_watermark(self) -> str:
        picked = self.pick()
        if picked is None or not self.replicated:
            return "no high watermark"
        tp, log, life = picked
        offset = self.rng.randint(min(life.start, life.end), life.end)
        life.high_watermark = max(life.high_watermark, offset)
        for candidate in self.names[tp]:  # what power brings back lies above it, and it stays
            if candidate is not None:
                candidate.high_watermark = max(candidate.high_watermark, life.high_watermark)
        log.replica.update_high_watermark(life.high_watermark)
        return f"high watermark of {tp}: {life.high_watermark}"

    def truncate(self) -> str:
        assert self.manager is not None
        picked = self.pick()
        if picked is None:
            return "nothing to truncate"
        tp, _, life = picked
        offset = self.rng.choice(life.cuts())
        told = f"truncate {tp} to {offset}"
        return self.change(
            tp, life, life.truncated(offset), lambda m: m.truncate_to({tp: offset}), told
        )

    def restart_log(self) -> str:
        picked = self.pick()
        if picked is None:
            return "nothing to begin anew"
        tp, log, life = picked
        offset = self.rng.choice((0, life.end, life.end + 5, max(0, life.end - 3)))
        return self.change(
            tp,
            life,
            life.begun_anew(offset),
            lambda m: log.maintenance.truncate_fully_and_start_at(offset),
            f"{tp} begins anew at {offset}",
        )

    def change(
        self,
        tp: TopicPartition,
        before: Life,
        after: Life,
        call: Callable[[LogManager], None],
        told: str,
    ) -> str:
        """A cut, which power may bring back until the next append."""
        assert self.manager is not None
        # It flushes what was rolled, up to where it cuts.
        reached = max(before.reached, before.flushed, min(before.end, after.end))
        ghost = before.copy(cut=True, flushed=min(before.flushed, after.end), reached=reached)
        ghost.starts |= {
            before.base,
            after.start,
            *(s.base_offset for s in self.logs()[tp].segments),
        }
        # In between no segment has a durable name.
        nothing = before.begun_anew(0)
        self.names[tp] = [after, ghost, nothing, *self.names[tp][1:]]
        call(self.manager)
        return told

    # -- all of them ---------------------------------------------------------------------------

    def checkpoint(self) -> str:
        assert self.manager is not None
        which = self.rng.choice(("recovery_points", "log_start_offsets", "high_watermarks"))
        getattr(self.manager.housekeeper, f"checkpoint_{which}")()
        return f"checkpoint {which}"

    def alter(self) -> str:
        assert self.manager is not None
        picked = self.pick()
        if picked is None or self.replicated:
            return "nothing to alter"
        topic, mark = picked[0].topic, self.mark()
        if self.rng.random() < 0.3:
            self.storage.crash_after(self.rng.randint(1, 8))
        tps = [tp for tp in self.logs() if tp.topic == topic]
        for tp in tps:
            changed = [life and life.copy(mark=mark) for life in self.names[tp]]
            self.names[tp] = [*self.names[tp], *changed]
        self.manager.alter_topic(topic, {"retention.ms": mark})
        for tp in tps:
            self.names[tp] = self.names[tp][len(self.names[tp]) // 2 :]
        return f"alter {topic}: {mark}"

    def work_later(self) -> str:
        tasks, self.later[:] = list(self.later), []
        for task in tasks:
            task()
        return f"{len(tasks)} tasks"

    def wait(self) -> str:
        assert self.manager is not None
        self.clock.advance(self.rng.choice((1, 1000)))
        self.manager.housekeeper.purge_deleted()
        return "time passes"

    def restart(self) -> str:
        """In order: all is flushed."""
        assert self.manager is not None
        for tp in self.logs():
            life = self.names[tp][0]
            assert life is not None
            life.reached = life.end  # until the marker is there it is a crash like any other
        self.manager.close()
        self.manager = None
        for tp, candidates in self.names.items():
            life = candidates[0]
            if life is not None:
                life.flushed = life.end
                self.names[tp] = [life]
        self.open()
        self.compare(True)
        return "closed and opened"
