"""Types of the native module; see the stub for what each function promises."""

from typing import Any, Final, final

from logstore.common.types import Buffer
from logstore.kernels._scan import BatchAnalysis

@final
class AppendInfo:
    """The result of an append.

    ``last_offset`` is inclusive; timestamps are in ms, −1 when there is none; ``size`` in bytes.
    A ``duplicate`` was appended before: the offsets are those of then, nothing was written.
    """
    def __init__(
        self,
        first_offset: int,
        last_offset: int,
        max_timestamp: int,
        log_append_time: int,
        log_start_offset: int,
        record_count: int,
        size: int,
        duplicate: bool = False,
    ) -> None: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...
    first_offset: Final[int]
    last_offset: Final[int]
    max_timestamp: Final[int]
    log_append_time: Final[int]
    log_start_offset: Final[int]
    record_count: Final[int]
    size: Final[int]
    duplicate: Final[bool]

@final
class LogSnapshot:
    """Everything a reader needs of a log at one moment.

    ``sealed`` has a ``SegmentView`` of each segment but the last, oldest first; ``active`` is the
    last ``Segment``, and ``size`` (bytes of whole batches), ``offset_entries``, ``time_entries``,
    ``max_timestamp`` and ``offset_of_max_timestamp`` (−1 none) say what it held. ``version`` counts
    how often something was removed: bytes or segments that an older snapshot names may be gone.
    """

    sealed: Final[tuple[Any, ...]]
    active: Final[Any]
    size: Final[int]
    offset_entries: Final[int]
    time_entries: Final[int]
    max_timestamp: Final[int]
    offset_of_max_timestamp: Final[int]
    log_start_offset: Final[int]
    log_end_offset: Final[int]
    high_watermark: Final[int]
    last_stable_offset: Final[int]
    version: Final[int]

class SegmentState:
    """See ``_append.pyx``; attribute for attribute the same."""

    size: int
    next_offset: int
    max_timestamp: int
    offset_of_max_timestamp: int
    rolling_timestamp: int
    created_ms: int
    index_interval_bytes: int
    bytes_since_index_entry: int
    offset_entries: int
    time_entries: int
    last_time_entry: int
    segment_bytes: int
    max_segment_ms: int
    offset_entries_max: int
    time_entries_max: int
    cut_pending: bool
    def __init__(self, base_offset: int) -> None: ...
    base_offset: Final[int]
    attached: Final[bool]
    def attach(self, file: Any, offset_map: Any, time_map: Any) -> None: ...
    def detach(self) -> None: ...
    def snapshot(
        self,
        sealed: tuple[Any, ...],
        active: Any,
        log_start_offset: int,
        high_watermark: int,
        first_unstable_offset: int,
        version: int,
    ) -> LogSnapshot: ...
    def must_roll(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool: ...
    def append_plain(
        self,
        data: Buffer,
        deep: bool,
        leader_epoch: int,
        max_batch_size: int,
        timestamp_limit: int,
        log_start_offset: int,
    ) -> AppendInfo | BatchAnalysis: ...
    def append(self, data: Buffer, size: int, first_offset: int, leader_epoch: int) -> int: ...
    def reserve(self) -> None: ...
    def add_time_entry(self) -> bool: ...
