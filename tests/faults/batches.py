"""Faults of a ``.log``: damaged headers and records, batches and segments that are not in place."""

from __future__ import annotations

import random
import struct

from logstore.format import filenames
from tests.faults.planter import Fault, NotHere, choose, fault, kind
from tests.faults.site import Replica, Segment, Site, Spot, flipped, patched, replace

LOG = filenames.LOG_SUFFIX
_BASE_OFFSET, _LENGTH, _EPOCH = struct.Struct(">q"), struct.Struct(">i"), struct.Struct(">i")
_MAGIC_AT, _CRC_AT, _ATTRIBUTES_AT, _RECORDS_AT = 16, 17, 21, 61

# A batch that is not where it was makes the sparse indexes and the snapshots of producers wrong.
_MOVED = (
    "index-entry index-order timeindex-entry timeindex-order txnindex-offsets "
    "txnindex-entries snapshot-form timeindex-last-entry snapshot-producer "
    "snapshot-transaction snapshot-above-log log-epoch recovery-point epochs-range "
    "high-watermark snapshot-missing"
)


def _write(spot: Spot | Segment, data: bytes) -> None:
    segment = spot.segment if isinstance(spot, Spot) else spot
    replace(segment.replica.storage, segment.file(LOG), data)


def _flip(spot: Spot, rng: random.Random, start: int, end: int, rules: str) -> Fault:
    """One bit of bytes ``[start, end)`` of a batch."""
    first = spot.batch.position
    data, at = flipped(rng, spot.segment.read(LOG), first + start, first + end)
    _write(spot, data)
    told = f"a bit of byte {at - first} of the batch at {first} of {spot.log}"
    return fault(spot.replica, told, [spot.log], rules)


def _plain(site: Site) -> list[Spot]:
    """Batches of logs that were never compacted."""
    return [spot for spot in site.spots() if not spot.replica.compacted]


@kind()
def flipped_checksum(site: Site, rng: random.Random) -> Fault:
    return _flip(choose(rng, site.spots()), rng, _CRC_AT, _ATTRIBUTES_AT, "log-checksum")


@kind()
def flipped_header(site: Site, rng: random.Random) -> Fault:
    return _flip(choose(rng, site.spots()), rng, _ATTRIBUTES_AT, _RECORDS_AT, "log-checksum")


@kind()
def flipped_record(site: Site, rng: random.Random) -> Fault:
    spot = choose(rng, [spot for spot in site.spots() if spot.batch.size > _RECORDS_AT])
    return _flip(spot, rng, _RECORDS_AT, spot.batch.size, "log-checksum")


@kind()
def flipped_magic(site: Site, rng: random.Random) -> Fault:
    return _flip(choose(rng, site.spots()), rng, _MAGIC_AT, _CRC_AT, "log-magic")


@kind()
def wrong_length(site: Site, rng: random.Random) -> Fault:
    spot = choose(rng, site.spots())
    at, data = spot.batch.position + 8, spot.segment.read(LOG)
    ends = {len(data), *(batch.position for batch in spot.segment.batches())}
    changes = (-7, -1, 1, 13, 1000, 2**30)
    lengths = [spot.batch.batch_length + change for change in changes]
    wrong = choose(rng, [n for n in lengths if at + 4 + n not in ends])  # else the checksum tells
    _write(spot, patched(data, at, _LENGTH.pack(wrong)))
    told = f"length {wrong} for {spot.batch.batch_length} at {spot.batch.position} of {spot.log}"
    return fault(spot.replica, told, [spot.log], "log-length")


@kind()
def wrong_base_offset(site: Site, rng: random.Random) -> Fault:
    spot = choose(rng, _plain(site))
    right = spot.batch.base_offset
    wrong = choose(
        rng, [n for n in (right - 3, right - 1, right + 1, right + 40, right ^ 2**33) if n >= 0]
    )
    at = spot.batch.position
    _write(spot, patched(spot.segment.read(LOG), at, _BASE_OFFSET.pack(wrong)))
    told = f"base offset {wrong} for {right} at {at} of {spot.log}"
    return fault(
        spot.replica, told, [spot.log], "log-base-offset log-offset-order log-offset-span", _MOVED
    )


