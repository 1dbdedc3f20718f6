"""Power cuts at every change of the disk in the life of a log manager; all follows from one seed.

Topics are created, written by producers and transactions, rolled, cut, emptied, compacted, read by
a cursor, altered, deleted and created again, closed and opened. After each step the disk is taken
as it was before every single change that the step made, and is crashed in several ways. A manager
that starts on it must have what the step found, or what it left. Some of these starts are cut short
in turn, at every change; some go on, to see what comes back later. Now and then the life itself
goes on from such a cut.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from uuid import UUID

from checkpoints.offset_checkpoint import RECOVERY_POINT, OffsetCheckpoint
from logstore.common.config import BrokerConfig, LogConfig
from logstore.common.types import TopicPartition
from logstore.log import PartitionLog
from logstore.manager import LogManager, ManagerOwner
from logstore.manager.offsets import CHECKPOINTS
from logstore.testing import ManualClock
from logstore.testing.faulty import CrashMode
from tests.crash.checks import check_recovered
from tests.crash.disk import Content, Disk, Image, content_of, tree
from tests.crash.model import Batch, Model, read_batches
from tests.crash.workload import Work
from tests.histories.history import Run, history

DIRECTORY = "/d"
NAMES = ("t", "u")
READER = "reader"
MODES: tuple[tuple[CrashMode, int], ...] = (
    ("all_lost", 0),
    ("all_kept", 0),
    ("random", 1),
    ("random", 2),
)
BROKER = BrokerConfig(
    log_cleaner_dedupe_buffer_size=24 * 1000,
    num_recovery_threads_per_data_dir=1,
    producer_id_expiration_ms=2**62,
)


_DELETED = "append append flush delete_records checkpoint_all"
_KEPT = "append append append append roll append flush work_later checkpoint_all"
SCRIPTS = (
    f"{_DELETED} delete create append flush",
    f"{_DELETED} truncate_fully append",
    f"{_DELETED} truncate append flush",
    f"append_of_producer append roll {_KEPT} delete_first",
    f"append_of_producer roll {_KEPT} compact append close open",
    "append_of_producer end_transaction roll append_of_producer flush commit alter",
    "append append flush commit retain append flush",
)
"""Steps that follow one another."""
STEPS = {
    "create": 2,
    "alter": 1,
    "work_later": 2,
    "close open": 1,
    "step": 20,
    "commit": 2,
    "compact": 2,
    **dict.fromkeys(SCRIPTS, 2),
}
"""How often what is done."""


class State(NamedTuple):
    """One life of a name."""

    topic_id: UUID
    mark: int  # ``retention.ms``, which tells configurations apart
    model: Model
    cut: bool = False  # it is being cut, or was and that is not durable yet


States = list[State | None]
"""What a name may stand for; None: nothing."""


class Topic(Work):
    """A topic of one partition, and the steps that only a managed log has."""

    def __init__(
        self,
        partition: TopicPartition,
        rng: random.Random,
        clock: ManualClock,
        model: Model,
        topic_id: UUID,
        mark: int,
    ) -> None:
        super().__init__(partition, rng, clock, model)
        self.topic_id, self.mark = topic_id, mark

    def attach(self, manager: LogManager, log: PartitionLog) -> None:
        super().attach(manager, log)
        if log.config.compact:
            self.keys = (b"k", b"key-1", b"key-2")
            undoes = (self.truncate, self.follow)  # nobody cuts off what a pass believed
            for at, step in enumerate(self._steps):
                if step in undoes:
                    self._weights[at] = 0

    def state(self) -> State:
        return State(self.topic_id, self.mark, self.model.copy())

    def commit(self) -> str:
        model = self.model
        offset = self._rng.randint(model.start, model.leo)
        self.log.cursor(READER, on_out_of_range="earliest").commit(offset)
        model.cursor = offset
        model.flushed = max(model.flushed, offset)
        return f"the reader commits {offset}"

    def checkpoint_all(self) -> str:
        self.manager.housekeeper.checkpoint_recovery_points()
        self.manager.housekeeper.checkpoint_high_watermarks()
        inside = self.model.start > self.log.segments[0].base_offset
        self.model.durable_start = self.model.start if inside else 0
        return "all checkpoints"

    def delete_first(self) -> str:
        """The first segment, by its records."""
        if len(self.log.segments) < 2:
            return "there is one segment"
        self.model.start = max(self.model.start, self.log.segments[1].base_offset)
        self.log.delete_records(self.model.start)
        return f"{self.retain()}, from {self.model.start} on"

    def compact(self) -> str:
        if not self.log.config.compact:
            return "not compacted"
        model = self.model
        self.manager.cleaner.clean_by_hand(self.partition)
        found = read_batches(self.manager_disk, self.log.directory, model.history)
        model.history.update((batch.data, batch) for batch in found)
        model.batches = [batch for batch in found if batch.last >= model.start]
        model.compacted = True
        return f"compacted to {model.batches}"

    @property
    def manager_disk(self) -> Disk:
        disk = self.log.core.storage
        assert isinstance(disk, Disk)
        return disk


@history
def run(found: Run) -> None:
    at, rest = divmod(found.seed, 3)
    life = Cuts(found, goes_on=0.08 if rest else 0.0)
    try:
        if rest:
            life.go(12)
        else:
            life.do("create", *SCRIPTS[at % len(SCRIPTS)].split())
    finally:
        life.release()


def random_config(rng: random.Random) -> LogConfig:
    return LogConfig(
        segment_bytes=rng.choice((600, 900, 2000)),
        segment_index_bytes=rng.choice((48, 240)),
        index_interval_bytes=rng.choice((0, 60, 400)),
        retention_bytes=rng.choice((-1, 0, 1000)),
        retention_ms=-1,
        file_delete_delay_ms=rng.choice((0, 1000)),
        delete_retention_ms=rng.choice((0, 1000)),
        min_cleanable_dirty_ratio=0,
    )


class Cuts:
    def __init__(self, found: Run, *, depth: float = 0.05, goes_on: float) -> None:
        """``depth``: which share of the cuts is looked at more closely. ``goes_on``: after which
        share of the steps the life goes on from a cut."""
        self.run, self.depth, self.goes_on = found, depth, goes_on
        self.rng = rng = random.Random(found.seed)
        self.clock = ManualClock()
        self.config = random_config(rng)
        self.prompt = rng.random() < 0.6  # what a roll leaves to do is done at once
        self.later: list[Callable[[], None]] = []
        self.disk = Disk(clock=self.seconds)
        self.topics: dict[str, Topic] = {}
        self.ghosts: dict[str, list[Model]] = {}  # before cuts that are not durable yet
        self.focus = NAMES[0]
        self.marks = 0
        self.manager: LogManager
        self.closed = False
        with self.cut_at_every_change("the first start"):
            self.manager = self.start(self.disk, self.run_later)

    def seconds(self) -> float:
        return self.clock.wall_ms() / 1000

    def run_later(self, task: Callable[[], None]) -> None:
        if self.prompt:
            task()
        else:
            self.later.append(task)

    def start(self, disk: Disk, later: Callable[[Callable[[], None]], None]) -> LogManager:
        return LogManager(
            [DIRECTORY],
            self.config,
            broker_config=BROKER,
            storage=disk,
            clock=self.clock,
            owner=ManagerOwner(cluster_id="c", run_later=later, random_id=self.new_id),
        )

    def new_id(self) -> str:
        return f"{self.rng.getrandbits(128):032x}"

    def release(self) -> None:
        self.manager.crash()

    # -- the life ------------------------------------------------------------------------------

    def go(self, steps: int) -> None:
        self.do("create")
        for _ in range(steps):
            if self.topics and self.rng.random() < 0.2:
                self.focus = self.rng.choice(sorted(self.topics))
            self.do(*self.rng.choices([*STEPS], [*STEPS.values()])[0].split())

    def do(self, *steps: str) -> None:
        """Steps of the manager, or of the topic in focus."""
        for name in steps:
            topic = self.topics.get(self.focus)
            step: Callable[[], str] | None = getattr(self, name, None)
            if step is None and topic is not None:
                step = getattr(topic, name)
            if step is None:
                continue
            with self.cut_at_every_change(name):
                self.run.trace.append(step())
            self.run.done[name] += 1

    @contextmanager
    def cut_at_every_change(self, what: str) -> Iterator[None]:
        """Look at each image of the block. Perhaps the life goes on from one of them."""
        before = self.states()
        with self.disk.recording() as images:
            yield
        self.learn()
        after = self.states()
        variants = {name: self.variants(name, before[name], after[name]) for name in NAMES}
        self.judge_all(images, variants, what)
        for name in NAMES:
            self.settle_ghosts(name, before[name], after[name])
        mode, seed = self.rng.choice(MODES)
        image = self.rng.choice(images)
        if self.rng.random() < self.goes_on and (mode != "all_kept" or is_one_file(variants)):
            self.run.trace.append(f"-- {mode} {seed}, {image.place}")
            self.go_on_from(image, mode, seed, variants)

    def states(self) -> dict[str, State | None]:
        return {name: self.topics[name].state() if name in self.topics else None for name in NAMES}

    def learn(self) -> None:
        """What the logs say is durable."""
        for topic in self.topics.values():
            log, model = topic.log, topic.model
            if log.failed:
                continue
            if log.recovery_point > log.log_start_offset:
                model.flushed = max(model.flushed, log.recovery_point)
            names = {entry.name for entry in self.disk.scan_dir(log.directory)}
            model.snapshots = [
                at
                for segment in log.segments[1:]
                if {f"{(at := segment.base_offset):020}.log", f"{at:020}.snapshot"} <= names
            ]

    def variants(self, name: str, before: State | None, after: State | None) -> States:
        """What a cut in a step may leave of a name."""
        found: States = [after, before]
        if before is None or after is None:
            return found
        old, new = before.model, after.model
        if is_cut(old, new):
            found[1] = before._replace(model=being_cut(old, new), cut=True)
        if new.compacted and new.batches != old.batches and new.leo == old.leo:
            found += [before._replace(model=old.copy(batches=mix)) for mix in mixed(old, new)]
        ghosts = [being_cut(ghost, new) for ghost in self.ghosts.get(name, [])]
        found += [before._replace(model=ghost, cut=True) for ghost in ghosts]
        if before.mark != after.mark:
            found += [before._replace(mark=after.mark)]
        return found

    def settle_ghosts(self, name: str, before: State | None, after: State | None) -> None:
        same = before is not None and after is not None and before.topic_id == after.topic_id
        if not same or after.model.ghost is None:
            self.ghosts.pop(name, None)
        elif is_cut(before.model, after.model):
            known = [before.model, *self.ghosts.get(name, [])]
            self.ghosts[name] = [being_cut(each, after.model) for each in known]

    # -- the cuts ------------------------------------------------------------------------------

    def judge_all(
        self, images: Sequence[Image], variants: dict[str, States], what: str, *, first: bool = True
    ) -> None:
        """``first``: no power was lost before. Some of these cuts are looked at more closely."""
        seen: set[tuple[Content, bool]] = set()
        for image in images:
            for mode, seed in MODES:
                disk = self.crashed(image, mode, seed)
                killed = first and mode == "all_kept"
                key = content_of(disk), killed
                if key in seen:
                    continue
                seen.add(key)
                self.run.done["cuts"] += 1
                place = f"{what}: {mode} {seed}, {image.place}"
                if not first or self.rng.random() > self.depth:
                    self.judge(disk, variants, place, killed)
                    continue
                self.run.done["starts cut"] += 1
                with disk.recording() as more:
                    found = self.judge(disk, variants, place, killed)
                self.judge_all(more, variants, f"{place}; in the start", first=False)
                self.without_snapshots(disk, found, place)
                self.go_on(disk, found, place)

    def crashed(self, image: Image, mode: CrashMode, seed: int) -> Disk:
        return image.crashed(mode, seed, clock=self.seconds)

    def judge(
        self, disk: Disk, variants: dict[str, States], place: str, killed: bool
    ) -> dict[str, State | None]:
        """A manager that starts on ``disk`` has one of the variants of each name."""
        manager = self.start(disk, lambda task: task())
        try:
            self.check_checkpoints(manager, disk, place)
            return self.found(manager, disk, variants, place, killed)
        finally:
            manager.crash()

    def found(
        self,
        manager: LogManager,
        disk: Disk,
        variants: dict[str, States],
        place: str,
        killed: bool,
    ) -> dict[str, State | None]:
        logs, adopted = manager.logs, dict[str, State | None]()
        assert not manager.unavailable_logs, f"{place}: {manager.unavailable_logs}"
        for name in NAMES:
            log = logs.get(TopicPartition(name, 0))
            adopted[name] = None
            if log is None:
                assert None in variants[name], f"{place}: {name} is gone"
                continue
            wrong = []
            for state in variants[name]:
                if state is None:
                    continue
                try:
                    batches = self.check(disk, log, state, killed)
                except AssertionError as error:
                    wrong.append(str(error))
                    continue
                adopted[name] = state._replace(
                    model=adopt(state.model, log, batches, killed), cut=False
                )
                break
            else:
                told = " | ".join(dict.fromkeys(wrong)) or "should not be here"
                raise AssertionError(f"{place}: {name}: {told}")
        return adopted

    def check(self, disk: Disk, log: PartitionLog, state: State, killed: bool) -> list[Batch]:
        model = state.model
        assert log.topic_id == state.topic_id, f"topic id {log.topic_id}"
        assert log.config.retention_ms == state.mark, f"configuration {log.config.retention_ms}"
        if killed and not state.cut and model.batches:
            model = model.copy(flushed=max(model.flushed, model.batches[-1].last + 1))
        batches = check_recovered(disk, log, model, [model.batches], random.Random(0))
        start = log.log_start_offset
        reached = max(model.flushed, model.reached)
        assert log.recovery_point <= max(reached, start), (
            f"recovery point {log.recovery_point}, flushed up to {reached}"
        )
        cursor = log.cursor(READER, on_out_of_range="earliest").committed
        assert cursor == model.cursor, f"cursor {cursor}, not {model.cursor}"
        if cursor is not None and not model.cut:
            assert cursor <= log.log_end_offset, f"the cursor {cursor} is ahead of {log}"
        return batches

    def check_checkpoints(self, manager: LogManager, disk: Disk, place: str) -> None:
        logs = manager.logs
        for name in CHECKPOINTS:
            for tp, offset in OffsetCheckpoint(f"{DIRECTORY}/{name}", disk).read().items():
                assert tp in logs, f"{place}: {name} has {offset} of {tp}"
                end = logs[tp].log_end_offset
                assert offset <= end, f"{place}: {name} has {offset} of {tp}, which ends at {end}"

    def without_snapshots(self, disk: Disk, found: dict[str, State | None], place: str) -> None:
        """What the records tell of their producers, nothing else has to."""
        disk.crash(mode="all_kept")
        other = Disk(clock=self.seconds)
        for path, data in tree(disk):
            other.make_dir(path.rpartition("/")[0])
            if not path.endswith((".snapshot", RECOVERY_POINT)):
                other.write_file(path, data)
        variants: dict[str, States] = {
            name: [state and state._replace(model=state.model.copy(snapshots=[]))]
            for name, state in found.items()
        }
        self.judge(other, variants, f"{place}; without snapshots", False)

    def go_on(self, disk: Disk, found: dict[str, State | None], place: str) -> None:
        """Append to what came back, and to a new topic; all of it is there after the next cut."""
        manager = self.start(disk, lambda task: task())
        expected: dict[str, States] = {}
        for name, state in found.items():
            if state is None:
                mark = 1
                log = manager.create_topic(name, 1, {"retention.ms": str(mark)})[0]
                assert log.topic_id is not None
                state = State(log.topic_id, mark, Model())
            topic = self.topic(name, state)
            topic.attach(manager, manager.get(name, 0))
            topic.append()
            topic.flush()
            expected[name] = [topic.state()]
        manager.crash()
        disk.crash(mode="all_lost")
        self.judge(disk, expected, f"{place}; going on", False)

    def go_on_from(
        self, image: Image, mode: CrashMode, seed: int, variants: dict[str, States]
    ) -> None:
        self.manager.crash()
        self.later.clear()
        killed = mode == "all_kept"
        self.disk = self.crashed(image, mode, seed)
        with self.disk.recording() as images:
            self.manager = self.start(self.disk, self.run_later)
        self.closed = False
        found = self.found(self.manager, self.disk, variants, image.place, killed)
        self.judge_all(images, variants, f"{image.place}; in the start", first=False)
        self.topics = {}
        for name, state in found.items():
            self.ghosts.pop(name, None)
            if state is None:
                continue
            self.topics[name] = topic = self.topic(name, state)
            topic.attach(self.manager, self.manager.get(name, 0))
            if killed:  # a cut that only the cache knows of may still be lost with the power
                others = [other.model for other in variants[name] if other is not None]
                topic.model.flushed = min(topic.model.flushed, *(m.flushed for m in others))
                topic.model.durable_start = min(m.durable_start for m in others)
                self.ghosts[name] = others
                topic.model.ghost = topic.model.batches if others else None
        self.learn()
        self.run.done["went on from a cut"] += 1

    # -- steps ---------------------------------------------------------------------------------

    def topic(self, name: str, state: State) -> Topic:
        model = state.model.copy()
        return Topic(
            TopicPartition(name, 0), self.rng, self.clock, model, state.topic_id, state.mark
        )

    def mark(self) -> int:
        self.marks += 1
        return 10**15 + self.marks

    def create(self) -> str:
        free = [name for name in NAMES if name not in self.topics]
        if not free:
            return "no name is free"
        name, mark = self.rng.choice(free), self.mark()
        config = {"retention.ms": str(mark)}
        if self.rng.random() < 0.5:
            config["cleanup.policy"] = "compact,delete"
        log = self.manager.create_topic(name, 1, config)[0]
        assert log.topic_id is not None
        self.topics[name] = self.topic(name, State(log.topic_id, mark, Model()))
        self.topics[name].attach(self.manager, log)
        self.focus = name
        return f"create {name}: {config}"

    def delete(self) -> str:
        if self.focus not in self.topics:
            return "nothing to delete"
        self.manager.delete_topic(self.focus)
        del self.topics[self.focus]
        return f"delete {self.focus}"

    def alter(self) -> str:
        topic, mark = self.topics.get(self.focus), self.mark()
        if topic is None:
            return "nothing to alter"
        policy = ",".join(topic.log.config.cleanup_policy)
        config = {"retention.ms": str(mark), "cleanup.policy": policy}
        self.manager.alter_topic(topic.partition.topic, config)
        topic.mark = mark
        return f"alter {topic.partition.topic}: {mark}"

    def work_later(self) -> str:
        tasks, self.later[:] = list(self.later), []
        for task in tasks:
            task()
        return f"{len(tasks)} tasks"

    def close(self) -> str:
        self.manager.close()
        self.closed = True
        self.later.clear()
        for topic in self.topics.values():
            model = topic.model
            model.flushed, model.ghost = model.leo, None
            model.snapshots = [*model.snapshots, model.leo]
        return "closed"

    def open(self) -> str:
        if not self.closed:
            return "open again from a cut"
        self.manager = self.start(self.disk, self.run_later)
        self.closed = False
        for name, topic in self.topics.items():
            topic.attach(self.manager, self.manager.get(name, 0))
        return "opened"


def is_cut(old: Model, new: Model) -> bool:
    return len(new.appended) < len(old.appended) or new.leo < old.leo or new.emptied > old.emptied


def being_cut(old: Model, new: Model) -> Model:
    """What may come back of a log until its cut is durable.

    The snapshots above its end go first. What only they tell of producers, the cut forgets anyway.
    """
    return old.copy(
        flushed=min(old.flushed, new.flushed),
        reached=max(old.reached, old.flushed),
        snapshots=[at for at in old.snapshots if at <= new.leo],
        cut=True,
    )


def is_one_file(variants: dict[str, States]) -> bool:
    """Whether small files have one content only, in the cache and on the disk."""
    return all(
        len({(state.mark, state.model.cursor) for state in states if state is not None}) < 2
        for states in variants.values()
    )


def mixed(old: Model, new: Model) -> Iterator[list[Batch]]:
    """A pass replaces one group of segments after the other."""
    for first in dict.fromkeys(batch.base for batch in old.batches):
        left = [batch for batch in new.batches if batch.base < first]
        yield left + [batch for batch in old.batches if batch.base >= first]


def adopt(model: Model, log: PartitionLog, batches: list[Batch], killed: bool) -> Model:
    """The life goes on from what a cut left of it."""
    start, end = log.log_start_offset, log.log_end_offset
    forgotten = max(model.forgotten, model.start, start)
    promised = model.remembers(log)
    return model.copy(
        batches=[batch for batch in batches if batch.last >= start],
        start=start,
        leo=end,
        flushed=min(model.flushed, end) if killed else end,
        reached=min(model.reached, end),
        epoch=max(model.epoch, log.epochs.latest),
        durable_start=min(model.durable_start, start),
        forgotten=forgotten,
        ghost=None,
        appended=[
            batch
            for batch in model.appended
            if batch.last < end and (promised or batch.base >= forgotten)
        ],
        snapshots=[at for at in model.snapshots if at <= end],
    )
