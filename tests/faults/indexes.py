"""Faults of what belongs to a segment besides its ``.log``: indexes and producer snapshots."""

from __future__ import annotations

import random
from collections.abc import Callable

from logstore.format import filenames
from logstore.format.index_entry import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    TXN_ENTRY,
    used_offset_entries,
    used_time_entries,
)
from logstore.format.producer_snapshot import decode_snapshot, encode_snapshot
from tests.faults.planter import Fault, NotHere, choose, fault, kind
from tests.faults.site import Replica, Segment, Site, flipped, patched, replace

INDEX, TIME, TXN, SNAPSHOT = (
    filenames.INDEX_SUFFIX,
    filenames.TIME_INDEX_SUFFIX,
    filenames.TXN_INDEX_SUFFIX,
    filenames.SNAPSHOT_SUFFIX,
)
_LAYOUTS = {INDEX: OFFSET_ENTRY, TIME: TIME_ENTRY, TXN: TXN_ENTRY}
_USED: dict[str, Callable[[bytes], int]] = {
    INDEX: used_offset_entries,
    TIME: used_time_entries,
    TXN: lambda data: len(data) // TXN_ENTRY.size,
}
Entry = tuple[int, ...]


def with_entries(
    site: Site, suffix: str, least: int = 1, *, settled: bool = True
) -> list[tuple[Segment, list[Entry]]]:
    """Segments whose index has so many entries, with them.

    Those that the next start scans may have any.
    """
    out = []
    for segment in site.segments():
        if segment.settled is not settled:
            continue
        if segment.has(suffix) and segment.has(filenames.LOG_SUFFIX):
            entries = _entries(segment, suffix)
            if len(entries) >= least:
                out.append((segment, entries))
    return out


def _entries(segment: Segment, suffix: str) -> list[Entry]:
    data, layout = segment.read(suffix), _LAYOUTS[suffix]
    return list(layout.iter_unpack(data[: _USED[suffix](data) * layout.size]))


def put(segment: Segment, suffix: str, number: int, *fields: int) -> None:
    layout = _LAYOUTS[suffix]
    data = patched(segment.read(suffix), number * layout.size, layout.pack(*fields))
    replace(segment.replica.storage, segment.file(suffix), data)


def _fault(segment: Segment, suffix: str, told: str, rules: str) -> Fault:
    file = segment.file(suffix)
    return fault(segment.replica, f"{told} in {file}", [file], rules, differs=False)


# -- offset index ------------------------------------------------------------------------------


@kind()
def index_position(site: Site, rng: random.Random) -> Fault:
    """A position where no batch begins."""
    segment, entries = choose(rng, with_entries(site, INDEX))
    number = rng.randrange(len(entries))
    offset, position = entries[number]
    starts = {batch.position for batch in segment.batches()}
    wrong = choose(rng, [p for p in (position + 1, position - 20, 10**6, -5) if p not in starts])
    put(segment, INDEX, number, offset, wrong)
    told = f"position {wrong} for {position} in entry {number}"
    return _fault(segment, INDEX, told, "index-entry index-order")


@kind()
def index_offset(site: Site, rng: random.Random) -> Fault:
    """An offset at which no batch ends, nor begins at the position."""
    segment, entries = choose(rng, with_entries(site, INDEX))
    number = rng.randrange(len(entries))
    offset, position = entries[number]
    ends = {batch.last_offset - segment.base for batch in segment.batches()}
    ends |= {b.base_offset - segment.base for b in segment.batches() if b.position == position}
    wrong = choose(
        rng, [o for o in (*range(offset - 4, offset + 5), 10**6) if o >= 0 and o not in ends]
    )
    put(segment, INDEX, number, wrong, position)
    return _fault(
        segment, INDEX, f"offset {wrong} for {offset} in entry {number}", "index-entry index-order"
    )


