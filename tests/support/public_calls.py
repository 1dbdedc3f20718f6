"""Every public call of a log, its producers, its cursors and a manager, for tests of what surrounds
a call: a fork, another working directory, an interrupt, a full or a read-only disk.

A test opens a stage with ten durable records, does something to it, makes the call, and looks
whether the records are unharmed, in the open log and after the next start::

    opened = open_stage(directory, call)
    result = call.run(opened)
    assert call.done(opened)
    unharmed(call, values(opened.log))
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

from checkpoints.types import TopicPartition
from logstore.common.config import LogConfig
from logstore.format.batch import encode_batch
from logstore.log import EARLIEST, PartitionLog, run_inline
from logstore.log.reading.cursors import Cursor
from logstore.log.writing.producing import LogProducer
from logstore.manager import LogManager, ManagerOwner, WantedLog
from logstore.storage.base import Storage
from logstore.testing import ManualClock

TOPIC = "orders"
RECORDS = tuple(b"%d" % number for number in range(10))
"""The values that are durable before the call, one at each offset; two in each segment."""
CONFIG = LogConfig(
    file_delete_delay_ms=0, message_timestamp_after_max_ms=2**63 - 1, segment_index_bytes=4096
)
NEW_ID = uuid.UUID(int=7)


class Owner(Enum):
    """What is opened for a call."""

    LOG = auto()
    MANAGER = auto()


class Effect(Enum):
    """What a call does to the files."""

    READS = auto()
    CHANGES = auto()
    MEMORY = auto()
    """It changes what is in memory, and no file."""


@dataclass
class Opened:
    """What a call has to work with. ``log`` is the manager's own with a manager."""

    directory: str
    storage: Storage | None
    log: PartitionLog
    manager: LogManager | None
    producer: LogProducer
    cursor: Cursor

    @property
    def managed(self) -> LogManager:
        assert self.manager is not None
        return self.manager

    def close(self) -> None:
        if self.manager is not None:
            self.manager.close()
        else:
            self.log.close()

    def crash(self) -> None:
        """Let go of everything, as the end of the process does."""
        if self.manager is not None:
            self.manager.crash()
        else:
            self.log.crash()


Run = Callable[[Opened], Any]


def _always(opened: Opened) -> bool:
    return True


@dataclass(frozen=True)
class PublicCall:
    """One public call.

    Attributes:
        name: ``Class.method``, and what is special about it.
        owner: what it needs to be open.
        run: makes the call.
        effect: what it does to the files.
        prepare: brings the stage to where the call has something to do.
        done: whether the call has had its effect, in the same log or after a new start.
        returns: whether the result is right.
        removes: offsets that it may remove, and that are gone when it returns.
        adds: values that it appends, in this order.
        closes: nothing can be called after it.
        deletes: the log itself is gone after it.
    """

    name: str
    owner: Owner
    run: Run
    effect: Effect = Effect.CHANGES
    prepare: Callable[[Opened], object] = _always
    done: Callable[[Opened], bool] = _always
    returns: Callable[[Any], bool] = field(default=lambda result: True)
    removes: range = range(0)
    adds: tuple[bytes, ...] = ()
    closes: bool = False
    deletes: bool = False

    def __str__(self) -> str:
        return self.name


def open_again(
    directory: str | os.PathLike[str], owner: Owner, storage: Storage | None = None
) -> Opened:
    """Open the stage as it is on the disk."""
    path, clock = os.fspath(directory), ManualClock()
    manager = None
    if owner is Owner.MANAGER:
        manager = LogManager(
            [path],
            CONFIG,
            storage=storage,
            clock=clock,
            background=False,
            owner=ManagerOwner(run_later=run_inline),
        )
        log: PartitionLog = manager.get_or_create(TOPIC, 0)
    else:
        log = PartitionLog.open(f"{path}/{TOPIC}-0", CONFIG, storage=storage, clock=clock)
    cursor = log.cursor("reader", on_out_of_range="earliest")
    return Opened(path, storage, log, manager, log.producer("writer"), cursor)


