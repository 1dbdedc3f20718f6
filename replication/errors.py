"""Errors of a cluster: most are classes of Kafka's error codes, with ``code`` and ``retriable``::

    LogstoreError
    ├── ReplicationError       a request was refused, or its outcome is unknown; ``retriable`` says
    │                          whether the same request may succeed later
    ├── CoordinationError      what a coordinator refuses; for coordinators of your own too
    ├── ProtocolError          bytes that are no message, or a message that has no bytes
    └── WireError              a broker cannot be asked

Errors of a single log come out of a cluster too: they are in ``logstore.errors``.
"""

from replication.admin import WireError as WireError
from replication.common.errors import *  # noqa: F403  each of them, whatever is added
from replication.coordination.errors import *  # noqa: F403
from replication.protocol import UnknownApiError as UnknownApiError
from replication.protocol.errors import *  # noqa: F403

_FOUND = {name: each for name, each in vars().items() if name.endswith("Error")}
__all__ = [name for name, each in _FOUND.items() if each.__module__.startswith("replication.")]
