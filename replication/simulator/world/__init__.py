"""The simulated machines: virtual time, network, disks and coordinator, with the real brokers.

Begin with ``scheduler``, which has the time, and ``cluster``, which has the machines. ``plan``
is a schedule as a value, ``loss_budget`` says how many copies may be lost at once.
"""

__all__ = [
    "admin_faults",
    "cluster",
    "coordinator",
    "disk",
    "events",
    "fault_kinds",
    "identity_faults",
    "network",
    "plan",
    "scheduler",
]
