"""Random histories of a compacted log: what is appended, when, and when it is cleaned.

A history is data. The same bytes go into any number of directories, so that cleaners can be
compared that work on the same input.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kafka_cleaner import SLOT_BYTES, CleanerSettings

from logstore import LogConfig, LogManager
from logstore.common.config import BrokerConfig
from logstore.common.types import Record
from logstore.format.batch import BatchFields, encode_batch, end_transaction_marker, rebuild_batch
from logstore.format.codecs.compression import Compression
from logstore.format.control import ControlType
from logstore.format.header import parse_header
from logstore.manager import ManagerOwner
from logstore.testing import ManualClock

TOPIC = "cleaned"
START_MS = 1_700_000_000_000
NO_PRODUCER = -1
TRANSACTIONAL_IDS = (71, 72, 73)
IDEMPOTENT_IDS = (81, 82)
CODECS = tuple(Compression)


@dataclass(frozen=True, slots=True)
class Append:
    """Whole batches that arrive at ``now_ms``, as a follower appends them."""

    now_ms: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Roll:
    """Begin a new segment at ``now_ms``."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class DeleteRecords:
    """Raise the log start offset."""

    offset: int


Step = Append | Roll | DeleteRecords


@dataclass(frozen=True, slots=True)
class Round:
    """What is written, and the time at which the log is cleaned afterwards."""

    steps: tuple[Step, ...]
    clean_at_ms: int


@dataclass(frozen=True, slots=True)
class History:
    seed: int
    config: Mapping[str, str | int]
    """Topic configs by Kafka's names, with ``cleanup.policy=compact``."""
    settings: CleanerSettings
    rounds: tuple[Round, ...]
    compressed: bool
    """Not to the same number of bytes by everybody."""


def write(root: Path, steps: Sequence[Step], history: History) -> None:
    """Carry out ``steps`` on the log of ``TOPIC`` below ``root``, which is made when missing.

    Records without a key are let in, as they may be in a log that was not always compacted. The
    times at which the files were changed follow from their names: they become those of the files
    that a cleaner makes of them.
    """
    config = LogConfig.from_properties(history.config)
    config = replace(config, cleanup_policy=("delete",), retention_ms=-1)
    clock = ManualClock(START_MS)
    with LogManager(
        [root],
        config,
        broker_config=BrokerConfig(producer_id_expiration_ms=2**62),
        topic_configs={TOPIC: config},
        clock=clock,
        background=False,
        owner=ManagerOwner(run_later=lambda task: None, random_id=lambda: f"{history.seed:032x}"),
    ) as manager:
        log = manager.get_or_create(TOPIC, 0)
        for step in steps:
            match step:
                case Append(now_ms, data):
                    clock.set_wall_ms(now_ms)
                    log.replica.append_as_follower(data)
                    log.replica.update_high_watermark(log.log_end_offset)
                case Roll(now_ms):
                    clock.set_wall_ms(now_ms)
                    log.roll()
                case DeleteRecords(offset):
                    log.delete_records(min(max(offset, log.log_start_offset), log.log_end_offset))
    for path in (root / f"{TOPIC}-0").glob("*.log"):
        changed_s = START_MS // 1000 + int(path.stem) % 100_000
        os.utime(path, (changed_s, changed_s))


def make(seed: int) -> History:
    """Return the history of ``seed``."""
    return _Maker(seed).make()


@dataclass(slots=True)
class _Producer:
    epoch: int = 0
    sequence: int = 0
    open: bool = False


