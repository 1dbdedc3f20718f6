"""One partition directory: its segments together, its snapshots, checkpoints and other small files.

Begin with ``partition_check``, which joins the results of the segments.
"""

__all__ = ["directory", "ends", "partition_check"]
