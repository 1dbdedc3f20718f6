"""Tests that share a session's broker run in one worker of pytest-xdist."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling


class _OneWorkerForKafka(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return "interop" if "interop/" in nodeid else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """With ``--dist loadscope`` every broker test goes to one worker, the rest by module."""
    return _OneWorkerForKafka(config, log) if config.getvalue("dist") == "loadscope" else None
