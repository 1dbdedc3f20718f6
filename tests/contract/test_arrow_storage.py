"""The reading half of ``Storage`` over every kind of ``pyarrow.fs`` file system that runs here.

``tests/spark/test_s3_storage.py`` runs the same over S3.
"""

from __future__ import annotations

import errno
import os
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import pytest
from pyarrow import fs

from checkpoints import UnusableFileError
from logstore.common.errors import ConfigError
from logstore.storage import File, FileKind, Storage
from logstore.storage.arrow_fs import ArrowFile, ArrowStorage
from logstore.storage.local import LocalStorage
from logstore.storage.uri import join_uri, open_storage, shown

MIB = 1 << 20


@dataclass
class World:
    """A storage, a directory in it, and the other way to reach its files."""

    storage: Storage
    root: str
    files: fs.FileSystem
    inner: str
    uri: str = ""

    def put(self, name: str, data: bytes) -> str:
        self.files.create_dir(os.path.dirname(f"{self.inner}/{name}"))
        with self.files.open_output_stream(f"{self.inner}/{name}") as out:
            out.write(data)
        return f"{self.root}/{name}"

    def delete(self, name: str) -> None:
        self.files.delete_file(f"{self.inner}/{name}")


def _local(path: Path) -> World:
    files = fs.LocalFileSystem()
    return World(ArrowStorage(files), str(path), files, str(path))


def _subtree(path: Path) -> World:
    files = fs.SubTreeFileSystem(str(path), fs.LocalFileSystem())
    return World(ArrowStorage(files, "tree://"), "tree://below", files, "below")


def _mock(path: Path) -> World:
    files = fs._MockFileSystem()
    return World(ArrowStorage(files, "mock://"), "mock://a/b", files, "a/b")


WORLDS: dict[str, Callable[[Path], World]] = {"local": _local, "subtree": _subtree, "mock": _mock}


@pytest.fixture(scope="module")
def content() -> bytes:
    return random.Random(2).randbytes(39 * MIB)


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return WORLDS[request.param](tmp_path)


@pytest.fixture
def opened(world: World) -> Iterator[Callable[[str], File]]:
    files: list[File] = []

    def open_(path: str) -> File:
        files.append(world.storage.open(path, writable=False))
        return files[-1]

    yield open_
    for file in files:
        file.close()


def test_satisfies_the_protocols(world: World, opened: Callable[[str], File]) -> None:
    file = opened(world.put("x", b"abc"))
    assert isinstance(world.storage, Storage)
    assert isinstance(file, File)
    assert file.path == f"{world.root}/x"
    assert file.fileno() == -1


def test_reads_ranges(world: World, opened: Callable[[str], File]) -> None:
    file = opened(world.put("x", b"0123456789"))
    assert file.size() == 10
    assert file.read_at(2, 3) == b"234"
    assert file.read_at(8, 10) == b"89"
    assert file.read_at(10, 1) == file.read_at(99, 1) == file.read_at(0, 0) == b""
    empty = opened(world.put("empty", b""))
    assert (empty.size(), empty.read_at(0, 9)) == (0, b"")


def test_view_shows_the_bytes_read_only(
    world: World, opened: Callable[[str], File], content: bytes
) -> None:
    content = content[: 9 * MIB + 17]
    path = world.put("x", content)
    for size in (0, 100, 300_000, 9 * MIB):
        for position in (0, 1, 4 * MIB - 1, len(content) + 5):
            file = opened(path)
            for _ in range(2):
                with file.view(position, size) as view:
                    assert view.readonly
                    assert view == content[position : position + size]


def test_small_files(world: World) -> None:
    path = world.put("small", b"some content")
    assert world.storage.read_file(path) == b"some content"
    assert world.storage.read_file(path, 12) == b"some content"
    for limit in (0, 4):
        with pytest.raises(UnusableFileError, match="has 12 bytes, more than"):
            world.storage.read_file(path, limit)


@pytest.mark.parametrize("kind", ["local", "subtree"])
def test_what_is_no_regular_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    world = WORLDS[kind](tmp_path)
    plain = world.put("plain", b"abc")
    fifo = f"{os.path.dirname(plain)}/fifo"
    os.mkfifo(f"{next(tmp_path.rglob('plain')).parent}/fifo")
    for call in (
        lambda: world.storage.open(fifo, writable=False),
        lambda: world.storage.read_file(fifo),
    ):
        with pytest.raises(UnusableFileError) as error:
            call()
        assert error.value.filename == fifo
    kinds = [(entry.name, entry.kind) for entry in world.storage.scan_dir(world.root)]
    assert kinds == [("fifo", FileKind.OTHER), ("plain", FileKind.FILE)]


