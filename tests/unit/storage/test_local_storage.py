"""What only a real kernel can show: locks between processes, descriptors, mappings, a full disk."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoints import UnusableFileError
from checkpoints.files import OsFiles
from logstore.common.errors import LogDirLockedError
from logstore.storage import local
from logstore.storage.base import FileInfo, FileKind
from logstore.storage.local import LocalStorage
from tests.support.leftovers import nothing_left
from tests.support.until import until

HOLD = """
import sys
from logstore.storage.base import FileInfo
from logstore.storage.local import LocalStorage
from logstore.common.errors import LogDirLockedError
try:
    lock = LocalStorage().lock(sys.argv[1])
except LogDirLockedError as error:
    print("refused", error.holder, flush=True)
else:
    print("held", flush=True)
    sys.stdin.read()
"""

# What Java's FileChannel.tryLock does on Linux: a record lock over the whole range, write mode.
HOLD_AS_JAVA = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("refused", flush=True)
else:
    print("held", flush=True)
    sys.stdin.read()
"""


def start(script: str, path: str) -> tuple[subprocess.Popen[str], str]:
    """A process that tries to take the lock; its first line of output."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def stop(process: subprocess.Popen[str]) -> None:
    process.communicate()


@pytest.fixture
def storage() -> LocalStorage:
    return LocalStorage()


# --- locks (F-9, S-46)


@pytest.mark.slow
def test_a_second_process_is_refused_and_told_who_holds_it(
    storage: LocalStorage, tmp_path: Path
) -> None:
    path = str(tmp_path / ".lock")
    lock = storage.lock(path)
    process, answer = start(HOLD, path)
    stop(process)
    assert answer == f"refused process {os.getpid()}"
    lock.release()
    process, answer = start(HOLD, path)
    assert answer == "held"
    with pytest.raises(LogDirLockedError) as refusal:
        storage.lock(path)
    assert refusal.value.holder == f"process {process.pid}"
    stop(process)


@pytest.mark.slow
def test_the_lock_dies_with_its_holder(storage: LocalStorage, tmp_path: Path) -> None:
    """S-46.2: a leftover file is no obstacle."""
    path = str(tmp_path / ".lock")
    process, answer = start(HOLD, path)
    assert answer == "held"
    process.send_signal(signal.SIGKILL)
    stop(process)
    assert os.path.exists(path)
    storage.lock(path).release()


def test_a_broker_and_we_exclude_each_other(storage: LocalStorage, tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    lock = storage.lock(path)
    process, answer = start(HOLD_AS_JAVA, path)
    stop(process)
    assert answer == "refused"
    lock.release()
    process, answer = start(HOLD_AS_JAVA, path)
    assert answer == "held"
    with pytest.raises(LogDirLockedError, match=f"process {process.pid}"):
        storage.lock(path)
    stop(process)
    storage.lock(path).release()


JAVA_LOCK = """
import java.io.*; import java.nio.channels.*;
public class Lock {
  public static void main(String[] a) throws Exception {
    FileLock lock = new RandomAccessFile(a[0], "rw").getChannel().tryLock();
    System.out.println(lock == null ? "refused" : "held");
    System.out.flush();
    if (lock != null) System.in.read();
  }
}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="needs a JDK")
def test_a_real_java_virtual_machine_agrees(storage: LocalStorage, tmp_path: Path) -> None:
    source = tmp_path / "Lock.java"
    source.write_text(JAVA_LOCK)
    path = str(tmp_path / ".lock")
    java = ["java", "-Xshare:auto", str(source), path]

    def run() -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            java, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    lock = storage.lock(path)
    process, answer = run()
    _, complaint = process.communicate()
    if not answer:
        pytest.skip(f"cannot run a single-file program: {complaint[:100]}")
    assert answer == "refused"
    lock.release()
    process, answer = run()
    assert answer == "held"
    with pytest.raises(LogDirLockedError):
        storage.lock(path)
    process.communicate()


