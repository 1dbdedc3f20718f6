"""Faults that one replica shows because its files remember more than its batches: what producers
wrote before, what snapshots, checkpoints and indexes have of it, and what a clean stop leaves."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from checkpoints.leader_epoch_checkpoint import LEADER_EPOCH
from checkpoints.offset_checkpoint import HIGH_WATERMARK, RECOVERY_POINT
from logstore.format import filenames
from logstore.format.producer_snapshot import (
    ProducerSnapshotEntry,
    decode_snapshot,
    encode_snapshot,
)
from tests.faults.indexes import INDEX, TIME, put, snapshots_of, with_entries
from tests.faults.planter import Fault, choose, fault, kind
from tests.faults.replicas import sealed
from tests.faults.site import LogDir, Replica, Segment, Site, Spot, patched, replace

LOG = filenames.LOG_SUFFIX
_SEQUENCE_AT = 53

# -- sequences of producers --------------------------------------------------------------------


def _successions(site: Site) -> list[tuple[Spot, Spot]]:
    """Data batches of a producer with the one before, in one epoch, both above the log start."""
    found = []
    for replica in site.filled():
        before: dict[int, Spot] = {}
        for spot in [] if replica.compacted else replica.batches:
            batch = spot.batch
            if batch.producer_id < 0 or batch.is_control:
                continue
            known = before.get(batch.producer_id)
            if known and known.batch.producer_epoch == batch.producer_epoch:
                found.append((known, spot))
            before[batch.producer_id] = spot
    return [pair for pair in found if pair[0].batch.base_offset >= pair[0].replica.log_start]


def _rewritten(spot: Spot, batch: bytes, told: str) -> Fault:
    data = patched(spot.segment.read(LOG), spot.batch.position, sealed(batch))
    replace(spot.replica.storage, spot.log, data)
    told = f"{told} at {spot.batch.position} of {spot.log}"
    later = [segment.file(LOG) for segment in spot.replica.segments]
    return fault(
        spot.replica,
        told,
        [spot.log, *later],
        "producer-sequence",
        "snapshot-producer timeindex-entry timeindex-order timeindex-last-entry",
    )


def _bytes(spot: Spot) -> bytes:
    return spot.segment.read(LOG)[spot.batch.position : spot.end]


def _with_sequence(spot: Spot, sequence: int) -> Fault:
    wrong = patched(_bytes(spot), _SEQUENCE_AT, struct.pack(">i", sequence))
    told = f"sequence {sequence} for {spot.batch.base_sequence}"
    return _rewritten(spot, wrong, told)


@kind()
def batch_twice(site: Site, rng: random.Random) -> Fault:
    """A batch of a producer once more, in the place of the next one."""
    pairs = [
        (one, two)
        for one, two in _successions(site)
        if one.batch.size == two.batch.size and one.batch.record_count == two.batch.record_count
    ]
    one, two = choose(rng, pairs)
    wrong = _bytes(two)[:21] + _bytes(one)[21:]
    return _rewritten(two, wrong, f"the batch of offset {one.batch.base_offset} once more")


@kind()
def sequence_falls(site: Site, rng: random.Random) -> Fault:
    pairs = [pair for pair in _successions(site) if pair[1].batch.base_sequence > 0]
    _, spot = choose(rng, pairs)
    return _with_sequence(spot, rng.randrange(spot.batch.base_sequence))


@kind()
def sequence_jumps(site: Site, rng: random.Random) -> Fault:
    _, spot = choose(rng, _successions(site))
    return _with_sequence(spot, spot.batch.base_sequence + rng.randrange(1, 1000))


# -- snapshots ---------------------------------------------------------------------------------


def _snapshot_with(
    site: Site,
    rng: random.Random,
    change: Callable[[ProducerSnapshotEntry], ProducerSnapshotEntry | None],
    rules: str,
) -> Fault:
    """One entry changed, where the log has all that the snapshot is about."""
    candidates = [
        (replica, path, at, wrong)
        for replica in site.filled()
        if not replica.compacted and not replica.segments[0].base
        for offset, path in snapshots_of(replica)
        if 0 < offset <= replica.end_offset
        for at, entry in enumerate(decode_snapshot(replica.storage.read_file(path)))
        if (wrong := change(entry)) is not None
    ]
    replica, path, at, wrong = choose(rng, candidates)
    entries = decode_snapshot(replica.storage.read_file(path))
    entries[at] = wrong
    replace(replica.storage, path, encode_snapshot(entries))
    return fault(replica, f"entry {at} of {path} is {wrong}", [path], rules, differs=False)


@kind()
def snapshot_first_offset(site: Site, rng: random.Random) -> Fault:
    """Another beginning of the open transaction, or none, or one that is not open."""

    def change(entry: ProducerSnapshotEntry) -> ProducerSnapshotEntry | None:
        first = entry.current_txn_first_offset
        if first >= 0:
            wrong = rng.choice((-1, first + 1, max(0, first - 1)))
        else:
            wrong = entry.last_offset
        return entry._replace(current_txn_first_offset=wrong) if wrong != first else None

    return _snapshot_with(site, rng, change, "snapshot-transaction")


@kind()
def snapshot_timestamp(site: Site, rng: random.Random) -> Fault:
    wrong = rng.choice((-1, 1, 86_400_000))
    return _snapshot_with(
        site,
        rng,
        lambda entry: entry._replace(timestamp=entry.timestamp + wrong),
        "snapshot-producer",
    )


@kind()
def snapshot_coordinator_epoch(site: Site, rng: random.Random) -> Fault:
    wrong = rng.choice((-1, 1, 7))
    return _snapshot_with(
        site,
        rng,
        lambda entry: (
            entry._replace(coordinator_epoch=entry.coordinator_epoch + wrong)
            if entry.coordinator_epoch > 0
            else None
        ),
        "snapshot-producer",
    )


# -- a clean stop ------------------------------------------------------------------------------


def _closed(site: Site) -> list[Replica]:
    return [one for one in site.filled() if one.log_dir.clean and one.end_offset > one.log_start]


@kind()
def snapshot_missing(site: Site, rng: random.Random) -> Fault:
    """That of the stop: the next start reads the producers of no batch before."""
    candidates = [
        (replica, path)
        for replica in _closed(site)
        for offset, path in snapshots_of(replica, empty=True)
        if offset == replica.end_offset
    ]
    replica, path = choose(rng, candidates)
    replica.storage.remove(path)
    return fault(replica, f"{path} is missing", [path], "snapshot-missing", differs=False)


def _without_entry(site: Site, rng: random.Random, name: str, rules: str) -> Fault:
    candidates = [one for one in _closed(site) if one.tp in one.log_dir.offsets(name)]
    replica = choose(rng, candidates)
    log_dir = replica.log_dir
    offsets = log_dir.offsets(name)
    del offsets[replica.tp]
    log_dir.write_offsets(name, offsets)
    files = [log_dir.file(name), replica.segments[-1].file(LOG)]
    return fault(
        replica, f"{name} of {log_dir.path} without {replica.tp}", files, rules, differs=False
    )


@kind()
def recovery_point_missing(site: Site, rng: random.Random) -> Fault:
    return _without_entry(site, rng, RECOVERY_POINT, "recovery-point")


@kind()
def high_watermark_missing(site: Site, rng: random.Random) -> Fault:
    return _without_entry(site, rng, HIGH_WATERMARK, "high-watermark")


@kind()
def checkpoint_missing(site: Site, rng: random.Random) -> Fault:
    """The whole file, of all partitions."""
    log_dir = choose(rng, sorted({one.log_dir for one in _closed(site)}, key=lambda d: d.path))
    name = rng.choice((RECOVERY_POINT, HIGH_WATERMARK))
    log_dir.storage.remove(log_dir.file(name))
    return _of_all(
        site, log_dir, f"{log_dir.file(name)} is missing", "recovery-point high-watermark"
    )


def _of_all(site: Site, log_dir: LogDir, told: str, rules: str) -> Fault:
    replicas = [one for one in site.filled() if one.log_dir is log_dir]
    files = [segment.file(LOG) for one in replicas for segment in one.segments]
    return Fault(told, log_dir.path, frozenset(files), frozenset(rules.split()))


# -- epochs and the beginning ------------------------------------------------------------------


@kind()
def first_segment_lost(site: Site, rng: random.Random) -> Fault:
    """With everything that belongs to it; the epochs on file begin before what is left."""
    candidates = [
        one
        for one in _closed(site)
        if len(one.segments) > 1
        and one.epochs
        and one.epochs[0][1] < one.segments[1].base
        and one.log_start == one.segments[0].base
    ]
    replica = choose(rng, candidates)
    base = replica.segments[0].base
    for suffix in filenames.SEGMENT_SUFFIXES:
        path = replica.file(filenames.segment_file_name(base, suffix))
        if replica.storage.info(path) is not None:
            replica.storage.remove(path)
    files = [replica.file(LEADER_EPOCH)]
    return fault(
        replica,
        f"{replica.path} without segment {base}",
        files,
        "epochs-range",
        "txnindex-offsets txnindex-entries snapshot-producer",
    )


# -- offset indexes ----------------------------------------------------------------------------


def _reached(segment: Segment, offset: int) -> int:
    """The largest timestamp up to an offset."""
    stamps = [b.max_timestamp for b in segment.batches() if b.last_offset <= offset]
    return max(stamps, default=-1)


@kind()
def index_entry_too_high(site: Site, rng: random.Random) -> Fault:
    """The end of a later batch: one that the time index would know of, had it been appended with
    the batch that the entry leads to."""
    times = {
        segment.file(TIME): {key for key, _ in entries}
        for segment, entries in with_entries(site, TIME)
    }
    candidates = []
    for segment, entries in with_entries(site, INDEX):
        known = times.get(segment.file(TIME), set())
        ends = [batch.last_offset - segment.base for batch in segment.batches()]
        bounds = [offset for offset, _ in entries[1:]] + [2**31]
        for number, ((offset, position), bound) in enumerate(zip(entries, bounds, strict=True)):
            candidates += [
                (segment, number, end, position)
                for end in ends
                if segment.closed
                and offset < end < bound
                and _reached(segment, segment.base + end) not in known
            ]
    segment, number, end, position = choose(rng, candidates)
    put(segment, INDEX, number, end, position)
    told = f"offset {end} in entry {number} of {segment.file(INDEX)}"
    return fault(segment.replica, told, [segment.file(INDEX)], "index-entry", differs=False)


@kind()
def index_entries_too_high(site: Site, rng: random.Random) -> Fault:
    """Each has the offset of the next one."""
    segment, entries = choose(rng, with_entries(site, INDEX, 3))
    for number, (_, position) in enumerate(entries[:-1]):
        put(segment, INDEX, number, entries[number + 1][0], position)
    data = segment.read(INDEX)
    at = (len(entries) - 1) * 8
    replace(segment.replica.storage, segment.file(INDEX), data[:at] + data[at + 8 :])
    told = f"all offsets of {segment.file(INDEX)} are those of the next entry"
    return fault(segment.replica, told, [segment.file(INDEX)], "index-entry", differs=False)


@kind()
def index_for_the_first_batch(site: Site, rng: random.Random) -> Fault:
    """The first append to a segment makes no entry."""
    candidates = [(s, e) for s, e in with_entries(site, INDEX) if e[0][0] > 0]
    segment, entries = choose(rng, candidates)
    put(segment, INDEX, 0, entries[0][0], 0)
    told = f"the first entry of {segment.file(INDEX)} leads to byte 0"
    return fault(segment.replica, told, [segment.file(INDEX)], "index-entry", differs=False)
