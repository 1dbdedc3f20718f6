"""Streaming reads: micro-batches, and the offsets that a checkpoint keeps.

Begin with ``stream``. ``stream_log`` looks at one partition, ``stream_offsets`` has what a
checkpoint stores and the proof that it still holds.
"""

__all__ = ["stream", "stream_log", "stream_offsets"]