@kind()
def wrong_leader_epoch(site: Site, rng: random.Random) -> Fault:
    """Told by leader-epoch-checkpoint, from its first entry on."""
    spots = [
        spot
        for spot in site.spots()
        if spot.segment.settled
        and spot.replica.epochs
        and spot.batch.base_offset >= spot.replica.epochs[0][1]
    ]
    spot = choose(rng, spots)
    wrong = spot.batch.leader_epoch + rng.choice((-1, 1, 100, -(2**31) + 1))
    at = spot.batch.position + 12
    _write(spot, patched(spot.segment.read(LOG), at, _EPOCH.pack(wrong)))
    told = f"epoch {wrong} for {spot.batch.leader_epoch} at {spot.batch.position} of {spot.log}"
    return fault(
        spot.replica, told, [spot.log], "log-epoch log-negative-epoch log-no-epoch log-epoch-falls"
    )


@kind()
def removed_batch(site: Site, rng: random.Random) -> Fault:
    """Not the last one, which a crash may lose, unless a checkpoint covers it."""
    spots = [
        spot
        for spot in _plain(site)
        if spot.batch.next_offset < spot.replica.end_offset
        or spot.replica.kept_below >= spot.replica.end_offset
    ]
    spot = choose(rng, spots)
    data = spot.segment.read(LOG)
    _write(spot, data[: spot.batch.position] + data[spot.end :])
    told = f"without the batch of offset {spot.batch.base_offset} at {spot.batch.position}"
    following = [s.file(LOG) for s in spot.replica.segments if s.base == spot.segment.next_base]
    return fault(
        spot.replica,
        f"{spot.log} {told}",
        [spot.log, *following],
        "log-offset-order recovery-point high-watermark",
        _MOVED,
    )


@kind()
def doubled_batch(site: Site, rng: random.Random) -> Fault:
    spot = choose(rng, site.spots())
    data = spot.segment.read(LOG)
    _write(spot, data[: spot.end] + data[spot.batch.position :])
    told = f"the batch at {spot.batch.position} of {spot.log} twice"
    return fault(spot.replica, told, [spot.log], "log-offset-order", _MOVED)


@kind()
def swapped_batches(site: Site, rng: random.Random) -> Fault:
    pairs = [
        (one, two)
        for replica in site.filled()
        for one, two in zip(replica.batches, replica.batches[1:], strict=False)
        if one.segment.base == two.segment.base
    ]
    one, two = choose(rng, pairs)
    data = one.segment.read(LOG)
    start, middle, end = one.batch.position, two.batch.position, two.end
    _write(one, data[:start] + data[middle:end] + data[start:middle] + data[end:])
    told = f"the batches at {start} and {middle} of {one.log} change places"
    return fault(
        one.replica,
        told,
        [one.log],
        "log-offset-order log-base-offset log-epoch log-epoch-falls",
        _MOVED,
    )


@kind()
def torn_tail(site: Site, rng: random.Random) -> Fault:
    """The last batch cut short: a crash does that, but not below a recovery point."""
    spots = [
        replica.batches[-1]
        for replica in site.filled()
        if replica.kept_below >= replica.end_offset or replica.log_dir.clean
    ]
    spot = choose(rng, spots)
    data = spot.segment.read(LOG)
    cut = rng.randrange(1, spot.batch.size)
    _write(spot, data[:-cut])
    told = f"{spot.log} without its last {cut} bytes"
    return fault(
        spot.replica, told, [spot.log], "log-torn-end log-unclean-end recovery-point high-watermark"
    )


