"""The parts of a log: segments, their indexes, and the state that follows from their batches.

Begin with ``segment``, for the writer of a log, and ``segment_view``, for its readers.
``producer_state`` and ``leader_epochs`` follow from the batches, and ``rebuild`` makes them
again. A ``Segment`` belongs to whoever writes its log; everybody else takes a view.
"""

__all__ = [
    "index",
    "leader_epochs",
    "open_files",
    "producer_state",
    "rebuild",
    "segment",
    "segment_list",
    "segment_view",
    "unwritten",
]