def open_stage(
    directory: str | os.PathLike[str], call: PublicCall, storage: Storage | None = None
) -> Opened:
    """Open a new log with ``RECORDS`` in five segments, all durable, ready for the call."""
    opened = open_again(directory, call.owner, storage)
    for first in range(0, len(RECORDS), 2):
        opened.producer.append([(b"k", value) for value in RECORDS[first : first + 2]])
        opened.log.flush()
        if first + 2 < len(RECORDS):
            opened.log.roll()
    opened.log.flush()
    assert [record.value for record in opened.cursor.poll(3)] == list(RECORDS[:3])
    opened.cursor.commit()
    call.prepare(opened)
    return opened


def values(log: PartitionLog) -> dict[int, bytes | None]:
    """All records of the log: their values by offset."""
    return {record.offset: record.value for record in log.records()}


def unharmed(call: PublicCall, found: dict[int, bytes | None], *, returned: bool = False) -> None:
    """Assert that nothing acknowledged is lost and nothing is there that nobody wrote.

    Args:
        returned: the call returned, so that what it appends is there and what it removes is gone.
    """
    kept = {at: value for at, value in enumerate(RECORDS) if at not in call.removes}
    removed = {at: RECORDS[at] for at in call.removes}
    assert {at: found[at] for at in kept if at in found} == kept, "lost or changed"
    assert {at: found[at] for at in removed if at in found}.items() <= removed.items()
    added = [found[at] for at in sorted(found) if at >= len(RECORDS)]
    assert tuple(added) == call.adds[: len(added)], "somebody else's records, or one twice"
    if returned:
        assert tuple(added) == call.adds
        assert not removed.keys() & found.keys()


# -- parts of calls --------------------------------------------------------------------------------


def _ends_at(offset: int) -> Callable[[Opened], bool]:
    return lambda opened: opened.log.log_end_offset == offset


def _starts_at(offset: int) -> Callable[[Opened], bool]:
    return lambda opened: opened.log.log_start_offset == offset


def _has_topic(name: str, partitions: int) -> Callable[[Opened], bool]:
    return lambda opened: len(opened.managed.topics().get(name, ())) == partitions


def _has_file(path: str) -> Callable[[Opened], bool]:
    def there(opened: Opened) -> bool:
        storage = opened.log.core.storage
        return storage.info(f"{opened.directory}/{path}") is not None

    return there


def _all(records: Iterable[Any]) -> list[bytes | None]:
    return [record.value for record in records]


def _batch(base_offset: int = 0, *, value: bytes = b"10") -> bytes:
    return bytes(encode_batch([(b"k", value, 0)], base_offset=base_offset, leader_epoch=0))


def _expire(opened: Opened) -> None:
    """Let retention have the first two segments."""
    opened.log.delete_records(4)


def _other_topic(opened: Opened) -> None:
    opened.managed.create_topic("others", 2)


def _raise_first(errors: Iterable[Exception | None]) -> None:
    for error in errors:
        if error is not None:
            raise error


def _fill(logs: list[PartitionLog]) -> None:
    logs[0].append([(None, b"first")])


def _compacted(opened: Opened) -> bool:
    return "compact" in opened.log.config.cleanup_policy


def _log(name: str, run: Run, **more: Any) -> PublicCall:
    return PublicCall(f"PartitionLog.{name}", Owner.LOG, run, **more)


def _reads(name: str, run: Run, **more: Any) -> PublicCall:
    return _log(name, run, effect=Effect.READS, **more)


def _replica(name: str, run: Run, **more: Any) -> PublicCall:
    return PublicCall(f"PartitionLog.{name}", Owner.MANAGER, run, **more)


def _manager(name: str, run: Run, **more: Any) -> PublicCall:
    return PublicCall(f"LogManager.{name}", Owner.MANAGER, run, **more)


_TEN = {"adds": (b"10",), "done": _ends_at(11)}
_WHOLE = {"returns": lambda found: found == list(RECORDS)}
_PAIR = [(b"k", b"10"), (b"k", b"11")]
_TWO = {"adds": (b"10", b"11"), "done": _ends_at(12)}

