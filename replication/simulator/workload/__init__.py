"""The clients of a schedule: producers, consumers, transactions, an admin.

Begin with ``workload``, which carries out the operations of a plan. ``clients`` has what every
client uses; the other modules are clients that only some schedules have.
"""

__all__ = ["clients", "groups", "transfers", "workload"]