def test_symlinks_and_other_names_are_one_lock(storage: LocalStorage, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "other").mkdir()
    lock = storage.lock(str(tmp_path / "real" / ".lock"))
    os.link(tmp_path / "real" / ".lock", tmp_path / "other" / ".lock")
    paths = ("link/.lock", "real/../real/.lock", "link/../real/.lock", "other/.lock")
    for path in paths:
        with pytest.raises(LogDirLockedError, match="this process"):
            storage.lock(str(tmp_path / path))
    # The refusals opened and closed nothing that would have dropped the record lock.
    process, answer = start(HOLD_AS_JAVA, str(tmp_path / "real" / ".lock"))
    stop(process)
    assert answer == "refused"
    lock.release()


def test_release_keeps_the_empty_file(storage: LocalStorage, tmp_path: Path) -> None:
    """Unlike Kafka (F-9): deleting a lock file lets two owners in."""
    path = tmp_path / ".lock"
    storage.lock(str(path)).release()
    assert path.read_bytes() == b""


def test_a_lock_file_deleted_before_we_lock_it_is_not_trusted(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ".lock"
    lock_descriptor = local._lock_descriptor
    calls = []

    def delete_first(name: str, descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            path.unlink()  # a broker that stops, between our open and our lock
        lock_descriptor(name, descriptor)

    monkeypatch.setattr(local, "_lock_descriptor", delete_first)
    lock = storage.lock(str(path))
    assert len(calls) == 2
    assert path.exists()
    lock.release()


def test_a_forked_child_neither_owns_nor_prolongs_the_lock(
    storage: LocalStorage, tmp_path: Path
) -> None:
    path = str(tmp_path / ".lock")
    lock = storage.lock(path)
    read_end, write_end = os.pipe()
    tried, told = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            lock.release()  # as an exit handler might: must not free the parent's lock
            storage.lock(path)
        except LogDirLockedError as error:
            code = 0 if "this process" not in error.holder else 2
        finally:
            os.write(told, b"?")
            os.close(write_end)
            os.read(read_end, 1)  # live on until the parent has finished
            os._exit(code)
    os.close(read_end)
    assert os.read(tried, 1) == b"?"
    process, answer = start(HOLD_AS_JAVA, path)
    stop(process)
    assert answer == "refused"
    lock.release()

    def is_free() -> bool:  # the child closes its copy right after the fork
        try:
            storage.lock(path).release()
        except LogDirLockedError:
            return False
        return True

    until(is_free)
    os.close(write_end)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- descriptors (S-45)


def test_descriptors_return_to_the_baseline(storage: LocalStorage, tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    with nothing_left(tmp_path):
        for _ in range(3):
            file = storage.open(path, create=True)
            file.write_at(0, b"x" * 500_000)
            mapping = file.map(600_000)
            mapping.reserve(1)
            with file.view(100, 400_000):
                pass
            file.sync()
            mapping.close()
            file.close()
            storage.scan_dir(str(tmp_path))
            storage.sync_dir(str(tmp_path))
            storage.lock(str(tmp_path / ".lock")).release()
            with pytest.raises(FileNotFoundError):
                storage.open(str(tmp_path / "none"))
            with pytest.raises(UnusableFileError):
                storage.open(str(tmp_path), writable=False)
        lock = storage.lock(str(tmp_path / ".lock"))
        with pytest.raises(LogDirLockedError):
            storage.lock(str(tmp_path / ".lock"))
        lock.release()


def test_a_full_descriptor_table_is_an_os_error(storage: LocalStorage, tmp_path: Path) -> None:
    import resource

    path = str(tmp_path / "f")
    file = storage.open(path, create=True)
    file.write_at(0, b"x" * 400_000)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (file.fileno() + 1, limits[1]))
    blockers = []
    try:
        # One number below the limit may be free: the second open finds none at the latest.
        with pytest.raises(OSError) as error:
            blockers.extend(storage.open(path) for _ in range(100))
        assert error.value.errno == errno.EMFILE
        with file.view(0, 400_000) as view:  # a mapping wants a descriptor: falls back to reading
            assert len(view) == 400_000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for blocker in blockers:
            blocker.close()
        file.close()


def test_an_unclosed_file_is_reported(storage: LocalStorage, tmp_path: Path) -> None:
    with pytest.warns(ResourceWarning, match="unclosed"):
        storage.open(str(tmp_path / "f"), create=True)  # collected as nobody holds it


# --- views


def big_file(storage: LocalStorage, tmp_path: Path, size: int = 1 << 20):
    file = storage.open(str(tmp_path / "big"), create=True)
    file.write_at(0, bytes(range(256)) * (size // 256))
    return file


def test_windows_of_a_scan_are_read_as_they_are_on_entry(
    storage: LocalStorage, tmp_path: Path
) -> None:
    """Their memory is used again, but never while somebody looks at it."""
    file = big_file(storage, tmp_path)
    content = (bytes(range(256)) * 4096)[5000 : 5000 + (1 << 19)]
    kept = []
    for _ in range(3):
        with file.view(5000, 1 << 19) as view:
            assert isinstance(view.obj, local.ReadWindow)
            assert view == content
            kept.append(view[::])
        with pytest.raises(ValueError):
            view[0]
    with file.view(1 << 19, 1 << 20) as view:
        file.write_at(1 << 19, bytes(1 << 19))
        file.truncate(4096)
        assert view == (bytes(range(256)) * 4096)[1 << 19 :]
    assert all(view == content for view in kept)
    file.close()
    with pytest.raises(OSError), file.view(0, 1 << 20):
        pass


def test_very_large_views_are_mapped_where_the_kernel_can(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_VIEW_READ_MAX", 1 << 18)
    file = big_file(storage, tmp_path)
    with file.view(5000, 1 << 19) as view:
        if local._populate_works:
            assert isinstance(view.obj, local.MappedWindow)
        assert view == (bytes(range(256)) * 4096)[5000 : 5000 + (1 << 19)]
    with pytest.raises(ValueError):
        view[0]
    file.close()


def test_a_file_that_is_only_read_is_never_mapped(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner may cut it at any time, and nothing catches the signal."""
    monkeypatch.setattr(local, "_VIEW_READ_MAX", 1 << 18)
    big_file(storage, tmp_path).close()
    path = next(path for path in tmp_path.iterdir() if path.is_file())
    file = storage.open(str(path), writable=False)
    with file.view(5000, 1 << 19) as view:
        os.truncate(path, 4096)
        assert view == (bytes(range(256)) * 4096)[5000 : 5000 + (1 << 19)]
    with file.view(4000, 1 << 40) as view:
        assert len(view) == 96
    file.close()


def test_views_without_madvise_populate_read_are_copies(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux before 5.14 answers EINVAL: asked once, and never again."""
    monkeypatch.setattr(local, "_VIEW_READ_MAX", 1 << 18)
    file = big_file(storage, tmp_path)
    monkeypatch.setattr(local, "_populate_works", True)
    monkeypatch.setattr(local, "MappedWindow", OldKernelWindow)
    for _ in range(2):
        with file.view(5000, 1 << 19) as view:
            assert isinstance(view.obj, bytes)
            assert len(view) == 1 << 19
    assert local._populate_works is False
    file.close()


def test_a_file_cut_while_it_is_mapped_is_a_short_view_and_no_signal(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_VIEW_READ_MAX", 1 << 18)
    file = big_file(storage, tmp_path)
    size = type(file).size
    for cut_to in (600_000, 4096, 0):
        file.truncate(1 << 20)

        def cut(self: object, cut_to: int = cut_to) -> int:
            before = size(file)
            file.truncate(cut_to)  # another thread, right after the size was read
            return before

        monkeypatch.setattr(local.LocalFile, "size", cut)
        with file.view(0, 1 << 20) as view:
            assert len(view) == cut_to
        monkeypatch.setattr(local.LocalFile, "size", size)
    # and after the mapping was made, before its pages are read in
    monkeypatch.setattr(local, "MappedWindow", CutWindow)
    CutWindow.descriptor = file.fileno()
    file.truncate(1 << 20)
    with file.view(0, 1 << 20) as view:
        assert len(view) == 8192
    file.close()


class CutWindow(local.MappedWindow):
    descriptor = -1

    def populate(self) -> None:
        os.ftruncate(self.descriptor, 8192)
        super().populate()


class OldKernelWindow(local.MappedWindow):
    def populate(self) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


# --- writes


def test_short_writes_are_continued(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = storage.open(str(tmp_path / "f"), create=True)
    pwrite, pwritev = os.pwrite, os.pwritev
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:7], at))
    monkeypatch.setattr(os, "pwritev", lambda fd, bs, at: pwritev(fd, [b[:3] for b in bs[:1]], at))
    content = os.urandom(100)
    assert file.write_at(0, content) == 100
    assert file.write_at(100, content[:50], content[50:]) == 100
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: 0)
    with pytest.raises(OSError):
        file.write_at(0, b"x")
    assert file.read_at(0, 300) == content * 2
    file.close()


def test_short_reads_are_continued(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = storage.open(str(tmp_path / "f"), create=True)
    content = os.urandom(100)
    file.write_at(0, content)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 7), at))
    assert file.read_at(10, 80) == content[10:90]
    assert file.read_at(10, 500) == content[10:]
    file.close()


@pytest.mark.parametrize("limit", [-1, 0, 4095])
@pytest.mark.parametrize("what", [0, 1, 4095, 4096, 5000, "none", "link", "fifo", "folder", "in"])
def test_a_small_file_is_read_as_its_plain_twin_reads_it(
    storage: LocalStorage, tmp_path: Path, what: int | str, limit: int
) -> None:
    """The same bytes, or the same error with the same words."""
    path = tmp_path / "f\xfc"
    if isinstance(what, int):
        path.write_bytes(os.urandom(what))
    elif what == "link":
        path.symlink_to("nowhere")
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "in":
        path.write_bytes(b"")
        path = path / "below"

    def found(read: Callable[[str, int], bytes]) -> object:
        try:
            return read(str(path), limit)
        except OSError as error:
            return type(error), error.errno, str(error), error.filename

    assert found(storage.read_file) == found(OsFiles().read_file)


def test_reserve_asks_for_blocks_in_steps_and_never_past_the_mapping(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fallocate", lambda fd, at, size: calls.append((at, size)))
    file = storage.open(str(tmp_path / "f"), create=True)
    mapping = file.map(100_000)
    for end in (8, 16, 65_536, 65_537, 100_000):
        mapping.reserve(end)
    assert calls == [(0, 4096), (4096, 65_536 - 4096), (65_536, 100_000 - 65_536)]
    mapping.close()
    file.close()


FILL = """
import errno, os, sys
from logstore.storage.base import FileInfo
from logstore.storage.local import LocalStorage
storage, path = LocalStorage(), os.path.join(sys.argv[1], "full")
file = storage.open(path, create=True)
mapping = file.map(4 << 20)
mapping.reserve(1000)
mapping.buffer[:1000] = b"x" * 1000
try:
    mapping.reserve(4 << 20)
except OSError as error:
    print("reserve", errno.errorcode[error.errno])
mapping.close()
file.truncate(0)
for buffers in ([bytes(4 << 20)], [bytes(1 << 20)] * 4):
    try:
        file.write_at(0, *buffers)
    except OSError as error:
        print("write", errno.errorcode[error.errno])
    file.truncate(0)
file.close()
"""


def test_a_full_disk_is_an_error_of_reserve_and_of_write(tmp_path: Path) -> None:
    """S-42; a store into an unbacked mapping would be SIGBUS instead."""
    mount = 'mount -t tmpfs -o size=1m none "$0" && exec "$1" -c "$2" "$0"'
    result = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, str(tmp_path), sys.executable, FILL],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    if result.returncode and "Traceback" not in result.stderr:
        pytest.skip(f"cannot mount a small tmpfs here: {result.stderr.strip()[:100]}")
    assert result.stderr == ""
    assert result.stdout.split("\n")[:3] == ["reserve ENOSPC", "write ENOSPC", "write ENOSPC"]


def test_a_file_size_limit_is_an_os_error(storage: LocalStorage, tmp_path: Path) -> None:
    """A write that the kernel cuts short and then refuses, without a special file system."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = storage.open(str(tmp_path / "f"), create=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))  # Python ignores SIGXFSZ
    try:
        with pytest.raises(OSError) as error:
            file.write_at(0, b"x" * 4000, b"y" * 4000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.errno == errno.EFBIG
    file.close()


# --- writing again


def bytes_written() -> int:
    """By this process, as the kernel counts pages that turn dirty."""
    with open("/proc/self/io") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def test_the_bytes_that_are_there_make_clean_pages_dirty(
    storage: LocalStorage, tmp_path: Path
) -> None:
    """Else a sync would leave them out, as after a failed one (F-224)."""
    file = big_file(storage, tmp_path, 4 << 20)
    file.sync()
    before = bytes_written()
    file.sync()
    if bytes_written() != before:
        pytest.skip("somebody else writes in this process")
    with file.view(1 << 20, 3 << 20) as view:
        file.write_at(1 << 20, view)
    found = bytes_written() - before
    content = file.read_at(0, 5 << 20)
    file.close()
    if not found and is_tmpfs(tmp_path):
        pytest.skip("a file system without a disk counts nothing")
    assert 3 << 20 <= found <= 4 << 20  # large pages reach further
    assert content == bytes(range(256)) * (4 << 20 >> 8)


def is_tmpfs(path: Path) -> bool:
    with open("/proc/mounts") as lines:
        mounts = {line.split()[1]: line.split()[2] for line in lines}
    return next(mounts[str(p)] for p in (path, *path.parents) if str(p) in mounts) == "tmpfs"


# --- directories (S-47)


def test_linked_directories_work_and_are_removed_as_links(
    storage: LocalStorage, tmp_path: Path
) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "keep").write_bytes(b"1")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "dangling").symlink_to("nowhere")
    entries = {entry.name: entry.kind for entry in storage.scan_dir(str(tmp_path))}
    assert entries == {
        "link": FileKind.DIRECTORY,
        "target": FileKind.DIRECTORY,
        "dangling": FileKind.OTHER,
    }
    assert [entry.name for entry in storage.scan_dir(str(tmp_path / "link"))] == ["keep"]
    storage.remove_tree(str(tmp_path / "link"))
    assert (tmp_path / "target" / "keep").exists()
    assert not (tmp_path / "link").is_symlink()


def test_a_read_only_directory_is_an_os_error(storage: LocalStorage, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root writes everywhere")
    tmp_path.chmod(0o555)
    for call in (
        lambda: storage.lock(str(tmp_path / ".lock")),
        lambda: storage.open(str(tmp_path / "f"), create=True),
    ):
        with pytest.raises(PermissionError):
            call()
    tmp_path.chmod(0o755)


def test_the_lockers_are_what_their_names_say() -> None:
    """portalocker before 4.0 gave LockfLocker the flock of its default: Java would not see it."""
    from portalocker.portalocker import FlockLocker, LockfLocker

    assert FlockLocker().locker is fcntl.flock
    assert LockfLocker().locker is fcntl.lockf


def test_directories_are_listed_alike_by_both(tmp_path: Path) -> None:
    """Natively and by Python: many entries, odd names, links, and what a time says."""
    from logstore.kernels import scan_directory

    def plainly(path: str, encoded: bytes, make: type, kinds: tuple[FileKind, ...]) -> list[Any]:
        with os.scandir(path) as scan:
            return [info for e in scan if (info := local._entry_info(e.name, e.path)) is not None]

    for at in range(150):
        (tmp_path / f"{at:020}.log").write_bytes(bytes(at))
    os.utime(tmp_path / f"{7:020}.log", ns=(0, -1_500_000))
    (tmp_path / ("n" * 255)).touch()
    (tmp_path / "größe").mkdir()
    os.close(os.open(os.fsencode(tmp_path) + b"/\xff\xfe", os.O_CREAT | os.O_WRONLY))
    (tmp_path / "link").symlink_to("größe")
    (tmp_path / "dangling").symlink_to("nowhere")
    path = str(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "through").symlink_to(f"{7:020}.log/x")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "device").symlink_to("/dev/null")
    kinds = tuple(FileKind)
    native = sorted(scan_directory(path, os.fsencode(path), FileInfo, kinds))
    assert native == sorted(plainly(path, os.fsencode(path), FileInfo, kinds))
    assert len(native) == 159
    assert {type(entry) for entry in native} == {FileInfo}
    found = {kind: {e.name for e in native if e.kind is kind} for kind in kinds}
    assert found[FileKind.OTHER] == {"dangling", "loop", "through", "fifo", "device"}
    assert found[FileKind.DIRECTORY] == {"größe", "link"}
    for bad, error in (
        (f"{path}/none", FileNotFoundError),
        (f"{path}/loop", OSError),
        (f"{path}/link/x", FileNotFoundError),
        (f"{path}/{'n' * 255}", NotADirectoryError),
        (f"{path}\0x", ValueError),
    ):
        for scan in (scan_directory, plainly):
            with pytest.raises(error):
                scan(bad, os.fsencode(bad), FileInfo, kinds)
