"""Tests that share a session's broker, or its Spark, run in one worker of pytest-xdist."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from logstore.common.locks import CheckedLock, replace_factory

replace_factory(CheckedLock).__enter__()  # each test finds a lock that is taken out of order


# An example that takes long on a busy machine is no failure, and each run tries the same ones. The
# long run tries others each time.
settings.register_profile(
    "logstore",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not os.environ.get("LOGSTORE_SLOW"),
)
settings.load_profile("logstore")


class _OneWorkerEach(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        if module.startswith("tests/interop/"):
            return "interop"
        if module.startswith("tests/spark/") or module.endswith("_spark.py"):
            return "spark"
        return super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """With ``--dist loadscope`` these go to one worker each, the rest by module."""
    return _OneWorkerEach(config, log) if config.getvalue("dist") == "loadscope" else None
