"""What holds for every test: locks that check their order, and Hypothesis that repeats itself."""

from __future__ import annotations

import gc

from hypothesis import HealthCheck, settings

from logstore.common.locks import replace_factory
from tests.support.checked_locks import CheckedLock

pytest_plugins = ["tests.support.lanes", "tests.support.times", "tests.support.unstable"]

replace_factory(CheckedLock).__enter__()  # each test finds a lock that is taken out of order

# An example that takes long on a busy machine is no failure, and each run tries the same ones.
settings.register_profile(
    "logstore",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
settings.load_profile("logstore")


def pytest_collection_finish() -> None:
    """Thousands of cases are no garbage: a test that collects looks at its own objects only."""
    gc.collect()
    gc.freeze()
