"""The embedded coordinator's tree behind ZooKeeper's client protocol, for processes and machines.

``TreeServer`` is one durable node. It is no ensemble: while its process or its machine is down, no
session goes on and nothing is decided, and what was answered is on its disk. Begin reading in
``server``; ``operations`` has what a request does, ``database`` how writes share a sync.
"""

from __future__ import annotations

from replication.coordination.served.server import Limits, TreeServer

__all__ = ["Limits", "TreeServer"]
