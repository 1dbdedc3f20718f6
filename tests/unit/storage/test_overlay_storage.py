"""What the contract cannot say of an overlay: the storage below never changes."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from logstore.common.errors import LogDirLockedError
from logstore.storage.local import LocalStorage
from logstore.storage.memory import MemoryStorage
from logstore.storage.overlay import OverlayStorage
from logstore.testing import FaultyStorage


@pytest.fixture
def below() -> MemoryStorage:
    storage = MemoryStorage()
    storage.make_dir("/d/sub")
    for name in ("/d/a", "/d/b", "/d/sub/c"):
        storage.write_file(name, name.encode() * 3)
    return storage


def test_reads_fall_through_and_writes_do_not(below: MemoryStorage) -> None:
    overlay = OverlayStorage(below)
    file = overlay.open("/d/a")
    assert file.read_at(0, 4) == b"/d/a"
    file.write_at(1, b"XX")
    assert overlay.read_file("/d/a") == b"/XXa/d/a/d/a"
    overlay.write_file("/d/new", b"new")
    overlay.rename("/d/b", "/d/moved")
    overlay.rename("/d/sub", "/d/other")
    overlay.remove("/d/moved")
    assert [entry.name for entry in overlay.scan_dir("/d")] == ["a", "new", "other"]
    assert overlay.read_file("/d/other/c") == b"/d/sub/c" * 3
    overlay.remove_tree("/d/other")
    assert overlay.info("/d/other") is None
    assert overlay.info("/d/sub") is None
    assert [entry.name for entry in below.scan_dir("/d")] == ["a", "b", "sub"]
    assert below.read_file("/d/a") == b"/d/a" * 3
    assert below.read_file("/d/sub/c") == b"/d/sub/c" * 3


def test_a_cut_copies_nothing(below: MemoryStorage) -> None:
    overlay = OverlayStorage(below)
    file = overlay.open("/d/a")
    file.truncate(5)
    assert (file.size(), file.read_at(0, 99)) == (5, b"/d/a/")
    assert not file.node.data  # type: ignore[attr-defined]
    file.truncate(7)  # from here on it has bytes of its own
    assert file.read_at(0, 99) == b"/d/a/\0\0"


def test_an_append_copies_nothing(below: MemoryStorage) -> None:
    overlay = OverlayStorage(below)
    file = overlay.open("/d/a")
    node = file.node  # type: ignore[attr-defined]
    file.write_at(12, b"tail")
    file.write_at(18, b"more")
    assert bytes(node.data) == b"tail\0\0more"
    assert file.read_at(10, 7) == b"/atail\0"
    assert file.read_at(0, 99) == b"/d/a" * 3 + b"tail\0\0more"
    assert (file.read_at(20, 1), file.read_at(22, 9)) == (b"r", b"")
    file.truncate(14)
    assert file.read_at(11, 9) == b"ata"
    file.truncate(3)
    file.write_at(3, b"!")
    assert (file.size(), file.read_at(0, 9), bytes(node.data)) == (4, b"/d/!", b"!")
    file.write_at(1, b"D")  # into what lies below: only now it is copied
    assert (file.size(), file.read_at(0, 9)) == (4, b"/D/!")
    assert below.read_file("/d/a") == b"/d/a" * 3


def test_errors_below_come_through() -> None:
    below = FaultyStorage()
    below.make_dir("/d")
    below.write_file("/d/a", b"abc")
    below.fail("read", "/d/a")
    with pytest.raises(OSError, match="5"):
        OverlayStorage(below).read_file("/d/a")


def test_a_lock_below_holds_here(below: MemoryStorage) -> None:
    held = below.lock("/d/.lock")
    with pytest.raises(LogDirLockedError):
        OverlayStorage(below).lock("/d/.lock")
    held.release()
    OverlayStorage(below).lock("/d/.lock").release()
    overlay = OverlayStorage(below)
    overlay.lock("/d/sub/.lock")
    assert below.info("/d/sub/.lock") is None


def test_what_replaces_a_link_is_no_link(tmp_path: Path) -> None:
    """A link that was renamed or removed here says nothing of a new file of its name."""
    for name in ("target", "other"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "device").symlink_to("/dev/full")
    path = str(tmp_path / "link")
    overlay = OverlayStorage(LocalStorage())
    assert overlay.read_file(path) == b"target"
    overlay.rename(str(tmp_path / "device"), str(tmp_path / "device.aside"))
    overlay.write_file(str(tmp_path / "device"), b"made anew")
    assert overlay.read_file(str(tmp_path / "device")) == b"made anew"
    overlay.write_file(path, b"written through")
    assert overlay.read_file(str(tmp_path / "target")) == b"written through"
    assert (tmp_path / "target").read_bytes() == b"target"


def test_a_link_to_a_directory_is_renamed_itself(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "up").symlink_to("..")
    overlay = OverlayStorage(LocalStorage())
    overlay.rename(str(tmp_path / "sub" / "up"), str(tmp_path / "sub" / "aside"))
    names = [entry.name for entry in overlay.scan_dir(str(tmp_path / "sub"))]
    assert names == ["aside"]


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES])
def test_a_lock_file_that_cannot_be_written_does_not_lock(error: int) -> None:
    below = FaultyStorage()
    below.make_dir("/d")
    below.write_file("/d/.lock", b"")
    below.fail("open", "/d/.lock", error=error, times=2)
    overlay = OverlayStorage(below)
    assert overlay.lock("/d/.lock").held
    with pytest.raises(LogDirLockedError):
        overlay.lock("/d/.lock")
    below.fail("open", "/d/.lock", error=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        OverlayStorage(below).lock("/d/.lock")
