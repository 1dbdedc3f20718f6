"""Types of the native module; what it promises is written in ``_times_reference.py``."""

from logstore.common.types import Buffer

def late_batches(data: Buffer, columns: object, rows: int, timestamp: int) -> bytearray: ...
