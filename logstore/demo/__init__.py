"""The first act of ``logstore demo``: kill a writer in mid-append, and prove what is left.

``flights`` is the input and ``topic`` the code that a user of the library would write: open, append
what is missing, compare. ``writer`` is the process that gets killed, ``story`` the order of events
and ``show`` what is printed. Only ``replication.demo``, which has the second act, and the command
import this package.
"""

__all__ = ["directory", "flights", "outcome", "show", "story", "topic"]
