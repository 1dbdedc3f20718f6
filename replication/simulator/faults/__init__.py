"""The faults of a schedule, and the moments at which they strike.

Begin with ``faults``, which injects them. ``fault_templates`` has situations that need a guard
of the protocol, ``triggers`` the worst moments.
"""

__all__ = ["fault_templates", "faults", "noise", "triggers"]
