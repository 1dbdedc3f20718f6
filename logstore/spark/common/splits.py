"""Values that the driver sends to a task: what to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql.datasource import InputPartition

from logstore.common.bounds import SPARK_BATCH_MAX
from logstore.format.filenames import LOG_SUFFIX, segment_file_name
from logstore.format.reader import MAX_OFFSET
from logstore.spark.common.proof import FileProof
from logstore.storage.uri import join_uri, shown

AbortedRange: TypeAlias = tuple[int, int, int]
"""Producer id, first offset, and offset of the ABORT marker."""


@dataclass(frozen=True, slots=True)
class Split:
    """A part of one segment: bytes ``[position, end_position)``, both at starts of batches.

    Only records with offsets in ``[from_offset, end_offset)`` count. ``uri`` is the partition's
    directory. ``open_end``: the split ends where the last segment ended when it was listed, perhaps
    inside a batch that was being written.
    """

    uri: str
    broker: str
    topic: str
    partition: int
    segment_base: int
    position: int
    end_position: int
    from_offset: int = 0
    end_offset: int = MAX_OFFSET
    open_end: bool = False
    aborted: tuple[AbortedRange, ...] = ()
    topic_id: str = ""
    proof: FileProof | None = None
    """The identity of the file when the split was planned, so that no other file is read."""

    @property
    def path(self) -> str:
        """The ``.log`` file, for messages."""
        return shown(join_uri(self.uri, segment_file_name(self.segment_base, LOG_SUFFIX)))

    @property
    def size(self) -> int:
        """Bytes to read."""
        return self.end_position - self.position


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How the splits of a query are read.

    Batches without a record in ``[start_timestamp, end_timestamp)``, in ms, may be left out, but
    the caller still has to filter records. ``check_crcs`` and ``max_batch_bytes``, the size of a
    batch stored or unpacked, are as in docs/spark.md.
    """

    granularity: str = "record"
    start_timestamp: int | None = None
    end_timestamp: int | None = None
    include_control: bool = False
    check_crcs: bool = True
    max_batch_bytes: int = SPARK_BATCH_MAX
    fail_on_data_loss: bool = True
    drop_malformed: bool = False
    read_committed: bool = False


@dataclass
class ReadTask(InputPartition):
    """The work of one task: a part of a segment, or several small segments."""

    splits: tuple[Split, ...]
