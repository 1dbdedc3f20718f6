"""Stores over S3: the contract of every object store, and views as commands show them.

It is the real protocol: Arrow's client against moto's server on loopback.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.storage.uri import join_uri, log_directory, open_storage
from logstore.tiers import ObjectStore, StoreDeniedError, open_store
from logstore.tiers.arrow_store import ArrowObjectStore
from tests.contract.test_object_store import (  # noqa: F401
    put,
    test_a_key_that_leads_elsewhere_is_refused,
    test_a_listing_is_sorted_by_key_and_shows_sizes,
    test_a_source_that_fails_keeps_its_error_and_stores_nothing,
    test_an_empty_object,
    test_another_size_than_announced_stores_nothing,
    test_delete,
    test_large_objects_in_many_parts,
    test_no_part_is_held_while_the_next_is_made,
    test_only_if_absent,
    test_put_and_get,
    test_satisfies_the_protocol,
    test_what_is_not_there,
)
from tests.spark.object_store import KEY, SECRET, object_store
from tests.spark.object_store import ObjectStore as Server
from tests.support import stores
from tests.support.commands import logstore, logstore_json
from tests.support.stores import Chunking

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with object_store() as server:
        yield server


@pytest.fixture
def store(server: Server, tmp_path: Path) -> ObjectStore:
    return open_store(join_uri(server.uri("bucket"), tmp_path.name))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stores.make_directory(tmp_path_factory.mktemp("source") / "data")


@pytest.fixture(scope="module", params=["backup", "compressed"])
def uri(
    request: pytest.FixtureRequest,
    server: Server,
    source: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    root = tmp_path_factory.mktemp("store") / request.param
    if request.param == "backup":
        stores.put_backup(root, source)
    else:
        for partition in sorted(source.glob("orders-*")):
            segments = stores.segments_of(partition)
            stores.put_tiered(root, partition, segments, Chunking(700, True))
    return server.upload(root, f"bucket/views/{request.param}")


def test_a_part_is_not_copied(store: ObjectStore) -> None:
    """Else each put has two parts more in memory."""
    assert isinstance(store, ArrowObjectStore)
    _, (options,) = store.filesystem.__reduce__()
    assert not options["background_writes"]
    assert not options["allow_delayed_open"]  # a put that does not begin has to say so
    assert (options["access_key"], options["secret_key"]) == (KEY, SECRET)


def test_no_message_has_the_credentials(server: Server, store: ObjectStore) -> None:
    assert SECRET not in store.uri
    put(store, "a/x", b"1")
    with server.denying():
        for call in (
            lambda: store.get("a/x"),
            lambda: list(store.list()),
            lambda: put(store, "a/y", b"1"),
        ):
            with pytest.raises(StoreDeniedError) as error:
                call()
            assert SECRET not in str(error.value)
            assert KEY + ":" not in str(error.value)


def test_commands_read_a_view_as_the_directory(uri: str, source: Path) -> None:
    there = logstore("read", str(source), "orders", "--format", "json").stdout
    assert logstore("read", uri, "orders", "--format", "json").stdout == there
    assert (
        logstore("dump", "--format", "json", uri).stdout
        == logstore("dump", "--format", "json", str(source)).stdout
    )
    told = logstore_json("verify", uri)
    assert told["findings"] == []
    assert sum(each["records"] for each in told["partitions"]) == 190
    listed = logstore_json("ls", uri)["partitions"]
    assert [each["logEndOffset"] for each in listed] == [138, 52]
    assert SECRET not in str(told)
    assert SECRET not in str(listed)


def test_a_view_is_found_by_its_uri(uri: str) -> None:
    view = log_directory(uri)
    storage, path = open_storage(join_uri(view, "orders-0"))
    assert path.startswith("s3://bucket/views/")
    assert SECRET not in path
    assert [e.name for e in storage.scan_dir(path) if e.name.endswith(".log")] == [
        f"{0:020d}.log",
        f"{114:020d}.log",
    ]
    assert log_directory(join_uri(uri, "orders-0")).endswith(join_uri(view, "orders-0")[-40:])


def test_a_copied_directory_in_a_bucket_is_read_as_it_was(server: Server, source: Path) -> None:
    uri = server.upload(source, "bucket/raw")
    assert log_directory(uri) == uri
    there = logstore("read", str(source), "orders").stdout
    assert logstore("read", uri, "orders").stdout == there
