"""Clusters are cycles of objects; those of a slow test are collected in its own time."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _collected(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if request.node.get_closest_marker("slow"):
        gc.collect()
