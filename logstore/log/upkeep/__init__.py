"""Removing bytes from a log, and closing it.

``retention`` decides, ``maintenance`` removes: truncation, retention, deletion, close.
``replacing`` puts rewritten segments in the place of others, ``clean_stop`` tells the next start
that nothing is missing.
"""

__all__ = ["clean_stop", "maintenance", "replacing"]