@kind()
def torn_segment(site: Site, rng: random.Random) -> Fault:
    """Cut inside a batch, with another segment behind."""
    spots = [spot for spot in site.spots() if not spot.segment.active]
    spot = choose(rng, spots)
    cut = rng.randrange(spot.batch.position + 1, spot.end)
    _write(spot, spot.segment.read(LOG)[:cut])
    told = f"{spot.log} ends at byte {cut}"
    return fault(spot.replica, told, [spot.log], "log-torn-end log-zero-end", f"{_MOVED} too-large")


@kind()
def garbage_at_the_end(site: Site, rng: random.Random) -> Fault:
    """Bytes behind the last batch of a segment that is followed by another."""
    segment = choose(rng, [segment for segment in site.segments() if not segment.active])
    extra = rng.choice((bytes(4096), rng.randbytes(rng.randrange(1, 300))))
    _write(segment, segment.read(LOG) + extra)
    told = f"{len(extra)} bytes behind {segment.file(LOG)}"
    return fault(
        segment.replica,
        told,
        [segment.file(LOG)],
        "log-torn-end log-zero-end log-length",
        "log-checksum",
    )


@kind()
def zeroed_page(site: Site, rng: random.Random) -> Fault:
    """A page or some sectors that never reached the disk."""
    segment = choose(rng, [segment for segment in site.segments() if segment.has(LOG)])
    data = segment.read(LOG)
    size = rng.choice((512, 1024, 4096))
    start = rng.randrange(len(data)) // 512 * 512
    first = next(batch for batch in segment.batches() if batch.end_position > start)
    zeroed = patched(data, start, bytes(min(size, len(data) - start)))
    kept = segment.replica.log_dir.clean or first.base_offset < segment.replica.kept_below
    if segment.active and not kept and not any(zeroed[first.position :]):
        raise NotHere  # what a crash may leave of records that nobody was promised
    _write(segment, zeroed)
    told = f"zeros from {start} on, {size} bytes, in {segment.file(LOG)}"
    rules = (
        "log-length log-checksum log-magic log-record-count log-torn-end log-zero-end "
        "log-unclean-end recovery-point high-watermark"
    )
    return fault(
        segment.replica,
        told,
        [segment.file(LOG)],
        rules,
        "log-offset-order snapshot-above-log epochs-range",
    )


@kind()
def missing_segment(site: Site, rng: random.Random) -> Fault:
    """Not the first, which retention may have removed; the last one where a checkpoint covers it.

    Told where the next segment begins, or where the log ends now.
    """
    candidates = [
        (replica, number)
        for replica in site.filled()
        if not replica.compacted
        for number in range(1, len(replica.segments))
        if number + 1 < len(replica.segments) or replica.kept_below > replica.segments[-1].base
    ]
    replica, number = choose(rng, candidates)
    gone = replica.segments[number]
    _remove_files(replica, gone)
    files = [
        replica.segments[n].file(LOG) for n in (number - 1, number + 1) if n < len(replica.segments)
    ]
    told = f"segment {gone.base} of {replica.path} is missing"
    return fault(replica, told, files, "log-offset-order recovery-point high-watermark", _MOVED)


def _remove_files(replica: Replica, segment: Segment) -> None:
    for suffix in filenames.SEGMENT_SUFFIXES:
        if replica.storage.info(segment.file(suffix)) is not None:
            replica.storage.remove(segment.file(suffix))


@kind()
def missing_log(site: Site, rng: random.Random) -> Fault:
    """The ``.log`` alone: its indexes stay behind (F-241)."""
    segments = [
        segment
        for segment in site.segments()
        if segment.settled
        and segment.has(LOG)
        and segment.replica.storage.info(segment.file(".index"))
    ]
    segment = choose(rng, segments)
    segment.replica.storage.remove(segment.file(LOG))
    files = [segment.file(suffix) for suffix in (".index", ".timeindex", ".txnindex")]
    told = f"{segment.file(LOG)} is missing"
    return fault(
        segment.replica,
        told,
        files,
        "index-without-log",
        f"log-offset-order log-start-offset {_MOVED}",
    )
