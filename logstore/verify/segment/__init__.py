"""One segment: ``scan`` walks its batches in windows, ``checks`` applies the rules, ``indexes``
compares the indexes as the batches pass by.
"""

__all__ = ["content", "diagnosis", "producers", "records", "scan", "segment_check"]
