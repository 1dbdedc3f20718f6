"""``logstore simulate``: searches, replays, and prints what a schedule did.

Begin with ``simulate``. ``exhaustive`` and ``matrix`` are two of its modes, ``counters`` has the
words for counters. An entry point finds the command, so no other room imports this one.
"""

__all__ = []
