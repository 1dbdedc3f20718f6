"""Batch reading: ``planning`` on the driver makes splits, ``segment_reader`` on executors reads
them.
"""

__all__ = ["header_columns", "planning", "repeat_per_record", "segment_reader"]
