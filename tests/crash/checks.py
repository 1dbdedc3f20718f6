"""What must hold of a log that was just opened, against what is known to have been appended."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from logstore.log import MAX_TIMESTAMP, PartitionLog
from logstore.log.reading.fetching import FetchData
from logstore.storage.base import Storage
from tests.crash.model import Batch, Model, last_of, replay, stored_batches
from tests.support.logs import check_invariants


def check_recovered(
    storage: Storage,
    log: PartitionLog,
    model: Model,
    candidates: Sequence[Sequence[Batch]],
    rng: random.Random,
    latest_start: int = 0,
) -> list[Batch]:
    """Everything that recovery promises of a log. What its files hold.

    Args:
        latest_start: where the log may start if a change under way was done.
    """
    batches = check_content(storage, log, model, candidates)
    start, end = log.log_start_offset, log.log_end_offset
    assert start <= max(model.start, latest_start), f"the log starts at {start}"
    assert start >= min(model.durable_start, end), (
        f"the log starts at {start}, below its checkpoint {model.durable_start}"
    )
    assert log.recovery_point <= max(end, start)
    check_end(log, [b for b in batches if b.last >= start], candidates, model.leo)
    forgotten = max(model.forgotten, model.start, start)
    check_state(log, batches, whole=False)  # a cut inside a batch leaves its epoch (F-272)
    known = [batch for batch in batches if batch.base >= forgotten]
    check_producers(log, known, whole=not forgotten and not model.compacted)
    check_sequences(log, model, batches, forgotten)
    check_once(known)
    check_lookups(log, batches, rng, forgotten)
    return batches


def check_content(
    storage: Storage, log: PartitionLog, model: Model, candidates: Sequence[Sequence[Batch]]
) -> list[Batch]:
    """I-13: the files hold a prefix of one of ``candidates``; what they hold.

    What lies below the log start may be there or not, in part, but only as it was appended.
    """
    found = stored_batches(storage, log.directory)
    dead = [data for data in found if last_of(data) < model.start]
    live = found[len(dead) :]
    for data in dead:
        assert data in model.history, f"a batch at {last_of(data)} that nobody appended"
    for candidate in candidates:
        wanted = [batch for batch in candidate if batch.last >= model.start]
        if live == [batch.data for batch in wanted[: len(live)]]:
            missing = [b for b in wanted[len(live) :] if b.last < model.flushed]
            assert not missing, f"I-13: {missing} below the flushed offset {model.flushed} are lost"
            return [model.history[data] for data in found]
    shown = [
        (int.from_bytes(d[:8], "big"), last_of(d), int.from_bytes(d[12:16], "big")) for d in live
    ]
    raise AssertionError(
        f"I-13: the files hold {shown}, which is no prefix of {list(map(list, candidates))}"
    )


def check_end(
    log: PartitionLog, live: Sequence[Batch], candidates: Sequence[Sequence[Batch]], leo: int
) -> None:
    """The log ends with its last batch, or where a batch that was lost left a legal gap (F-145)."""
    if not live:
        return
    ends = {live[-1].last + 1}
    if candidates[0] and candidates[0][-1] == live[-1]:
        ends.add(leo)
    for candidate in candidates:
        ends |= {
            after.base for before, after in pairwise(candidate) if before.base == live[-1].base
        }
    assert log.log_end_offset in ends, f"LEO {log.log_end_offset}, but {ends} by the batches"


def check_state(log: PartitionLog, batches: Sequence[Batch], *, whole: bool) -> None:
    """The epoch cache agrees with the batches; ``whole`` when none were deleted in front."""
    check_invariants(log)
    live = [batch for batch in batches if batch.last >= log.log_start_offset]
    entries = dict(log.epochs.entries)
    for batch in live:
        at = max(batch.base, log.log_start_offset)
        epoch = log.epochs.epoch_for_offset(at)
        assert epoch == batch.epoch, f"epoch {epoch} at {at} instead of {batch.epoch}: {entries}"
    if whole and live:
        assert set(entries) <= {batch.epoch for batch in batches}, f"epochs {entries}"


def check_producers(log: PartitionLog, batches: Sequence[Batch], *, whole: bool) -> None:
    expected = replay(batches).producers
    actual = log.producers.known.producers
    assert set(expected) <= set(actual), f"producers {set(expected) - set(actual)} are forgotten"
    if whole:
        assert set(actual) == set(expected), f"producers {set(actual) - set(expected)} are unknown"
    for producer, wanted in expected.items():
        entry = actual[producer]
        if not whole and wanted.last_sequence < 0:
            continue  # only its marker is left in the log
        seen = (entry.producer_epoch, entry.last_sequence, entry.current_txn_first_offset)
        wants = (wanted.epoch, wanted.last_sequence, wanted.txn_first)
        if not whole:  # a transaction may have begun before the log start
            seen, wants = (*seen[:2], -1), (*wants[:2], -1)
        assert seen == wants, f"producer {producer}: epoch, sequence, transaction {seen}, {wants}"


def check_sequences(
    log: PartitionLog, model: Model, batches: Sequence[Batch], forgotten: int
) -> None:
    """A snapshot knows what was deleted before it; without one the log knows what it has."""
    end = log.log_end_offset
    known_from = 0 if model.remembers(log) else forgotten
    there = {b.base: b for b in (*model.appended, *batches) if known_from <= b.base}
    due = replay(there[base] for base in sorted(there) if there[base].last < end)
    known = log.producers.known.producers
    for producer, wanted in due.producers.items():
        if wanted.last_sequence < 0:
            continue
        assert producer in known, f"producer {producer} is forgotten, {model.snapshots}"
        seen = (known[producer].producer_epoch, known[producer].last_sequence)
        assert seen == (wanted.epoch, wanted.last_sequence), (
            f"producer {producer}: {seen}, not {wanted}"
        )


def check_once(batches: Sequence[Batch]) -> None:
    """I-20: no sequence twice."""
    seen: set[tuple[int, int, int]] = set()
    for batch in batches:
        if batch.sequence >= 0:
            key = (batch.producer, batch.producer_epoch, batch.sequence)
            assert key not in seen, f"I-20: {key} is there twice"
            seen.add(key)


def end_of(fetched: FetchData, batches: Sequence[Batch]) -> int:
    """The offset after a read, which must be of whole batches."""
    assert fetched.slice is not None
    left, end = len(fetched.data), fetched.start_offset
    for batch in batches:
        if batch.base >= fetched.slice.first_batch.base_offset and left > 0:
            left, end = left - len(batch.data), batch.last + 1
    assert left == 0, f"a read at {fetched.start_offset} ends inside a batch"
    return end


def check_lookups(
    log: PartitionLog, batches: Sequence[Batch], rng: random.Random, forgotten: int = 0
) -> None:
    """I-15 and I-17: reads, lookups by time and aborted transactions equal a scan."""
    start, end = log.log_start_offset, log.log_end_offset
    live = [batch for batch in batches if batch.last >= start]
    data, position = bytearray(), start
    while position < end:
        fetched = log.read(position, 1 << 20)
        if fetched.slice is None:
            break
        fetched.records()
        data += fetched.data
        position = end_of(fetched, live)
    assert bytes(data) == b"".join(batch.data for batch in live), "I-15: a read differs"
    for offset in {start, end - 1, *(rng.randint(start, max(start, end - 1)) for _ in range(4))}:
        if not start <= offset < end:
            continue
        wanted = next((b for b in live if b.last >= offset), None)
        got = log.read(offset, 1)
        first = got.slice.first_batch.base_offset if got.slice else None
        assert first == (wanted.base if wanted else None), (
            f"I-15: a read at {offset} begins with {first} and not {wanted}"
        )
    check_times(log, live, rng)
    check_aborted(log, batches, forgotten)


def check_times(log: PartitionLog, live: Sequence[Batch], rng: random.Random) -> None:
    start = log.log_start_offset
    records = [row for batch in live for row in batch.rows if row[1] >= start]
    stamps = [stamp for stamp, _ in records]
    wanted_stamps = {0, *(max(stamps, default=0) + d for d in (0, 1))}
    if stamps:
        wanted_stamps |= {max(0, rng.choice(stamps) + rng.randint(-1, 1)) for _ in range(3)}
    for stamp in sorted(wanted_stamps):
        wanted = next((r for r in records if r[0] >= stamp), None)
        got = log.offset_for_timestamp(stamp)
        assert (tuple(got) if got else None) == wanted, (
            f"I-15: the first record at {stamp} is {got} and not {wanted}"
        )
    whole = all(batch.rows for batch in live)  # an empty batch keeps its largest timestamp
    if stamps and whole and start == log.segments[0].base_offset and max(stamps) >= 0:
        got = log.offset_for_timestamp(MAX_TIMESTAMP)
        assert got is not None
        assert (got.timestamp, got.offset) in records
        assert got.timestamp == max(stamps), f"I-15: largest timestamp {got}, {max(stamps)}"


def check_aborted(log: PartitionLog, batches: Sequence[Batch], forgotten: int) -> None:
    """A transaction that began below a log start may be known from there on only (F-201).

    One of which a compaction left nothing but the marker may be known still: it hides no record.
    """
    start, end = log.log_start_offset, log.log_end_offset
    wanted = [txn for txn in replay(batches).aborted if txn[2] >= start and txn[1] < end]
    got = [
        tuple(t)[:3] for t in log.reader.aborted_transactions(start, end) if t.last_offset >= start
    ]
    missing = [
        txn
        for txn in wanted
        if not any(txn[::2] == g[::2] and g[1] <= max(txn[1], forgotten) for g in got)
    ]
    assert not missing, f"I-15: aborted transactions {missing} are not found, only {got}"
    known = {txn[2] for txn in wanted} | {
        at
        for producer, first, at in got
        if [b.commit for b in batches if b.producer == producer and first <= b.last <= at]
        == [False]
    }
    extra = [txn for txn in got if txn[2] not in known and txn[1] >= start]
    assert not extra, f"I-15: transactions {extra} count as aborted"
