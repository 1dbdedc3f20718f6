"""Types of the native module; what each function promises is written in ``_reference.py``."""

from collections.abc import Iterable
from typing import Any, final

from logstore.common.types import Buffer, Record

STATUSES: tuple[int, ...]

@final
class Encoded:
    @property
    def buffer(self) -> bytearray: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def offset_of_max(self) -> int: ...
    @property
    def count(self) -> int: ...

@final
class NativeBuffer:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def encode_records(
    records: Iterable[Any], default_timestamp: Any = -1, *, keys_required: bool = False
) -> Encoded: ...
def encode_lists(
    keys: Iterable[Any] | None,
    values: Iterable[Any],
    timestamps: Any = None,
    headers: Iterable[Any] | None = None,
    default_timestamp: Any = -1,
    *,
    keys_required: bool = False,
) -> Encoded: ...
def encode_columns(
    start: int,
    stop: int,
    key_offsets: Any,
    key_data: Any,
    key_validity: Any,
    value_offsets: Any,
    value_data: Any,
    value_validity: Any,
    timestamps: Any = None,
    default_timestamp: Any = -1,
    *,
    headers: tuple[Any, ...] | None = None,
    key_offset_size: int = 4,
    value_offset_size: int = 4,
) -> Encoded: ...
def seal_batch(
    buffer: Any,
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    record_count: int,
) -> None: ...
def decode_records(
    payload: Buffer,
    base_offset: int,
    base_timestamp: int,
    record_count: int,
    log_append_time: int | None = None,
    from_offset: int = 0,
) -> list[Record]: ...
def decode_run(
    data: Buffer,
    position: int,
    out: list[Record],
    max_records: int,
    from_offset: int,
    end_offset: int,
    check_crc: bool = True,
) -> tuple[int, int]: ...

@final
class ColumnBuilder:
    def __init__(
        self,
        keys: bool = True,
        values: bool = True,
        timestamps: bool = True,
        headers: bool = False,
        column_bytes_max: int = ...,
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    def add_run(
        self,
        data: Buffer,
        position: int,
        max_rows: int,
        max_bytes: int,
        from_offset: int,
        end_offset: int,
        check_crc: bool = True,
    ) -> tuple[int, int]: ...
    def add_payload(
        self,
        payload: Buffer,
        base_offset: int,
        base_timestamp: int,
        record_count: int,
        log_append_time: int | None,
        from_offset: int,
        end_offset: int,
    ) -> int: ...
    def finish(self) -> dict[str, Any]: ...
