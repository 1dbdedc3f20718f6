"""The reading half of ``Storage`` over S3, with the contract of every other file system.

It is the real protocol: Arrow's client against moto's server on loopback.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.storage.uri import join_uri, open_storage
from tests.contract.test_arrow_storage import (  # noqa: F401
    MIB,
    World,
    content,
    opened,
    test_a_closed_file_refuses_work,
    test_directories,
    test_paths_work_with_the_functions_for_names,
    test_reads_ranges,
    test_satisfies_the_protocols,
    test_small_files,
    test_view_shows_the_bytes_read_only,
    test_what_is_not_there,
    test_writing_is_refused_as_on_a_read_only_mount,
)
from tests.spark.object_store import ObjectStore, object_store


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture
def world(store: ObjectStore, tmp_path: Path) -> World:
    uri = join_uri(store.uri("bucket"), tmp_path.name)
    storage, path = open_storage(uri)
    return World(storage, path, store.files, path.removeprefix("s3://"), uri)


@pytest.mark.slow
def test_an_object_deleted_meanwhile(world: World) -> None:
    path = world.put("x", b"x" * 10 * MIB)
    file = world.storage.open(path, writable=False)
    with file.view(0, 4 * MIB):
        world.delete("x")
    for call in (lambda: file.read_at(0, 3), lambda: file.view(8 * MIB, MIB).__enter__()):
        with pytest.raises(FileNotFoundError) as error:
            call()
        assert error.value.filename == path
    file.close()


@pytest.mark.slow
def test_a_bucket_that_is_not_there(store: ObjectStore) -> None:
    storage, path = open_storage(store.uri("no-such-bucket"))
    assert storage.info(path) is None
    with pytest.raises(FileNotFoundError):
        storage.scan_dir(path)


@pytest.mark.slow
def test_access_denied(store: ObjectStore, world: World) -> None:
    path = world.put("x", b"abc")
    with store.denying():
        for call in (
            lambda: world.storage.scan_dir(world.root),
            lambda: world.storage.info(path),
            lambda: world.storage.open(path, writable=False),
        ):
            with pytest.raises(PermissionError) as error:
                call()
            assert error.value.filename in (path, world.root)


@pytest.mark.slow
def test_a_directory_with_a_marker_object(world: World, store: ObjectStore) -> None:
    """Consoles make an empty object ``dir/`` for a directory; it is no entry of it."""
    key = world.inner.removeprefix("bucket/")
    store.client.put_object(Bucket="bucket", Key=f"{key}/dir/", Body=b"")
    world.put("dir/x", b"1")
    assert [e.name for e in world.storage.scan_dir(f"{world.root}/dir")] == ["x"]
    assert [(e.name, e.is_dir) for e in world.storage.scan_dir(world.root)] == [("dir", True)]
