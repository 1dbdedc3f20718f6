"""Streaming reads: micro-batches, and the offsets that a checkpoint keeps."""
