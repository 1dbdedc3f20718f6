"""Types of the native module; what the function promises is in the stub."""

from typing import Any

def partition_column(
    partitioner: str, partition_count: int, stop: int, offsets: Any, data: Any, validity: Any
) -> bytearray:
    """Partition of each of ``stop`` keys, as ``logstore.common.partitioner`` places one key.

    Args:
        partitioner: ``murmur2`` or ``murmur3``.
        offsets: int32 offsets of an Arrow column of binary values that begins at row 0; with
            ``data`` and the ``validity`` bitmap, which are buffers or None.
    Returns:
        Native int32 numbers; −1 for a null key.
    Raises:
        ValueError: another partitioner, a buffer is too short, or offsets do not ascend.
    """
