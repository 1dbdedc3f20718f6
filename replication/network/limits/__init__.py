"""What keeps clients from taking too much: connections, memory, bytes a second, threads.

Each limit counts by itself and closes nothing: ``acceptor``, ``processor`` and ``server`` ask it.
"""

__all__ = ["client_quotas", "connection_quotas", "memory_pool", "slow_apis"]
