"""Operations that change the log. Places are drawn in thousandths of the log's present range."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from logstore.common.config import LogConfig
from logstore.common.errors import (
    LogCleaningAbortedError,
    RecordListTooLargeError,
    RecordRejectedError,
    ResourceBusyError,
    UnexpectedAppendOffsetError,
)
from logstore.format.batch import encode_batch
from logstore.kernels import crc32c
from logstore.log import PartitionLog
from logstore.recovery.replacements import CleanedSegment
from logstore.segments.producer_state import AppendOrigin
from logstore.segments.rebuild import scan_segment
from tests.interleavings.model import Batch, Doing, Kind, Row, State
from tests.interleavings.scheduler import Found
from tests.interleavings.world import World
from tests.support.builders import NOW, marker

_TOO_LARGE = {RecordListTooLargeError: lambda state: True}  # segment.bytes is small here
_PADDING = b"\xff\xff\xff\xff\0\0\0\0" * 16  # no header of a batch, whoever takes it for one


@dataclass
class Hands:
    """What an actor keeps between its operations."""

    index: int
    serial: int = 0
    sequence: int = 0
    producer_epoch: int = 0
    iterator: Any = field(default=None)

    @property
    def producer_id(self) -> int:
        return self.index + 100


def place(log: PartitionLog, thousandth: int) -> int:
    """An offset in the log's range, ends included; outside it for numbers outside 0 … 1000."""
    start, end = log.log_start_offset, log.log_end_offset
    if thousandth < 0:
        return start - 1
    if thousandth > 1000:
        return end + 1
    return start + (end - start) * thousandth // 1000


def _make(
    hands: Hands, count: int, width: int, stamp: int, kind: Kind = Kind.DATA, base: int = 0
) -> tuple[bytes, Batch]:
    """Bytes of one batch with values that no other record has, and the same for the model."""
    hands.serial += 1
    rows = tuple(
        Row(
            base + i, b"<%d.%d.%d>" % (hands.index, hands.serial, i) + _PADDING[:width], NOW + stamp
        )
        for i in range(count)
    )
    fields: dict[str, Any] = {}
    if kind is Kind.TRANSACTIONAL:
        fields = {
            "producer_id": hands.producer_id,
            "producer_epoch": hands.producer_epoch,
            "base_sequence": hands.sequence,
            "transactional": True,
        }
    data = bytes(
        encode_batch(
            [(None, row.value, row.timestamp) for row in rows],
            base_offset=base,
            leader_epoch=0,
            **fields,
        )
    )
    producer_id = hands.producer_id if kind is Kind.TRANSACTIONAL else -1
    return data, Batch(base, base + count - 1, len(data), rows, kind, producer_id)


def _acknowledge(world: World, doing: Doing, info: Any) -> None:
    world.observe()
    added = doing.added
    if not added or (info.first_offset, info.last_offset) != (added[0].base, added[-1].last):
        raise Found("acknowledgement", f"{info} for {[(b.base, b.last) for b in added]}")
    for batch in added:
        if not batch.is_control:
            world.model.acknowledged.update((row.value, row) for row in batch.rows)
    world.check_flush_limit()


def append(world: World, hands: Hands, count: int, width: int, stamp: int) -> None:
    _, batch = _make(hands, count, width, stamp)
    with world.operation("append", adds=(batch,), allowed=_TOO_LARGE) as doing:
        info = world.log.append([(None, row.value, row.timestamp) for row in batch.rows])
        _acknowledge(world, doing, info)


def append_synced(world: World, hands: Hands, count: int, width: int, stamp: int) -> None:
    _, batch = _make(hands, count, width, stamp)
    with world.operation("append and sync", adds=(batch,), allowed=_TOO_LARGE) as doing:
        records = [(None, row.value, row.timestamp) for row in batch.rows]
        info = world.log.append(records, sync=True)
        _acknowledge(world, doing, info)
        live = {row.value for row in world.live_rows()}
        added = [row for batch in doing.added for row in batch.rows if row.value in live]
        lost = [] if world.removal_in_flight else world.not_durable(added)
        if lost:
            raise Found("acknowledged but not durable", f"with sync a power cut takes {lost}")


def append_as_leader(
    world: World, hands: Hands, counts: tuple[int, ...], width: int, stamp: int
) -> None:
    made = [_make(hands, count, width, stamp) for count in counts]
    batches = tuple(batch for _, batch in made)
    with world.operation("append_as_leader", adds=batches, allowed=_TOO_LARGE) as doing:
        info = world.log.append_as_leader(b"".join(data for data, _ in made), 0)
        _acknowledge(world, doing, info)


def append_as_follower(
    world: World, hands: Hands, counts: tuple[int, ...], width: int, stamp: int
) -> None:
    base = first = world.log.log_end_offset
    made = []
    for count in counts:
        made.append(_make(hands, count, width, stamp, base=base))
        base += count
    with world.operation(
        "append_as_follower",
        adds=tuple(batch for _, batch in made),
        placed=True,
        allowed={**_TOO_LARGE, UnexpectedAppendOffsetError: lambda state: state.end != first},
    ) as doing:
        info = world.log.replica.append_as_follower(b"".join(data for data, _ in made))
        _acknowledge(world, doing, info)


def transact(world: World, hands: Hands, count: int, width: int) -> None:
    """Append to the actor's transaction; begins one if there is none."""
    data, batch = _make(hands, count, width, 0, Kind.TRANSACTIONAL)
    with world.operation("transact", adds=(batch,), allowed=_rejections(world)) as doing:
        try:
            info = world.log.append_as_leader(data, 0)
        except RecordRejectedError:  # a truncation took what came before it
            hands.producer_epoch, hands.sequence = hands.producer_epoch + 1, 0
            raise
        hands.sequence += count
        _acknowledge(world, doing, info)


