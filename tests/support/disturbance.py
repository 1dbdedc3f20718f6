"""A pytest plugin that stalls threads at random, to find tests that look too early.

    LOGSTORE_DISTURBANCE=7 pytest -p tests.support.disturbance tests/unit/manager

A thread may stall before its first step, around a task of a pool or of an actor, before a file is
opened, renamed, removed or synced, before bytes are sent or received, before and after it tells
others to go on, and after a wait has ended. The variable has the seed, by default a random one; the
head of the output shows it. It repeats the draws, but not which thread gets which.
"""

from __future__ import annotations

import functools
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import thread as pools
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest

from replication.common import runtime

LONGEST_S = 0.4
BUDGET_S = 8.0
"""Of all threads in one test, so that no test takes longer than its time-out allows."""

OFTEN, SELDOM = 0.3, 0.03
PLACES: list[tuple[Any, str, float]] = [
    (threading.Thread, "start", OFTEN),
    (threading.Thread, "run", OFTEN),
    (pools._WorkItem, "run", OFTEN),  # type: ignore[attr-defined]
    (runtime, "_run_logged", SELDOM),
    (os, "open", SELDOM),
    (os, "replace", OFTEN),
    (os, "rename", OFTEN),
    (os, "unlink", OFTEN),
    (os, "remove", OFTEN),
    (os, "rmdir", OFTEN),
    (os, "fsync", SELDOM),
    (os, "fdatasync", SELDOM),
    (socket.socket, "send", SELDOM),
    (socket.socket, "sendall", SELDOM),
    (socket.socket, "sendmsg", SELDOM),
    (socket.socket, "recv", SELDOM),
    (socket.socket, "recv_into", SELDOM),
    (socket.socket, "accept", OFTEN),
    (threading.Event, "set", SELDOM),
    (threading.Condition, "notify", SELDOM),
    (threading.Condition, "notify_all", SELDOM),
]
AFTERWARDS: list[tuple[Any, str, float]] = [
    (threading.Event, "set", SELDOM),
    (threading.Condition, "wait", SELDOM),
    (threading.Thread, "join", OFTEN),
]

_sleep = time.sleep  # tests replace it


class Disturbance:
    """Decides who stalls, and for how long."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self._random = random.Random(seed)
        self._left_s = 0.0

    def begin(self, test: str) -> None:
        self._random = random.Random(f"{self.seed} {test}")
        self._left_s = BUDGET_S

    def stall(self, chance: float) -> None:
        if threading.get_ident() == threading.main_thread().ident:
            chance /= 10  # the other threads are to fall behind the test
        if self._left_s <= 0 or self._random.random() >= chance:
            return
        seconds = LONGEST_S * self._random.random() ** 2
        self._left_s -= seconds
        _sleep(seconds)

    def before(self, function: Callable[..., Any], chance: float) -> Callable[..., Any]:
        @functools.wraps(function)
        def stalled(*args: Any, **kwargs: Any) -> Any:
            self.stall(chance)
            return function(*args, **kwargs)

        return stalled

    def after(self, function: Callable[..., Any], chance: float) -> Callable[..., Any]:
        @functools.wraps(function)
        def stalled(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self.stall(chance)
            return result

        return stalled


disturbance = Disturbance(os.environ.setdefault("LOGSTORE_DISTURBANCE", str(time.time_ns())))


def pytest_report_header() -> str:
    return f"LOGSTORE_DISTURBANCE={disturbance.seed}"


@pytest.fixture(scope="session", autouse=True)
def _disturbed() -> Iterator[None]:
    with ExitStack() as patches:
        for owner, name, chance in PLACES:
            stalled = disturbance.before(getattr(owner, name), chance)
            patches.enter_context(patch.object(owner, name, stalled))
        for owner, name, chance in AFTERWARDS:
            stalled = disturbance.after(getattr(owner, name), chance)
            patches.enter_context(patch.object(owner, name, stalled))
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    disturbance.begin(item.nodeid)