@kind()
def index_order(site: Site, rng: random.Random) -> Fault:
    """Two entries change places."""
    segment, entries = choose(rng, with_entries(site, INDEX, 2))
    number = rng.randrange(len(entries) - 1)
    put(segment, INDEX, number, *entries[number + 1])
    put(segment, INDEX, number + 1, *entries[number])
    return _fault(segment, INDEX, f"entries {number} and {number + 1} swapped", "index-order")


@kind()
def index_noise(site: Site, rng: random.Random) -> Fault:
    """An entry of random bytes, which leads past the end of so small a log."""
    segment, entries = choose(rng, with_entries(site, INDEX))
    number = rng.randrange(len(entries))
    put(segment, INDEX, number, rng.randrange(2**30), rng.randrange(2**20, 2**31))
    return _fault(segment, INDEX, f"noise in entry {number}", "index-entry index-order")


@kind()
def index_missing(site: Site, rng: random.Random) -> Fault:
    suffix = rng.choice((INDEX, TIME))
    segments = [
        segment
        for segment in site.segments()
        if segment.settled
        and segment.has(filenames.LOG_SUFFIX)
        and segment.replica.storage.info(segment.file(suffix))
    ]
    segment = choose(rng, segments)
    segment.replica.storage.remove(segment.file(suffix))
    return _fault(
        segment, suffix, "missing, there is nothing", "log-without-index timeindex-last-entry"
    )


@kind()
def index_cut(site: Site, rng: random.Random) -> Fault:
    """The last entry is not whole."""
    suffix = rng.choice((INDEX, TIME, TXN))
    segment, _ = choose(rng, with_entries(site, suffix))
    cut = rng.randrange(1, _LAYOUTS[suffix].size)
    replace(segment.replica.storage, segment.file(suffix), segment.read(suffix)[:-cut])
    return _fault(
        segment,
        suffix,
        f"{cut} bytes are missing",
        "index-partial-entry txnindex-form txnindex-entries timeindex-last-entry",
    )


@kind()
def index_zeros(site: Site, rng: random.Random) -> Fault:
    """Room for entries to come, in an index that takes none any more."""
    suffix = rng.choice((INDEX, TIME))
    segment = choose(rng, [one for one, _ in with_entries(site, suffix) if one.closed])
    data = segment.read(suffix) + bytes(_LAYOUTS[suffix].size * rng.randrange(1, 50))
    replace(segment.replica.storage, segment.file(suffix), data)
    return _fault(segment, suffix, "zeros at the end", "index-zeros")


# -- time index --------------------------------------------------------------------------------


@kind()
def time_value(site: Site, rng: random.Random) -> Fault:
    segment, entries = choose(rng, with_entries(site, TIME))
    number = rng.randrange(len(entries))
    timestamp, offset = entries[number]
    wrong = timestamp + rng.choice((-(10**6), -1, 1, 7, 10**9))
    put(segment, TIME, number, wrong, offset)
    told = f"timestamp {wrong} for {timestamp} in entry {number}"
    return _fault(segment, TIME, told, "timeindex-entry timeindex-order timeindex-last-entry")


@kind()
def time_offset(site: Site, rng: random.Random) -> Fault:
    """The offset of a batch whose largest timestamp is another one."""
    candidates = [
        (segment, number, entry, batch)
        for segment, entries in with_entries(site, TIME)
        for batch in segment.batches()
        for number, entry in enumerate(entries)
        if batch.max_timestamp != entry[0]
    ]
    segment, number, (timestamp, offset), batch = choose(rng, candidates)
    wrong = batch.last_offset - segment.base
    put(segment, TIME, number, timestamp, wrong)
    told = f"offset {wrong} for {offset} in entry {number}"
    return _fault(segment, TIME, told, "timeindex-entry timeindex-order timeindex-last-entry")


@kind()
def time_end(site: Site, rng: random.Random) -> Fault:
    """The final entry of a closed segment is cut off, or zeroed."""
    segment = choose(rng, [one for one, _ in with_entries(site, TIME) if one.closed])
    data = segment.read(TIME)
    end = used_time_entries(data) * TIME_ENTRY.size - TIME_ENTRY.size
    zeros = rng.random() < 0.5
    kept = data[:end] + bytes(len(data) - end if zeros else 0)
    replace(segment.replica.storage, segment.file(TIME), kept)
    told = f"the last entry is {'zeroed' if zeros else 'cut off'}"
    return _fault(segment, TIME, told, "timeindex-entry timeindex-last-entry index-zeros")