def end_transaction(world: World, hands: Hands, commit: bool) -> None:
    data = marker(commit=commit, producer_id=hands.producer_id, producer_epoch=hands.producer_epoch)
    kind = Kind.COMMIT if commit else Kind.ABORT
    row = Row(0, b"", NOW)
    batch = Batch(0, 0, len(data), (row,), kind, hands.producer_id)
    name = "commit" if commit else "abort"
    with world.operation(name, adds=(batch,), allowed=_rejections(world)) as doing:
        info = world.log.append_as_leader(data, 0, AppendOrigin.COORDINATOR)
        _acknowledge(world, doing, info)


def _rejections(world: World) -> dict[type[Exception], Callable[[State], bool]]:
    return {**_TOO_LARGE, RecordRejectedError: lambda state: world.truncations}


def roll(world: World, hands: Hands) -> None:
    with world.operation("roll"):
        world.log.roll()


def flush(world: World, hands: Hands, thousandth: int) -> None:
    target = None if thousandth > 1000 else place(world.log, thousandth)
    with world.operation("flush") as doing:
        before = world.model.now
        world.log.flush() if target is None else world.log.flush(target)
        world.observe()
        end = min(state.end for state in world.window(doing))
        end = min(end, before.end if target is None else target)
        if not world.removal_in_flight:
            lost = world.not_durable(world.live_rows(end))
            if lost:
                raise Found("flushed but not durable", f"below {end} a power cut takes {lost}")


def truncate_to(world: World, hands: Hands, thousandth: int) -> None:
    target = max(0, place(world.log, thousandth))
    with world.operation("truncate_to", removing="truncation"):
        world.log.truncate_to(target)


def start_at(world: World, hands: Hands, beyond: int) -> None:
    target = max(0, world.log.log_end_offset + beyond)
    with world.operation("truncate_fully_and_start_at", removing="truncation", clears=True):
        world.log.maintenance.truncate_fully_and_start_at(target)


def delete_records(world: World, hands: Hands, thousandth: int) -> None:
    target = place(world.log, thousandth)
    with world.operation(
        "delete_records",
        moves=("start",),
        in_range=lambda state: 0 <= target <= state.high_watermark,
    ):
        world.log.delete_records(target)


def retain(world: World, hands: Hands) -> None:
    with world.operation("delete_old_segments", removing="retention", moves=("start",)):
        world.log.maintenance.delete_old_segments()


def regroup(world: World, hands: Hands) -> None:
    """Put one segment in place of all that are sealed, with the same batches: what the cleaner does
    at the end of a pass, in a log whose records have no keys. One at a time, as there."""
    if world.regrouping:
        return
    world.regrouping = True
    try:
        with world.operation("regroup", allowed={LogCleaningAbortedError: lambda state: True}):
            _regroup(world.log)
    finally:
        world.regrouping = False


def _regroup(log: PartitionLog) -> None:
    log.flush()
    sources = log.snapshot.sealed
    if not sources:
        return
    crc = size = 0
    try:
        cleaned = log.replacing.cleaned_segment(sources[0].base_offset)
        with _made(cleaned) as file:
            for view in sources:
                data = view.read_at(0, view.size)
                crc = crc32c(data, crc)
                size += file.write_at(size, data)
        cleaned = log.replacing.written(cleaned, size)
        scan = scan_segment(cleaned)
        if scan.valid_bytes != size:
            raise LogCleaningAbortedError("a source was cut while it was copied")
        cleaned.install_indexes(scan.offset_index, scan.time_index + scan.final_time_entry())
        aborted = [txn for view in sources for txn in view.segment.txn_index.entries()]
        if aborted:
            cleaned.txn_index.append(*aborted)
        cleaned.flush(indexes=True)
        cleaned.close()
        log.replacing.replace(sources, cleaned, crc, ())
    except OSError as error:
        if log.replacing.holds(sources):
            raise ResourceBusyError(log.directory, "regroup", str(error)) from error
        raise LogCleaningAbortedError("a source went meanwhile") from error


@contextmanager
def _made(cleaned: CleanedSegment) -> Iterator[Any]:
    file = cleaned.file.create()
    try:
        file.truncate(0)
        yield file
    finally:
        cleaned.file.release()


def purge(world: World, hands: Hands) -> None:
    with world.operation("purge_deleted"):
        world.log.maintenance.purge_deleted(world.clock.wall_ms())


def advance_watermark(world: World, hands: Hands, thousandth: int) -> None:
    """As a leader does: the watermark never falls."""
    target = place(world.log, thousandth)
    with world.operation(
        "maybe_increment_high_watermark",
        moves=("watermark",),
        allowed={ValueError: lambda state: target > state.end},
    ):
        world.log.replica.maybe_increment_high_watermark(target)


def set_watermark(world: World, hands: Hands, thousandth: int) -> None:
    """As a follower does."""
    target = place(world.log, thousandth)
    with world.operation("update_high_watermark", moves=("watermark",)):
        world.log.replica.update_high_watermark(target)


def reconfigure(world: World, hands: Hands, segment_bytes: int, retention_bytes: int) -> None:
    changed = {
        **{f: getattr(world.config, f) for f in world.config.__slots__},
        "segment_bytes": segment_bytes,
        "retention_bytes": retention_bytes,
    }
    with world.operation("reconfigure"):
        world.log.reconfigure(LogConfig(**changed))


def close(world: World, hands: Hands) -> None:
    with world.operation("close"):
        world.closing = True
        world.log.close()


def crash(world: World, hands: Hands) -> None:
    """The end of the process, as far as the log's own object sees it."""
    with world.operation("crash"):
        world.closing = True
        world.log.crash()
