"""Parts that the commands share.

``exits`` has the exit codes, ``options`` reads options and arguments, ``interrupts`` handles Ctrl-C
while a log is written, ``topics`` and ``listing`` look at a log directory that no broker uses,
``outlook`` asks a rescue what it would bring back, ``progress`` is the bar of long commands.
"""

__all__ = [
    "completion",
    "exits",
    "interrupts",
    "listing",
    "options",
    "outlook",
    "progress",
    "spark_session",
    "topics",
    "verify_output",
]
