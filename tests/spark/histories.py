"""Random histories of a stream: logs that live, queries that stop anywhere, plain lists beside.

    python -m tests.histories streams --first 1 --seeds 1000

A history is a list of steps drawn from a seed. Between any two calls that Spark makes of a reader,
and in the midst of a listing, the logs change: appends, rolls, transactions, retention, compaction,
cuts (in one half of the histories with a new leader epoch, as replicas have it, in the other always
under the same one, as after crashes without replicas); partitions are added, topics deleted and
made anew. The query is killed between any two calls and started again with other options. What
arrived is then compared with what plain lists say, one for each life of a partition:

* every record that a log holds at the end has arrived, and none that was aborted;
* a record arrived twice only where a loss named its offset, and not at all where each cut has a new
  epoch and no log changed under a running micro-batch;
* what retention deleted before it arrived was named;
* a loss that was named did happen, and began just where the logs part.
"""

from __future__ import annotations

import json
import logging
import random
import re
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from logstore import LogConfig, LogManager
from logstore.common.errors import ConfigError, LogstoreError
from logstore.common.types import TopicPartition
from logstore.directory.errors import DataLossError
from logstore.format.batch import rebuild_batch
from logstore.format.header import parse_header
from logstore.format.reader import read_records
from logstore.log import PartitionLog
from logstore.segments.producer_state import AppendOrigin
from logstore.spark.stream.stream import LogstoreStreamReader, StreamOptions
from logstore.spark.stream.stream_offsets import from_json
from logstore.storage.base import FileInfo
from logstore.storage.local import LocalStorage
from tests.histories.history import Run
from tests.support.builders import marker, produced

SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("value", BinaryType()),
    ]
)
STEPS = 70
_LOSS = re.compile(r"(.*): offsets (\d+) to (\d+): (.*); failOnDataLoss=false reads what is there")
TOPICS = ("t", "u")
CONFIG = LogConfig(
    segment_bytes=1500, index_interval_bytes=200, file_delete_delay_ms=0, retention_ms=-1
)


class Violation(AssertionError):
    """What arrived is not what the lists say."""


# ---- the model ---------------------------------------------------------------------------------


@dataclass
class Entry:
    """A record, or the marker of a transaction (``commit`` is set, ``value`` is not)."""

    value: bytes | None
    batch: int  # the base offset of its batch
    producer: int = 0
    commit: bool | None = None
    sequence: int = 0


@dataclass
class Life:
    """A partition of one topic id, as a plain list of what it holds."""

    tp: TopicPartition
    topic_id: uuid.UUID
    epoch: int = 0
    start: int = 0
    entries: dict[int, Entry] = field(default_factory=dict)
    end: int = 0
    cuts: list[tuple[int, int]] = field(default_factory=list)  # when, and where
    deleted: dict[bytes, int] = field(default_factory=dict)  # by retention: value -> offset

    def aborted(self) -> set[bytes]:
        ended = self._ended()
        return {e.value for o, e in self.entries.items() if e.value and ended(o, e) is False}

    def held(self, committed: bool) -> dict[int, bytes]:
        """What a reader gets."""
        ended = self._ended()
        stable = self.end
        if committed:
            still_open = [o for o, e in self.entries.items() if e.value and ended(o, e) is None]
            stable = min(still_open, default=self.end)
        return {
            o: e.value
            for o, e in self.entries.items()
            if e.value and o < stable and not (committed and ended(o, e) is False)
        }

    def _ended(self) -> Callable[[int, Entry], bool | None]:
        markers = {e.producer: e.commit for e in self.entries.values() if e.commit is not None}
        return lambda _, e: True if not e.producer else markers.get(e.producer)

    def open_producer(self) -> tuple[int, int] | None:
        """The producer of an open transaction, and the sequence number it writes next."""
        ended = self._ended()
        found = {
            e.producer: e.sequence + 1  # the last one's, whatever retention took of those before
            for o, e in sorted(self.entries.items())
            if e.value and ended(o, e) is None
        }
        return next(iter(sorted(found.items())), None)


