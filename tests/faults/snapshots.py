"""Snapshots of producers that the log contradicts, in either direction."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from logstore.format import filenames
from logstore.format.producer_snapshot import (
    ProducerSnapshotEntry,
    decode_snapshot,
    encode_snapshot,
)
from logstore.kernels import crc32c
from tests.faults.indexes import snapshots_of
from tests.faults.planter import Fault, choose, fault, kind, register
from tests.faults.site import Replica, Site, patched, replace

Entries = Sequence[ProducerSnapshotEntry]
Change = Callable[[list[ProducerSnapshotEntry], int], "Entries | None"]
"""Other entries than those of a snapshot at an offset; None if it has none to change."""


def _each(field: str, wrong: Callable[[int], int], least: int = -1) -> Change:
    """One field of the first entry where it is at least so much."""

    def change(entries: list[ProducerSnapshotEntry], _: int) -> Entries | None:
        for at, entry in enumerate(entries):
            value = getattr(entry, field)
            if value >= least and entry.last_offset >= 0:
                return [*entries[:at], entry._replace(**{field: wrong(value)}), *entries[at + 1 :]]
        return None

    return change


def _stranger(entries: list[ProducerSnapshotEntry], offset: int) -> Entries:
    return [*entries, ProducerSnapshotEntry(77, 0, 4, offset - 1, 0, 10**12, -1, -1)]


def _twice(entries: list[ProducerSnapshotEntry], _: int) -> Entries | None:
    return [*entries, entries[0]] if entries else None


def _without_open(entries: list[ProducerSnapshotEntry], _: int) -> Entries | None:
    opened = [entry for entry in entries if entry.current_txn_first_offset >= 0]
    return [entry for entry in entries if entry != opened[0]] if opened else None


CHANGES: dict[str, tuple[Change, str]] = {
    "snapshot_of_a_stranger": (_stranger, "snapshot-producer"),
    "snapshot_with_one_twice": (_twice, "snapshot-producer"),
    "snapshot_without_a_transaction": (_without_open, "snapshot-transaction"),
    "snapshot_of_no_producer": (_each("producer_id", lambda _: -9), "snapshot-form"),
    "snapshot_of_no_epoch": (_each("producer_epoch", lambda _: -1), "snapshot-form"),
    "snapshot_with_a_negative_delta": (_each("offset_delta", lambda _: -1), "snapshot-form"),
    "snapshot_with_a_huge_delta": (_each("offset_delta", lambda _: 2**30), "snapshot-form"),
    "snapshot_of_no_sequence": (_each("last_sequence", lambda _: -8), "snapshot-form"),
    "snapshot_of_no_time": (_each("timestamp", lambda _: -10), "snapshot-form"),
    "snapshot_from_above": (_each("last_offset", lambda at: at + 10**6), "snapshot-form"),
    "snapshot_with_a_later_sequence": (
        _each("last_sequence", lambda sequence: sequence + 5, 0),
        "snapshot-producer",
    ),
    "snapshot_with_a_longer_batch": (
        _each("offset_delta", lambda delta: delta + 1),
        "snapshot-producer snapshot-form",
    ),
}


def _candidates(site: Site) -> list[tuple[Replica, int, str]]:
    return [
        (replica, offset, path)
        for replica in site.filled()
        if not replica.compacted and not replica.segments[0].base
        for offset, path in snapshots_of(replica)
        if 0 < offset <= replica.end_offset
    ]


def _plant(row: tuple[Change, str], site: Site, rng: random.Random) -> Fault:
    change, rules = row
    found = [
        (replica, path, wrong)
        for replica, offset, path in _candidates(site)
        if (wrong := change(decode_snapshot(replica.storage.read_file(path)), offset)) is not None
    ]
    replica, path, wrong = choose(rng, found)
    replace(replica.storage, path, encode_snapshot(wrong))
    along = "snapshot-producer snapshot-transaction"
    return fault(replica, f"{path} is {wrong}", [path], rules, along, differs=False)


for _name, _row in CHANGES.items():
    register(_name, partial(_plant, _row))


@kind()
def snapshot_of_another_version(site: Site, rng: random.Random) -> Fault:
    replica, _, path = choose(rng, _candidates(site))
    data = replica.storage.read_file(path)
    replace(replica.storage, path, patched(data, 0, b"\x00\x02"))
    return fault(replica, f"{path} has version 2", [path], "snapshot-form", differs=False)


@kind()
def snapshot_of_more_than_it_has(site: Site, rng: random.Random) -> Fault:
    replica, _, path = choose(rng, _candidates(site))
    data = replica.storage.read_file(path)
    body = (int.from_bytes(data[6:10], "big") + 1).to_bytes(4, "big") + data[10:]
    replace(replica.storage, path, data[:2] + crc32c(body).to_bytes(4, "big") + body)
    return fault(replica, f"{path} counts one more", [path], "snapshot-form", differs=False)


@kind()
def snapshot_inside_a_batch(site: Site, rng: random.Random) -> Fault:
    """A copy under the name of an offset that no log ever ended at."""
    found = []
    for replica, _, path in _candidates(site):
        inside = [
            spot.batch.base_offset + 1
            for spot in replica.batches
            if spot.batch.record_count > 1 and replica.is_settled(spot.batch.base_offset + 1)
        ]
        found += [(replica, path, offset) for offset in inside]
    replica, path, offset = choose(rng, found)
    copy = replica.file(filenames.segment_file_name(offset, filenames.SNAPSHOT_SUFFIX))
    replica.storage.write_file(copy, replica.storage.read_file(path))
    along = "snapshot-producer snapshot-transaction"
    return fault(replica, f"{copy} of {path}", [copy], "snapshot-form", along, differs=False)


@kind()
def snapshot_behind_the_end(site: Site, rng: random.Random) -> Fault:
    replica, _, path = choose(rng, [one for one in _candidates(site) if one[0].log_dir.clean])
    offset = replica.end_offset + rng.randrange(1, 99)
    copy = replica.file(filenames.segment_file_name(offset, filenames.SNAPSHOT_SUFFIX))
    replica.storage.write_file(copy, replica.storage.read_file(path))
    return fault(replica, f"{copy} of {path}", [copy], "snapshot-above-log", differs=False)
