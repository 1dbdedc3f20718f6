"""Types of the native module; see ``_verify_reference.py`` for what each function promises."""

from collections.abc import Callable

from logstore.common.types import Buffer
from logstore.kernels._constants import BatchSurvey

def survey_batches(
    columns: Buffer, rows: int, expected: int, segment_base: int, next_base: int
) -> BatchSurvey: ...
def ascending_offset_entries(data: Buffer, log_size: int) -> int: ...
def ascending_time_entries(data: Buffer) -> int: ...
def match_offset_entries(
    data: Buffer,
    first: int,
    end: int,
    columns: Buffer,
    rows: int,
    start: int,
    segment_base: int,
    largest: int,
    covered: int,
) -> tuple[int, int, list[tuple[int, int]]]: ...
def match_time_entries(
    data: Buffer,
    first: int,
    end: int,
    columns: Buffer,
    rows: int,
    segment_base: int,
    trusted: bool,
    done: int,
    largest: int,
) -> tuple[int, int, int]: ...
def unfit_batches(data: Buffer, columns: Buffer, rows: int) -> list[int]: ...
def section_fits(payload: Buffer, columns: Buffer, row: int) -> bool: ...
def fold_batches(
    digest: Callable[[memoryview], bytes],
    data: Buffer,
    columns: Buffer,
    offsets: Buffer,
    first: int,
    end: int,
    factor: int,
    offset_factor: int,
    heads: bool = False,
) -> tuple[int, int]: ...

class SequenceWatch:
    def __init__(self, most: int) -> None: ...
    @property
    def full(self) -> bool: ...
    def take(self, columns: Buffer, rows: int) -> tuple[list[int], list[tuple[int, int, int]]]: ...
