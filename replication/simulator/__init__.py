"""Whole clusters in virtual time, in one thread and from one seed, under faults of every kind.

``search`` draws and runs schedules; ``world`` has the simulated machines, ``workload`` the
clients, ``faults`` what goes wrong and ``oracle`` the promises. ``exhaustive`` checks every
interleaving of a small model, ``matrix`` compares the rules of truncation, and ``command`` is
``logstore simulate``. A laboratory: it may use every other room, and no other room imports it.
"""

__all__ = []
