"""Faults that leave one replica in order by itself, and different from the others.

Checksums are right, indexes lead to where they led: only a comparison finds them (I-4), or what was
promised of a log that is too short now (I-5).
"""

from __future__ import annotations

import base64
import random
import struct
from collections.abc import Sequence

from checkpoints.offset_checkpoint import RECOVERY_POINT
from checkpoints.partition_metadata import PARTITION_METADATA
from logstore.common.types import Record
from logstore.format import filenames
from logstore.format.batch import rebuild_batch
from logstore.format.control import ControlType
from logstore.format.reader import Batch, batch_records
from logstore.kernels import crc32c
from tests.faults.checkpoint_files import write_epochs
from tests.faults.planter import DIVERGED, Fault, NotHere, choose, fault, kind
from tests.faults.site import Replica, Segment, Site, Spot, patched, replace

LOG = filenames.LOG_SUFFIX
_CRC_AT, _SEALED_FROM, _RECORDS_AT = 17, 21, 61
_KEY_LENGTH = b"\x08"
"""Of the four bytes of a control key, as a varint (F-80)."""
_ATTEMPTS = 20


def _comparable(site: Site) -> list[Spot]:
    """Data batches that another replica must have too."""
    spots = []
    for replica in site.filled():
        others = site.peers(replica)
        if not others or replica.compacted:
            continue
        start = max(one.log_start for one in (replica, *others))
        end = site.committed_below(replica.tp)
        spots += [
            spot
            for spot in replica.batches
            if start <= spot.batch.base_offset
            and spot.batch.next_offset <= end
            and spot.batch.magic == 2
            and not spot.batch.is_control
            and spot.batch.record_count
        ]
    return spots


def _records(spot: Spot) -> list[Record]:
    return list(batch_records(spot.segment.read(LOG), spot.batch))


def _rewritten(spot: Spot, records: Sequence[Record]) -> bytes | None:
    """The batch with other records; None when it is not as long as it was."""
    data = spot.segment.read(LOG)[spot.batch.position : spot.end]
    wrong = bytes(rebuild_batch(spot.batch, records))
    return wrong if len(wrong) == len(data) and wrong[_CRC_AT:] != data[_CRC_AT:] else None


def _overwrite(spot: Spot, batch: bytes) -> None:
    data = patched(spot.segment.read(LOG), spot.batch.position, batch)
    replace(spot.replica.storage, spot.log, data)


def _logs(replicas: Sequence[Replica]) -> list[str]:
    return [segment.file(LOG) for replica in replicas for segment in replica.segments]


def _diverged(site: Site, spot: Spot, told: str, offset: int) -> Fault:
    """Of three replicas the odd one must be named; of two it may be either."""
    peers = site.peers(spot.replica)
    files = [spot.log] if len(peers) > 1 else [spot.log, *_logs(peers)]
    return fault(spot.replica, told, files, DIVERGED, offset=offset)


def _other(rng: random.Random, value: bytes) -> bytes:
    """As long, and different."""
    return bytes(byte ^ rng.randrange(1, 256) for byte in value)


def _replaced(rng: random.Random, record: Record) -> Record:
    return record._replace(
        key=record.key and _other(rng, record.key), value=record.value and _other(rng, record.value)
    )


@kind(compared=True)
def record_changed(site: Site, rng: random.Random) -> Fault:
    """One byte of one value, under a new checksum."""
    for _ in range(_ATTEMPTS):
        spot = choose(rng, _comparable(site))
        records = _records(spot)
        at = rng.randrange(len(records))
        value = records[at].value
        if not value:
            continue
        place = rng.randrange(len(value))
        wrong = patched(value, place, _other(rng, value[place : place + 1]))
        records[at] = records[at]._replace(value=wrong)
        batch = _rewritten(spot, records)
        if batch is not None:
            _overwrite(spot, batch)
            told = f"a byte of the record {records[at].offset} in {spot.log}"
            return _diverged(site, spot, told, records[at].offset)
    raise NotHere


@kind(compared=True)
def batch_replaced(site: Site, rng: random.Random) -> Fault:
    """Other keys and values in all records of a batch, as long as they were."""

    for _ in range(_ATTEMPTS):
        spot = choose(rng, _comparable(site))
        records = _records(spot)
        batch = _rewritten(spot, [_replaced(rng, record) for record in records])
        if batch is not None:
            _overwrite(spot, batch)
            told = f"other records in the batch of offset {spot.batch.base_offset} of {spot.log}"
            first = next(record.offset for record in records if record.key or record.value)
            return _diverged(site, spot, told, first)
    raise NotHere


@kind(compared=True)
def other_history(site: Site, rng: random.Random) -> Fault:
    """From some batch on, in the same epochs, another leader's records."""
    spot = choose(rng, [spot for spot in _comparable(site) if spot.batch.compression == 0])
    replica, first = spot.replica, -1
    for later in replica.batches[replica.batches.index(spot) :]:
        batch = later.batch
        if batch.compression or batch.is_control or batch.magic != 2:
            continue
        records = _records(later)
        wrong = _rewritten(later, [_replaced(rng, record) for record in records])
        if wrong is not None:
            if first < 0:
                first = next(record.offset for record in records if record.key or record.value)
            _overwrite(later, wrong)
    if not 0 <= first < site.committed_below(replica.tp):
        raise NotHere
    told = f"other records from offset {first} on in {replica.path}"
    found = _diverged(site, spot, told, first)
    logs = frozenset(_logs([replica]))
    return Fault(
        told, found.directory, found.files | logs, found.rules, tp=replica.tp, offset=first
    )


