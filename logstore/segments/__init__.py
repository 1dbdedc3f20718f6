"""What a log is made of: segments, their indexes, and the state that follows from their batches.

``segment`` is what the writer has, ``segment_view`` what readers see of it.
"""
