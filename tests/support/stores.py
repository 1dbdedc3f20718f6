"""Stores of segments made from a log directory, by a writer of the tests' own.

It shares nothing with what the product writes or reads but the format on the disk: fields, names
and encodings are written down here a second time, after the plugin's and Kafka's.
"""

from __future__ import annotations

import base64
import itertools
import json
import random
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import crcmod.predefined
import zstandard

from logstore.common.config import LogConfig
from logstore.log import run_inline
from logstore.manager import LogManager, ManagerOwner
from logstore.testing import ManualClock
from tests.unit.verify.verify_logs import fill

crc32c: Callable[[bytes], int] = crcmod.predefined.mkPredefinedCrcFun("crc-32c")

SMALL = LogConfig(segment_bytes=6000, index_interval_bytes=500, segment_index_bytes=4096)
CLUSTER = "5L6g3nShT-eMCtK--X86sw"


def make_directory(path: Path) -> Path:
    """A log directory with the topic ``orders``: several segments, epochs and transactions."""
    clock = ManualClock()
    manager = LogManager([str(path)], SMALL, clock=clock, owner=ManagerOwner(run_later=run_inline))
    config = {"segment.bytes": "6000", "index.interval.bytes": "500"}
    for log, batches in zip(manager.create_topic("orders", 2, config), (60, 20), strict=True):
        fill(log, clock, batches, random.Random(1), transactions=True)
        log.roll()
        log.replica.update_high_watermark(log.log_end_offset)
    manager.housekeeper.checkpoint_recovery_points()
    manager.housekeeper.checkpoint_high_watermarks()
    manager.close()
    return path


