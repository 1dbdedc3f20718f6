"""Random work on one partition, mirrored in a model that says what a crash may leave."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from logstore.common.errors import LogstoreError
from logstore.common.types import TopicPartition
from logstore.format.codecs.compression import Compression
from logstore.log import PartitionLog
from logstore.log.maintenance import deletable_segments
from logstore.log.snapshot import LogView
from logstore.manager import LogManager
from logstore.segments.producer_state import AppendOrigin
from logstore.testing import ManualClock
from tests.crash.model import Batch, Model, as_client, data_batch, marker_batch, replay
from tests.support.logs import take_producer_snapshot

PRODUCERS = 3
KEYS = (None, b"k", b"key-1")
CODECS = (Compression.NONE, Compression.NONE, Compression.NONE, Compression.LZ4)


class Work:
    """One partition under work. ``pending`` is the log as the step under way would leave it."""

    def __init__(
        self, partition: TopicPartition, rng: random.Random, clock: ManualClock, model: Model
    ) -> None:
        self.partition = partition
        self.model = model
        self.keys: tuple[bytes | None, ...] = KEYS
        self.pending: list[Batch] | None = None
        self.pending_start = 0
        self.doing = ""
        self.manager: LogManager
        self.log: PartitionLog
        self._rng = rng
        self._clock = clock
        steps: list[tuple[Callable[[], str], int]] = [
            (self.append, 30),
            (self.append_of_producer, 20),
            (self.end_transaction, 8),
            (self.follow, 12),
            (self.flush, 8),
            (self.roll, 4),
            (self.truncate, 4),
            (self.truncate_fully, 1),
            (self.delete_records, 3),
            (self.retain, 4),
            (self.checkpoint, 8),
            (self.lead, 4),
            (self.snapshot, 2),
            (self.wait, 4),
            (self.retry, 5),
        ]
        self._steps = [step for step, _ in steps]
        # Each seed does some things often and others never: rare mixtures come up that way.
        self._weights = [weight * rng.choice((0, 1, 1, 3)) for _, weight in steps]
        self._weights[0] = 30

    def attach(self, manager: LogManager, log: PartitionLog) -> None:
        self.manager, self.log, self.pending = manager, log, None

    def step(self) -> str:
        """Do something; what it was, for the trace."""
        self.pending, self.pending_start = None, 0
        chosen = self._rng.choices(self._steps, self._weights)[0]
        self.doing = chosen.__name__
        told = chosen()
        self.pending = None
        return told

    # -- appends -------------------------------------------------------------------------------

    def append(self) -> str:
        batches = [self._batch(self.model.leo)]
        if self._rng.random() < 0.15:
            batches.append(self._batch(batches[0].last + 1))
        return self._lead(batches)

    def append_of_producer(self) -> str:
        rng, model = self._rng, self.model
        producer = rng.randrange(PRODUCERS)
        known = replay(model.batches).producers.get(producer)
        epoch = known.epoch if known else 0
        transactional = known.txn_first >= 0 if known else False
        if not transactional and rng.random() < 0.4:
            transactional = True
        sequence = known.last_sequence + 1 if known else 0
        entry = self.log.producers.known.producers.get(producer)
        if entry is not None and (known is None or entry.last_sequence != known.last_sequence):
            # Its batches are deleted, the log remembers it all the same.
            epoch, sequence = entry.producer_epoch, entry.last_sequence + 1
            transactional = entry.current_txn_first_offset >= 0
        if rng.random() < 0.1 and not transactional:
            epoch, sequence = epoch + 1, 0
        batch = self._batch(
            model.leo,
            producer=producer,
            producer_epoch=epoch,
            sequence=sequence,
            transactional=transactional,
        )
        return self._lead([batch])

    def end_transaction(self) -> str:
        open_ones = [
            (p, entry)
            for p, entry in sorted(self.log.producers.known.producers.items())
            if entry.current_txn_first_offset >= 0
        ]
        if not open_ones:
            return "no transaction is open"
        producer, entry = self._rng.choice(open_ones)
        marker = marker_batch(
            self.model.leo,
            self.model.epoch,
            producer,
            entry.producer_epoch,
            self._rng.random() < 0.5,
            self._clock.wall_ms(),
        )
        return self._lead([marker], AppendOrigin.COORDINATOR)

    def _lead(self, batches: Sequence[Batch], origin: AppendOrigin = AppendOrigin.CLIENT) -> str:
        self.pending = [*self.model.batches, *batches]
        data = b"".join(map(as_client, batches))
        info = self.log.append_as_leader(data, self.model.epoch, origin)
        assert not info.duplicate, f"I-20: new batches {batches} are taken for a retry"
        assert (info.first_offset, info.last_offset) == (batches[0].base, batches[-1].last)
        self._appended(batches)
        return f"append {batches}"

    def follow(self) -> str:
        base = self.model.leo + (self._rng.randint(1, 3) if self._rng.random() < 0.1 else 0)
        batches = [self._batch(base)]
        if self._rng.random() < 0.3:
            batches.append(self._batch(batches[0].last + 1))
        self.pending = [*self.model.batches, *batches]
        self.log.replica.append_as_follower(b"".join(batch.data for batch in batches))
        self._appended(batches)
        return f"follow {batches}"

    def retry(self) -> str:
        """A retry of a producer's last batch gives its old offsets and appends nothing."""
        whole = (batch for batch in self.model.live() if batch.deltas is None)
        last = {b.producer: b for b in whole if b.sequence >= 0}
        known = replay(self.model.batches).producers
        candidates = [b for p, b in last.items() if known[p].last_offset == b.last]
        if not candidates:
            return "nothing to retry"
        batch = self._rng.choice(candidates)
        info = self.log.append_as_leader(as_client(batch), self.model.epoch)
        assert info.duplicate, f"I-20: a retry of {batch} is not recognised"
        assert (info.first_offset, info.last_offset) == (batch.base, batch.last)
        return f"retry {batch}"

    def _appended(self, batches: Sequence[Batch]) -> None:
        self.model.add(batches)
        self.model.ghost = None
        if self.log.log_end_offset == self.log.recovery_point:
            self.model.flushed = self.model.leo  # flush.messages was reached

    def _batch(
        self,
        base: int,
        *,
        producer: int = -1,
        producer_epoch: int = -1,
        sequence: int = -1,
        transactional: bool = False,
    ) -> Batch:
        rng = self._rng
        now = self._clock.wall_ms()
        size = min(rng.choice((0, 10, 10, 40, 200, 900)), self.log.config.segment_bytes // 10)
        records = [
            (
                rng.choice(self.keys),
                bytes([65 + rng.randrange(26)]) * size,
                now + rng.choice((0, 0, 0, 1, 50, -20, -3000)),
            )
            for _ in range(rng.choice((1, 1, 2, 3)))
        ]
        return data_batch(
            base,
            self.model.epoch,
            records,
            producer=producer,
            producer_epoch=producer_epoch,
            sequence=sequence,
            transactional=transactional,
            compression=rng.choice(CODECS),
        )

    # -- everything else -----------------------------------------------------------------------

    def flush(self) -> str:
        if self._rng.random() < 0.3 and self.model.leo > self.model.flushed:
            offset = self._rng.randint(self.model.flushed, self.model.leo)
            self.log.flush(offset)
        else:
            offset = self.model.leo
            self.log.flush()
        self.model.flushed = max(self.model.flushed, offset)
        return f"flush below {offset}"

    def roll(self) -> str:
        self.log.roll()
        return f"roll at {self.model.leo}"

    def truncate(self) -> str:
        model, rng = self.model, self._rng
        boundaries = [batch.base for batch in model.live()]
        if not boundaries:
            return "nothing to truncate"
        offset = rng.choice(boundaries)
        if rng.random() < 0.1:
            offset = rng.randint(model.start, model.leo)
        inside = [b.base for b in model.batches if b.base <= offset <= b.last]
        end = inside[0] if inside else offset  # a batch goes whole
        self.pending = model.below(offset)
        self._forget(end)
        self.manager.truncate_to({self.partition: offset})
        model.truncate(end)
        if rng.random() < 0.7:  # usually, not always, what follows is of a new leadership
            model.epoch += 1
        return f"truncate to {offset}"

    def truncate_fully(self) -> str:
        model = self.model
        offset = model.leo + self._rng.choice((0, 0, 5))
        self.pending, self.pending_start = [], offset
        self._forget(0)
        self.log.maintenance.truncate_fully_and_start_at(offset)
        self.manager.housekeeper.checkpoint_recovery_points()
        self.manager.housekeeper.checkpoint_log_start_offsets()
        model.restart_log(offset)
        model.epoch += 1
        return f"truncate fully, start at {offset}"

    def _forget(self, offset: int) -> None:
        """A cut is under way: until it is done either log is right."""
        self.model.flushed = min(self.model.flushed, offset)
        self.model.durable_start = min(self.model.durable_start, offset)

    def delete_records(self) -> str:
        model = self.model
        offset = self._rng.randint(model.start, model.leo)
        model.start = offset
        self.log.delete_records(offset)
        return f"delete records below {offset}"

    def retain(self) -> str:
        model, log = self.model, self.log
        view = LogView(log.core.snapshot)
        doomed = deletable_segments(view, log.config, self._clock.wall_ms())
        if doomed:
            rest = [s.base_offset for s in log.segments[doomed:]]
            model.start = max(model.start, rest[0] if rest else model.leo)
        deleted = log.maintenance.delete_old_segments()
        assert log.log_start_offset == model.start
        return f"retention deletes {deleted} segments, the log starts at {model.start}"

    def checkpoint(self) -> str:
        which = self._rng.randrange(3)
        if which == 0:
            self.manager.housekeeper.checkpoint_recovery_points()
        elif which == 1:
            self.manager.housekeeper.checkpoint_log_start_offsets()
        else:
            self.manager.housekeeper.checkpoint_high_watermarks()
            return "checkpoint of the high watermark"
        inside = self.model.start > self.log.segments[0].base_offset
        self.model.durable_start = self.model.start if inside and not self.log.failed else 0
        return f"checkpoint, recovery point {self.log.recovery_point}"

    def lead(self) -> str:
        self.model.epoch += self._rng.choice((1, 1, 3))
        if self._rng.random() < 0.5:
            self.log.epochs.assign(self.model.epoch)
        return f"epoch {self.model.epoch}"

    def snapshot(self) -> str:
        take_producer_snapshot(self.log)
        return "producer snapshot"

    def wait(self) -> str:
        self._clock.advance(self._rng.choice((1, 100, 5000)))
        self.manager.housekeeper.flush_dirty_logs()
        self.manager.housekeeper.purge_deleted()
        return "time passes"


def expect_refusal(work: Work) -> LogstoreError | None:
    """A log whose disk failed refuses everything (I-19)."""
    try:
        work.log.append([(b"k", b"v")])
    except LogstoreError as error:
        return error
    return None