LOG_CALLS = (
    _log("append", lambda o: o.log.append([(b"k", b"10")]), **_TEN),
    _log(
        "append, with a roll",
        lambda o: o.log.append([(b"k", b"10")]),
        **_TEN,
        prepare=lambda o: o.log.roll(),
    ),
    _log(
        "append, that rolls",  # a smaller one does not
        lambda o: o.log.append([(b"k" * 200, b"10")]),
        **_TEN,
        prepare=lambda o: o.log.reconfigure(replace(CONFIG, segment_bytes=300)),
    ),
    _log("append, sync", lambda o: o.log.append([(b"k", b"10")], sync=True), **_TEN),
    _log("append_columns", lambda o: o.log.append_columns([b"10"], [b"k"]), **_TEN),
    _log("extend", lambda o: o.log.extend(iter(_PAIR), batch_records=1, sync=True), **_TWO),
    _log("append_as_leader", lambda o: o.log.append_as_leader(_batch(), 0), **_TEN),
    _log("roll", lambda o: o.log.roll(), done=lambda o: len(o.log.segments) == 6),
    _log(
        "flush",
        lambda o: o.log.flush(),
        adds=(b"10",),
        done=_ends_at(11),
        prepare=lambda o: o.log.append([(b"k", b"10")]),
    ),
    _log("delete_records", lambda o: o.log.delete_records(4), removes=range(4), done=_starts_at(4)),
    _log("truncate_to", lambda o: o.log.truncate_to(6), removes=range(6, 10), done=_ends_at(6)),
    _log(
        "truncate_to, of everything",
        lambda o: o.log.truncate_to(0),
        removes=range(10),
        done=_ends_at(0),
    ),
    _log(
        "delete_old_segments",
        lambda o: o.log.maintenance.delete_old_segments(),
        prepare=_expire,
        removes=range(4),
        returns=lambda count: count == 2,
        done=lambda o: o.log.segments[0].base_offset == 4,
    ),
    _log(
        "purge_deleted",
        lambda o: o.log.maintenance.purge_deleted(2**62),
        removes=range(4),
        prepare=lambda o: (_expire(o), o.log.maintenance.delete_old_segments()),
    ),
    _log(
        "assign_topic_id",
        lambda o: o.log.assign_topic_id(NEW_ID),
        done=lambda o: o.log.topic_id == NEW_ID,
    ),
    _log("reconfigure", lambda o: o.log.reconfigure(CONFIG), effect=Effect.MEMORY),
    _log(
        "producer",
        lambda o: o.log.producer("another"),
        effect=Effect.MEMORY,
        returns=lambda made: made.next_sequence == 0,
    ),
    _log(
        "close",
        lambda o: o.log.close(),
        closes=True,
        prepare=lambda o: o.log.append([(b"k", b"10")]),
        adds=(b"10",),
    ),
    PublicCall(
        "LogProducer.append",
        Owner.LOG,
        lambda o: o.producer.append([(b"k", b"10")], sequence=10),
        **_TEN,
    ),
    PublicCall(
        "LogProducer.append, sync",
        Owner.LOG,
        lambda o: o.producer.append([(b"k", b"10")], sequence=10, sync=True),
        **_TEN,
    ),
    PublicCall(
        "Cursor.commit",
        Owner.LOG,
        lambda o: o.cursor.commit(5),
        done=lambda o: o.cursor.committed == 5,
    ),
    PublicCall(
        "Cursor.commit, of a new one",
        Owner.LOG,
        lambda o: o.log.cursor("new").commit(5),
        done=_has_file(f"{TOPIC}-0/new.cursor"),
    ),
)

