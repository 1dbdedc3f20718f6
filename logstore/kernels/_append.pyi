"""Types of the native module; see ``_append_reference.py`` for what each function promises."""

from typing import Any, final

from logstore.kernels._scan import BatchAnalysis
from logstore.types import Buffer

@final
class AppendInfo:
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
    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def log_append_time(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def duplicate(self) -> bool: ...

class SegmentState:
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
    @property
    def base_offset(self) -> int: ...
    @property
    def attached(self) -> bool: ...
    def attach(self, file: Any, offset_map: Any, time_map: Any) -> None: ...
    def detach(self) -> None: ...
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