@dataclass(slots=True)
class _Maker:
    seed: int
    random: random.Random = field(init=False)
    now: int = START_MS
    offset: int = 0
    leader_epoch: int = 0
    keys: tuple[bytes, ...] = ()
    keyless: bool = False
    aborts: bool = True
    deletes: bool = False
    bases: list[int] = field(default_factory=list)
    codecs: tuple[Compression, ...] = CODECS
    producers: dict[int, _Producer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(f"cleaner-{self.seed}")

    def make(self) -> History:
        pick = self.random.choice
        index_bytes = pick((96, 65_536, 65_536))
        config: dict[str, str | int] = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.0",
            "segment.bytes": pick((1500, 4000, 4000, 10_000)),
            # The small one limits what is merged. Kafka's cleaner fails where its own writes, which
            # are cut otherwise than the appends were, need more entries than an index has.
            "segment.index.bytes": index_bytes,
            "index.interval.bytes": pick((0, 300, 4096) if index_bytes > 96 else (1000, 4096)),
            "delete.retention.ms": pick((0, 1_000, 30_000, 30_000, 86_400_000)),
            "min.compaction.lag.ms": pick((0, 0, 0, 5_000)),
        }
        settings = CleanerSettings(
            dedupe_buffer_size=pick((*[1 << 16] * 4, SLOT_BYTES * 12, SLOT_BYTES * 40)),
            io_buffer_size=pick((1 << 16, 1 << 16, 256)),
            producer_expiration_ms=pick((86_400_000, 86_400_000, 20_000)),
        )
        # Kafka forgets aborts that end below the log start, and takes their data for committed; and
        # a pass that begins within a segment may, by where its index has entries, begin behind the
        # marker of an abort that it still knows of, and take what comes next for aborted. Nobody
        # reads anything wrong, but what stays is not what the rules say.
        self.deletes = self.random.random() < 0.2
        self.aborts = settings.dedupe_buffer_size == 1 << 16 and not self.deletes
        count = pick((3, 12, 40, 150))
        self.keys = (b"", *(b"key-%d" % number for number in range(count)))
        self.keyless = self.random.random() < 0.15
        self.codecs = pick((CODECS, CODECS, (Compression.NONE,)))
        rounds = []
        retention = int(config["delete.retention.ms"])
        for _ in range(self.random.randint(2, 4)):
            steps: list[Step] = []
            for _ in range(self.random.randint(8, 50)):
                self.now += self.random.randrange(400)
                steps += self._step()
            if self.random.random() < 0.7:
                steps += self._settle()
            self.now += pick((0, 10_000, retention + 1, 20_001))
            rounds.append(Round(tuple(steps), self.now))
        return History(self.seed, config, settings, tuple(rounds), self.codecs is CODECS)

    def _settle(self) -> list[Step]:
        """End what is open, and leave it behind in a segment that is not the active one."""
        data = b"".join(
            self._marker(producer_id, producer)
            for producer_id, producer in self.producers.items()
            if producer.open
        )
        steps: list[Step] = [Append(self.now, data)] if data else []
        last = self._data(NO_PRODUCER, transactional=False)
        return [*steps, Roll(self.now), Append(self.now, last)]

    def _step(self) -> list[Step]:
        chance = self.random.random()
        if chance < 0.02:
            return [Roll(self.now)]
        if chance < 0.06 and self.deletes and self.bases:
            return [DeleteRecords(self.random.choice(self.bases))]
        if 0.06 < chance < 0.08:
            self.leader_epoch += self.random.randint(1, 2)
        if 0.08 < chance < 0.1:  # far beyond what one segment can hold, once in a while
            self.offset += self.random.choice((*(1, 7, 100) * 5, 2**31 - 50, 2**31 + 5))
        data = b"".join(self._batch() for _ in range(self.random.choice((1, 1, 1, 2, 4))))
        return [Append(self.now, data)]

    def _batch(self) -> bytes:
        chance = self.random.random()
        if chance < 0.4:
            return self._data(NO_PRODUCER, transactional=False)
        if chance < 0.55:
            return self._data(self.random.choice(IDEMPOTENT_IDS), transactional=False)
        producer_id = self.random.choice(TRANSACTIONAL_IDS)
        producer = self.producers.setdefault(producer_id, _Producer())
        if chance < 0.8 or (not producer.open and chance < 0.96):
            producer.open = True
            return self._data(producer_id, transactional=True)
        return self._marker(producer_id, producer)

    def _marker(self, producer_id: int, producer: _Producer) -> bytes:
        """End a transaction, even one without data, perhaps of a producer that is fenced."""
        outcome = self.random.choice((ControlType.COMMIT, ControlType.ABORT))
        if not self.aborts:
            outcome = ControlType.COMMIT
        elif self.random.random() < 0.15:
            outcome = ControlType.ABORT
            producer.epoch += 1
            producer.sequence = 0
        producer.open = False
        marker = end_transaction_marker(
            outcome,
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            coordinator_epoch=0,
            timestamp=self.now,
            base_offset=self.offset,
            leader_epoch=self.leader_epoch,
        )
        self.offset += 1
        return bytes(marker)

    def _data(self, producer_id: int, *, transactional: bool) -> bytes:
        count = self.random.choice((1, 2, 5, 12))
        records = [self._record(self.offset + number) for number in range(count)]
        fields: BatchFields = {
            "base_offset": self.offset,
            "leader_epoch": self.leader_epoch,
            "compression": self.random.choice(self.codecs),
        }
        if self.random.random() < 0.05:
            fields["log_append_time"] = self.now
        if producer_id != NO_PRODUCER:
            producer = self.producers.setdefault(producer_id, _Producer())
            fields["producer_id"] = producer_id
            fields["producer_epoch"] = producer.epoch
            fields["base_sequence"] = producer.sequence
            fields["transactional"] = transactional
            producer.sequence += count
        batch = encode_batch(records, **fields)
        self.bases.append(self.offset)
        self.offset += count
        if self.random.random() < 0.05:  # what a leader left that was cleaned before
            kept = [record for record in records if self.random.random() < 0.5]
            horizon = self.random.choice((None, self.now + 5_000))
            batch = rebuild_batch(parse_header(batch), kept, delete_horizon=horizon)
        return bytes(batch)

    def _record(self, offset: int) -> Record:
        pick = self.random.choice
        key: bytes | None = pick(self.keys)
        if self.keyless and self.random.random() < 0.05:
            key = None
        value = None if self.random.random() < 0.2 else b"%d " % offset * self.random.randrange(12)
        headers = pick(
            ((), (), (), (("h", b"1"),), (("h", None), ("", b""), ("naïve-ключ", b"\0")))
        )
        timestamp = self.now - self.random.randrange(300)
        return Record(offset, timestamp, key, value, headers)
