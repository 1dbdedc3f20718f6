"""One suite for every Storage: the contract in ``logstore/storage/base.py``."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from checkpoints import OsFiles, UnusableFileError, replace_file
from logstore.common.errors import ConfigError, LogDirLockedError
from logstore.storage import File, FileKind, Storage, open_storage
from logstore.storage.local import LocalStorage
from logstore.storage.memory import MemoryStorage
from logstore.storage.overlay import OverlayStorage
from logstore.testing import FaultyStorage
from tests.support.cases import for_each
from tests.support.leftovers import nothing_left
from tests.support.special_files import make_other

STORAGES: dict[str, Callable[[], Storage]] = {
    "local": LocalStorage,
    "memory": MemoryStorage,
    "faulty": FaultyStorage,
    "overlay": lambda: OverlayStorage(MemoryStorage()),
    "overlay_on_disk": lambda: OverlayStorage(LocalStorage()),
}


@pytest.fixture(params=sorted(STORAGES))
def storage(request: pytest.FixtureRequest) -> Storage:
    return STORAGES[request.param]()


@pytest.fixture
def root(storage: Storage, tmp_path: Path) -> str:
    path = str(tmp_path)
    storage.make_dir(path)
    return path


@pytest.fixture
def file(storage: Storage, root: str):
    opened = storage.open(f"{root}/data", create=True)
    yield opened
    opened.close()


def test_satisfies_the_protocols(storage: Storage, file: File) -> None:
    assert isinstance(storage, Storage)
    assert isinstance(file, File)


# --- files


def test_reads_what_was_written(file: File) -> None:
    assert file.write_at(0, b"abc", bytearray(b"de"), memoryview(b"fgh")) == 8
    assert file.size() == 8
    assert file.read_at(0, 8) == b"abcdefgh"
    assert file.read_at(2, 3) == b"cde"


def test_a_read_is_short_only_at_the_end(file: File) -> None:
    file.write_at(0, b"0123456789")
    assert file.read_at(8, 10) == b"89"
    assert file.read_at(10, 1) == b""
    assert file.read_at(99, 1) == b""
    assert file.read_at(0, 0) == b""


def test_writing_past_the_end_leaves_zeros_between(file: File) -> None:
    file.write_at(5, b"x")
    assert file.read_at(0, 9) == b"\0\0\0\0\0x"


def test_overwrites_in_place(file: File) -> None:
    file.write_at(0, b"0123456789")
    file.write_at(3, b"abc")
    assert file.read_at(0, 10) == b"012abc6789"


def test_takes_more_buffers_than_one_call_of_the_kernel(file: File) -> None:
    buffers = [bytes([i % 251]) * (i % 5) for i in range(2500)]
    assert file.write_at(7, *buffers) == sum(map(len, buffers))
    assert file.read_at(7, 1 << 20) == b"".join(buffers)


def test_takes_buffers_of_other_item_types(file: File) -> None:
    words = memoryview(bytearray(range(16))).cast("I")
    assert file.write_at(0, words) == 16
    assert file.write_at(16, words, b"!") == 17
    assert file.read_at(0, 99) == bytes(range(16)) * 2 + b"!"


def test_writing_nothing_is_allowed(file: File) -> None:
    assert file.write_at(0) == 0
    assert file.write_at(0, b"") == 0
    assert file.size() == 0


@for_each("position, size", product([0, 1, 5000], [0, 1, 4096, 300_000, 1 << 20]))
def test_view_shows_the_bytes_read_only(file: File, position: int, size: int) -> None:
    content = os.urandom(900_000)
    file.write_at(0, content)
    with file.view(position, size) as view:
        assert view.readonly
        assert view.itemsize == 1
        assert view == content[position : position + size]


def test_view_past_the_end_is_empty(file: File) -> None:
    file.write_at(0, b"abc")
    for size in (1, 1 << 20):
        with file.view(10, size) as view:
            assert len(view) == 0


@pytest.mark.parametrize("size", [100, 400_000])
def test_view_may_be_kept_by_its_reader(file: File, size: int) -> None:
    """A slice that outlives the context is the reader's business; leaving must not raise."""
    file.write_at(0, b"x" * size)
    kept = []
    with file.view(0, size) as view:
        kept.append(view[1:3])
        kept.append(memoryview(view))
    file.write_at(size, b"y" * 1000)
    file.truncate(size + 1)
    assert kept[0] == b"xx"