READ_CALLS = (
    _reads(
        "read", lambda o: _all(o.log.read(8).records()), returns=lambda found: found == [b"8", b"9"]
    ),
    _reads("records", lambda o: _all(o.log.records()), **_WHOLE),
    _reads(
        "record_chunks", lambda o: [r.value for c in o.log.record_chunks() for r in c], **_WHOLE
    ),
    _reads(
        "to_arrow",
        lambda o: [v for b in o.log.to_arrow() for v in b["value"].to_pylist()],
        **_WHOLE,
    ),
    _reads(
        "available_bytes",
        lambda o: o.log.reader.available_bytes(0, 2),
        returns=lambda size: size > 0,
    ),
    _reads(
        "aborted_transactions",
        lambda o: o.log.reader.aborted_transactions(0, 10),
        returns=lambda found: found == (),
    ),
    _reads(
        "offset_for_timestamp",
        lambda o: o.log.offset_for_timestamp(EARLIEST),
        returns=lambda found: found.offset == 0,
    ),
    _reads("follow", lambda o: _all(o.log.follow(timeout=0)), **_WHOLE),
    _reads(
        "open_reader",
        lambda o: _all(
            PartitionLog.open_reader(o.log.directory, storage=o.storage).follow(timeout=0)
        ),
        **_WHOLE,
    ),
    _reads("cursor", lambda o: o.log.cursor("other").position, returns=lambda at: at == 0),
    PublicCall(
        "LogProducer.next_sequence",
        Owner.LOG,
        lambda o: o.producer.next_sequence,
        Effect.READS,
        returns=lambda count: count == 10,
    ),
    PublicCall(
        "Cursor.poll",
        Owner.LOG,
        lambda o: _all(o.cursor.poll()),
        Effect.READS,
        returns=lambda found: set(found) <= set(RECORDS[3:]) and len(found) > 0,
    ),
    PublicCall(
        "Cursor.seek",
        Owner.LOG,
        lambda o: (o.cursor.seek(9), o.cursor.position)[1],
        Effect.READS,
        returns=lambda at: at == 9,
    ),
    _manager(
        "get", lambda o: _all(o.managed.get(TOPIC, 0).records()), effect=Effect.READS, **_WHOLE
    ),
    _manager(
        "get_or_create, of one that is there",
        lambda o: _all(o.managed.get_or_create(TOPIC, 0).records()),
        effect=Effect.READS,
        **_WHOLE,
    ),
    _manager(
        "topics",
        lambda o: o.managed.topics(),
        effect=Effect.READS,
        returns=lambda found: found == {TOPIC: [0]},
    ),
    _manager(
        "has_stored_config",
        lambda o: o.managed.has_stored_config(TOPIC),
        effect=Effect.READS,
        returns=lambda found: found is False,
    ),
    _manager(
        "topic_config",
        lambda o: o.managed.topic_config(TOPIC),
        effect=Effect.READS,
        returns=lambda found: found == CONFIG,
    ),
    _manager(
        "run_all",
        lambda o: o.managed.run_all([lambda: 7]),
        effect=Effect.READS,
        returns=lambda found: found[0].value == 7,
    ),
)

REPLICA_CALLS = (
    _replica("append_as_follower", lambda o: o.log.replica.append_as_follower(_batch(10)), **_TEN),
    _replica(
        "assign_epoch",
        lambda o: (o.log.epochs.assign(3), o.log.epochs.latest)[1],
        returns=lambda epoch: epoch == 3,
    ),
    _replica(
        "truncate_fully_and_start_at",
        lambda o: o.log.maintenance.truncate_fully_and_start_at(20),
        removes=range(10),
        done=_ends_at(20),
    ),
    _replica("save_epochs", lambda o: o.log.flusher.save_epochs()),
    _replica("flush_overdue", lambda o: o.log.flusher.flush_overdue()),
    _replica(
        "maybe_increment_log_start_offset",
        lambda o: o.log.replica.maybe_increment_log_start_offset(4),
        removes=range(4),
        effect=Effect.MEMORY,
    ),
)