def test_directories(world: World) -> None:
    world.put("t-0/00.log", b"12345")
    world.put("t-0/00.index", b"")
    world.put("t-10/x", b"")
    file = world.put("meta.properties", b"1")
    entries = world.storage.scan_dir(world.root)
    assert [(e.name, e.is_dir) for e in entries] == [
        ("meta.properties", False),
        ("t-0", True),
        ("t-10", True),
    ]
    assert [(e.name, e.size) for e in world.storage.scan_dir(f"{world.root}/t-0/")] == [
        ("00.index", 0),
        ("00.log", 5),
    ]
    assert world.storage.info(file) == entries[0]
    directory = world.storage.info(f"{world.root}/t-0/")
    assert directory is not None
    assert (directory.name, directory.is_dir) == ("t-0", True)
    assert world.storage.info(f"{world.root}/nothing") is None
    assert world.storage.info(f"{file}/below") is None


def test_what_is_not_there(world: World) -> None:
    file = world.put("dir/x", b"1")
    for name in ("none", "none/x", "dir/none"):
        path = f"{world.root}/{name}"
        for call in (
            lambda path=path: world.storage.read_file(path),
            lambda path=path: world.storage.open(path, writable=False),
            lambda path=path: world.storage.scan_dir(path),
        ):
            with pytest.raises(FileNotFoundError) as error:
                call()
            assert error.value.filename == path
    with pytest.raises(OSError):
        world.storage.read_file(f"{world.root}/dir")
    with pytest.raises(OSError):
        world.storage.scan_dir(file)


def test_paths_work_with_the_functions_for_names(world: World) -> None:
    path = world.put("t-0/x", b"")
    assert os.path.join(world.root, "t-0", "x") == path
    assert os.path.dirname(path) == f"{world.root}/t-0"
    assert world.storage.real_path(f"{world.root}/./t-0/../t-0//x") == path


def test_writing_is_refused_as_on_a_read_only_mount(
    world: World, opened: Callable[[str], File]
) -> None:
    path = world.put("x", b"abc")
    storage, file = world.storage, opened(path)
    for call in (
        lambda: storage.write_file(path, b""),
        lambda: storage.rename(path, "other"),
        lambda: storage.remove(path),
        lambda: storage.sync_dir(path),
        lambda: storage.make_dir(path),
        lambda: storage.remove_tree(path),
        lambda: storage.set_mtime(path, 0),
        lambda: storage.lock(path),
        lambda: storage.open(path),
        lambda: storage.open(path, create=True, writable=False),
        lambda: file.write_at(0, b"x"),
        lambda: file.map(9),
        lambda: file.truncate(0),
        file.sync,
    ):
        with pytest.raises(OSError) as error:
            call()
        assert (error.value.errno, error.value.filename) == (errno.EROFS, path)
    assert storage.read_file(path) == b"abc"


def test_a_closed_file_refuses_work(world: World) -> None:
    file = world.storage.open(world.put("x", b"abc"), writable=False)
    file.close()
    file.close()
    for call in (file.size, lambda: file.read_at(0, 1)):
        with pytest.raises(OSError) as error:
            call()
        assert error.value.errno == errno.EBADF


# --- read-ahead


class CountedFile:
    """An open file of Arrow, and the ranges asked of it."""

    closed = False

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.ranges: list[tuple[int, int]] = []

    def size(self) -> int:
        return len(self.content)

    def read_at(self, size: int, position: int) -> bytes:
        self.ranges.append((position, size))
        return self.content[position : position + size]

    def close(self) -> None:
        self.closed = True


def counted(content: bytes) -> tuple[CountedFile, ArrowFile]:
    inner, files = CountedFile(content), fs._MockFileSystem()
    files.open_output_stream("x").close()
    return inner, ArrowFile("x", inner, ArrowStorage(files))


def test_a_reader_going_forward_fetches_each_byte_once(content: bytes) -> None:
    """Windows overlap by what was left of a batch, as those of a scan do."""
    inner, file = counted(content)
    position = 0
    while position < len(content):
        with file.view(position, 4 * MIB) as view:
            assert view == content[position : position + 4 * MIB]
            position += len(view) - (1000 if position + len(view) < len(content) else 0)
    file.close()
    assert sorted(inner.ranges) == [
        (start, min(4 * MIB, len(content) - start)) for start in range(0, len(content), 4 * MIB)
    ]


