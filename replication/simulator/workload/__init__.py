"""The clients of a schedule: producers, consumers, transactions, an admin.

Begin with ``workload``. The other modules are clients that only some schedules have.
"""

__all__ = ["groups", "transfers", "workload"]
