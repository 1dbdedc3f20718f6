"""What all parts of one log share: its directory, its failure, and the snapshot for readers.

Begin with ``snapshot``. ``core`` publishes the next one, ``news`` wakes those who wait for it,
and ``holding`` keeps a partition from being opened twice.
"""

__all__ = ["core", "holding", "news", "snapshot"]