@kind(compared=True)
def other_epoch(site: Site, rng: random.Random) -> Fault:
    """An epoch begins one batch later, by the batches and by the checkpoint: as if two leaders had
    had the same epoch."""
    candidates = []
    for spot in _comparable(site):
        replica = spot.replica
        starts = [start for _, start in replica.epochs]
        if spot.batch.base_offset in starts[1:] and spot.batch.next_offset not in starts:
            number = starts.index(spot.batch.base_offset)
            if replica.epochs[number][0] == spot.batch.leader_epoch:
                candidates.append((spot, number))
    spot, number = choose(rng, candidates)
    replica, batch = spot.replica, spot.batch
    epoch, start = replica.epochs[number]
    before = replica.epochs[number - 1][0]
    at = batch.position + 12
    data = patched(spot.segment.read(LOG), at, struct.pack(">i", before))
    replace(replica.storage, spot.log, data)
    entries = [*replica.epochs]
    entries[number] = (epoch, batch.next_offset)
    path = write_epochs(replica, entries)
    told = f"epoch {epoch} of {replica.path} begins at {batch.next_offset} for {start}"
    others = site.peers(replica)
    files = [path, spot.log] if len(others) > 1 else [path, spot.log, *_logs(others)]
    return fault(replica, told, files, f"{DIVERGED} I-7", offset=start)


@kind(compared=True)
def other_topic_id(site: Site, rng: random.Random) -> Fault:
    """One broker has another topic of that name, in all its partitions."""
    topics = {replica.tp.topic for replica in site.replicas if site.peers(replica)}
    topic, log_dir = choose(rng, sorted(topics)), choose(rng, site.log_dirs)
    topic_id = base64.urlsafe_b64encode(rng.randbytes(16)).decode().rstrip("=")
    replicas = [one for one in site.replicas if one.tp.topic == topic]
    mine = [one for one in replicas if one.log_dir is log_dir]
    if not mine or len(mine) == len(replicas):
        raise NotHere
    for replica in mine:
        path = replica.file(PARTITION_METADATA)
        replace(replica.storage, path, f"version: 0\ntopic_id: {topic_id}".encode())
    told = f"{topic} on {log_dir.path} has topic id {topic_id}"
    files = [replica.file(PARTITION_METADATA) for replica in replicas]
    return Fault(told, log_dir.path, frozenset(files), frozenset(("topic-id",)))


@kind()
def tail_lost(site: Site, rng: random.Random) -> Fault:
    """A log ends before its high watermark, at a batch, as if it had been flushed so far only."""
    candidates = [
        spot
        for replica in site.filled()
        for spot in replica.batches
        if spot.segment.active and spot.batch.next_offset <= replica.high_watermark
    ]
    spot = choose(rng, candidates)
    replica, end = spot.replica, spot.batch.base_offset
    log_dir = replica.log_dir
    replace(replica.storage, spot.log, spot.segment.read(LOG)[: spot.batch.position])
    points = log_dir.offsets(RECOVERY_POINT)
    if replica.tp in points:
        log_dir.write_offsets(RECOVERY_POINT, points | {replica.tp: min(end, points[replica.tp])})
    along = (
        "index-entry timeindex-entry txnindex-offsets txnindex-entries timeindex-last-entry "
        "snapshot-above-log epochs-range recovery-point too-large"
    )
    told = f"{spot.log} ends at offset {end}"
    return fault(replica, told, [spot.log], f"high-watermark {DIVERGED}", along)


@kind()
def marker_changed(site: Site, rng: random.Random) -> Fault:
    """An ABORT instead of a COMMIT, or the other way round, under a new checksum."""
    candidates: list[tuple[Spot, Record]] = []
    for replica in site.filled():
        if replica.compacted or replica.segments[0].base:
            continue
        for spot in replica.batches:
            if spot.batch.is_control and spot.batch.is_transactional:
                records = batch_records(spot.segment.read(LOG), spot.batch, check_crc=False)
                candidates.append((spot, records[0]))
    spot, record = choose(rng, [pair for pair in candidates if _ends_something(*pair)])
    assert record.key is not None
    was = int.from_bytes(record.key[2:4], "big")
    now = ControlType.ABORT if was == ControlType.COMMIT else ControlType.COMMIT
    batch = spot.segment.read(LOG)[spot.batch.position : spot.end]
    at = batch.index(_KEY_LENGTH + record.key, _RECORDS_AT)
    _overwrite(spot, sealed(patched(batch, at + 3, int(now).to_bytes(2, "big"))))
    told = f"the marker at {spot.batch.position} of {spot.log} is {now.name}"
    return fault(
        spot.replica,
        told,
        [_txn_index(spot.segment), spot.log],
        f"txnindex-entries {DIVERGED}",
        "txnindex-offsets",
    )


def _ends_something(spot: Spot, marker: Record) -> bool:
    """Whether its producer has written in a transaction since the marker before it."""
    before: list[Batch] = [
        other.batch
        for other in spot.replica.batches
        if other.batch.producer_id == spot.batch.producer_id
        and other.batch.base_offset < marker.offset
    ]
    return bool(before) and before[-1].is_transactional and not before[-1].is_control


def _txn_index(segment: Segment) -> str:
    return segment.file(filenames.TXN_INDEX_SUFFIX)


def sealed(batch: bytes) -> bytes:
    """``batch`` under the checksum of its present content."""
    return patched(batch, _CRC_AT, crc32c(batch[_SEALED_FROM:]).to_bytes(4, "big"))
