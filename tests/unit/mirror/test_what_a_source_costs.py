"""What the sizes that a false source announces may take of this machine."""

from __future__ import annotations

import gc
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from checkpoints.types import TopicPartition
from replication.protocol import ApiKey
from tests.support.mirrored import (
    QUICK,
    grow,
    log_of,
    mirroring,
    one_partition,
    until_count,
    until_equal,
)
from tests.support.scripted_source import Exchange, ScriptedSource, on_answers

ORDERS = TopicPartition("orders", 0)
NEVER = replace(QUICK, replica_socket_timeout_ms=10 * 60_000)


def _source() -> ScriptedSource:
    return ScriptedSource({"orders": one_partition(log_of((3, 0)))})


def _announce(size: int, *, sent: int, is_over: bool) -> Callable[[Exchange], None]:
    """An answer to a fetch that says how long it will be."""

    def lie(exchange: Exchange) -> None:
        exchange.raw = struct.pack(">i", size) + bytes(sent)
        exchange.cut_at = 1 << 30 if is_over else None

    return on_answers(ApiKey.FETCH, lie)


@pytest.mark.parametrize("size", [2**31 - 1, (100 << 20) + 1, 0, -1, -(2**31)])
def test_an_announced_size_beyond_the_bounds_is_not_waited_for(size: int, tmp_path: Path) -> None:
    """Nor its bytes: the connection ends at once, and another one begins."""
    with _source() as source, mirroring(source, tmp_path, replication=NEVER):
        until_equal(source, tmp_path)
        asked, counts = source.asked[ApiKey.FETCH], source.asked

        def begin() -> None:
            source.lies.append(_announce(size, sent=0, is_over=False))
            grow(source.log("orders"))

        source.change(begin)
        until_count(lambda: counts[ApiKey.FETCH], asked + 3, "it is asked again")
        source.change(source.lies.clear)
        until_equal(source, tmp_path)


def test_an_announced_size_takes_no_memory_before_it_comes(tmp_path: Path) -> None:
    size, come = 99 << 20, 300_000
    with _source() as source, mirroring(source, tmp_path):
        until_equal(source, tmp_path)
        asked, counts = source.asked[ApiKey.FETCH], source.asked

        def begin() -> None:
            source.lies.append(_announce(size, sent=come, is_over=True))
            grow(source.log("orders"))

        gc.collect()
        tracemalloc.start()
        try:
            source.change(begin)
            until_count(lambda: counts[ApiKey.FETCH], asked + 4, "it is asked again")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        source.change(source.lies.clear)
        until_equal(source, tmp_path)
    assert peak < 12 << 20