MANAGER_CALLS = (
    _manager(
        "get_or_create", lambda o: o.managed.get_or_create("fresh", 0), done=_has_topic("fresh", 1)
    ),
    _manager(
        "create_topic", lambda o: o.managed.create_topic("fresh", 2), done=_has_topic("fresh", 2)
    ),
    _manager(
        "create_topic, filled",
        lambda o: o.managed.create_topic("fresh", 1, fill=_fill),
        done=_has_topic("fresh", 1),
    ),
    _manager(
        "create_partitions",
        lambda o: o.managed.create_partitions(TOPIC, 3),
        done=_has_topic(TOPIC, 3),
    ),
    _manager(
        "configure",
        lambda o: o.managed.configure(o.managed.get(TOPIC, 0), {"cleanup.policy": "compact"}),
        done=_compacted,
    ),
    _manager(
        "alter_topic",
        lambda o: o.managed.alter_topic(TOPIC, {"cleanup.policy": "compact"}),
        done=_compacted,
    ),
    _manager(
        "delete",
        lambda o: o.managed.delete("others", 1),
        prepare=_other_topic,
        done=_has_topic("others", 1),
    ),
    _manager(
        "delete_topic",
        lambda o: o.managed.delete_topic("others"),
        prepare=_other_topic,
        done=_has_topic("others", 0),
    ),
    _manager(
        "delete, of the log",
        lambda o: o.managed.delete(TOPIC, 0),
        deletes=True,
        removes=range(10),
        done=_has_topic(TOPIC, 0),
    ),
    _manager(
        "get_or_create_all",
        lambda o: _raise_first(
            error
            for _, error in o.managed.get_or_create_all(
                [WantedLog(TopicPartition("fresh", number)) for number in range(2)]
            ).values()
        ),
        done=_has_topic("fresh", 2),
    ),
    _manager(
        "delete_all",
        lambda o: _raise_first(
            o.managed.delete_all([TopicPartition("others", n) for n in range(3)]).values()
        ),
        prepare=_other_topic,
        done=_has_topic("others", 0),
    ),
    _manager(
        "set_aside",
        lambda o: o.managed.set_aside("others", [0, 1]),
        prepare=_other_topic,
        done=_has_topic("others", 0),
    ),
    _manager(
        "truncate_to",
        lambda o: o.managed.truncate_to({o.log.topic_partition: 6}),
        removes=range(6, 10),
        done=_ends_at(6),
    ),
    _manager(
        "checkpoint_recovery_points",
        lambda o: o.managed.housekeeper.checkpoint_recovery_points(),
        done=_has_file("recovery-point-offset-checkpoint"),
    ),
    _manager(
        "checkpoint_truncations",
        lambda o: o.managed.housekeeper.checkpoint_truncations([o.log.topic_partition]),
        removes=range(6, 10),
        prepare=lambda o: o.log.truncate_to(6),
    ),
    _manager(
        "checkpoint_log_start_offsets",
        lambda o: o.managed.housekeeper.checkpoint_log_start_offsets(),
        removes=range(3),
        prepare=lambda o: o.log.delete_records(3),
    ),
    _manager(
        "checkpoint_high_watermarks",
        lambda o: o.managed.housekeeper.checkpoint_high_watermarks(),
        done=_has_file("replication-offset-checkpoint"),
    ),
    _manager(
        "flush_dirty_logs",
        lambda o: o.managed.housekeeper.flush_dirty_logs(),
        adds=(b"10",),
        prepare=lambda o: o.log.append([(b"k", b"10")]),
    ),
    _manager(
        "clean_up", lambda o: o.managed.housekeeper.clean_up(), prepare=_expire, removes=range(4)
    ),
    _manager(
        "remove_expired_producers",
        lambda o: o.managed.housekeeper.remove_expired_producers(),
        effect=Effect.MEMORY,
    ),
    _manager(
        "purge_deleted",
        lambda o: o.managed.housekeeper.purge_deleted(at_once=True),
        prepare=lambda o: (_other_topic(o), o.managed.delete_topic("others")),
    ),
    _manager("start", lambda o: o.managed.start(), effect=Effect.MEMORY),
    _manager(
        "cleaner.clean_filthiest",
        lambda o: o.managed.cleaner.clean_filthiest(),
        prepare=lambda o: o.managed.alter_topic(
            TOPIC, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        ),
        removes=range(7),
    ),
    _manager(
        "close",
        lambda o: o.managed.close(),
        closes=True,
        prepare=lambda o: o.log.append([(b"k", b"10")]),
        adds=(b"10",),
    ),
)

CALLS = (*LOG_CALLS, *READ_CALLS, *REPLICA_CALLS, *MANAGER_CALLS)