class World:
    """The logs as they are on the disk, and as the lists have them."""

    def __init__(self, data: Path, rng: random.Random, crashes: bool, committed: bool) -> None:
        self.data, self.rng, self.crashes, self.committed = data, rng, crashes, committed
        self.manager = LogManager([data], CONFIG)
        self.lives: dict[TopicPartition, Life] = {}
        self.past: list[Life] = []
        self.number = 0
        self.now = 0
        self.where: dict[bytes, tuple[Life, int]] = {}
        self.trace: list[str] = []
        for partition in range(2):
            self.add(TopicPartition("t", partition))

    def add(self, tp: TopicPartition) -> None:
        ids = {life.topic_id for other, life in self.lives.items() if other.topic == tp.topic}
        life = Life(tp, ids.pop() if ids else uuid.UUID(int=self.rng.getrandbits(128), version=4))
        self.manager.get_or_create(*tp, topic_id=life.topic_id)
        self.lives[tp] = life

    def log(self, life: Life) -> PartitionLog:
        return self.manager.get(*life.tp)

    # -- steps ---------------------------------------------------------------------------------

    def step(self) -> str:
        self.now += 1
        life = self.rng.choice(list(self.lives.values()) or [None])
        if life is None:
            self.add(TopicPartition("t", 0))
            return "add"
        kinds = {
            "append": 8,
            "roll": 2,
            "write": 3,
            "finish": 2,
            "cut": 1,
            "retain": 1,
            "compact": 1,
            "partition": 0.4,
            "delete": 0.4,
        }
        kind = self.rng.choices(list(kinds), list(kinds.values()))[0]
        (self.finish if kind == "finish" else getattr(self, f"_{kind}"))(life)
        self.trace.append(f"{self.now}: {kind} {life.tp}: {life.start} to {life.end}")
        for tp, here in self.lives.items():
            if (end := self.log(here).log_end_offset) != here.end:
                raise Violation(f"{tp} ends at {end}, and the list at {here.end}")
        return kind

    def _values(self, count: int) -> list[bytes]:
        self.number += count
        numbers = range(self.number - count, self.number)
        return [b"%d" % n + b"." * self.rng.randrange(60) for n in numbers]

    def _note(self, life: Life, values: list[bytes], producer: int = 0, sequence: int = 0) -> None:
        base = life.end
        for n, value in enumerate(values):
            life.entries[base + n] = Entry(value, base, producer, sequence=sequence)
            self.where[value] = life, base + n
        life.end += len(values)

    def _append(self, life: Life) -> None:
        for _ in range(self.rng.randrange(1, 5)):
            values = self._values(self.rng.randrange(1, 6))
            self.log(life).append([(b"k", v) for v in values], leader_epoch=life.epoch)
            self._note(life, values)

    def _roll(self, life: Life) -> None:
        self.log(life).roll()

    def _write(self, life: Life) -> None:
        """A batch of the open transaction, or of a new one."""
        producer, sequence = life.open_producer() or (self.number + 1_000, 0)
        (value,) = self._values(1)
        data = produced(producer, sequence, transactional=True, value=value)
        self.log(life).append_as_leader(data, life.epoch)
        self._note(life, [value], producer, sequence)

    def finish(self, life: Life) -> None:
        found = life.open_producer()
        if found is None:
            return
        commit = self.rng.random() < 0.5
        data = marker(commit=commit, producer_id=found[0])
        self.log(life).append_as_leader(data, life.epoch, origin=AppendOrigin.COORDINATOR)
        life.entries[life.end] = Entry(None, life.end, found[0], commit)
        life.end += 1

    def _cut(self, life: Life) -> None:
        # A cut that takes the end of a transaction away may turn it: no reader undoes that.
        ends = (
            [o for o, e in life.entries.items() if e.commit is not None] if self.committed else []
        )
        lowest = max([life.start, *(offset + 1 for offset in ends)])
        starts = sorted({e.batch for e in life.entries.values() if e.batch >= lowest})
        if not starts:
            return
        offset = self.rng.choice(starts[-12:])
        self.log(life).truncate_to(offset)
        life.entries = {o: e for o, e in life.entries.items() if o < offset}
        life.end = offset
        life.cuts.append((self.now, offset))
        if not self.crashes:
            life.epoch += 1
        # A cut that empties a log drops its entry.
        self.manager.housekeeper.checkpoint_log_start_offsets()
        self._append(life)  # the new leader's: until it writes, it may be the old one

    def _retain(self, life: Life) -> None:
        found = life.open_producer()
        stable = min(
            (o for o, e in life.entries.items() if found and e.producer == found[0]),
            default=life.end,
        )
        if stable <= life.start:
            return
        before = self.rng.randrange(life.start, stable + 1)
        log = self.log(life)
        log.delete_records(before)
        log.maintenance.delete_old_segments()
        self.manager.housekeeper.checkpoint_log_start_offsets()
        life.start = max(life.start, before)
        gone = {o: e for o, e in life.entries.items() if o < life.start}
        life.deleted |= {e.value: o for o, e in gone.items() if e.value and not e.producer}
        life.entries = {o: e for o, e in life.entries.items() if o >= life.start}

    def _compact(self, life: Life) -> None:
        """Of rolled segments some records are taken out, as the cleaner does (F-95)."""
        self.manager.close()
        directory = self.data / str(life.tp)
        for path in sorted(directory.glob("*.log"))[:-1]:
            kept = bytearray()
            content = path.read_bytes()
            at = 0
            while at < len(content):
                header = parse_header(content, at)
                end = at + header.size
                kept += self._cleaned(life, header, content[at:end])
                at = end
            for suffix in (".index", ".timeindex"):
                path.with_suffix(suffix).unlink(missing_ok=True)
            cleaned = path.with_suffix(".log.swap")
            cleaned.write_bytes(kept)
            cleaned.rename(path)
        self.manager = LogManager([self.data], CONFIG)

    def _cleaned(self, life: Life, header: Any, data: bytes) -> bytes:
        offsets = range(header.base_offset, header.base_offset + header.last_offset_delta + 1)
        if self.rng.random() < 0.5 or any(
            o not in life.entries or life.entries[o].producer for o in offsets
        ):
            return data
        kept = [r for r in read_records(data) if self.rng.random() < 0.5]
        if not kept and header.base_offset != life.start:
            kept = list(read_records(data))[-1:]  # an index of a log needs its last batch
        left = {r.offset for r in kept}
        for offset in offsets:
            if offset not in left and offset in life.entries:
                del life.entries[offset]
        return bytes(rebuild_batch(header, kept)) if kept else b""

    def _partition(self, life: Life) -> None:
        topic = self.rng.choice(TOPICS)
        count = sum(tp.topic == topic for tp in self.lives)
        if count < 3:
            self.add(TopicPartition(topic, count))

    def _delete(self, life: Life) -> None:
        """The topic; in most cases it is made anew at once."""
        topic = life.tp.topic
        mine = [tp for tp in self.lives if tp.topic == topic]
        for tp in mine:
            self.manager.delete(*tp)
            self.past.append(self.lives.pop(tp))
        for tp in mine if self.rng.random() < 0.7 else ():
            self.add(tp)
            if self.rng.random() < 0.8:
                for _ in range(self.rng.randrange(4)):
                    self._append(self.lives[tp])

    # -- looks at a moment ---------------------------------------------------------------------

    @contextmanager
    def moving(self, chance: float) -> Iterator[None]:
        """While a directory is listed its log is appended to and rolled: a name that comes or goes
        meanwhile may be in the listing or not, and a size is of before or after."""
        scan = LocalStorage.scan_dir
        armed = [life for life in self.lives.values() if self.rng.random() < chance][:1]
        moment = self.rng.random()

        def drawn(name: str) -> float:
            """Of this name at this moment: files that come and go in the background draw none."""
            return random.Random(f"{moment} {name}").random()

        def scan_dir(storage: LocalStorage, path: str) -> list[FileInfo]:
            if not armed or not path.endswith(f"/{armed[0].tp}"):
                return scan(storage, path)
            life = armed.pop()
            before = {entry.name: entry for entry in scan(storage, path)}
            for act in (self._append, self._roll, self._append):
                act(life)
            after = {entry.name: entry for entry in scan(storage, path)}
            both = before.keys() & after.keys()
            seen = [(before if drawn(name) < 0.5 else after)[name] for name in both]
            for side in (before, after):
                seen += [side[name] for name in side.keys() - both if drawn(name) < 0.7]
            self.trace.append(f"    listed meanwhile: {life.tp}, to {life.end}")
            return sorted(seen)

        LocalStorage.scan_dir = scan_dir  # type: ignore[method-assign]
        try:
            yield
        finally:
            LocalStorage.scan_dir = scan  # type: ignore[method-assign]