# -- transaction index ---------------------------------------------------------------------------


def _told_by_replay(site: Site) -> list[tuple[Segment, list[Entry]]]:
    """Transaction indexes of logs whose transactions are all in the log."""
    return [
        (segment, entries)
        for segment, entries in with_entries(site, TXN)
        if not segment.replica.compacted and not segment.replica.segments[0].base
    ]


@kind()
def aborted_dropped(site: Site, rng: random.Random) -> Fault:
    segment, entries = choose(rng, _told_by_replay(site))
    number = rng.randrange(len(entries))
    width, data = TXN_ENTRY.size, segment.read(TXN)
    kept = data[: number * width] + data[(number + 1) * width :]
    replace(segment.replica.storage, segment.file(TXN), kept)
    return _fault(segment, TXN, f"entry {number} dropped", "txnindex-entries")


@kind()
def aborted_changed(site: Site, rng: random.Random) -> Fault:
    segment, entries = choose(rng, _told_by_replay(site))
    number = rng.randrange(len(entries))
    fields = list(entries[number])
    at = rng.randrange(len(fields))
    # A follower's last stable offset depends on what came in one append: it has a range.
    fields[at] += rng.choice((-2, 1, 3)) if at < 4 else rng.choice((-(1 << 40), 1 << 40))
    put(segment, TXN, number, *fields)
    told = f"field {at} of entry {number} is {fields[at]} for {entries[number][at]}"
    return _fault(segment, TXN, told, "txnindex-offsets txnindex-entries txnindex-form")


# -- producer snapshots ----------------------------------------------------------------------------


def snapshots_of(replica: Replica, *, empty: bool = False) -> list[tuple[int, str]]:
    """Offset and path of those that have producers, or of all."""
    found = []
    for entry in replica.storage.scan_dir(replica.path):
        parsed = filenames.parse_segment_file(entry.name)
        if (
            parsed
            and parsed.suffix == SNAPSHOT
            and not parsed.transition
            and replica.is_settled(parsed.offset)
            and (empty or entry.size > 10)
        ):
            found.append((parsed.offset, replica.file(entry.name)))
    return found


@kind()
def snapshot_flipped(site: Site, rng: random.Random) -> Fault:
    found = [(replica, path) for replica in site.replicas for _, path in snapshots_of(replica)]
    replica, path = choose(rng, found)
    data = replica.storage.read_file(path)
    wrong, at = flipped(rng, data, 0, len(data))
    replace(replica.storage, path, wrong)
    told = f"a bit of byte {at} of {path}"
    return fault(replica, told, [path], "snapshot-form", differs=False)


@kind()
def snapshot_of_another_state(site: Site, rng: random.Random) -> Fault:
    """A valid file that has another sequence, offset or epoch than the log."""
    candidates = [
        (replica, path, at, entry)
        for replica in site.filled()
        if not replica.compacted and not replica.segments[0].base
        for offset, path in snapshots_of(replica)
        if 0 < offset <= replica.end_offset
        for at, entry in enumerate(decode_snapshot(replica.storage.read_file(path)))
        if entry.last_offset >= 0
    ]
    replica, path, at, entry = choose(rng, candidates)
    wrong = rng.choice(
        (
            entry._replace(last_sequence=entry.last_sequence + 1),
            entry._replace(last_offset=max(0, entry.last_offset - 1)),
            entry._replace(producer_epoch=entry.producer_epoch + 1),
        )
    )
    if wrong == entry:
        raise NotHere
    entries = decode_snapshot(replica.storage.read_file(path))
    entries[at] = wrong
    replace(replica.storage, path, encode_snapshot(entries))
    told = f"entry {at} of {path} is {wrong}"
    return fault(replica, told, [path], "snapshot-producer", differs=False)