def test_view_with_a_live_view_lets_the_file_grow(file: File) -> None:
    file.write_at(0, b"x" * 10)
    with file.view(0, 10) as view:
        file.write_at(10, b"y" * 100_000)
        assert view == b"x" * 10
    assert file.size() == 100_010


def test_truncate_cuts_and_extends_with_zeros(file: File) -> None:
    file.write_at(0, b"0123456789")
    file.truncate(4)
    assert file.read_at(0, 99) == b"0123"
    file.truncate(6)
    assert file.read_at(0, 99) == b"0123\0\0"


def test_sync_and_fileno(file: File) -> None:
    file.write_at(0, b"x")
    file.sync()
    assert file.fileno() >= -1


def test_a_closed_file_refuses_work(file: File) -> None:
    file.close()
    file.close()
    for call in (
        lambda: file.read_at(0, 1),
        lambda: file.write_at(0, b"x"),
        lambda: file.truncate(0),
        file.size,
        file.sync,
    ):
        with pytest.raises(OSError):
            call()


def test_a_file_opened_for_reading_refuses_writes(storage: Storage, root: str) -> None:
    storage.write_file(f"{root}/ro", b"abc")
    file = storage.open(f"{root}/ro", writable=False)
    try:
        assert file.read_at(0, 3) == b"abc"
        with pytest.raises(OSError):
            file.write_at(0, b"x")
    finally:
        file.close()