# ---- the query ---------------------------------------------------------------------------------


@dataclass
class Loss:
    """A named one. ``life``: of the log that was there then."""

    life: Life | None
    start: int
    end: int
    of_segment: bool
    """Told by a task: the file was replaced or deleted between the plan and the reading."""


class Losses(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[DataLossError] = []

    def emit(self, record: logging.LogRecord) -> None:
        if match := _LOSS.fullmatch(record.getMessage()):
            path, start, end, reason = match.groups()
            self.found.append(DataLossError(path, int(start), int(end), reason))


class Killed(Exception):
    """The query, between two calls."""


class Query:
    """What Spark does with a reader: plan, write the plan down, read, give to the sink, commit."""

    def __init__(self, world: World, rng: random.Random, committed: bool) -> None:
        self.world, self.rng = world, rng
        self.committed_only = committed
        self.plans: list[tuple[str, int]] = []  # the end of each micro-batch, and when it was made
        self.done = 0
        self.sink: dict[int, list[tuple[TopicPartition, int, bytes]]] = {}
        self.losses: list[Loss] = []
        self.disturbed = False
        self.starting = rng.choice(("earliest", "latest"))
        self.first: dict[str, Any] | None = None
        self.began: dict[TopicPartition, tuple[Life, int]] | None = None
        self.start()

    def start(self) -> None:
        """A process of its own: nothing is known but the checkpoint."""
        options = {
            "path": str(self.world.data),
            "startingOffsets": self.starting,
            "failOnDataLoss": "false",
            "isolation": "read_committed" if self.committed_only else "read_uncommitted",
            "splitBytes": "1k",
        }
        if self.rng.random() < 0.2:
            options["subscribePattern"] = "t"
        self.narrow = "subscribePattern" in options
        self.reader = LogstoreStreamReader(StreamOptions.from_spark(options), SCHEMA)
        self.first = None
        self.first_seen: dict[TopicPartition, tuple[Life, int]] = {}

    def trigger(self, quiet: bool = False) -> bool:
        """Whether a micro-batch was made. ``quiet``: nothing happens meanwhile."""
        self.chance = 0.0 if quiet else 0.25
        self.disturbed = False
        try:
            return self._trigger()
        except Killed:
            self.start()
        except ConfigError as error:  # the cut took the end of a transaction that was planned
            if "a transaction is open since" not in str(error):
                raise
            for life in self.world.lives.values():
                self.world.finish(life)
            self.start()
        except (LogstoreError, OSError, AssertionError) as error:
            if quiet or not self.disturbed or isinstance(error, Violation):
                raise
            self.start()  # as Spark would after a task that failed
        return True

    def _trigger(self) -> bool:
        start = json.loads(self.plans[-1][0]) if self.plans else self._first()
        if self.done == len(self.plans):
            if not self.plans:
                self._between()
            limit = ReadMaxRows(self.rng.randrange(1, 30)) if self.rng.random() < 0.5 else None
            with self._watched(start):
                end = self.reader.latestOffset(start, limit or ReadAllAvailable())
            if end == start:
                return False
            self._between()
            if not self.plans:
                self.began = self.first_seen
            self.plans.append((json.dumps(end), self.world.now))
            self.world.trace.append(
                f"    plan {len(self.plans) - 1}: {start['offsets']} to {end['offsets']}"
            )
            self._between()
        number = self.done
        start = json.loads(self.plans[number - 1][0]) if number else self._first()
        end = json.loads(self.plans[number][0])
        if self.narrow and any(tp.topic != "t" for tp in _moved(start, end)):
            self.reader = None  # a plan is finished with the options with which it was made
            self.narrow = False
            while self.narrow or self.reader is None:
                self.start()
            start = json.loads(self.plans[number - 1][0]) if number else self._first()
        with self._watched(start):
            tasks = self.reader.partitions(start, end)
        found: list[tuple[TopicPartition, int, bytes]] = []
        for task in tasks:
            self._between()
            with self._named():
                found += self._read(task)
        self._between()
        self.sink[number] = found
        spans = {
            (tp, min(o for t, o, _ in found if t == tp), max(o for t, o, _ in found if t == tp))
            for tp, _, _ in found
        }
        self.world.trace.append(
            f"    read {number}: {[(str(t), a, b) for t, a, b in sorted(spans)]}"
        )
        self._between()
        self.done += 1
        return True

    def _read(self, task: Any) -> Iterator[tuple[TopicPartition, int, bytes]]:
        for rows in self.reader.read(task):
            columns = (rows.column(n).to_pylist() for n in range(4))
            for topic, partition, offset, value in zip(*columns, strict=True):
                yield TopicPartition(topic, partition), offset, value

    def _first(self) -> dict[str, Any]:
        if self.first is None:
            with self._named():
                text = self.reader.initialOffset()
            self.first = json.loads(json.dumps(text))
            self.first_seen = {
                tp: (self.world.lives[tp], mark.offset)
                for tp, mark in from_json(self.first).items()
                if tp in self.world.lives
            }
        return self.first

    def _between(self) -> None:
        """Between two calls: the logs change, or the query is killed."""
        if self.rng.random() < self.chance:
            self.disturbed = True
            for _ in range(self.rng.randrange(1, 3)):
                self.world.step()
        if self.rng.random() < self.chance / 4:
            raise Killed

    @contextmanager
    def _watched(self, start: dict[str, Any]) -> Iterator[None]:
        with self.world.moving(self.chance / 4), self._named():
            yield

    @contextmanager
    def _named(self) -> Iterator[None]:
        handler = Losses()
        logger = logging.getLogger("logstore")
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            for loss in handler.found:
                self._judge(loss)

    def _judge(self, loss: DataLossError) -> None:
        """It did happen, and began there."""
        name = Path(loss.path).name
        if loss.path.endswith(".log"):
            name = Path(loss.path).parent.name
        topic, _, partition = name.rpartition("-")
        tp = TopicPartition(topic, int(partition))
        life = self.world.lives.get(tp)
        remade = re.search(r"from its first offset, (\d+)", loss.reason)
        span = (0, max(int(remade[1]), loss.end)) if remade else (loss.start, loss.end)
        if life is not None and "deleted before" in loss.reason:
            below = [where for _, where in life.cuts if where <= loss.start]
            span = (min(below, default=loss.start), loss.end)  # which cut it was no file tells
        self.losses.append(Loss(life, *span, loss.path.endswith(".log")))
        self.world.trace.append(f"    named {loss}"[:180])
        if loss.path.endswith(".log") or "deleted and created again" in str(loss) or life is None:
            return
        if "not there any more" in str(loss) or "deleted before" in str(loss):
            if "deleted before" in str(loss) and life.start != loss.end and not self.disturbed:
                raise Violation(f"{loss}: the log starts at {life.start}")
            return
        cuts = [where for _, where in life.cuts if where < loss.end]
        if not cuts:
            raise Violation(f"{loss}: the log was never cut there: {life.cuts}")
        if self.world.crashes or self.disturbed:
            return
        deleted = "and starts at" in loss.reason  # the epochs of what is gone are gone, too
        if not (loss.start <= min(cuts) if deleted else loss.start in (*cuts, life.start)):
            raise Violation(f"{loss}: it was cut at {cuts}")

    def names(self, tp: TopicPartition, offset: int, segment: bool = False) -> bool:
        """Whether a loss of these offsets was told."""
        return any(
            loss.life is not None
            and loss.life.tp == tp
            and loss.start <= offset < loss.end
            and (loss.of_segment or not segment)
            for loss in self.losses
        )


def _moved(start: dict[str, Any], end: dict[str, Any]) -> list[TopicPartition]:
    starts = from_json(start)
    return [tp for tp, mark in from_json(end).items() if starts.get(tp) != mark]


# ---- one history -------------------------------------------------------------------------------


def run(seed: int, data: Path, steps: int = STEPS) -> Counter[str]:
    """Play the history of ``seed`` in an empty directory; what happened, by kind.

    Raises:
        Violation: what arrived is wrong.
    """
    rng = random.Random(seed)
    world = World(data, rng, crashes=bool(seed % 2), committed=seed % 3 == 0)
    counts: Counter[str] = Counter()
    try:
        for _ in range(rng.randrange(6)):
            world.step()
        query = Query(world, rng, committed=seed % 3 == 0)
        under_way = False
        for _ in range(steps):
            if rng.random() < 0.45:
                counts["trigger"] += query.trigger()
                under_way |= query.disturbed
            elif rng.random() < 0.1:
                query.start()
                counts["start"] += 1
            else:
                counts[world.step()] += 1
        _drain(world, query)
        _compare(world, query, strict=not world.crashes and not under_way)
        counts["loss"] += len(query.losses)
        counts["row"] += sum(map(len, query.sink.values()))
    except Exception as error:
        error.add_note("\n".join(world.trace))
        raise
    finally:
        world.manager.close()
    return counts


def _drain(world: World, query: Query) -> None:
    """Each transaction ends, each log grows, and the query reads on until there is no more."""
    for life in list(world.lives.values()):
        while life.open_producer():
            world.finish(life)
        world._append(life)
    query.narrow = True
    while query.narrow:
        query.start()
    for _ in range(1_000):
        if not query.trigger(quiet=True):
            return
    raise Violation("the query does not come to an end")


def _compare(world: World, query: Query, strict: bool) -> None:
    arrived = [row for rows in query.sink.values() for row in rows]
    values = Counter(value for _, _, value in arrived)
    began = query.began or {}
    for tp, offset, value in arrived:
        life, at = world.where[value]
        if (life.tp, at) != (tp, offset):
            raise Violation(f"{value!r} arrived as {tp} {offset}, and is {life.tp} {at}")
    for tp, life in world.lives.items():
        floor = next((o for v, o in [began.get(tp, (None, 0))] if v is life), 0)
        for offset, value in life.held(query.committed_only).items():
            # Below where it began nothing is wanted; a cut may have brought it there again.
            if not values[value] and offset >= floor and not query.names(tp, offset, segment=True):
                raise Violation(f"{tp} {offset}, {value[:12]!r}, never arrived")
        for value, offset in life.deleted.items():
            if not values[value] and offset >= floor and not query.names(tp, offset):
                raise Violation(f"{tp} {offset} was deleted unread, and not named")
        if query.committed_only and (wrong := life.aborted() & values.keys()):
            raise Violation(f"{tp}: aborted, and arrived: {sorted(wrong)[:3]}")
    for value, count in values.items():
        if count > 1:
            life, offset = world.where[value]
            if strict or not query.names(life.tp, offset):
                raise Violation(f"{life.tp} {offset} arrived {count} times")


def run_seed(seed: int) -> Run:
    """For ``tests.histories``. What a query names is in the logs, so they are not muted."""
    found = Run(seed)
    logging.getLogger("logstore").propagate = False
    with tempfile.TemporaryDirectory(prefix="histories-") as directory:
        try:
            found.done += run(seed, Path(directory) / "data")
        except Exception as error:
            found.error = error
    return found
