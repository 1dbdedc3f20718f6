"""What the commands share.

``exits`` has the exit codes, ``directories``, ``numbers`` and ``config`` read arguments,
``interrupts`` handles Ctrl-C while a log is written, ``topics``, ``partitions`` and ``listing``
look at a log directory that no broker uses, ``outlook`` asks a rescue what it would bring back.
"""

__all__ = [
    "completion",
    "config",
    "directories",
    "exits",
    "interrupts",
    "listing",
    "numbers",
    "outlook",
    "partitions",
    "topics",
    "verify_output",
]
