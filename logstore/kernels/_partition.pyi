"""Types of the native module; what the function promises is in ``_partition_reference.py``."""

from typing import Any

def partition_column(
    partitioner: str, partition_count: int, stop: int, offsets: Any, data: Any, validity: Any
) -> bytearray: ...
