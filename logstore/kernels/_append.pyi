"""Types of the native module; see the stub for what each function promises."""

from collections.abc import Callable
from typing import Any, Final, final

from logstore.common.errors import LogstoreError
from logstore.common.locks import Lock
from logstore.common.types import Buffer

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
    def append(self, data: Buffer, size: int, first_offset: int, leader_epoch: int) -> int: ...
    def reserve(self) -> None: ...
    def add_time_entry(self) -> bool: ...

@final
class WriteLock:
    """A lock as of ``threading``, which costs next to nothing where nobody waits for it.

    A waiter is overtaken a hundred times at most: who has to wake up would otherwise always be
    later than a thread that appends without a pause.
    """

    waiting: Final[int]  # threads
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def locked(self) -> bool: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None: ...
    def _at_fork_reinit(self) -> None: ...

class ListenerCell:
    """The base of ``ChangeListeners``."""

    waiting: tuple[Callable[[], object], ...]

class EpochCell:
    """The base of ``LeaderEpochCache``."""

    latest_epoch: int

class LogCell:
    """The base of ``LogCore``."""

    snapshot: LogSnapshot  # from the writer's start on
    failure: LogstoreError | None  # why the log refuses further work

class AppendState:
    """The base of ``LogState``: what an append reads and changes besides its segment.

    ``append_plain_…`` do under the WRITE lock, in one call, what ``LogWriter`` does for batches
    that nothing else has to look at: check, write, publish. Their result is None if that is not so.
    Then nothing was changed, and ``LogWriter``, which knows all cases, appends or refuses. It is
    not so for a producer, for a codec or time other than the topic's, a new leader epoch, a roll, a
    truncation under way, or work that the last append left behind.
    """

    def __init__(self, core: LogCell, listeners: ListenerCell, lock: Lock) -> None: ...
    core: Any
    lock: Lock
    epochs: Any
    recent: Any
    truncation: Any  # false if there is none
    led_epoch: int | None  # the only one that is accepted; None: any
    followed_epoch: int | None
    sealed: tuple[Any, ...]
    log_start_offset: int
    high_watermark: int
    replicated: bool  # whether ``high_watermark`` counts; otherwise it follows the log end
    first_unstable: int  # −1 none
    version: int
    timestamp_limit: int  # record timestamps up to here need no clock
    flush_at: int  # the last offset that may stay unflushed
    max_batch_size: int
    is_plain: bool  # whether uncompressed batches of a client stay as they are
    keys_required: bool  # of a client
    largest_decides: bool  # whether the largest timestamp of a batch decides on all
    upkeep_due: bool
    epochs_due: bool
    def append_plain_as_leader(
        self, data: Buffer, leader_epoch: int, deep: bool
    ) -> AppendInfo | None:
        """Append as ``LogWriter.append_as_leader``; ``deep`` looks at every record.

        Raises:
            StorageFailedError: the disk refused.
        """
    def append_plain_own(self, data: Buffer, leader_epoch: int | None) -> AppendInfo | None:
        """Append as ``LogWriter.append_own``. Raises as ``append_plain_as_leader``."""
    def append_plain_as_follower(self, leader_epoch: int | None, data: Buffer) -> AppendInfo | None:
        """Append as ``LogWriter.append_as_follower``. Raises as ``append_plain_as_leader``."""
