"""Whole clusters in virtual time, in one thread and from one seed, under faults of every kind.

``search`` draws and runs schedules; ``world`` has the simulated machines, ``workload`` the
clients, ``faults`` what goes wrong and ``oracle`` the promises. ``exhaustive`` checks every
interleaving of a small model, ``matrix`` compares the rules of truncation.
"""

__all__ = ["exhaustive", "faults", "matrix", "oracle", "search", "world"]
