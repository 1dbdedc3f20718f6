"""The fixtures as an installation has them, for a source tree that was never installed."""

from __future__ import annotations

from logstore.pytest_plugin import logstore_cluster, make_logstore_cluster

__all__ = ["logstore_cluster", "make_logstore_cluster"]
