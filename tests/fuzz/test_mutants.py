"""The oracle sees what breaks each promise: code that breaks it is planted here."""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from logstore.cli import main
from logstore.log import PartitionLog
from logstore.recovery.set_aside import Remover
from tests.fuzz import originals
from tests.fuzz.children import LIMITS, preload
from tests.fuzz.mutations import Mutation
from tests.fuzz.mutators import batch_places
from tests.fuzz.originals import original
from tests.fuzz.search import run_case, scratch_directory

UNCLEAN = 5

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True, scope="module")
def _preloaded() -> None:
    preload()


def broken_length() -> Mutation:
    """A batch in the middle of the last segment of a crash image claims to be too long."""
    tree = original(UNCLEAN).tree
    path = max(path for path in tree if path.endswith(".log") and len(tree[path].data) > 800)
    at, size = batch_places(tree[path].data)[1]
    return Mutation("batch.length", "splice", path, at + 8, 4, struct.pack(">i", size + 5))


def signatures(mutation: Mutation) -> list[str]:
    with scratch_directory() as scratch:
        judged = run_case(1, UNCLEAN, [mutation], scratch, quick=True)
    return [failure.signature for failure in judged.failures]


def _during(command: str, act: Callable[[str], Any]) -> Callable[[Patch], None]:
    """Plant what ``act`` does with the directory into a command."""

    def plant(patch: Patch) -> None:
        real = main.main

        def planted(args: list[str], **rest: Any) -> Any:
            if args[0] == command:
                act(args[-1])
            return real(args, **rest)

        patch.setattr(main, "main", planted)

    return plant


def _cut_without_keeping(patch: Patch) -> None:
    patch.setattr(Remover, "_keeps", lambda self, valid: False)


def _read_less(patch: Patch) -> None:
    real = PartitionLog.records
    patch.setattr(PartitionLog, "records", lambda self: iter(list(real(self))[:-2]))


def _read_other(patch: Patch) -> None:
    real = PartitionLog.records

    def other(self: PartitionLog) -> Any:
        return (record._replace(value=b"other") for record in real(self))

    patch.setattr(PartitionLog, "records", other)


def _say_nothing(patch: Patch) -> None:
    real = main.main

    def silent(args: list[str], **rest: Any) -> Any:
        if args[0] == "verify":
            print('{"findings": [], "unusable": []}')
            sys.exit(0)
        return real(args, **rest)

    patch.setattr(main, "main", silent)


def _write(root: str) -> None:
    with open(os.path.join(root, "meta.properties"), "a") as file:
        file.write("#")


def _fail(root: str) -> None:
    raise ValueError(root)


PLANTED: list[tuple[str, Callable[[Patch], None], str]] = [
    ("cut, not kept", _cut_without_keeping, "batch lost by recover"),
    ("records missing", _read_less, "records not read"),
    ("records changed", _read_other, "wrong record: manager"),
    ("silent verify", _say_nothing, "not noticed by verify: batch.length"),
    ("verify writes", _during("verify", _write), "changed by verify json"),
    ("dry run writes", _during("recover", _write), "changed by recover --dry-run"),
    ("raw error", _during("verify", _fail), "traceback: verify json: ValueError"),
    ("raw bytes", _during("recover", lambda root: print("\x1b[2J", file=sys.stderr)), "raw byte"),
    ("code 3", _during("recover", lambda root: sys.exit(3)), "exit code 3: recover"),
    ("memory", _during("verify", lambda root: bytearray(400 << 20)), "traceback: verify json: Mem"),
    ("a hang", _during("verify", lambda root: time.sleep(60)), "hang: verify json"),
]


@pytest.mark.parametrize(
    ("plant", "expected"), [p[1:] for p in PLANTED], ids=[p[0] for p in PLANTED]
)
def test_a_broken_promise_is_seen(
    plant: Callable[[Patch], None], expected: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(original(UNCLEAN), "baseline", frozenset(["none of the findings"]))
    monkeypatch.setattr(LIMITS, "seconds", 0.5 if expected.startswith("hang") else 10.0)
    plant(monkeypatch)
    found = signatures(broken_length())
    assert any(signature.startswith(expected) for signature in found), found


def test_damage_that_is_handled_well_is_no_failure() -> None:
    assert signatures(broken_length()) == []


def test_an_original_is_the_same_each_time() -> None:
    first = original(3)
    originals.original.cache_clear()
    again = original(3)
    assert {path: entry.data for path, entry in first.tree.items()} == {
        path: entry.data for path, entry in again.tree.items()
    }
    assert first.batches == again.batches


@pytest.mark.parametrize("number", range(0, originals.COUNT, 5))
def test_an_original_has_no_failure(number: int) -> None:
    with scratch_directory() as scratch:
        judged = run_case(1, number, [], scratch, quick=True)
    assert judged.failures == []
