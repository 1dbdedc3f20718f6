"""The promises that must hold after every event, and the excuses, each with its reason.

Begin with ``invariants`` (after each event), ``validations`` (at the end) and ``excuses``.
"""

__all__ = [
    "excuses",
    "groups",
    "history",
    "invariants",
    "replicas",
    "transfers",
    "unclean",
    "validations",
]
