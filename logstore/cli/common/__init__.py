"""What the commands share.

``exits`` has the exit codes, ``directories``, ``numbers`` and ``config`` read arguments,
``interrupts`` handles Ctrl-C while a log is written, ``topics``, ``partitions`` and ``listing``
look at a log directory that no broker uses.
"""

__all__ = [
    "completion",
    "config",
    "directories",
    "exits",
    "explanations",
    "interrupts",
    "listing",
    "numbers",
    "partitions",
    "topics",
    "verify_output",
]
