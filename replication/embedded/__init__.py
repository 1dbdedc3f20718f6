"""``Cluster``: several brokers in one process, for services and for tests.

Begin with ``cluster``. ``local_brokers`` starts and stops the brokers, ``topic_admin`` changes
topics, as a client would: by messages to the controller.
"""

from __future__ import annotations

from replication.embedded.cluster import Cluster

__all__ = ["Cluster", "cluster"]
