"""Kafka's own log cleaner, in one JVM that serves many requests."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import kafka_jars
import kafka_tools

from tests.histories.cleaner_model import Batch, Record
from tests.support.until import patience

REQUEST_TIMEOUT_S = 2 * patience()
LONG_JVM = ("-Xmx512m", "-XX:+UseSerialGC")
"""For hundreds of requests, which optimised code serves sooner."""

__all__ = [
    "Batch",
    "CleanerSettings",
    "KafkaCleaner",
    "KafkaReading",
    "Pass",
    "Producer",
    "Record",
    "Segment",
]

SLOT_BYTES = 24
"""Of the offset map, a key: 16 of its digest, 8 of the offset."""

RENAMED = {"segment.bytes": "internal.segment.bytes"}
"""A broker takes no segments below 1 MB from users; its own tests have this way round it."""


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """What a cleaner is told beside the topic's configuration. Sizes are bytes."""

    dedupe_buffer_size: int = 1 << 20
    """Of one thread: the whole of its offset map."""
    load_factor: float = 0.9
    io_buffer_size: int = 1 << 16
    """Of one thread and one of its two buffers. It grows up to ``max.message.bytes``."""
    producer_expiration_ms: int = 86_400_000

    @property
    def keys_max(self) -> int:
        """After so many keys a map of 24 bytes a key is full."""
        return int(self.dedupe_buffer_size // SLOT_BYTES * self.load_factor)


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass did, in the words of Kafka's ``CleanerStats``."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    end_offset: int
    messages_read: int
    messages_written: int
    bytes_read: int
    bytes_written: int
    invalid_messages_read: int
    buffer_utilization: float


@dataclass(frozen=True, slots=True)
class Segment:
    base_offset: int
    largest_timestamp: int
    aborted: tuple[tuple[int, int, int, int], ...]
    """Producer id, first offset, last offset, last stable offset of each aborted transaction."""


@dataclass(frozen=True, slots=True)
class Producer:
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_timestamp: int
    last_data_offset: int
    batches: tuple[tuple[int, int, int, int], ...]
    """First and last sequence, last offset, timestamp of each batch that is remembered."""
    current_txn_first_offset: int | None


@dataclass(frozen=True, slots=True)
class KafkaReading:
    """What Kafka finds in a partition directory."""

    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    batches: tuple[Batch, ...]
    """All that is in the files, also below the log start offset."""
    committed: tuple[int, ...]
    """Offsets of the records that a consumer with ``read_committed`` gets."""
    segments: tuple[Segment, ...]
    producers: tuple[Producer, ...]

    def uncommitted(self) -> list[Record]:
        """The records that a consumer with ``read_uncommitted`` gets."""
        return [
            record
            for batch in self.batches
            if not batch.control
            for record in batch.records
            if record[0] >= self.log_start_offset
        ]


class KafkaCleaner:
    """A process that cleans and reads logs with Kafka's classes; as a context manager it ends."""

    def __init__(self) -> None:
        command = kafka_jars.java_command(
            f"{kafka_tools.PACKAGE}.CleanLog",
            classes=kafka_jars.helper_classes(),
            jvm_options=LONG_JVM,
            log_level="error",
        )
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def __enter__(self) -> KafkaCleaner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def clean(
        self,
        directory: Path,
        now_ms: int,
        config: Mapping[str, str | int],
        settings: CleanerSettings = CleanerSettings(),
        *,
        passes: int = 1,
        log_start_offset: int = 0,
        high_watermark: int = -1,
    ) -> list[Pass]:
        """Clean one partition up to ``passes`` times, as long as Kafka finds it due.

        What is due follows from ``config`` and from the ``cleaner-offset-checkpoint`` beside the
        directory, which is written after each pass. The log is opened as after a clean stop and
        left so.

        Args:
            config: topic configs by Kafka's names.
            high_watermark: −1 for the end of the log.
        Raises:
            JavaError: Kafka refused; the text holds the chain of its exceptions.
        """
        answer = self._ask(
            "clean",
            directory,
            now_ms,
            config,
            settings,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            dedupeBufferSize=settings.dedupe_buffer_size,
            loadFactor=settings.load_factor,
            ioBufferSize=settings.io_buffer_size,
            passes=passes,
        )
        return [Pass(*each.values()) for each in answer["passes"]]

    def read(
        self,
        directory: Path,
        now_ms: int,
        config: Mapping[str, str | int],
        settings: CleanerSettings = CleanerSettings(),
        *,
        log_start_offset: int = 0,
        clean_shutdown: bool = True,
    ) -> KafkaReading:
        """Read one partition; with ``clean_shutdown=False`` after Kafka has recovered it.

        Recovery changes files, so give it a copy.

        Raises:
            JavaError: Kafka refused; the text holds the chain of its exceptions.
        """
        answer = self._ask(
            "read",
            directory,
            now_ms,
            config,
            settings,
            log_start_offset=log_start_offset,
            clean_shutdown=clean_shutdown,
        )
        return KafkaReading(
            answer["logStartOffset"],
            answer["logEndOffset"],
            answer["lastStableOffset"],
            tuple(_batch(each) for each in answer["batches"]),
            tuple(answer["committed"]),
            tuple(
                Segment(
                    each["baseOffset"],
                    each["largestTimestamp"],
                    tuple(tuple(entry) for entry in each["aborted"]),
                )
                for each in answer["segments"]
            ),
            tuple(_producer(each) for each in answer["producers"]),
        )

    def _ask(
        self,
        operation: str,
        directory: Path,
        now_ms: int,
        config: Mapping[str, str | int],
        settings: CleanerSettings,
        *,
        log_start_offset: int,
        clean_shutdown: bool = True,
        high_watermark: int = -1,
        **fields: Any,
    ) -> dict[str, Any]:
        request = {
            "op": operation,
            "directory": str(directory),
            "nowMs": now_ms,
            "config": {RENAMED.get(name, name): value for name, value in config.items()},
            "producerExpirationMs": settings.producer_expiration_ms,
            "cleanShutdown": clean_shutdown,
            "highWatermark": high_watermark,
            "logStartOffset": log_start_offset,
            "recoveryPoint": 0,
            **fields,
        }
        pipe_in, pipe_out = self._process.stdin, self._process.stdout
        assert pipe_in is not None
        assert pipe_out is not None
        watch = threading.Timer(REQUEST_TIMEOUT_S, self._process.kill)
        watch.start()
        try:
            pipe_in.write(json.dumps(request).encode() + b"\n")
            pipe_in.flush()
            line = pipe_out.readline()
        except BrokenPipeError:
            line = b""
        finally:
            watch.cancel()
        if not line:
            raise kafka_jars.JavaError(f"the process ended over {operation} of {directory}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise kafka_jars.JavaError(f"{operation} of {directory}: {answer['error']}")
        return answer


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _batch(fields: dict[str, Any]) -> Batch:
    *header, records = fields.values()
    return Batch(
        *header,
        tuple(
            (
                offset,
                timestamp,
                _bytes(key),
                _bytes(value),
                tuple((name, _bytes(content)) for name, content in headers),
            )
            for offset, timestamp, key, value, headers in records
        ),
    )


def _producer(fields: dict[str, Any]) -> Producer:
    return Producer(
        producer_id=fields["producerId"],
        producer_epoch=fields["producerEpoch"],
        coordinator_epoch=fields["coordinatorEpoch"],
        last_timestamp=fields["lastTimestamp"],
        last_data_offset=fields["lastDataOffset"],
        batches=tuple(tuple(each) for each in fields["batches"]),
        current_txn_first_offset=fields["currentTxnFirstOffset"],
    )
