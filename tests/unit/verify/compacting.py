"""What the cleaner of a broker leaves of a log, done by hand: record by record, file by file.

``compacted`` says what the new segments hold, ``Swap`` gives the steps in which they take the place
of the old ones (F-309), so that a test can look between any two of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from logstore.format import filenames
from logstore.format.batch import rebuild_batch
from logstore.format.index_entry import TXN_ENTRY, decode_aborted
from logstore.format.reader import Batch, batch_records, iter_batches
from logstore.kernels import RecoveryScan
from logstore.storage.base import Storage

LOG, INDEX, TIME, TXN = (
    filenames.LOG_SUFFIX,
    filenames.INDEX_SUFFIX,
    filenames.TIME_INDEX_SUFFIX,
    filenames.TXN_INDEX_SUFFIX,
)
HORIZON = 1_900_000_000_000
Segment = dict[str, bytes]
"""Suffix → content."""


def bases_of(storage: Storage, directory: str) -> list[int]:
    names = (filenames.parse_segment_file(entry.name) for entry in storage.scan_dir(directory))
    return sorted(n.offset for n in names if n and n.suffix == LOG and not n.transition)


def _path(directory: str, base: int, suffix: str, transition: str = "") -> str:
    return f"{directory}/{filenames.segment_file_name(base, suffix, transition)}"


def compacted(
    storage: Storage, directory: str, rng: random.Random, interval: int
) -> dict[int, tuple[list[int], Segment]]:
    """Base of each new segment → bases of the old ones, and what it holds. The active segment
    stays. Of each batch some records go, or all; an empty one stays for its producer (F-305)."""
    bases = bases_of(storage, directory)[:-1]
    last_of = _last_batches(storage, directory)
    found = {}
    while bases:
        group = [bases.pop(0) for _ in range(min(len(bases), rng.randint(1, 3)))]
        log, aborted = bytearray(), bytearray()
        for base in group:
            old = storage.read_file(_path(directory, base, LOG))
            kept = set()
            for batch in iter_batches(old):
                new = _what_stays(old, batch, rng, last_of.get(batch.producer_id) == batch)
                if new is not None:
                    log += new
                    kept.add(batch.last_offset)
            path = _path(directory, base, TXN)
            for entry in decode_aborted(storage.read_file(path) if storage.info(path) else b"", ""):
                if entry.last_offset in kept:
                    aborted += TXN_ENTRY.pack(0, *entry)
        scan = RecoveryScan(group[0], interval)
        scan.feed(memoryview(bytes(log)), 0, True)
        time = scan.time_index + scan.final_time_entry()
        files = {LOG: bytes(log), INDEX: bytes(scan.offset_index), TIME: bytes(time)}
        found[group[0]] = group, files | ({TXN: bytes(aborted)} if aborted else {})
    return found


def _last_batches(storage: Storage, directory: str) -> dict[int, Batch]:
    last = {}
    for base in bases_of(storage, directory):
        for batch in iter_batches(storage.read_file(_path(directory, base, LOG))):
            if not batch.is_control:
                last[batch.producer_id] = batch
    return last


def _what_stays(log: bytes, batch: Batch, rng: random.Random, is_last: bool) -> bytes | None:
    how = rng.random()
    whole = log[batch.position : batch.end_position]
    if how < 0.3:
        return whole
    records = list(batch_records(log, batch))
    if batch.is_control:
        horizon = HORIZON if rng.random() < 0.5 else None
        return bytes(rebuild_batch(batch, records, delete_horizon=horizon))
    kept = [record for record in records if rng.random() < 0.5]
    if not kept:
        return bytes(rebuild_batch(batch, [])) if is_last or how > 0.9 else None
    if len(kept) == len(records):
        return whole
    horizon = HORIZON if rng.random() < 0.2 else None
    return bytes(rebuild_batch(batch, kept, delete_horizon=horizon))


class Swap:
    """New segments take the place of old ones, one step after the other."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        group: Sequence[int],
        files: Segment,
    ) -> None:
        self.storage, self.directory = storage, directory
        self.group, self.files = group, files

    def steps(self) -> Iterator[Callable[[], None]]:
        new = self.group[0]
        for suffix, content in self.files.items():
            cleaned = _path(self.directory, new, suffix, ".cleaned")
            yield lambda cleaned=cleaned, content=content: self.storage.write_file(cleaned, content)
        for suffix in self.files:
            names = [_path(self.directory, new, suffix, t) for t in (".cleaned", ".swap")]
            yield lambda names=names: self.storage.rename(*names)
        for base in self.group:
            for suffix in (LOG, INDEX, TIME, TXN):
                path = _path(self.directory, base, suffix)
                if self.storage.info(path) is not None:
                    yield lambda path=path: self.storage.rename(path, path + ".deleted")
        for suffix in self.files:
            path = _path(self.directory, new, suffix)
            yield lambda path=path: self.storage.rename(path + ".swap", path)
