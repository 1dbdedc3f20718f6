"""``logstore cluster``: brokers in processes of their own, and what they need to meet.

Begin with ``Supervisor``: it starts processes, restarts those that die and stops them in order; it
knows nothing of replication. ``child`` is what runs in them, ``cluster_file`` what is written down,
``planning`` what a first start decides, ``control`` the way in from another shell. What the brokers
say of themselves, and whether one may be restarted, is in ``cluster_state``; ``page`` shows them.
"""

__all__ = [
    "cluster_file",
    "cluster_state",
    "control",
    "emptying",
    "log_files",
    "page",
    "planning",
    "supervisor",
]
