"""From paths to partitions and segments, by names and sizes alone.

Begin with ``layout``. ``settled`` lists a directory that is being changed, ``identity`` tells a
topic from an earlier one of the same name.
"""

__all__ = ["identity", "layout", "settled", "types"]
