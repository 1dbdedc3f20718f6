"""Puts one segment into a store: its objects in their order, and a look whether they are there."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from checkpoints.checkpoint_file import frame
from logstore.backup.patience import PatientStore
from logstore.backup.scan import ScannedSegment, SourceChangedError, parts_of
from logstore.backup.source import SourceOwner
from logstore.common.clock import Clock
from logstore.common.random_id import RandomId, new_uuid
from logstore.kernels import crc32c
from logstore.storage.base import File
from logstore.tiers import (
    MalformedManifestError,
    ObjectNotFoundError,
    SegmentFacts,
    SegmentKey,
    SegmentManifest,
    StoredSegment,
    StoreUnavailableError,
)
from logstore.tiers.chunks import ChunkIndex
from logstore.tiers.keys import FACTS, INDEXES, LOG, MANIFEST
from logstore.tiers.manifest import FACTS_SIZE_MAX, Epochs, SegmentMetadata

_TAIL = 4 << 10
"""Bytes of the end of a ``.log`` that are read back."""

PART_SIZE = 10 << 20
"""What is read of a ``.log`` at a time: what Arrow sends as a part, which is then not copied."""

_RANGE = 2 << 20
_PUTS_MAX = 3


class ReadBack(StrEnum):
    """What is read back of a segment before it counts as stored."""

    NONE = "none"
    TAIL = "tail"
    """The manifest, and the last bytes of both objects."""
    FULL = "full"
    """Every byte, against the checksums of what was sent."""


class OrphanSegment(NamedTuple):
    """Objects of a segment that no commit names: of a backup that was cut short, perhaps."""

    segment_id: uuid.UUID
    sizes: dict[str, int]
    """By suffix."""


class Destination(NamedTuple):
    """Where the segments of a partition go."""

    topic: str
    topic_id: uuid.UUID
    partition: int

    def key(self, base_offset: int, segment_id: uuid.UUID) -> SegmentKey:
        return SegmentKey(*self, base_offset, segment_id)


class Put(NamedTuple):
    """What became of a segment: ``put_bytes`` is 0 for one that was there already."""

    stored: StoredSegment
    put_bytes: int


@dataclass(frozen=True, slots=True)
class OutgoingSegment:
    """A checked segment on its way: ``open`` opens its ``.log``, ``end_offset`` is where the next
    one begins, and ``epochs`` are those of the log up to there. ``memory`` is held with each part.
    """

    scanned: ScannedSegment
    open: Callable[[], File]
    end_offset: int
    epochs: Epochs
    closed: bool
    memory: AbstractContextManager[object]

    @property
    def indexes(self) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """The parts of ``.indexes``, in their order."""
        lines = "".join(f"{epoch} {start}\n" for epoch, start in self.epochs)
        return (
            self.scanned.offset_index,
            self.scanned.time_index,
            self.scanned.snapshot,
            frame(lines, len(self.epochs)),
            self.scanned.txn_index,
        )

    def parts(self) -> Iterator[memoryview]:
        """The bytes of the ``.log``.

        Raises:
            SourceChangedError: they are not those that were checked.
        """
        scanned, crc = self.scanned, 0
        try:
            file = self.open()
        except OSError as error:
            raise SourceChangedError(scanned.path, f"{error.strerror}") from error
        with closing(file):
            for part in parts_of(file, scanned.path, scanned.size, PART_SIZE, self.memory):
                crc = crc32c(part, crc)
                yield part
                del part  # its memory is the next one's
        if crc != scanned.crc:
            raise SourceChangedError(scanned.path, "its bytes changed after they were checked")

    def tail(self) -> bytes:
        size = min(_TAIL, self.scanned.size)
        with closing(self.open()) as file:
            return file.read_at(self.scanned.size - size, size)


class SegmentWriter:
    """Puts segments. ``lied`` counts objects that were not there when they were read back."""

    def __init__(
        self,
        store: PatientStore,
        owner: SourceOwner,
        read_back: ReadBack,
        *,
        ids: RandomId,
        clock: Clock,
    ) -> None:
        self._store, self._owner, self._read_back = store, owner, read_back
        self._ids, self._clock = ids, clock
        self._lock = threading.Lock()
        self.lied = 0

    def put(
        self, to: Destination, segment: OutgoingSegment, candidates: Sequence[OrphanSegment] = ()
    ) -> Put:
        """Put a segment, unless one of ``candidates`` has its bytes already.

        Raises:
            SourceChangedError: the source is not as it was checked.
            StoreError: the store refused, or does not keep what it took.
        """
        stored = self._describe(segment, new_uuid(self._ids))
        for candidate in candidates:
            adopted = self._adopted(to, segment, stored, candidate)
            if adopted is not None:
                return Put(adopted, 0)
        key = to.key(stored.base_offset, stored.segment_id)
        for _ in range(_PUTS_MAX):
            manifest = self._put_all(key, segment, stored)
            if self._is_there(key, segment, stored, manifest):
                return Put(stored, stored.log_size + stored.indexes_size)
            with self._lock:
                self.lied += 1
        reason = f"was put {_PUTS_MAX} times, and is not there, or not whole, when it is read back"
        raise StoreUnavailableError(key.key(LOG), reason, True, self._store.uri)

    def _describe(self, segment: OutgoingSegment, segment_id: uuid.UUID) -> StoredSegment:
        scanned, parts = segment.scanned, segment.indexes
        sizes = tuple(map(len, parts))
        return StoredSegment(
            scanned.base_offset,
            segment.end_offset,
            segment_id,
            scanned.size,
            scanned.crc,
            (sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]),
            crc32c(b"".join(parts)),
            max(scanned.max_timestamp, -1),
            scanned.epochs,
            scanned.ends.first,
            scanned.ends.last,
            scanned.batches,
            segment.closed,
        )

    def _put_all(self, key: SegmentKey, segment: OutgoingSegment, stored: StoredSegment) -> bytes:
        """Put the objects, the manifest last: without it the others are no segment."""
        self._store.put(key.key(LOG), segment.parts, stored.log_size)
        indexes = segment.indexes
        self._store.put(key.key(INDEXES), lambda: indexes, stored.indexes_size)
        now = self._clock.wall_ms()
        facts = SegmentFacts(key, self._owner.cluster_id, stored, self._owner.node_id, now)
        self._put_small(key.key(FACTS), facts.to_json())
        return self._put_manifest(key, stored)

    def _put_manifest(self, key: SegmentKey, stored: StoredSegment) -> bytes:
        metadata = SegmentMetadata(
            key,
            stored.end_offset - 1,
            stored.max_timestamp_ms,
            self._owner.node_id,
            self._clock.wall_ms(),
            stored.leader_epochs,
        )
        manifest = SegmentManifest(
            ChunkIndex.plain(stored.log_size), stored.index_parts, metadata=metadata
        ).to_json()
        self._put_small(key.key(MANIFEST), manifest)
        return manifest

    def _put_small(self, key: str, data: bytes) -> None:
        self._store.put(key, lambda: (data,), len(data))

    # -- what is there already -----------------------------------------------------------------

    def _adopted(
        self,
        to: Destination,
        segment: OutgoingSegment,
        stored: StoredSegment,
        candidate: OrphanSegment,
    ) -> StoredSegment | None:
        """What an earlier run has put, if its facts are those of this segment; else None."""
        sizes = candidate.sizes
        if sizes.get(LOG) != stored.log_size or sizes.get(INDEXES) is None or FACTS not in sizes:
            return None
        key = to.key(stored.base_offset, candidate.segment_id)
        try:
            data = self._store.get(key.key(FACTS), 0, FACTS_SIZE_MAX)
            facts = SegmentFacts.from_json(key.key(FACTS), data)
        except (ObjectNotFoundError, MalformedManifestError):
            return None
        found = facts.segment
        same = replace(
            found, segment_id=stored.segment_id, closed=stored.closed, end_offset=stored.end_offset
        )
        if (facts.key, facts.cluster_id) != (key, self._owner.cluster_id) or same != stored:
            return None
        if sizes[INDEXES] != found.indexes_size:
            return None
        found = replace(found, closed=stored.closed, end_offset=stored.end_offset)
        manifest = self._put_manifest(key, found)
        return found if self._is_there(key, segment, found, manifest) else None

    # -- read back -----------------------------------------------------------------------------

    def _is_there(
        self, key: SegmentKey, segment: OutgoingSegment, stored: StoredSegment, manifest: bytes
    ) -> bool:
        if self._read_back is ReadBack.NONE:
            return True
        try:
            if self._store.get(key.key(MANIFEST)) != manifest:
                return False
            if self._read_back is ReadBack.FULL:
                return is_whole(self._store, key, stored)
            return self._tails_match(key, segment, stored)
        except ObjectNotFoundError:
            return False

    def _tails_match(
        self, key: SegmentKey, segment: OutgoingSegment, stored: StoredSegment
    ) -> bool:
        tail, indexes = b"", b"".join(segment.indexes)[-_TAIL:]
        with suppress(OSError):  # gone meanwhile: then what was sent is no more to be had
            tail = segment.tail()
        for name, size, expected in (
            (LOG, stored.log_size, tail),
            (INDEXES, stored.indexes_size, indexes),
        ):
            # One byte more than there may be shows an object that is too long.
            start = size - len(expected)
            if self._store.get(key.key(name), start, len(expected) + 1) != expected:
                return False
        return True


def is_whole(store: PatientStore, key: SegmentKey, stored: StoredSegment) -> bool:
    """Whether both objects have the sizes and checksums of their segment; reads all of them.

    Raises:
        ObjectNotFoundError: one is missing.
    """
    return all(
        object_crc(store, key.key(name), size) == crc
        for name, size, crc in (
            (LOG, stored.log_size, stored.log_crc),
            (INDEXES, stored.indexes_size, stored.indexes_crc),
        )
    )


def object_crc(store: PatientStore, key: str, size: int) -> int | None:
    """The CRC-32C of an object; None if it does not have ``size`` bytes."""
    crc = 0
    for part in ranges(store, key, size):
        if part is None:
            return None
        crc = crc32c(part, crc)
    return crc


def ranges(store: PatientStore, key: str, size: int) -> Iterator[bytes | None]:
    """An object piece by piece, and ``None`` as soon as it has not ``size`` bytes."""
    for start in range(0, size + 1, _RANGE):
        # The last piece asks for one byte more than there may be.
        want = min(_RANGE, size - start)
        last = start + _RANGE > size
        part = store.get(key, start, want + last)
        if len(part) != want:
            yield None
            return
        if part:
            yield part


__all__ = [
    "PART_SIZE",
    "Destination",
    "OrphanSegment",
    "OutgoingSegment",
    "Put",
    "ReadBack",
    "SegmentWriter",
    "is_whole",
    "object_crc",
    "ranges",
]
