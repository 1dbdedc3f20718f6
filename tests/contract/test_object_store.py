"""One suite for every ObjectStore: the contract in ``logstore/tiers/object_store.py``.

``tests/spark/test_s3_store.py`` runs the same over S3.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from logstore.common.errors import ConfigError
from logstore.storage.arrow_fs import ArrowStorage
from logstore.storage.memory import MemoryStorage
from logstore.testing import FaultyObjectStore
from logstore.tiers.arrow_store import ArrowObjectStore
from logstore.tiers.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
    StoreUnavailableError,
)
from logstore.tiers.object_store import (
    LocalObjectStore,
    MemoryObjectStore,
    ObjectStore,
    open_store,
)

MIB = 1 << 20


def _in_memory_files(path: Path) -> ObjectStore:
    return LocalObjectStore("/store", MemoryStorage())


def _arrow(path: Path) -> ObjectStore:
    return ArrowObjectStore(ArrowStorage(fs.LocalFileSystem()), str(path / "arrow"))


STORES: dict[str, Callable[[Path], ObjectStore]] = {
    "memory": lambda path: MemoryObjectStore(),
    "local": lambda path: open_store(str(path / "a" / "store")),
    "local uri": lambda path: open_store(f"file://{path}/store"),
    "in-memory files": _in_memory_files,
    "arrow": _arrow,
    "faulty": lambda path: FaultyObjectStore(),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return STORES[request.param](tmp_path)


@pytest.mark.parametrize("uri", ["", "/", "//", "file:///"])
def test_a_place_that_is_none_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match="names no store"):
        open_store(uri)


class _LateFiles:
    """A file system on which one put takes so long that its object was put again meanwhile."""

    type_name = "local"

    def __init__(self, opens: bool) -> None:
        self.opens, self.late = opens, True

    def __getattr__(self, name: str) -> Any:
        return getattr(fs.LocalFileSystem(), name)

    def open_output_stream(self, path: str, **options: Any) -> Any:
        if not self.late:
            return fs.LocalFileSystem().open_output_stream(path, **options)
        self.late = False
        Path(path).write_bytes(b"whole")
        if not self.opens:
            raise OSError("connection reset after a long time")
        return _Reset()


class _Reset:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def write(self, data: object) -> None:
        raise OSError("connection reset after a long time")


@pytest.mark.parametrize("opens", [False, True])
def test_a_put_that_fails_late_leaves_what_its_repeat_has_put(tmp_path: Path, opens: bool) -> None:
    store: Any = _arrow(tmp_path)
    store.filesystem = _LateFiles(opens)
    with pytest.raises(StoreUnavailableError):
        put(store, "a/b.log", b"whole")
    assert store.get("a/b.log") == b"whole"


def keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return [found.key for found in store.list(prefix)]


def put(store: ObjectStore, key: str, data: bytes) -> None:
    store.put(key, [data], len(data))


def test_satisfies_the_protocol(store: ObjectStore) -> None:
    assert isinstance(store, ObjectStore)


def test_put_and_get(store: ObjectStore) -> None:
    store.put("a/b/c", [b"ab", bytearray(b"cd"), memoryview(b"ef")], 6)
    assert store.get("a/b/c") == b"abcdef"
    assert store.get("a/b/c", 2) == b"cdef"
    assert store.get("a/b/c", 2, 3) == b"cde"
    assert store.get("a/b/c", 4, 100) == b"ef"
    assert store.get("a/b/c", 6, 1) == b""
    assert store.get("a/b/c", 100) == b""
    put(store, "a/b/c", b"new")
    assert store.get("a/b/c") == b"new"


class VanishingPart(bytearray):
    """One that can be seen to be gone."""


def test_no_part_is_held_while_the_next_is_made(store: ObjectStore) -> None:
    if not isinstance(store, LocalObjectStore | ArrowObjectStore):
        pytest.skip("keeps objects in memory")
    held: list[weakref.ref[VanishingPart]] = []

    def parts() -> Iterator[memoryview]:
        for _ in range(3):
            assert [part() for part in held] == [None] * len(held)
            part = VanishingPart(11 * MIB)
            held.append(weakref.ref(part))
            yield memoryview(part)
            del part

    store.put("a/large", parts(), 33 * MIB)
    assert len(held) == 3


def test_an_empty_object(store: ObjectStore) -> None:
    store.put("a/empty", [], 0)
    assert store.get("a/empty") == b""
    assert [(o.key, o.size) for o in store.list()] == [("a/empty", 0)]


def test_what_is_not_there(store: ObjectStore) -> None:
    assert keys(store) == []
    for key in ("a", "a/b"):
        with pytest.raises(ObjectNotFoundError) as error:
            store.get(key)
        assert error.value.key == key
        assert not error.value.may_have_effect
    store.delete(["a", "a/b"])


def test_a_listing_is_sorted_by_key_and_shows_sizes(store: ObjectStore) -> None:
    names = ["t-1/0/x", "t/0/x", "t.a/0/x", "t/0-1/x", "t", "u/10/x", "u/9/x", "u/9.x", "t0"]
    for number, name in enumerate(n for n in names if n != "t"):
        put(store, name, b"x" * number)
    assert keys(store) == sorted(n for n in names if n != "t")
    assert keys(store, "t/") == ["t/0-1/x", "t/0/x"]
    assert keys(store, "t") == ["t-1/0/x", "t.a/0/x", "t/0-1/x", "t/0/x", "t0"]
    assert keys(store, "u/9") == ["u/9.x", "u/9/x"]
    assert keys(store, "u/9/x") == ["u/9/x"]
    assert keys(store, "v") == keys(store, "t/0/x/y") == []
    assert {o.key: o.size for o in store.list("u/")} == {"u/10/x": 4, "u/9/x": 5, "u/9.x": 6}


def test_delete(store: ObjectStore) -> None:
    for name in ("a/1", "a/2", "b/1"):
        put(store, name, b"x")
    store.delete(["a/1", "a/none", "b/1"])
    assert keys(store) == ["a/2"]


def test_only_if_absent(store: ObjectStore) -> None:
    store.put("a/x", [b"1"], 1, only_if_absent=True)
    with pytest.raises(ObjectExistsError):
        store.put("a/x", [b"2"], 1, only_if_absent=True)
    assert store.get("a/x") == b"1"
    assert keys(store) == ["a/x"]


@pytest.mark.parametrize("size", [2, 4])
def test_another_size_than_announced_stores_nothing(store: ObjectStore, size: int) -> None:
    put(store, "a/other", b"x")
    with pytest.raises(ValueError, match="bytes"):
        store.put("a/x", [b"a", b"bc"], size)
    assert keys(store) == ["a/other"]


def test_a_source_that_fails_keeps_its_error_and_stores_nothing(store: ObjectStore) -> None:
    failure = OSError(5, "the local disk failed", "/data/x.log")

    def parts() -> Iterator[bytes]:
        yield b"x" * 100
        raise failure

    with pytest.raises(OSError, match="local disk") as error:
        store.put("a/x", parts(), 200)
    assert error.value is failure
    assert keys(store) == []


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/./b", "a\nb", "a" * 1025])
def test_a_key_that_leads_elsewhere_is_refused(store: ObjectStore, key: str) -> None:
    for call in (
        lambda: put(store, key, b"x"),
        lambda: store.get(key),
        lambda: store.delete([key]),
    ):
        with pytest.raises(StoreError):
            call()


def test_large_objects_in_many_parts(store: ObjectStore) -> None:
    part = bytes(range(256)) * 4096
    store.put("a/large", (part for _ in range(25)), 25 * MIB)
    assert store.get("a/large", 24 * MIB - 3, 6) == part[-3:] + part[:3]
    assert [found.size for found in store.list()] == [25 * MIB]