def test_open_creates_only_on_request_and_never_truncates(storage: Storage, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        storage.open(f"{root}/none")
    storage.write_file(f"{root}/some", b"abc")
    file = storage.open(f"{root}/some", create=True)
    assert file.size() == 3
    file.close()
    for path in (f"{root}/no/dir", f"{root}/some/below"):
        with pytest.raises(OSError):
            storage.open(path, create=True)
    for writable in (True, False):
        with pytest.raises(UnusableFileError, match="is a directory"):
            storage.open(root, writable=writable)


def test_an_open_file_outlives_its_name(storage: Storage, root: str) -> None:
    """``….deleted`` files are still read by fetches that started before."""
    storage.write_file(f"{root}/a", b"abc")
    file = storage.open(f"{root}/a")
    storage.remove(f"{root}/a")
    file.write_at(3, b"d")
    assert file.read_at(0, 9) == b"abcd"
    assert storage.info(f"{root}/a") is None
    file.close()


def test_readers_beside_a_writer_see_whole_prefixes(file: File) -> None:
    block = bytes(range(256)) * 16
    wrong: list[int] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            size = file.size()
            data = file.read_at(0, size)
            if data != (block * (size // len(block) + 1))[:size]:
                wrong.append(size)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for index in range(50):
        file.write_at(index * len(block), block)
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []


# --- mappings (F-140)


def test_map_extends_with_zeros_and_shares_bytes(file: File) -> None:
    file.write_at(0, b"abc")
    mapping = file.map(10_000)
    assert file.size() == 10_000
    assert len(mapping.buffer) == 10_000
    assert bytes(mapping.buffer[:5]) == b"abc\0\0"
    mapping.reserve(12)
    mapping.buffer[3:12] = b"defghijkl"
    assert file.read_at(0, 12) == b"abcdefghijkl"
    file.write_at(0, b"A")
    assert mapping.buffer[0] == ord("A")
    file.sync()
    mapping.close()
    mapping.close()
    assert file.read_at(0, 13) == b"Abcdefghijkl\0"


def test_map_of_a_longer_file_does_not_cut_it(file: File) -> None:
    file.write_at(0, b"x" * 100)
    mapping = file.map(40)
    assert len(mapping.buffer) == 40
    assert file.size() == 100
    mapping.close()


def test_reserve_does_not_change_the_size_and_is_bounded(file: File) -> None:
    mapping = file.map(1000)
    for end in (1, 8, 8, 1000):
        mapping.reserve(end)
    assert file.size() == 1000
    with pytest.raises(ValueError):
        mapping.reserve(1001)
    mapping.close()


def test_after_closing_a_mapping_the_file_shrinks_and_grows(file: File) -> None:
    mapping = file.map(10_000)
    mapping.reserve(4)
    mapping.buffer[0:4] = b"abcd"
    kept = mapping.buffer[1:3]  # a leaked slice must not pin the file's size
    mapping.close()
    with pytest.raises(OSError):
        _ = mapping.buffer
    file.truncate(4)
    file.write_at(4, b"e" * 20_000)
    assert file.size() == 20_004
    assert file.read_at(0, 5) == b"abcde"
    del kept


def test_truncating_below_a_live_mapping_zeroes_what_it_cut(file: File) -> None:
    mapping = file.map(100)
    mapping.reserve(100)
    mapping.buffer[:] = b"x" * 100
    file.truncate(50)
    assert file.size() == 50
    mapping.close()
    file.truncate(60)
    assert file.read_at(0, 99) == b"x" * 50 + b"\0" * 10


def test_an_empty_mapping(file: File) -> None:
    mapping = file.map(0)
    assert len(mapping.buffer) == 0
    mapping.reserve(0)
    mapping.close()


# --- names


def test_small_files(storage: Storage, root: str) -> None:
    path = f"{root}/small"
    with pytest.raises(FileNotFoundError):
        storage.read_file(path)
    storage.write_file(path, b"first content")
    storage.write_file(path, b"second")
    assert storage.read_file(path) == b"second"
    assert storage.read_file(path, 6) == b"second"
    for limit in (0, 5):
        with pytest.raises(UnusableFileError, match="has 6 bytes, more than") as error:
            storage.read_file(path, limit)
        assert (error.value.errno, error.value.filename) == (errno.EFBIG, path)
    replace_file(storage, path, b"third")
    assert storage.read_file(path) == b"third"
    assert [entry.name for entry in storage.scan_dir(root)] == ["small"]
    with pytest.raises(UnusableFileError, match="is a directory") as refused:
        storage.read_file(root)
    assert (refused.value.errno, refused.value.filename) == (errno.EISDIR, root)


# --- what is no regular file


def _fifo(path: str) -> None:
    os.mkfifo(path)


def _socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        directory = os.open(os.path.dirname(path), os.O_RDONLY)  # an address has 107 bytes
        try:
            bound.bind(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
        finally:
            os.close(directory)


SPECIALS: dict[str, Callable[[str], None]] = {
    "fifo": _fifo,
    "socket": _socket,
    "zeros": lambda path: os.symlink("/dev/zero", path),
    "terminal": lambda path: os.symlink("/dev/ptmx", path),
    "dangling": lambda path: os.symlink("nowhere", path),
    "loop": lambda path: os.symlink(os.path.basename(path), path),
    "through a file": lambda path: os.symlink("plain/x", path),
}


def special(storage: Storage, root: str, kind: str) -> tuple[str, str]:
    """A directory, and the path in it of something that can be listed, renamed and removed, and
    not opened."""
    directory = f"{root}/{kind}"
    path = f"{directory}/special"
    storage.make_dir(directory)
    storage.write_file(f"{directory}/plain", b"abc")
    if isinstance(getattr(storage, "_below", storage), LocalStorage):
        SPECIALS[kind](path)
    else:
        make_other(storage, path)
    return directory, path


@pytest.mark.timeout(60)  # a call that waits would wait for ever
@for_each("kind", SPECIALS)
def test_what_is_no_regular_file_is_refused_at_once(storage: Storage, root: str, kind: str) -> None:
    directory, path = special(storage, root, kind)
    with nothing_left(Path(directory)):
        for call in (
            lambda: storage.open(path),
            lambda: storage.open(path, writable=False),
            lambda: storage.open(path, create=True),
            lambda: storage.read_file(path),
            lambda: storage.read_file(path, 100),
            lambda: storage.write_file(path, b"x"),
        ):
            with pytest.raises(UnusableFileError) as error:
                call()
            assert (error.value.errno, error.value.filename) == (errno.EINVAL, path)
    assert storage.info(f"{directory}/nowhere") is None


@for_each("kind", SPECIALS)
def test_what_is_no_regular_file_is_seen_renamed_and_removed(
    storage: Storage, root: str, kind: str
) -> None:
    directory, path = special(storage, root, kind)
    kinds = {entry.name: entry.kind for entry in storage.scan_dir(directory)}
    assert kinds == {"plain": FileKind.FILE, "special": FileKind.OTHER}
    info = storage.info(path)
    assert info is not None
    assert (info.kind, info.is_file, info.is_dir) == (FileKind.OTHER, False, False)
    storage.rename(path, f"{directory}/aside")
    assert storage.info(path) is None
    replace_file(storage, f"{directory}/aside", b"new")
    assert storage.read_file(f"{directory}/aside") == b"new"


@for_each("kind", SPECIALS)
def test_a_special_file_is_removed(storage: Storage, root: str, kind: str) -> None:
    directory, path = special(storage, root, kind)
    storage.remove(path)
    assert [entry.name for entry in storage.scan_dir(directory)] == ["plain"]


def test_a_link_to_a_file_is_that_file(tmp_path: Path) -> None:
    storage = LocalStorage()
    (tmp_path / "target").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("target")
    assert storage.read_file(str(tmp_path / "link")) == b"abc"
    storage.open(str(tmp_path / "link"), create=True).close()
    assert [entry.kind for entry in storage.scan_dir(str(tmp_path))] == [FileKind.FILE] * 2


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "sparse")
    with open(path, "wb") as file:
        file.truncate(10 << 30)
    for storage in (LocalStorage(), OverlayStorage(LocalStorage())):
        with pytest.raises(UnusableFileError, match="has 10737418240 bytes, more than 64"):
            storage.read_file(path, 64)


def test_a_lock_file_is_a_regular_file(tmp_path: Path) -> None:
    with nothing_left(tmp_path):
        os.mkfifo(tmp_path / ".lock")
        with pytest.raises(UnusableFileError, match="is a FIFO"):
            LocalStorage().lock(str(tmp_path / ".lock"))
        (tmp_path / ".lock").unlink()
        LocalStorage().lock(str(tmp_path / ".lock")).release()


def test_rename_replaces_and_keeps_handles(storage: Storage, root: str) -> None:
    storage.write_file(f"{root}/a", b"new")
    storage.write_file(f"{root}/b", b"old")
    file = storage.open(f"{root}/a")
    storage.rename(f"{root}/a", f"{root}/b")
    storage.rename(f"{root}/b", f"{root}/b")
    file.write_at(3, b"!")
    assert storage.read_file(f"{root}/b") == b"new!"
    assert storage.info(f"{root}/a") is None
    file.close()
    with pytest.raises(FileNotFoundError):
        storage.rename(f"{root}/a", f"{root}/c")


def test_rename_of_a_directory_takes_its_files_along(storage: Storage, root: str) -> None:
    """F-3: ``topic-0`` becomes ``topic-0.<id>-delete`` while its segments are open."""
    storage.make_dir(f"{root}/t-0")
    storage.write_file(f"{root}/t-0/x", b"1")
    file = storage.open(f"{root}/t-0/x")
    storage.rename(f"{root}/t-0", f"{root}/t-0.id-delete")
    file.write_at(1, b"2")
    file.close()
    assert storage.read_file(f"{root}/t-0.id-delete/x") == b"12"
    assert storage.info(f"{root}/t-0") is None
    storage.make_dir(f"{root}/other/full")
    with pytest.raises(OSError):
        storage.rename(f"{root}/t-0.id-delete", f"{root}/other")
    with pytest.raises(OSError):
        storage.rename(f"{root}/other", f"{root}/other/full/deeper")


def test_remove(storage: Storage, root: str) -> None:
    storage.write_file(f"{root}/a", b"")
    storage.remove(f"{root}/a")
    with pytest.raises(FileNotFoundError):
        storage.remove(f"{root}/a")
    storage.make_dir(f"{root}/d")
    with pytest.raises(OSError):
        storage.remove(f"{root}/d")


def test_directories(storage: Storage, root: str) -> None:
    storage.make_dir(f"{root}/a/b/c")
    storage.make_dir(f"{root}/a/b/c")
    storage.write_file(f"{root}/a/file", b"12345")
    storage.set_mtime(f"{root}/a/file", 1_700_000_000_123)
    entries = storage.scan_dir(f"{root}/a")
    assert [entry.name for entry in entries] == ["b", "file"]
    assert [entry.is_dir for entry in entries] == [True, False]
    assert entries[1] == ("file", 5, 1_700_000_000_123, FileKind.FILE)
    assert storage.info(f"{root}/a/file") == entries[1]
    directory = storage.info(f"{root}/a/")
    assert directory is not None
    assert directory.name == "a"
    assert directory.is_dir
    assert storage.info(f"{root}/nothing") is None
    assert storage.info(f"{root}/a/file/below") is None
    storage.sync_dir(f"{root}/a")
    with pytest.raises(NotADirectoryError):
        storage.scan_dir(f"{root}/a/file")
    with pytest.raises(FileNotFoundError):
        storage.scan_dir(f"{root}/nothing")
    with pytest.raises(FileNotFoundError):
        storage.sync_dir(f"{root}/nothing")
    with pytest.raises(FileExistsError):
        storage.make_dir(f"{root}/a/file")


def test_remove_tree(storage: Storage, root: str) -> None:
    storage.make_dir(f"{root}/a/b/c")
    storage.write_file(f"{root}/a/b/x", b"1")
    storage.write_file(f"{root}/a/y", b"1")
    storage.write_file(f"{root}/z", b"1")
    storage.remove_tree(f"{root}/a")
    assert [entry.name for entry in storage.scan_dir(root)] == ["z"]
    with pytest.raises(FileNotFoundError):
        storage.remove_tree(f"{root}/a")


def test_real_path_is_equal_for_equal_directories(storage: Storage, root: str) -> None:
    storage.make_dir(f"{root}/a")
    assert storage.real_path(f"{root}/a/../a/.") == storage.real_path(f"{root}//a/")


def test_lock_has_one_owner(storage: Storage, root: str) -> None:
    """F-9, S-46: refused at once while held, through every spelling of the path; free after."""
    storage.make_dir(f"{root}/d")
    lock = storage.lock(f"{root}/.lock")
    assert storage.read_file(f"{root}/.lock") == b""
    for path in (f"{root}/.lock", f"{root}/d/../.lock"):
        with pytest.raises(LogDirLockedError) as refusal:
            storage.lock(path)
        assert refusal.value.path == path
        assert refusal.value.holder
    lock.release()
    again = storage.lock(f"{root}/.lock")
    lock.release()  # a second release must not free the new owner's lock
    with pytest.raises(LogDirLockedError):
        storage.lock(f"{root}/.lock")
    again.release()


def test_lock_in_a_missing_directory_is_an_os_error(storage: Storage, root: str) -> None:
    with pytest.raises(OSError) as error:
        storage.lock(f"{root}/none/.lock")
    assert error.value.errno == errno.ENOENT


# --- finding a storage by name


@pytest.mark.parametrize(("name", "kind"), [("local", LocalStorage), ("memory", MemoryStorage)])
def test_open_storage_by_name(name: str, kind: type) -> None:
    assert type(open_storage(name)) is kind


def test_open_storage_passes_options() -> None:
    storage = open_storage("memory", clock=lambda: 1.5)
    storage.write_file("/a", b"")
    assert storage.scan_dir("/")[0].mtime_ms == 1500


def test_open_storage_finds_other_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "otherdisk-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: otherdisk\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[logstore.storage]\nother = otherdisk:Other\nbroken = otherdisk:NotOne\n"
    )
    (tmp_path / "otherdisk.py").write_text(
        "from logstore.storage.memory import MemoryStorage\n"
        "class Other(MemoryStorage): pass\n"
        "class NotOne: pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert type(open_storage("other")).__name__ == "Other"
    with pytest.raises(ConfigError, match="NotOne"):
        open_storage("broken")
    with pytest.raises(ConfigError, match="known are: broken, local, memory, other"):
        open_storage("none")


def test_os_files_is_the_narrow_part(tmp_path: Path) -> None:
    files = OsFiles()
    replace_file(files, str(tmp_path / "a"), b"x" * 100_000)
    assert files.read_file(str(tmp_path / "a"), 100_000) == b"x" * 100_000
