"""A log that lives at random, and is verified at every turn: whatever it did, nothing is wrong.

Producers with and without transactions write to it, their epochs rise, markers end what they began;
it rolls, is cut, loses records from its start, is closed, is killed, begins anew, follows another
log, has a new controller whose epochs begin at 0. While a verification reads one file after the
other, the log goes on. None of that is damage, so whatever a verification says of it above an info
is invented. All of a life follows from its seed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from logstore.common.config import LogConfig
from logstore.common.errors import LogstoreError, RecordRejectedError
from logstore.format.batch import encode_batch, end_transaction_marker
from logstore.format.codecs.compression import Compression
from logstore.format.control import ControlType
from logstore.format.header import add_sequence
from logstore.log import run_inline
from logstore.manager import LogManager, ManagerOwner
from logstore.segments.producer_state import AppendOrigin
from logstore.storage import Storage
from logstore.storage.memory import MemoryStorage
from logstore.testing import ManualClock
from logstore.verify import Severity, VerifyOptions, verify
from tests.histories.history import Run, history
from tests.support.logs import take_producer_snapshot

DIRECTORY, TOPIC = "/data", "t"
OPTIONS = VerifyOptions(threads=1)
CODECS = (Compression.NONE, Compression.NONE, Compression.NONE, Compression.LZ4, Compression.ZSTD)
EXPIRATION_MS = 86_400_000
PRODUCERS = (4000, 4001, 4002, 4003)


@history
def run(found: Run) -> None:
    """One life; it ends with the first finding."""
    _Life(found).go(40)


@dataclass(slots=True)
class _Client:
    """A producer as it knows itself, whatever the log remembers of it."""

    producer_id: int
    epoch: int = 0
    coordinator_epoch: int = 0
    written: list[tuple[int, int, int]] = field(default_factory=list)
    """End offset, epoch and next sequence of each of its batches and epochs."""
    opened: bool = False

    @property
    def sequence(self) -> int:
        same = [next_ for _, epoch, next_ in self.written if epoch == self.epoch]
        return same[-1] if same else 0


class _Meanwhile:
    """A storage as a verification sees it whose log goes on between two looks."""

    def __init__(self, storage: Storage, goes_on: Callable[[], None]) -> None:
        self._storage, self._goes_on = storage, goes_on

    def __getattr__(self, name: str) -> Any:
        self._goes_on()
        return getattr(self._storage, name)


class _Life:
    def __init__(self, found: Run) -> None:
        self.life = found
        self.told: list[str] = []
        self.rng = rng = random.Random(found.seed)
        self.storage, self.clock = MemoryStorage(), ManualClock()
        self.replicated = rng.random() < 0.5
        self.config = LogConfig(
            segment_bytes=rng.choice((700, 1500, 4000)),
            index_interval_bytes=rng.choice((0, 100, 300, 900)),
            segment_index_bytes=rng.choice((240, 4096)),
            retention_ms=-1,
            message_timestamp_type=rng.choice(("CreateTime", "CreateTime", "LogAppendTime")),
            preallocate=rng.random() < 0.1,
        )
        self.leader_epoch = 0
        self.highest_epoch = 0
        self.fell = False
        """Since the last election the epoch is one of a new controller, below the highest."""
        self.later: deque[Callable[[], None]] = deque()
        """What the log does behind its writers' backs, such as settling a roll."""
        self.is_prompt = rng.random() < 0.5
        self.clients = [_Client(producer_id) for producer_id in PRODUCERS]
        self.cautious = rng.random() < 0.4  # cuts at batches only, as leaders' epochs do
        self.manager = self.open()
        self.log = self.manager.create_topic(TOPIC, 1)[0]
        self.steps: dict[Callable[[], str], int] = {
            self.append: 6,
            self.produce: 18,
            self.transact: 14,
            self.raise_epoch: 2,
            self.forget_producers: 1,
            self.lead: 2,
            self.new_controller: 1,
            self.catch_up: 2,
            self.watch: 3,
            self.roll: 3,
            self.flush: 2,
            self.cut: 3,
            self.delete_records: 3,
            self.retain: 2,
            self.restart_log: 1,
            self.close: 3,
            self.kill: 2,
            self.commit_up_to: 4,
            self.snapshot: 1,
            self.checkpoint: 3,
            self.follow: 3,
            self.wait: 2,
        }

    def open(self) -> LogManager:
        return LogManager(
            [DIRECTORY],
            self.config,
            storage=self.storage,
            clock=self.clock,
            owner=ManagerOwner(
                cluster_id="c",
                run_later=run_inline if self.is_prompt else self.later.append,
                replicated=self.replicated,
            ),
        )

    def go(self, steps: int) -> None:
        names = [*self.steps]
        for number in range(steps):
            step = self.rng.choices(names, [*self.steps.values()])[0]
            try:
                self.life.trace.append(f"{number}: {step()}")
            except RecordRejectedError as refusal:
                self.life.trace.append(f"{number}: {step.__name__}: {refusal}")
                continue
            self.life.done[step.__name__] += 1
            if step in (self.close, self.kill) or self.rng.random() < 0.15:
                self.check()
            if self.told:
                break
        else:
            self.close()
            self.check()
        self.manager.crash()
        assert not self.told, self.told

    def check(self, storage: Storage | None = None) -> None:
        self.life.done["check"] += 1
        report = verify([DIRECTORY], OPTIONS, storage=storage or self.storage)
        found = [str(f) for f in report.findings if f.severity is not Severity.INFO]
        self.told += [*found, *(why for why in report.unusable if "busy" not in why or not storage)]

    def watch(self) -> str:
        """Verify, while the log goes on."""
        steps = [
            self.append,
            self.produce,
            self.transact,
            self.roll,
            self.flush,
            self.lead,
            self.delete_records,
            self.retain,
            self.checkpoint,
            self.catch_up,
            self.wait,
        ]
        trace: list[str] = []

        def goes_on() -> None:
            if self.rng.random() < 0.15:
                try:
                    trace.append(self.rng.choice(steps)())
                except RecordRejectedError as refusal:
                    trace.append(str(refusal))

        self.check(cast(Storage, _Meanwhile(self.storage, goes_on)))
        return f"watched: {trace}"

    # -- writing -------------------------------------------------------------------------------

    def stamp(self) -> int:
        self.clock.advance(self.rng.choice((0, 1, 10)))
        return self.clock.wall_ms() - self.rng.choice((0, 0, 0, 5, 50))

    def records(self) -> list[tuple[bytes, bytes, int]]:
        count = self.rng.randint(1, 4)
        return [
            (b"k", self.rng.randbytes(self.rng.randint(0, 80)), self.stamp()) for _ in range(count)
        ]

    def append(self) -> str:
        self.log.append(
            self.records(), leader_epoch=self.leader_epoch, compression=self.rng.choice(CODECS)
        )
        return f"append, up to {self.log.log_end_offset}"

    def produce(self) -> str:
        return self.write(self.rng.choice(self.clients[:2]), transactional=False)

    def transact(self) -> str:
        client = self.rng.choice(self.clients[2:])
        if client.opened and self.rng.random() < 0.4:
            return self.end(client)
        return self.write(client, transactional=True)

    def write(self, client: _Client, *, transactional: bool) -> str:
        records = self.records()
        sequence = client.sequence
        batch = encode_batch(
            records,
            producer_id=client.producer_id,
            producer_epoch=client.epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        try:
            self.log.append_as_leader(batch, self.leader_epoch)
        except LogstoreError:  # what was cut away cannot be followed: as a client does then
            self.bump(client)
            raise
        client.opened |= transactional
        end = self.log.log_end_offset
        client.written.append((end, client.epoch, add_sequence(sequence, len(records))))
        return f"producer {client.producer_id}/{client.epoch} {sequence}, up to {end}"

    def end(self, client: _Client) -> str:
        how = self.rng.choice((ControlType.ABORT, ControlType.COMMIT))
        if self.rng.random() < 0.2:
            self.bump(client)  # with the marker, so that nothing late can join the next one
        client.coordinator_epoch += self.rng.random() < 0.1
        marker = end_transaction_marker(
            how,
            producer_id=client.producer_id,
            producer_epoch=client.epoch,
            coordinator_epoch=client.coordinator_epoch,
            timestamp=self.stamp(),
        )
        self.log.append_as_leader(marker, self.leader_epoch, AppendOrigin.COORDINATOR)
        client.opened = False
        return f"{how.name} of {client.producer_id}/{client.epoch}, at {self.log.log_end_offset}"

    def bump(self, client: _Client) -> None:
        client.epoch += 1
        client.written.append((self.log.log_end_offset, client.epoch, 0))

    def raise_epoch(self) -> str:
        client = self.rng.choice(self.clients[:2])
        self.bump(client)
        return f"producer {client.producer_id} has epoch {client.epoch}"

    def lead(self) -> str:
        self.elect(self.rng.randint(1, 3))
        self.log.epochs.assign(self.leader_epoch)
        return f"leader epoch {self.leader_epoch}"

    def elect(self, rises: int) -> None:
        """Epochs that rise to one that the log had before are like damaged ones, after a kill."""
        if self.fell and rises:
            self.leader_epoch, self.fell = self.highest_epoch, False
        self.leader_epoch += rises

    def new_controller(self) -> str:
        self.highest_epoch = max(self.highest_epoch, self.leader_epoch)
        self.leader_epoch, self.fell = 0, True
        if self.rng.random() < 0.5:
            self.log.epochs.assign(self.leader_epoch)
        return f"a new controller, leader epoch {self.leader_epoch}"

    def follow(self) -> str:
        """Several batches of another leader at once."""
        if not self.replicated:
            return "no leader to follow"
        self.elect(self.rng.randint(0, 1))
        data, offset = bytearray(), self.log.log_end_offset
        for _ in range(self.rng.randint(1, 4)):
            records = self.records()
            batch = bytearray(encode_batch(records))
            batch[:8] = offset.to_bytes(8, "big")
            batch[12:16] = self.leader_epoch.to_bytes(4, "big")
            data += batch
            offset += len(records)
        self.log.replica.append_as_follower(bytes(data))
        return f"follow, up to {self.log.log_end_offset}"

    # -- what becomes of it ----------------------------------------------------------------------

    def catch_up(self) -> str:
        """Do some of what waits."""
        count = self.rng.randint(0, len(self.later))
        for _ in range(count):
            self.later.popleft()()
        return f"{count} tasks done"

    def roll(self) -> str:
        self.log.roll()
        return "roll"

    def flush(self) -> str:
        self.log.flush()
        return "flush"

    def cut(self) -> str:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        offset = self.rng.randint(max(start, end - 15), end)
        if self.cautious:
            views = [segment.live() for segment in self.log.segments]
            batches = [span.base_offset for view in views for span in view.walk(0)]
            offset = max((base for base in batches if base <= offset), default=end)
        self.manager.truncate_to({self.log.topic_partition: offset})
        self.forget_from(self.log.log_end_offset)
        return f"cut to {offset}: {self.log.log_end_offset}"

    def forget_from(self, end: int) -> None:
        """What producers know of themselves, once their records from ``end`` on are gone."""
        known = self.log.producers.known.producers
        for client in self.clients:
            client.written = [batch for batch in client.written if batch[0] <= end]
            entry = known.get(client.producer_id)
            client.opened = entry is not None and entry.current_txn_first_offset >= 0

    def commit_up_to(self) -> str:
        if not self.replicated:
            return "no high watermark"
        offset = self.rng.randint(self.log.high_watermark, self.log.log_end_offset)
        self.log.replica.update_high_watermark(offset)
        return f"high watermark {self.log.high_watermark}"

    def delete_records(self) -> str:
        top = self.log.high_watermark if self.replicated else self.log.log_end_offset
        offset = self.rng.randint(min(self.log.log_start_offset, top), top)
        self.log.delete_records(offset)
        return f"delete records below {offset}"

    def retain(self) -> str:
        return f"{self.log.maintenance.delete_old_segments()} segments deleted"

    def restart_log(self) -> str:
        if not self.replicated:
            return "only a follower begins anew"
        offset = self.log.log_end_offset + self.rng.choice((0, 0, 5))
        self.log.maintenance.truncate_fully_and_start_at(offset)
        self.manager.housekeeper.checkpoint_truncations([self.log.topic_partition])
        for client in self.clients:
            client.opened = False
        return f"begin anew at {offset}"

    def snapshot(self) -> str:
        take_producer_snapshot(self.log)
        return "snapshot"

    def forget_producers(self) -> str:
        self.clock.advance(EXPIRATION_MS + 1)
        return f"{self.log.producers.remove_expired()} producers forgotten"

    def checkpoint(self) -> str:
        which = self.rng.choice(("recovery_points", "log_start_offsets", "high_watermarks"))
        getattr(self.manager.housekeeper, f"checkpoint_{which}")()
        return f"checkpoint {which}"

    def wait(self) -> str:
        self.clock.advance(self.rng.choice((1, 1000, 60_000)))
        self.manager.housekeeper.purge_deleted()
        return "time passes"

    def close(self) -> str:
        self.manager.close()
        return self.start_again("closed")

    def kill(self) -> str:
        """Of the process: what was written is there; of an entry of an index maybe half."""
        self.manager.crash()
        self.later.clear()
        if self.rng.random() < 0.3:
            self.leave_half()
        return self.start_again("killed")

    def leave_half(self) -> None:
        """As Kafka does, which puts the two fields of an entry one after the other."""
        names = [entry.name for entry in self.storage.scan_dir(f"{DIRECTORY}/{TOPIC}-0")]
        suffix, entry = self.rng.choice(((".index", b"\0\0\0\5"), (".timeindex", b"\x7f" * 8)))
        last = max((name for name in names if name.endswith(suffix)), default=None)
        if last is not None:
            path = f"{DIRECTORY}/{TOPIC}-0/{last}"
            width = 2 * len(entry) if suffix == ".index" else 12
            data = self.storage.read_file(path).rstrip(b"\0")
            data += bytes(-len(data) % width) + entry.ljust(width, b"\0")
            self.storage.write_file(path, data)

    def start_again(self, how: str) -> str:
        self.check()
        if self.told:
            return how
        self.manager = self.open()
        self.log = self.manager.get_or_create(TOPIC, 0)
        if self.fell:  # an election follows each start
            self.elect(1)
            self.log.epochs.assign(self.leader_epoch)
        self.forget_from(self.log.log_end_offset)
        return f"{how}, opened at {self.log.log_start_offset}…{self.log.log_end_offset}"
