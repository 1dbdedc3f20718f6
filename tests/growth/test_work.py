"""The counts themselves: they are the same each time, and they see what grows."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from checkpoints.types import TopicPartition
from logstore.format.filenames import partition_dir_name
from logstore.storage.memory import MemoryStorage
from tests.growth.work import OURS, Act, Case, Per, counted, growth

NAME = TopicPartition("t", 0)


def looks(count: int) -> Act:
    """Code of the product, by its path, that looks at each of so many and does nothing."""
    others = range(count)
    code = compile("for _ in others: pass", f"{OURS[0]}looks.py", "exec")
    return lambda: exec(code, {"others": others})


def names(count: int) -> Act:
    return lambda: [partition_dir_name(NAME) for _ in range(count)]


def writes(size: int, count: int = 1) -> Act:
    storage = MemoryStorage()

    def act() -> None:
        for _ in range(count):
            storage.write_file("/file", bytes(size))

    return act


def test_what_is_counted() -> None:
    """Bytecodes of the product alone: this loop and ``json`` have none."""
    once, thrice = counted(names(1)), counted(names(3))
    assert thrice.bytecodes == 3 * once.bytecodes > 0
    assert counted(lambda: [json.dumps({}) for _ in range(9)]).bytecodes == 0
    work = counted(writes(10, 3))
    assert (work.operations, work.bytes, work.bytecodes) == (3, 30, 0)


@pytest.mark.parametrize(
    ("make", "per", "grows"),
    [
        (lambda n: names(7 * n), Per.EACH, []),
        (lambda n: names(1000 + n), Per.EACH, []),
        (lambda n: names(n * n), Per.EACH, ["bytecodes"]),
        (lambda n: names(10_000 + n * n), Per.EACH, ["bytecodes"]),
        (lambda n: names(10), Per.ONE, []),
        (lambda n: names(10 + n), Per.ONE, ["bytecodes"]),
        (lambda n: looks(10_000 + n), Per.ONE, ["bytecodes"]),
        (lambda n: writes(n), Per.ONE, ["bytes"]),
        (lambda n: writes(n, n), Per.EACH, ["bytes"]),
        (lambda n: writes(1, n), Per.ONE, ["operations", "bytes"]),
    ],
)
def test_what_grows_is_seen(make: Callable[[int], Act], per: Per, grows: list[str]) -> None:
    found = growth(Case("", make, per))
    assert [each.partition(":")[0] for each in found] == grows, found
