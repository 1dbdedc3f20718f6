"""``df.write.format("logstore")``: a DataFrame becomes a log directory, all or nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from checkpoints.loggers import get_logger
from logstore.common.clock import SystemClock
from logstore.common.errors import InvariantError, StorageFailedError
from logstore.common.random_id import random_id
from logstore.spark.writer.directory import (
    StagedFile,
    StagingArea,
    WrittenRange,
    check_target,
    commit,
)
from logstore.spark.writer.options import WriteOptions, check_columns
from logstore.spark.writer.rows import EncodedRun, RowEncoder, chunks
from logstore.storage.base import File

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

logger = get_logger(__name__)


class LogstoreWriter(DataSourceArrowWriter):
    """Each task encodes its rows into a file of its own, and the commit assigns the offsets.

    Spark passes on the message of one attempt of each task, so rows are in the log once, whatever
    was retried.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """
        Raises:
            ConfigError: an unknown option or column, or a target that must not be written to.
        """
        self._options = WriteOptions.from_spark(options)
        check_columns(schema, self._options)
        self._overwrite = overwrite
        self._area = StagingArea(self._options.path, self._options.write_id or random_id())
        self._before = check_target(self._area, self._options, overwrite)
        self._area.make()

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> StagedFile:
        """Encode the rows of one task. Takes the memory of two chunks of rows."""
        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        counts = {} if self._overwrite else self._before.topics
        encoder = RowEncoder(
            self._options,
            task,
            SystemClock().wall_ms(),
            {topic: known.partitions for topic, known in counts.items()},
        )
        path = os.path.join(self._area.tasks, f"{task:08d}-{random_id()}")
        output: _TaskFile | None = None
        try:
            for rows in chunks(iterator):
                if output is None:
                    output = _TaskFile(self._open(path))
                for run in encoder.encode(rows):
                    output.append(run)
        except BaseException:
            if output is not None:
                output.file.close()
                with suppress(OSError):
                    self._area.storage.remove(path)
            raise
        if output is None:
            return StagedFile(task, "", 0, ())
        output.file.close()
        return StagedFile(task, path, output.size, tuple(output.extents))

    def _open(self, path: str) -> File:
        try:
            return self._area.storage.open(path, create=True)
        except FileNotFoundError as error:
            reason = (
                "the write has ended, and this task came late; or the driver and all executors "
                "do not mount the same file system"
            )
            raise StorageFailedError(path, "create", reason) from error

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged: list[StagedFile] = []
        for message in messages:
            if not isinstance(message, StagedFile):
                raise InvariantError(f"a commit with a task that did not succeed: {message!r}")
            staged.append(message)
        records = commit(self._area, staged, self._options, self._before, overwrite=self._overwrite)
        logger.info("%s: %d records of %d tasks", self._area.target, records, len(staged))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._area.remove()


class _TaskFile:
    """The file of a task, and where its batches lie."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.size = 0
        self.extents: list[WrittenRange] = []

    def append(self, run: EncodedRun) -> None:
        tp, position, largest, records = run.topic_partition, self.size, 0, run.records
        last = self.extents[-1] if self.extents else None
        if last is not None and (last.topic, last.partition) == tp:  # one range with this one
            position, largest = last.position, last.largest
            records += last.records
            self.extents.pop()
        self.size += self.file.write_at(self.size, *run.batches)
        largest = max(largest, *map(len, run.batches))
        self.extents.append(WrittenRange(*tp, position, self.size - position, largest, records))


__all__ = ["LogstoreWriter"]
