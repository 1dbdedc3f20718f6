"""Batch reading: ``planning`` on the driver makes splits, ``segment_reader`` on executors reads
them.
"""
