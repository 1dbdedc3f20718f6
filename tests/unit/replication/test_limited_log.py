"""Lines that others can cause: a handful, however often they do, and the count of the rest."""

from __future__ import annotations

import logging

import pytest

from checkpoints.loggers import get_logger
from logstore.testing import ManualClock
from replication.common.limited_log import LEFT_OUT, MOST, PAUSE_NS, LimitedLogger

PAUSE_MS = PAUSE_NS // 1_000_000
logger = get_logger("replication.tests.limited")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limited(clock: ManualClock) -> LimitedLogger:
    return LimitedLogger(logger, clock)


def test_ten_thousand_provocations_are_two_lines(
    limited: LimitedLogger, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(10_000):
        limited.warning("%s says %d", "peer", number)
    clock.advance(PAUSE_MS - 1)
    limited.warning("%s says %d", "peer", 10_000)
    with caplog.at_level(logging.DEBUG, LEFT_OUT.name):  # all of them are there to be had
        limited.warning("%s says %d", "peer", 10_001)
    assert caplog.record_tuples.pop() == (LEFT_OUT.name, logging.DEBUG, "peer says 10001")
    caplog.records.pop()
    assert caplog.messages == ["peer says 0"]
    clock.advance(1)
    limited.warning("%s says %d", "peer", 10_002)
    limited.warning("%s says %d", "peer", 10_003)
    assert caplog.messages[1:] == ["peer says 10002 (10001 such lines were left out)"]


def test_a_message_about_ten_thousand_things_is_said_about_some(
    limited: LimitedLogger, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(10_000):
        limited.error("node %d is bad", number, about=number)
    assert caplog.messages == [f"node {number} is bad" for number in range(MOST)]
    clock.advance(PAUSE_MS)
    limited.error("node %d is bad", 0, about=0)
    assert caplog.messages[MOST:] == [f"node 0 is bad ({10_000 - MOST} such lines were left out)"]


def test_each_message_and_each_thing_is_said_at_once(
    limited: LimitedLogger, caplog: pytest.LogCaptureFixture
) -> None:
    for about in ("a", "b", "a", "b"):
        limited.warning("first %s", about, about=about)
        limited.error("second %s", about, about=about)
    assert caplog.messages == ["first a", "second a", "first b", "second b"]


def test_it_says_where_and_why(limited: LimitedLogger, caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise KeyError("a defect")
    except KeyError:
        limited.exception("failed")
    limited.warning("%s", "two\nlines")
    failed, foreign = caplog.records
    assert (failed.levelno, failed.funcName) == (logging.ERROR, "test_it_says_where_and_why")
    assert failed.exc_info is not None
    assert "\n" not in foreign.getMessage()
