"""``logstore dump`` of all files except logs: indexes, snapshots and checkpoints."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator

from checkpoints import clean_shutdown
from checkpoints.leader_epoch_checkpoint import LEADER_EPOCH, LeaderEpochCheckpoint
from checkpoints.meta_properties import META_PROPERTIES, MetaPropertiesFile
from checkpoints.offset_checkpoint import (
    CLEANER,
    HIGH_WATERMARK,
    LOG_START,
    RECOVERY_POINT,
    OffsetCheckpoint,
)
from checkpoints.partition_metadata import (
    PARTITION_METADATA,
    PartitionMetadataFile,
    topic_id_to_text,
)
from checkpoints.printable import printable
from logstore.cli.dumping.output import Output
from logstore.common.errors import CorruptIndexError, CorruptSnapshotError
from logstore.common.json_fields import json_fields
from logstore.format.index_entry import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    TXN_ENTRY,
    decode_aborted,
)
from logstore.format.producer_snapshot import decode_snapshot
from logstore.format.reader import MAX_OFFSET
from logstore.storage import File, Storage

OFFSET_CHECKPOINTS = (RECOVERY_POINT, LOG_START, HIGH_WATERMARK, CLEANER)
CHECKPOINTS = (
    *OFFSET_CHECKPOINTS,
    LEADER_EPOCH,
    PARTITION_METADATA,
    META_PROPERTIES,
    clean_shutdown.CLEAN_SHUTDOWN,
)
_WINDOW_ENTRIES = 1 << 16
_SNAPSHOT_MAX = 64 << 20  # 1.4 million producers


_BATCH_MIN = 26  # bytes: a message of the oldest format without key and value

LogSize = Callable[[], int | None]
"""Returns the size of the log of an index; None if the log is missing."""


def dump_offset_index(file: File, base_offset: int, log_size: LogSize, out: Output) -> None:
    for _, (relative, position) in _used_entries(file, OFFSET_ENTRY, 0, log_size):
        offset = base_offset + relative
        if out.from_offset <= offset < out.end_offset:
            out.entry({"offset": offset, "position": position})


def dump_time_index(file: File, base_offset: int, log_size: LogSize, out: Output) -> None:
    for _, (timestamp, relative) in _used_entries(file, TIME_ENTRY, 1, log_size):
        offset = base_offset + relative
        if out.from_offset <= offset < out.end_offset:
            out.entry({"timestamp": timestamp, "offset": offset})


def _used_entries(
    file: File, layout: struct.Struct, first: int, log_size: LogSize
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Entries before the zero tail of an active index (F-137).

    A zero entry at or after ``first`` begins the tail. One before ``first`` counts only if a real
    entry follows it.
    """
    held: tuple[int, tuple[int, int]] | None = None
    for index, entry in _entries(file, layout, log_size):
        if not any(entry):
            if index >= first:
                return
            held = index, entry
            continue
        if held is not None:
            yield held
            held = None
        yield index, entry


def _entries(
    file: File, layout: struct.Struct, log_size: LogSize
) -> Iterator[tuple[int, tuple[int, int]]]:
    """All whole entries."""
    index = 0
    for _, data in _windows(file, layout.size, log_size):
        whole = memoryview(data)[: len(data) // layout.size * layout.size]
        for entry in layout.iter_unpack(whole):
            yield index, (entry[0], entry[1])
            index += 1


def _windows(file: File, width: int, log_size: LogSize) -> Iterator[tuple[int, bytes]]:
    """Yield positions and bytes in windows: an index file may have any size, and be sparse.

    Raises:
        CorruptIndexError: the index has more entries than the log can have batches.
    """
    step, position = _WINDOW_ENTRIES * width, 0
    while data := file.read_at(position, step):
        size = log_size()  # each time, since a running broker writes to the log first
        most = MAX_OFFSET if size is None else (size // _BATCH_MIN + 1) * width
        yield position, data[: max(most - position, 0)]
        if position + len(data) > most:
            reason = f"a log of {size} bytes has at most {most // width} entries"
            raise CorruptIndexError(file.path, most, reason)
        position += step


def dump_txn_index(file: File, log_size: LogSize, out: Output) -> None:
    empty = bytes(TXN_ENTRY.size)
    for position, data in _windows(file, TXN_ENTRY.size, log_size):
        for number, aborted in enumerate(decode_aborted(data, file.path)):
            at = TXN_ENTRY.size * number
            if data[at : at + TXN_ENTRY.size] == empty:
                raise CorruptIndexError(file.path, position + at, "zeros, which are no entry")
            out.entry(json_fields(aborted))
        if len(data) % TXN_ENTRY.size:
            out.note(
                f"{printable(file.path)}: {len(data) % TXN_ENTRY.size} bytes after the last entry"
            )


def dump_snapshot(file: File, out: Output) -> None:
    if file.size() > _SNAPSHOT_MAX:
        raise CorruptSnapshotError(file.path, 0, f"larger than {_SNAPSHOT_MAX} bytes")
    data = file.read_at(0, _SNAPSHOT_MAX)
    for producer in decode_snapshot(data, file.path):
        out.entry(
            {
                "producerId": producer.producer_id,
                "producerEpoch": producer.producer_epoch,
                "coordinatorEpoch": producer.coordinator_epoch,
                "currentTxnFirstOffset": producer.current_txn_first_offset,
                "lastTimestamp": producer.timestamp,
                "lastSequence": producer.last_sequence,
                "lastOffset": producer.last_offset,
                "offsetDelta": producer.offset_delta,
            }
        )


def dump_checkpoint(storage: Storage, path: str, out: Output) -> None:
    """Print one of ``CHECKPOINTS``, chosen by name."""
    name = os.path.basename(path)
    if name in OFFSET_CHECKPOINTS:
        for tp, offset in OffsetCheckpoint(path, storage).read().items():
            out.entry({"topic": tp.topic, "partition": tp.partition, "offset": offset})
    elif name == LEADER_EPOCH:
        for epoch, start_offset in LeaderEpochCheckpoint(path, storage).read():
            out.entry({"epoch": epoch, "startOffset": start_offset})
    elif name == PARTITION_METADATA:
        metadata = PartitionMetadataFile(path, storage).read()
        if metadata is not None:
            topic_id = topic_id_to_text(metadata.topic_id)
            out.entry({"version": metadata.version, "topicId": topic_id})
    elif name == META_PROPERTIES:
        meta = MetaPropertiesFile(path, storage).read()
        if meta is not None:
            directory_id = meta.directory_id and topic_id_to_text(meta.directory_id)
            out.entry(
                {
                    "version": meta.version,
                    "clusterId": meta.cluster_id,
                    "nodeId": meta.node_id,
                    "directoryId": directory_id,
                }
            )
    else:
        *earlier, last = clean_shutdown.read_epochs(path, storage) or (
            clean_shutdown.UNKNOWN_BROKER_EPOCH,
        )
        out.entry({"brokerEpoch": last, **({"earlierEpochs": earlier} if earlier else {})})