def test_a_look_at_one_place_fetches_its_blocks_only(content: bytes) -> None:
    inner, file = counted(content)
    with file.view(21 * MIB, 2 * MIB) as view:
        assert view == content[21 * MIB : 23 * MIB]
    with file.view(1 * MIB, 6 * MIB) as view:  # elsewhere: what was held is let go
        assert view == content[1 * MIB : 7 * MIB]
    file.close()
    assert sorted(inner.ranges) == [(0, 4 * MIB), (4 * MIB, 4 * MIB), (20 * MIB, 4 * MIB)]


def test_what_is_held_is_bounded(content: bytes) -> None:
    _, file = counted(content)
    for position in range(0, len(content), MIB):
        with file.view(position, 2 * MIB):
            assert len(file._blocks) <= 6
    file.close()
    assert not file._blocks


def test_an_error_ahead_shows_where_it_is_read(content: bytes) -> None:
    inner, file = counted(content)
    read = inner.read_at

    def fail_behind(size: int, position: int) -> bytes:
        if position >= 12 * MIB:
            raise OSError("connection reset")
        return read(size, position)

    inner.read_at = fail_behind  # type: ignore[method-assign]
    for position in (0, 4 * MIB, 8 * MIB):
        with file.view(position, 4 * MIB) as view:
            assert view == content[position : position + 4 * MIB]
    with (
        pytest.raises(OSError, match="connection reset") as error,
        file.view(12 * MIB, MIB),
    ):
        pass
    assert (error.value.errno, error.value.filename) == (errno.EIO, "x")
    file.close()


def test_a_forked_child_reads_ahead_with_threads_of_its_own(content: bytes) -> None:
    _, file = counted(content)
    with file.view(0, MIB):  # the parent has its threads by now
        pass
    receiver, sender = get_context("fork").Pipe(duplex=False)

    def read() -> None:
        with file.view(20 * MIB, MIB) as view:
            sender.send(view == content[20 * MIB : 21 * MIB])

    child = get_context("fork").Process(target=read)
    child.start()
    try:
        assert receiver.poll(20)
        assert receiver.recv()
    finally:
        child.kill()
        child.join()
    file.close()


# --- URIs


def test_local_paths_are_local(tmp_path: Path) -> None:
    for uri, path in (
        ("/a/b", "/a/b"),
        ("a b?c", "a b?c"),
        ("file:///a%20b/c", "/a b/c"),
        ("file://localhost/a", "/a"),
    ):
        storage, found = open_storage(uri)
        assert isinstance(storage, LocalStorage)
        assert found == path


@pytest.mark.parametrize(
    ("uri", "joined"),
    [
        ("/a", "/a/t-0"),
        ("a/", "a/t-0"),
        ("file:///a", "file:///a/t-0"),
        ("s3://b", "s3://b/t-0"),
        ("s3://k:s%2F@b/c/?region=x&scheme=http", "s3://k:s%2F@b/c/t-0?region=x&scheme=http"),
        ("hdfs:///a", "hdfs:///a/t-0"),
    ],
)
def test_join_uri(uri: str, joined: str) -> None:
    assert join_uri(uri, "t-0") == joined


def test_a_joined_name_with_signs_of_a_uri_is_found_again() -> None:
    name = "50% a?b#c"
    assert open_storage(join_uri("s3://b/c?region=x", name))[1] == f"s3://b/c/{name}"


def test_paths_and_errors_show_no_credentials() -> None:
    assert open_storage("s3://key:secret@b/c?region=x")[1] == "s3://b/c"
    with pytest.raises(ConfigError, match=r"s3://b: .*'bogus'") as error:
        open_storage("s3://key:secret@b/c?bogus=1")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("/a b?c@d", "/a b?c@d"),
        ("file:///a", "file:///a"),
        ("s3://key:secret@b/c?region=x", "s3://b/c"),
        (
            "abfs://c@account.dfs.core.windows.net/x?key=secret",
            "abfs://account.dfs.core.windows.net/x",
        ),
    ],
)
def test_shown(uri: str, text: str) -> None:
    assert shown(uri) == text


def test_one_storage_for_all_paths_of_a_bucket() -> None:
    first, _ = open_storage("s3://b/c?region=x")
    assert open_storage("s3://b/d/e?region=x")[0] is first
    assert open_storage("s3://b/d/e?region=y")[0] is not first


@pytest.mark.parametrize("uri", ["foo://a/b", "file://host/a", "://x"])
def test_an_unusable_uri(uri: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(uri[:3])):
        open_storage(uri)