def text_of(number: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(number.bytes).decode().rstrip("=")


@dataclass
class Segment:
    """A closed segment of a directory, with what belongs to it."""

    base: int
    end: int
    log: bytes
    index: bytes
    timeindex: bytes
    txnindex: bytes
    snapshot: bytes
    epochs: list[tuple[int, int]]
    """All that were known at its end."""
    id: uuid.UUID

    @property
    def own_epochs(self) -> list[tuple[int, int]]:
        after = [start for _, start in self.epochs[1:]] + [2**63]
        return [
            (epoch, max(start, self.base))
            for (epoch, start), end in zip(self.epochs, after, strict=True)
            if end > self.base
        ]

    @property
    def epoch_file(self) -> bytes:
        lines = "".join(f"{epoch} {start}\n" for epoch, start in self.epochs)
        return f"0\n{len(self.epochs)}\n{lines}".encode()

    @property
    def max_timestamp(self) -> int:
        times = [struct.unpack_from(">q", batch, 35)[0] for batch in batches_of(self.log)]
        return max(times, default=-1)


def batches_of(log: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(log):
        size = 12 + struct.unpack_from(">i", log, position + 8)[0]
        yield log[position : position + size]
        position += size


def epochs_in(directory: Path) -> list[tuple[int, int]]:
    lines = (directory / "leader-epoch-checkpoint").read_text().splitlines()[2:]
    pairs = (line.split() for line in lines)
    return [(int(epoch), int(start)) for epoch, start in pairs]


def segments_of(directory: Path, seed: int = 0) -> list[Segment]:
    """The segments of a partition's directory, but for an empty last one."""
    draw = random.Random(f"{directory.name} {seed}")
    logs = sorted(directory.glob("*.log"))
    found = []
    for number, path in enumerate(logs):
        log = path.read_bytes()
        if not log:
            continue
        base = int(path.stem)
        *_, last = batches_of(log)
        end = struct.unpack_from(">q", last)[0] + struct.unpack_from(">i", last, 23)[0] + 1
        if number + 1 < len(logs):
            end = int(logs[number + 1].stem)

        def content(suffix: str, stem: str = path.stem) -> bytes:
            file = directory / f"{stem}{suffix}"
            return file.read_bytes() if file.exists() else b""

        found.append(
            Segment(
                base,
                end,
                log,
                content(".index"),
                content(".timeindex"),
                content(".txnindex"),
                content(".snapshot", f"{end:020d}"),
                [each for each in epochs_in(directory) if each[1] < end],
                uuid.UUID(int=draw.getrandbits(128), version=4),
            )
        )
    return found


def topic_id_of(directory: Path) -> str:
    return (directory / "partition.metadata").read_text().split("topic_id: ")[1].strip()


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


# ---- Aiven's layout --------------------------------------------------------------------------


@dataclass(frozen=True)
class Chunking:
    """How the plugin's writer transforms a segment; ``size`` 0 is one chunk."""

    size: int = 0
    compression: bool = False
    encryption: bool = False


def put_tiered(
    root: Path, directory: Path, segments: Sequence[Segment], chunking: Chunking = Chunking()
) -> None:
    """Segments of a partition as the plugin stores them."""
    topic, _, partition = directory.name.rpartition("-")
    topic_id = topic_id_of(directory)
    for segment in segments:
        stem = f"{segment.base:020d}-{text_of(segment.id)}"
        folder = root / f"{topic}-{topic_id}" / partition
        size = chunking.size or max(len(segment.log), 1)
        chunks = [segment.log[at : at + size] for at in range(0, len(segment.log), size)]
        stored = chunks
        if chunking.compression:
            stored = [zstandard.compress(chunk) for chunk in chunks]
        if chunking.encryption:
            stored = [bytes(12) + chunk + bytes(16) for chunk in stored]
        put(folder / f"{stem}.log", b"".join(stored))
        parts = {
            "offset": segment.index,
            "timestamp": segment.timeindex,
            "producerSnapshot": segment.snapshot,
            "leaderEpoch": segment.epoch_file,
            "transaction": segment.txnindex or None,
        }
        positions: dict[str, Any] = {}
        data = b""
        for kind, part in parts.items():
            positions[kind] = None if part is None else {"position": len(data), "size": len(part)}
            data += part or b""
        put(folder / f"{stem}.indexes", data)
        index: dict[str, Any] = {
            "type": "variable" if chunking.compression else "fixed",
            "originalChunkSize": size,
            "originalFileSize": len(segment.log),
        }
        if chunking.compression:
            index["transformedChunks"] = _sizes([len(chunk) for chunk in stored])
        else:
            index["transformedChunkSize"] = len(stored[0])
            index["finalTransformedChunkSize"] = len(stored[-1])
        manifest: dict[str, Any] = {
            "version": "1",
            "chunkIndex": index,
            "segmentIndexes": positions,
            "compression": chunking.compression,
        }
        if chunking.encryption:
            manifest["encryption"] = {"dataKey": "key1:QUJD", "aad": "QUJD"}
        manifest["remoteLogSegmentMetadata"] = {
            "remoteLogSegmentId": {
                "topicIdPartition": {
                    "topicId": topic_id,
                    "topicPartition": {"topic": topic, "partition": int(partition)},
                },
                "id": text_of(segment.id),
            },
            "startOffset": segment.base,
            "endOffset": segment.end - 1,
            "maxTimestampMs": segment.max_timestamp,
            "brokerId": 1,
            "eventTimestampMs": 1,
            "segmentLeaderEpochs": {str(epoch): start for epoch, start in segment.own_epochs},
        }
        put(folder / f"{stem}.rsm-manifest", json.dumps(manifest).encode())


def _sizes(values: list[int]) -> str:
    """Count, base, width, values but the last above the base, the last one; or count and value."""
    if len(values) == 1:
        data = struct.pack(">ii", 1, values[0])
    else:
        base = min(values[:-1])
        above = [value - base for value in values[:-1]]
        width = 1 if max(above) < 1 << 8 else 2 if max(above) < 1 << 16 else 4
        data = struct.pack(">iib", len(values), base, width)
        data += b"".join(struct.pack(">i", value)[4 - width :] for value in above)
        data += struct.pack(">i", values[-1])
    return base64.b64encode(zstandard.compress(data)).decode()


# ---- Kafka's LocalTieredStorage --------------------------------------------------------------


def put_local_tiered(root: Path, directory: Path, segments: Sequence[Segment]) -> None:
    folder = root / "kafka-tiered-storage" / f"{directory.name}-{topic_id_of(directory)}"
    for segment in segments:
        stem = f"{segment.base:020d}-{text_of(segment.id)}"
        put(folder / f"{stem}.log", segment.log)
        put(folder / f"{stem}.index", segment.index)
        put(folder / f"{stem}.timeindex", segment.timeindex)
        if segment.txnindex:
            put(folder / f"{stem}.txnindex", segment.txnindex)
        put(folder / f"{stem}.snapshot", segment.snapshot)
        put(folder / f"{stem}.leader_epoch_checkpoint", segment.epoch_file)


# ---- a backup --------------------------------------------------------------------------------


def put_backup(root: Path, directory: Path, number: int = 1) -> dict[str, Any]:
    """All partitions of a log directory as one backup; the fields of its commit."""
    topics: dict[str, dict[str, Any]] = {}
    starts = _checkpoint(directory / "log-start-offset-checkpoint")
    marks = _checkpoint(directory / "replication-offset-checkpoint")
    for partition_directory in sorted(p for p in directory.iterdir() if p.is_dir()):
        topic, _, partition = partition_directory.name.rpartition("-")
        segments = segments_of(partition_directory, number)
        settings = _properties(partition_directory / "topic.properties")
        entry = topics.setdefault(
            topic,
            {
                "topic": topic,
                "topicId": topic_id_of(partition_directory),
                "partitionCount": 0,
                "configRevision": int(settings.pop("revision", "0")),
                "config": settings,
                "partitions": [],
            },
        )
        entry["partitionCount"] += 1
        for segment in segments:
            _put_plain(root, entry, int(partition), segment)
        entry["partitions"].append(
            {
                "partition": int(partition),
                "logStart": starts.get(partition_directory.name, segments[0].base),
                "highWatermark": marks.get(partition_directory.name, -1),
                "end": segments[-1].end,
                "epochs": [list(each) for each in epochs_in(partition_directory)],
                "segments": [_fields(segment) for segment in segments],
            }
        )
    commit = {
        "number": number,
        "clusterId": CLUSTER,
        "timeMs": 1_700_000_000_000,
        "nodeId": 1,
        "writer": "a test",
        "topics": list(topics.values()),
    }
    put_commit(root, number, commit)
    return commit


def put_commit(root: Path, number: int, commit: dict[str, Any]) -> None:
    put(root / "logstore-backup" / f"{number:020d}.json", sealed("backup", commit))


def sealed(kind: str, fields: dict[str, Any]) -> bytes:
    text = json.dumps(fields, separators=(",", ":")).encode()
    return b'{"version":1,"crc32c":"%08x","%s":%s}\n' % (crc32c(text), kind.encode(), text)


def _index_parts(segment: Segment) -> list[bytes]:
    return [
        segment.index,
        segment.timeindex,
        segment.snapshot,
        segment.epoch_file,
        segment.txnindex,
    ]


def _put_plain(root: Path, topic: dict[str, Any], partition: int, segment: Segment) -> None:
    folder = root / f"{topic['topic']}-{topic['topicId']}" / str(partition)
    stem = f"{segment.base:020d}-{text_of(segment.id)}"
    put(folder / f"{stem}.log", segment.log)
    put(folder / f"{stem}.indexes", b"".join(_index_parts(segment)))


def _fields(segment: Segment) -> dict[str, Any]:
    batches = list(batches_of(segment.log))
    return {
        "base": segment.base,
        "end": segment.end,
        "id": text_of(segment.id),
        "logSize": len(segment.log),
        "logCrc": crc32c(segment.log),
        "indexes": [len(part) for part in _index_parts(segment)],
        "indexesCrc": crc32c(b"".join(_index_parts(segment))),
        "maxTimestampMs": segment.max_timestamp,
        "epochs": [list(each) for each in segment.own_epochs],
        "firstBatchCrc": struct.unpack_from(">I", batches[0], 17)[0],
        "lastBatchCrc": struct.unpack_from(">I", batches[-1], 17)[0],
        "batches": len(batches),
        "closed": True,
    }


def _checkpoint(path: Path) -> dict[str, int]:
    if not path.exists():
        return {}
    rows = (line.split() for line in path.read_text().splitlines()[2:])
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in rows}


def _properties(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    lines = (line.partition("=") for line in path.read_text().splitlines() if line[:1] != "#")
    return {key: value for key, _, value in lines}


# ---- other borders ---------------------------------------------------------------------------


def recut(directory: Path, borders: Sequence[int], seed: int = 0) -> list[Segment]:
    """The same log in segments between the given numbers of batches, as another replica had it.

    Every third batch has an entry in the offset index. There are no snapshots.
    """
    draw = random.Random(f"{directory.name} {borders} {seed}")
    segments = segments_of(directory)
    batches = [batch for segment in segments for batch in batches_of(segment.log)]
    aborted = b"".join(segment.txnindex for segment in segments)
    found = []
    for first, last in itertools.pairwise(borders):
        mine = batches[first:last]
        base = struct.unpack_from(">q", mine[0])[0]
        end = struct.unpack_from(">q", mine[-1])[0] + struct.unpack_from(">i", mine[-1], 23)[0] + 1
        index, times, position = b"", b"", 0
        newest = newest_at = entered = -1
        for number, batch in enumerate(mine):
            last_offset = struct.unpack_from(">q", batch)[0]
            last_offset += struct.unpack_from(">i", batch, 23)[0]
            timestamp = struct.unpack_from(">q", batch, 35)[0]
            if timestamp > newest:
                newest, newest_at = timestamp, last_offset
            if number % 3 == 2:
                index += struct.pack(">ii", last_offset - base, position)
            if newest > entered and (number % 3 == 2 or number + 1 == len(mine)):
                times += struct.pack(">qi", newest, newest_at - base)
                entered = newest
            position += len(batch)
        entries = [aborted[at : at + 34] for at in range(0, len(aborted), 34)]
        found.append(
            Segment(
                base,
                end,
                b"".join(mine),
                index,
                times,
                b"".join(e for e in entries if base <= struct.unpack_from(">q", e, 18)[0] < end),
                b"",
                [each for each in epochs_in(directory) if each[1] < end],
                uuid.UUID(int=draw.getrandbits(128), version=4),
            )
        )
    return found


def batch_count(directory: Path) -> int:
    return sum(len(list(batches_of(segment.log))) for segment in segments_of(directory))
