"""The batches of a split as Arrow record batches: for the batch source and for streams alike.

A window of the ``.log`` at a time: first its headers as a table, which says what can be left out,
then the rest as rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from checkpoints.loggers import get_logger
from logstore.format import filenames
from logstore.spark.batch_filter import BatchFilter
from logstore.spark.batch_rows import BatchRows
from logstore.spark.errors import DataLossError
from logstore.spark.record_rows import RecordRows
from logstore.spark.splits import ReadSettings, Split, Task
from logstore.spark.windows import Windows
from logstore.storage.base import File
from logstore.storage.uri import join_uri, open_storage

logger = get_logger(__name__)


def read_task(
    task: InputPartition, settings: ReadSettings, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """``read_split`` of all splits of a ``Task``."""
    assert isinstance(task, Task)
    for split in task.splits:
        yield from read_split(split, settings, schema)


def read_split(split: Split, settings: ReadSettings, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of ``split`` in the order of offsets, as record batches of ``schema``.

    Memory is bounded by a few windows, or by ``settings.max_batch_bytes`` if that is more.

    Raises:
        CorruptBatchError: a batch is damaged; names the file and the byte.
        DataLossError: the segment was deleted or cut since the split was planned.
        OSError: the medium refused.
    """
    rows = (BatchRows if settings.granularity == "batch" else RecordRows)(split, settings, schema)
    wanted = BatchFilter(split, settings)
    with _opened(split, settings) as file:
        if file is None:
            return
        size = file.size()
        windows = Windows(
            file,
            split.path,
            split.position,
            min(split.end_position, size),
            open_end=split.open_end or size < split.end_position,
            max_batch_bytes=settings.max_batch_bytes,
            drop_malformed=settings.drop_malformed,
        )
        for window, position, table in windows.tables(**rows.scan_options):
            for first, end in wanted.runs(table, window):
                yield from rows.read(window, position, table, first, end)
            if table.cells("base_offset")[-1] >= split.end_offset:
                return


@contextmanager
def _opened(split: Split, settings: ReadSettings) -> Iterator[File | None]:
    """The segment; ``None`` when it is gone and the caller is content with what is there."""
    file = _open(split)
    try:
        reason = ""
        if file is None:
            reason = "the segment was deleted meanwhile"
        elif (size := file.size()) < split.end_position:
            reason = f"the segment was cut from {split.end_position} to {size} bytes meanwhile"
        if reason:
            loss = DataLossError(split.path, split.from_offset, split.end_offset, reason)
            if settings.fail_on_data_loss:
                raise loss
            logger.warning("%s", loss)
        yield file
    finally:
        if file is not None:
            file.close()


def _open(split: Split) -> File | None:
    """Retention renames a segment and deletes it a minute later: until then it can be read. One
    that was rolled gets its name when what is before it is durable."""
    for transition in ("", filenames.SWAP_SUFFIX, "", filenames.DELETED_SUFFIX):
        name = filenames.segment_file_name(split.segment_base, filenames.LOG_SUFFIX, transition)
        storage, path = open_storage(join_uri(split.uri, name))
        try:
            return storage.open(path, writable=False)
        except FileNotFoundError:
            continue
    return None
